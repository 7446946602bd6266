"""Who gets a task, and why."""

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import (
    AgentOffline,
    InsufficientCredits,
    InvalidParams,
    NoAgentAvailable,
    TrustTooLow,
)
from dragoman.gateway.routing.candidates import (
    POLICIES,
    Candidate,
    Choice,
    RoutingMemory,
    RoutingRequest,
)
from dragoman.gateway.routing.performance import Figures
from dragoman.gateway.routing.routing import choose, only, promise
from dragoman.model.card import AgentSkill
from dragoman.model.money import MICRO


def skill(id: str, description: str = "", tags: list[str] | None = None) -> AgentSkill:
    return AgentSkill(id=id, name=id.title(), description=description, tags=tags or [])


def one(name: str, *skills: AgentSkill, **more: Any) -> Candidate:
    return Candidate(f"id-{name}", name, skills or (skill("translate"),), **more)


def first(wish: RoutingRequest, *candidates: Candidate, policy: str = "") -> str:
    return choose(wish, candidates, policy).order[0].removeprefix("id-")


def figures(ms: float = 0.0, tasks: int = 40, failures: float = 0.0) -> Figures:
    return Figures(successes=tasks - failures, failures=failures, p50_ms=ms, tasks=tasks)


TRANSLATE = RoutingRequest(skill="translate")


def test_the_agent_that_was_named_gets_it_by_id_or_name_whatever_else_speaks_for_others() -> None:
    both = one("echo", trust=1, price=MICRO), one("other", trust=99)
    for ref in ("echo", "id-echo"):
        found = choose(RoutingRequest(agent=ref, skill="translate"), both)
        assert found.order == ["id-echo"] and "asked for by name" in found.why
    # A task can wait for an agent that is down, if it is that one that is wanted.
    down = choose(RoutingRequest(agent="echo"), [one("echo", status="offline")])
    assert down.order == ["id-echo"] and "does not answer at present" in down.why
    with pytest.raises(NoAgentAvailable, match="No agent available: nobody is not registered"):
        choose(RoutingRequest(agent="nobody"), both)


def test_a_skill_that_was_named_goes_to_the_most_trusted_agent_online_that_has_it() -> None:
    found = choose(
        TRANSLATE,
        [
            one("low", trust=61),
            one("high", trust=87),
            one("down", trust=99, status="offline"),
            one("broken", trust=98, is_open=True),
            one("unable", skill("sing"), trust=100),
        ],
    )
    assert found.order == ["id-high", "id-low"] and found.skill == "translate"


def test_a_text_goes_to_the_agent_whose_skills_share_most_words_with_it() -> None:
    candidates = (
        one("poet", skill("write-poems", "Writes poems about anything", ["poetry"]), trust=99),
        one("lingo", skill("translate", "Translates text into French", ["french"])),
        one("misc", skill("chat", "Talks about the weather"), is_default=True),
    )
    found = choose(RoutingRequest(text="Please translate this poem into French!"), candidates)
    assert found.order[0] == "id-lingo" and found.skill == "translate"
    assert "fits the words french, translate" in found.why
    assert first(RoutingRequest(text="Some poetry about the sea"), *candidates) == "poet"
    # Empty words fit nobody, however often they are said.
    assert first(RoutingRequest(text="what is this to me"), *candidates) == "misc"


def test_an_agent_that_shares_a_word_by_chance_is_no_stand_in_for_one_that_fits() -> None:
    lingo = one("lingo", skill("translate", "Translates text", ["french"]))
    near = one("near", skill("translate", "Translates text"))
    chance = one("chance", skill("sing", "Sings french songs"))
    wish = RoutingRequest(text="translate this text to french")
    assert choose(wish, [chance, near, lingo]).order == ["id-lingo", "id-near"]
    with pytest.raises(AgentOffline, match="lingo; try again"):
        choose(wish, [chance, lingo._replace(status="offline")])


def test_what_nobody_is_asked_for_goes_to_the_default_agent() -> None:
    default = one("butler", skill("serve"), is_default=True)
    assert first(RoutingRequest(text="zebra"), one("x"), default) == "butler"
    assert first(RoutingRequest(skill="juggle"), one("x"), default) == "butler"
    assert first(RoutingRequest(), one("x"), default) == "butler"
    assert "the default agent" in choose(RoutingRequest(), [default]).why


@pytest.mark.parametrize(
    "wish", [RoutingRequest(), RoutingRequest(text="zebra"), RoutingRequest(skill="juggle")]
)
def test_without_a_default_agent_there_is_no_agent_available(wish: RoutingRequest) -> None:
    for candidates in ([], [one("x")]):
        with pytest.raises(NoAgentAvailable, match="No agent available"):
            choose(wish, candidates)


