"""How agents do of late: figures that fade, within bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.routing.performance import HALF_LIFE_MS, Figures, Performance

AT = 1_790_000_000_000


def seen(performance: Performance, *ms: int, skill: str = "s", at: int = AT) -> None:
    for one in ms:
        performance.observe("a", skill, is_success=True, ms=one, cost=500, at=at)


def test_nothing_is_known_of_an_agent_before_it_did_anything() -> None:
    assert Performance().figures("a", "s") == Figures()
    assert Figures().success_rate == 0.5


def test_outcomes_count_for_the_skill_and_for_the_agent_as_a_whole() -> None:
    performance = Performance()
    seen(performance, 10, 20)
    seen(performance, 30, skill="other")
    performance.observe("a", "s", is_success=False, ms=99_999, cost=0, at=AT)
    at_skill, at_all = performance.figures("a", "s"), performance.figures("a")
    assert (at_skill.successes, at_skill.failures, at_skill.tasks) == (2, 1, 3)
    assert (at_all.successes, at_all.failures, at_all.tasks) == (3, 1, 4)
    # Of a failure neither time nor cost is counted.
    assert at_skill.cost == 500 and at_skill.p95_ms < 25
    performance.forget("a")
    assert performance.figures("a") == Figures() and len(performance) == 0


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60))
def test_quantiles_are_right_within_a_fifth(latencies: list[int]) -> None:
    performance = Performance()
    seen(performance, *latencies)
    middle = sorted(latencies)[(len(latencies) - 1) // 2]
    assert performance.figures("a", "s").p50_ms == pytest.approx(middle, rel=0.2, abs=0.5)


def test_figures_fade_by_half_in_a_day_so_that_they_follow_a_change() -> None:
    performance = Performance()
    seen(performance, *[10] * 8)
    seen(performance, *[1000] * 5, at=AT + HALF_LIFE_MS)
    found = performance.figures("a", "s")
    assert found.successes == 9 and found.tasks == 13
    assert found.p50_ms == pytest.approx(1000, rel=0.2)
    # A clock that is set back changes nothing.
    seen(performance, 1000, at=AT)
    assert performance.figures("a", "s").successes == 10


def test_fading_is_the_same_over_any_time_and_has_no_end() -> None:
    """However often the weights began anew meanwhile."""
    performance, count, last = Performance(), 0.0, AT
    for days in (0.5, 19.9, 0.2, 25.0, 3.0, 20.0, 1e6, 0.0, 1.0):
        at = last + int(days * HALF_LIFE_MS)
        count = count * 0.5 ** ((at - last) / HALF_LIFE_MS) + 1
        last = at
        seen(performance, 100, at=at)
        found = performance.figures("a", "s")
        assert found.successes == pytest.approx(count, rel=1e-9)
        assert found.cost == pytest.approx(500) and found.p95_ms == pytest.approx(100, rel=0.2)


def test_the_same_outcomes_give_the_same_figures() -> None:
    random_ = random.Random(7)
    latencies = [random_.randrange(10_000) for _ in range(500)]
    one, other = Performance(), Performance()
    for performance in (one, other):
        for n, ms in enumerate(latencies):
            seen(performance, ms, at=AT + n * 1000)
    assert one.figures("a", "s") == other.figures("a", "s")


def test_who_was_not_heard_of_for_longest_is_forgotten_when_there_are_too_many() -> None:
    performance = Performance(most=10)
    for n in range(100):
        performance.observe(f"a{n}", "", is_success=True, ms=1, cost=0, at=AT)
        performance.observe("kept", "", is_success=True, ms=1, cost=0, at=AT)
    assert len(performance) == 10
    assert performance.figures("kept").tasks == 100 and performance.figures("a1").tasks == 0
    assert performance.figures("a99").tasks == 1
