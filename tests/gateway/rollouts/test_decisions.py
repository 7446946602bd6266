"""What is compared and what a rule decides."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.gateway.rollouts.comparison import LONGEST, compare, content, distance
from dragoman.gateway.rollouts.copies import verdict
from dragoman.gateway.rollouts.definition import (
    RolloutCounts,
    RolloutDefinition,
    RolloutRule,
    decide,
)
from dragoman.gateway.routing.canaries import Canaries, Canary, in_share
from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus


def answered(*artifacts: list[Part], say: str = "") -> Task:
    message = Message(MessageId("m"), Role.AGENT, [Part(text=say)]) if say else None
    made = [Artifact(str(number), parts) for number, parts in enumerate(artifacts)]
    status = TaskStatus(TaskState.COMPLETED, message)
    return Task(TaskId("t"), ContextId("c"), status, artifacts=made)


def texts(*said: str) -> list[Part]:
    return [Part(text=one) for one in said]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (answered(texts("a b")), answered(texts("a ", "b"))),
        (answered([Part(data={"a": 1})]), answered([Part(data={"a": 2.5})])),
        (answered([Part(data=[{"a": "x"}])]), answered([Part(data=[{"a": "y"}, {"a": "z"}])])),
        (answered(say="yes"), answered(say="no")),
        (
            answered([Part(raw=b"1", media_type="image/png")]),
            answered([Part(raw=b"2", media_type="image/png")]),
        ),
    ],
)
def test_what_is_made_of_the_same_has_one_structure(before: Task, after: Task) -> None:
    assert compare(before, after).same_structure


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (answered(texts("a")), answered([Part(data={"a": 1})])),
        (answered(texts("a")), answered(texts("a"), texts("b"))),
        (answered([Part(data={"a": 1})]), answered([Part(data={"b": 1})])),
        (answered([Part(data={"a": 1})]), answered([Part(data={"a": "1"})])),
        (answered([Part(data={"a": True})]), answered([Part(data={"a": 1})])),
        (answered([Part(data=None)]), answered([Part(data=[])])),
        (
            answered([Part(raw=b"1", media_type="image/png")]),
            answered([Part(raw=b"1", media_type="image/jpeg")]),
        ),
    ],
)
def test_what_is_made_of_something_else_has_another(before: Task, after: Task) -> None:
    assert not compare(before, after).same_structure


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_distance_is_between_the_same_and_nothing_in_common(one: str, other: str) -> None:
    found = distance(one, other)
    assert 0 <= found <= 1 and found == distance(other, one)
    assert distance(one, one) == 0


def test_a_small_change_is_near_and_another_text_is_far() -> None:
    said = "It will be sunny in Oslo tomorrow, with some wind from the west."
    assert 0 < distance(said, said.replace("west", "east")) < 0.2
    assert distance(said, "Please call our office between nine and five.") > 0.7
    assert distance("", "x") == 1


def test_a_long_answer_is_compared_up_to_a_bound_and_quickly() -> None:
    long = answered(*[texts("ab" * 100_000) for _ in range(50)])
    assert len(content(long)) <= LONGEST + 1
    began = time.process_time()
    compare(long, answered(texts("ba" * 5_000_000)))
    assert time.process_time() - began < 2


def test_a_share_is_the_same_everywhere_and_about_as_large_as_was_said() -> None:
    ids = [f"task-{number}" for number in range(2000)]
    chosen = [id for id in ids if in_share("r", id, 0.25)]
    assert 0.2 < len(chosen) / len(ids) < 0.3
    assert chosen == [id for id in ids if in_share("r", id, 0.25)]
    assert chosen != [id for id in ids if in_share("other", id, 0.25)]
    assert all(in_share("r", id, 1.0) for id in ids)
    # A larger share has all of a smaller one.
    assert {*chosen} <= {id for id in ids if in_share("r", id, 0.5)}


def test_a_canary_does_tasks_of_its_agent_alone() -> None:
    table = Canaries()
    assert table.candidate("a", "t") == "" and not table.has("a")
    table.follow([Canary("r", "a", "new", 1.0)])
    assert table.candidate("a", "t") == "new" and table.candidate("b", "t") == ""
    table.follow([])
    assert table.candidate("a", "t") == ""


def ruled(figures: RolloutCounts, **more: Any) -> RolloutDefinition:
    given: dict[str, Any] = {"least": 10, "agreement": 0.8, "failures": 0.1} | more
    rule = RolloutRule(**given)
    return RolloutDefinition(
        candidate="c",
        mode="shadow",
        share=1.0,
        max_distance=0.2,
        timeout=60,
        rule=rule,
        figures=figures,
    )


@pytest.mark.parametrize(
    ("figures", "decision"),
    [
        (RolloutCounts(), None),
        (RolloutCounts(judged=9, agreed=9), None),
        (RolloutCounts(judged=10, agreed=10), "promote"),
        (RolloutCounts(judged=10, agreed=8, text=2), "promote"),
        (RolloutCounts(judged=10, agreed=9, failed=1), "promote"),
        (RolloutCounts(judged=3, agreed=1, text=2), None),
        # It cannot make it any more.
        (RolloutCounts(judged=3, text=3), "rollback"),
        (RolloutCounts(judged=2, failed=2), "rollback"),
        (RolloutCounts(judged=10, agreed=7, text=3), "rollback"),
    ],
)
def test_a_rule_promotes_what_agrees_and_ends_what_cannot_make_it(
    figures: RolloutCounts, decision: str | None
) -> None:
    found = decide(ruled(figures), 5)
    assert (found and found[0]) == decision


def test_too_few_tasks_in_time_end_it_and_no_rule_never_does() -> None:
    figures = RolloutCounts(judged=2, agreed=2)
    assert decide(ruled(figures, within_seconds=60), 59) is None
    found = decide(ruled(figures, within_seconds=60), 61)
    assert found == ("rollback", "only 2 of 10 tasks came in time")
    assert decide(replace(ruled(RolloutCounts(judged=99, failed=99)), rule=None), 1e9) is None


@pytest.mark.parametrize(
    ("task", "found"),
    [
        (answered([Part(data=True)]), True),
        (answered([Part(data={"agrees": False, "why": "no"})]), False),
        (answered(texts(" Yes ")), True),
        (answered(texts("false")), False),
        (answered(say="no"), False),
        (answered(texts("perhaps")), None),
        (answered([Part(data={"other": True})]), None),
        (answered([Part(data=1)]), None),
        (answered(), None),
    ],
)
def test_a_check_says_yes_or_no(task: Task, found: bool | None) -> None:
    assert verdict(task) is found