def test_what_is_for_nobody_in_particular_goes_to_the_only_agent() -> None:
    """N-034: that there is, or that answers; who is away is told so."""
    alone, other = one("alone"), one("other", status="offline")
    for candidates in ([alone], [other, alone]):
        assert choose(RoutingRequest(text="zebra"), only(candidates)).order == ["id-alone"]
    assert "the only agent" in choose(RoutingRequest(), only([alone])).why
    with pytest.raises(AgentOffline):
        choose(RoutingRequest(text="zebra"), only([other]))


@pytest.mark.parametrize(
    ("wish", "candidates"),
    [
        (RoutingRequest(text="zebra"), [one("x"), one("y")]),
        (RoutingRequest(text="zebra"), [one("x", status="offline"), one("y", status="offline")]),
        (RoutingRequest(skill="juggle"), [one("x")]),
        (RoutingRequest(tags=frozenset({"eu"})), [one("x")]),
    ],
)
def test_where_somebody_has_to_choose_it_is_said_how(
    wish: RoutingRequest, candidates: list[Candidate]
) -> None:
    """N-034: one of several, or one for a skill that none has."""
    with pytest.raises(NoAgentAvailable, match="--default"):
        choose(wish, only(candidates))


def test_tags_have_to_be_there_all_of_them() -> None:
    both = one("both", skill("translate", tags=["eu"]), tags=["gpu"])
    some = one("some", tags=["gpu"], trust=99)
    wish = RoutingRequest(skill="translate", tags=frozenset({"eu", "gpu"}))
    assert choose(wish, [both, some]).order == ["id-both"]
    assert choose(RoutingRequest(tags=frozenset({"gpu"})), [both, some]).order == [
        "id-some",
        "id-both",
    ]


def test_too_little_trust_and_too_high_a_price_are_refused_before_anything_is_sent() -> None:
    candidates = [one("cheap", trust=40), one("dear", trust=80, price=2 * MICRO)]
    assert choose(RoutingRequest(skill="translate", min_trust=50), candidates).order == ["id-dear"]
    assert choose(RoutingRequest(skill="translate", max_price=MICRO), candidates).order == [
        "id-cheap"
    ]
    with pytest.raises(TrustTooLow, match="the most trusted has 80"):
        choose(RoutingRequest(skill="translate", min_trust=81), candidates)
    with pytest.raises(InsufficientCredits, match=r"costs 2\.00 credits at least"):
        choose(RoutingRequest(skill="translate", min_trust=50, max_price=MICRO), candidates)
    with pytest.raises(TrustTooLow):
        choose(RoutingRequest(agent="cheap", min_trust=41), candidates)
    with pytest.raises(InsufficientCredits):
        choose(RoutingRequest(agent="dear", max_price=0), candidates)
    # At the limit is within it.
    assert choose(RoutingRequest(agent="dear", min_trust=80, max_price=2 * MICRO), candidates)


def test_nobody_is_chosen_whose_circuit_is_open_or_who_is_offline() -> None:
    with pytest.raises(AgentOffline, match="flaky, gone"):
        choose(TRANSLATE, [one("gone", status="offline"), one("flaky", is_open=True)])
    # Nobody else does what they were asked for.
    with pytest.raises(AgentOffline):
        choose(TRANSLATE, [one("gone", status="offline"), one("x", skill("y"), is_default=True)])
    assert first(TRANSLATE, one("ill", status="degraded", trust=99), one("well")) == "well"
    assert first(TRANSLATE, one("ill", status="degraded")) == "ill"


def test_agents_that_were_tried_are_not_chosen_again() -> None:
    wish = RoutingRequest(skill="translate", exclude=frozenset({"id-a"}))
    assert choose(wish, [one("a", trust=99), one("b")]).order == ["id-b"]


def test_each_policy_prefers_what_it_is_called_for() -> None:
    candidates = (
        one("trusted", trust=90, price=3, figures=figures(300)),
        one("cheap", trust=60, price=1, figures=figures(200)),
        one("fast", trust=70, price=2, figures=figures(100)),
        one("unknown", trust=50, price=9),
    )
    for policy, expected in (("trust", "trusted"), ("cheapest", "cheap"), ("fastest", "fast")):
        assert first(TRANSLATE, *candidates, policy=policy) == expected
        wish = RoutingRequest(skill="translate", policy=policy)
        assert first(wish, *candidates, policy="learning") == expected
    with pytest.raises(InvalidParams, match="must be one of trust, cheapest"):
        choose(RoutingRequest(skill="translate", policy="luck"), candidates)


