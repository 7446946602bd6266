"""Scores as pure functions: the vectors of the default policy, and of `corvid`."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.trust.scores import (
    POLICIES,
    REGISTERED,
    Facts,
    badge,
    corvid,
    level,
    nexus,
    round_half_up,
    score,
)


def observed(
    total: int = 0, done: int = 0, seconds: int = 0, rating: str = "", days: int = 0
) -> Facts:
    return Facts(
        completed=Fraction(done),
        failed=Fraction(total - done),
        response_ms=Fraction(seconds * 1000 * done),
        ratings=Fraction(2 if rating else 0),
        rating_sum=Fraction(rating or 0) * 2,
        age_days=days,
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (observed(), 43),
        (observed(1, 0), 23),
        (observed(1, 1, 1), 72),
        (observed(10, 9, 30, "4.5", 365), 92),
        (observed(4, 4, 300, "5", 73), 78),
        (observed(4, 4, 600, "5", 0), 65),
        (observed(2, 1, 60, "3", 730), 66),
    ],
)
def test_the_default_policy_gives_the_numbers_that_are_written_down(
    facts: Facts, expected: int
) -> None:
    found = nexus(facts)
    assert found.value == expected
    assert round_half_up(sum((one.points for one in found.components), Fraction(0))) == expected
    assert [one.name for one in found.components] == ["reliability", "speed", "quality", "tenure"]
    assert sum(one.weight for one in found.components) == 1


def test_a_half_is_rounded_up_as_written_and_not_to_the_even_neighbour() -> None:
    assert nexus(Facts()).value == 43 and round(42.5) == 42
    assert [round_half_up(Fraction(n, 10)) for n in (424, 425, 426, 435)] == [42, 43, 43, 44]


def test_an_agent_of_which_nothing_is_known_keeps_what_it_was_registered_with() -> None:
    assert score(Facts()).value == REGISTERED == 50
    assert score(Facts(age_days=4000)).value == 50
    assert "begins with 50" in score(Facts()).note
    assert score(observed(1, 1, 1)).value == 72


def test_badges_and_levels_change_where_they_are_said_to() -> None:
    assert [badge(n) for n in (100, 90, 89, 70, 69, 50, 49, 0)] == [
        "Verified Elite",
        "Verified Elite",
        "Trusted",
        "Trusted",
        "Established",
        "Established",
        "New",
        "New",
    ]
    assert [level(n) for n in (90, 89, 70, 69, 50, 49, 25, 24, 0)] == [
        "verified",
        "high",
        "high",
        "medium",
        "medium",
        "low",
        "low",
        "untrusted",
        "untrusted",
    ]


def recent(done: int, failed: int = 0, **more: object) -> Facts:
    facts = Facts(recent_completed=Fraction(done), recent_failed=Fraction(failed))
    return facts._replace(active=Fraction(done + failed), **more)


def test_corvid_weighs_its_five_components() -> None:
    # 30 for completion, 12.5 and 7.5 assumed, 20 for security, 3 for activity.
    assert corvid(recent(3)).value == 73
    # Two tasks are too few to judge by.
    assert corvid(recent(2)).value == round_half_up(Fraction("15") + 40 + 2)
    assert corvid(recent(3, violations=2)).value == 65
    assert corvid(recent(3, violations=9)).value == 53
    rated = recent(10, ratings=Fraction(1), rating_sum=Fraction(5), credit=Fraction(100))
    assert corvid(rated).value == 100 and corvid(rated).badge == "verified"
    assert sum(one.weight for one in corvid(rated).components) == 1


def test_corvid_fades_by_the_week_after_thirty_idle_days_and_never_below_a_tenth() -> None:
    full = recent(10, ratings=Fraction(1), rating_sum=Fraction(5), credit=Fraction(100))
    fading = [corvid(full._replace(idle_days=days)).value for days in (30, 36, 37, 44, 51)]
    assert fading == [100, 100, 95, 90, 86]
    assert corvid(full._replace(idle_days=30 + 7 * 44)).value == 10
    assert corvid(full._replace(idle_days=10**9)).value == 10
    assert "idle for 37 days: 95 %" in corvid(full._replace(idle_days=37)).note


def test_a_blacklisted_agent_has_nothing_whatever_else_speaks_for_it() -> None:
    found = corvid(recent(10, violations=3, is_blacklisted=True))
    assert found.value == 0 and found.badge == "untrusted" and "blacklisted" in found.note


amounts = st.fractions(min_value=0, max_value=10**12, max_denominator=10**6)


@given(
    st.builds(
        Facts,
        completed=amounts,
        failed=amounts,
        response_ms=amounts,
        ratings=amounts,
        rating_sum=amounts,
        age_days=st.integers(-(10**6), 10**6),
        recent_completed=amounts,
        recent_failed=amounts,
        active=amounts,
        idle_days=st.integers(-(10**6), 10**6),
        violations=st.integers(0, 10**6),
        is_blacklisted=st.booleans(),
        credit=st.fractions(-1000, 1000),
    )
)
def test_a_score_is_within_0_and_100_whatever_the_facts(facts: Facts) -> None:
    for policy in POLICIES:
        found = score(facts, policy)
        assert type(found.value) is int and 0 <= found.value <= 100
        assert all(0 <= one.value <= 100 and one.why for one in found.components)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 50), st.integers(0, 50))
def test_a_new_identity_is_never_above_an_old_one_with_the_same_record(
    young: int, old: int, done: int, failed: int
) -> None:
    young, old = sorted((young, old))
    facts = Facts(completed=Fraction(done), failed=Fraction(failed), response_ms=Fraction(done))
    for policy in POLICIES:
        new, before = (score(facts._replace(age_days=days), policy).value for days in (young, old))
        assert new <= before