def test_taking_turns_gives_everyone_the_same_also_when_agents_come_and_go() -> None:
    memory = RoutingMemory()
    agents = [one(name, trust=n) for n, name in enumerate("abcd")]

    def turn(candidates: list[Candidate]) -> str:
        return choose(TRANSLATE, candidates, "round-robin", memory).order[0][-1]

    assert "".join(turn(agents) for _ in range(9)) == "abcdabcda"
    assert turn(agents[:1] + agents[2:]) == "c"
    assert turn(agents) == "d"
    assert turn(agents[:2]) == "a"


def test_learning_tries_the_unknown_and_then_stays_with_what_works() -> None:
    good, tries = {"a": 0.5, "b": 0.95, "c": 0.2}, Counter[str]()
    done: dict[str, list[int]] = {name: [0, 0] for name in good}
    for n in range(400):
        candidates = [
            one(
                name,
                figures=Figures(
                    successes=done[name][0], failures=done[name][1], p50_ms=50.0, tasks=n
                ),
            )
            for name in good
        ]
        chosen = first(TRANSLATE, *candidates, policy="learning")
        tries[chosen] += 1
        # A fixed pattern instead of luck.
        done[chosen][0 if (n * 37) % 100 < good[chosen] * 100 else 1] += 1
    assert min(tries.values()) >= 2 and tries["b"] > 350, tries


def test_learning_weighs_waiting_and_price_where_success_is_equal() -> None:
    slow, quick = one("slow", figures=figures(3000)), one("quick", figures=figures(30))
    assert first(TRANSLATE, slow, quick, policy="learning") == "quick"
    dear, cheap = (one(name, price=p, figures=figures(30)) for name, p in (("x", 10**7), ("y", 0)))
    assert first(TRANSLATE, dear, cheap, policy="learning") == "y"
    # What is under way counts as tried: many at once do not all go the same way.
    busy = quick._replace(in_flight=30)
    assert promise(busy, 80) < promise(quick, 80)


def test_every_choice_is_explained_in_a_sentence() -> None:
    best = one("echo-2", trust=87, price=MICRO // 2, figures=figures(12))
    found = choose(TRANSLATE, [one("echo-1", trust=61), best, one("echo-3", trust=10)])
    assert found.why == (
        "echo-2: skill translate, trust 87, 12 ms median over 40 tasks, 0.50 credits; "
        "preferred over echo-1 (trust 61) and 1 more"
    )
    assert "free" in choose(TRANSLATE, [one("x")]).why
    ill = one("ill", status="degraded", trust=99)
    assert "preferred over ill (degraded)" in choose(TRANSLATE, [ill, best]).why
    for policy in POLICIES:
        assert choose(TRANSLATE, [best, one("y")], policy).why.startswith(("echo-2: ", "y: "))


def test_trust_opens_no_door_and_closes_none() -> None:
    for trust in (0, 100):
        assert choose(TRANSLATE, [one("x", trust=trust)]).order == ["id-x"]
        assert choose(RoutingRequest(agent="x"), [one("x", trust=trust)]).order == ["id-x"]


many = st.lists(
    st.tuples(
        st.integers(0, 100),
        st.integers(0, 3),
        st.sampled_from(["online", "degraded", "offline"]),
        st.booleans(),
        st.integers(0, 3),
        st.floats(0, 1e6),
    ),
    min_size=1,
    max_size=8,
)


@given(many, st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_a_choice_does_not_depend_on_the_order_of_candidates(
    facts: list[tuple[int, int, str, bool, int, float]], policy: str, order: Any
) -> None:
    candidates = [
        one(
            f"n{n}",
            trust=trust,
            price=price,
            status=status,
            is_open=is_open,
            in_flight=busy,
            figures=figures(ms),
        )
        for n, (trust, price, status, is_open, busy, ms) in enumerate(facts)
    ]

    def chosen(among: list[Candidate]) -> Choice | str:
        try:
            return choose(TRANSLATE, among, policy)
        except AgentOffline as error:
            return str(error)

    before = chosen(candidates)
    available = {one.id for one in candidates if one.is_available}
    assert isinstance(before, str) == (not available)
    if isinstance(before, Choice):
        assert set(before.order) == available
    order.shuffle(candidates)
    assert chosen(candidates) == before


def test_a_text_is_held_against_ten_thousand_agents_in_a_moment() -> None:
    candidates = [
        one(f"agent{n}", skill(f"skill{n}", f"does things of kind {n} well", [f"tag{n}"]))
        for n in range(10_000)
    ]
    wish = RoutingRequest(text="something of the tag 77, say skill77 or tag77 please")
    assert first(wish, *candidates) == "agent77"
    best = min(_seconds(wish, candidates) for _ in range(5))
    # Far more than it takes: what is looked for is reading every text again.
    assert best < 0.15


def _seconds(wish: RoutingRequest, candidates: list[Candidate]) -> float:
    # What others do on a busy machine does not count.
    began = time.process_time()
    choose(wish, candidates)
    return time.process_time() - began
