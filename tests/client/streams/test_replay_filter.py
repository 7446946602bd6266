"""What was shown, and what is missing: whoever applies both ends with the peer's task."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

ID, CONTEXT = TaskId("t"), ContextId("c")


def said(name: str, role: Role = Role.AGENT) -> Message:
    return Message(MessageId(name), role, [Part(text=name)])


def status(state: TaskState = TaskState.WORKING, message: str = "") -> StatusUpdate:
    return StatusUpdate(ID, CONTEXT, TaskStatus(state, said(message) if message else None))


def chunk(name: str, *texts: Any, append: bool = True) -> ArtifactUpdate:
    parts = [Part(text=text) if isinstance(text, str) else Part(data=text) for text in texts]
    return ArtifactUpdate(ID, CONTEXT, Artifact(name, parts), append=append)


OPENING = Task(ID, CONTEXT, TaskStatus(TaskState.SUBMITTED), history=[said("q", Role.USER)])


def peer(events: list[Event]) -> Task:
    """The task as a peer keeps it: written here anew, so as not to agree with a mistake."""
    task = OPENING
    for event in events:
        match event:
            case StatusUpdate():
                old = task.status.message
                history = [*task.history, old] if old is not None else task.history
                task = msgspec.structs.replace(task, status=event.status, history=history)
            case ArtifactUpdate():
                name = event.artifact.artifact_id
                kept = {artifact.artifact_id: artifact for artifact in task.artifacts}
                parts = event.artifact.parts
                if event.append and name in kept:
                    parts = [*kept[name].parts, *parts]
                kept[name] = Artifact(name, parts)
                task = msgspec.structs.replace(task, artifacts=list(kept.values()))
            case _:
                raise AssertionError(event)
    return task


def joined(artifact: Artifact) -> list[Any]:
    """The parts with neighbouring texts joined: a peer may have joined them as well."""
    found: list[Any] = []
    for part in artifact.parts:
        if isinstance(part.text, str) and found and isinstance(found[-1], str):
            found[-1] += part.text
        else:
            found.append(part.text if isinstance(part.text, str) else [part.data])
    return found


def facts(task: Task | None) -> Any:
    """What has to be the same, however it came to be known."""
    assert task is not None
    spoken = [message.message_id for message in task.history if message.role is Role.AGENT]
    if task.status.message is not None:
        spoken.append(task.status.message.message_id)
    return (
        task.status.state,
        spoken,
        {artifact.artifact_id: joined(artifact) for artifact in task.artifacts},
    )


def seeing(events: list[Event]) -> ReplayFilter:
    seen = ReplayFilter()
    for event in [OPENING, *events]:
        seen.apply(event)
    return seen


NAMES = st.sampled_from(["a", "b"])
CONTENT = st.one_of(st.sampled_from(["x", "xy", "y ", "1"]), st.integers(0, 2))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    for number in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            texts = draw(st.lists(CONTENT, min_size=1, max_size=2))
            append = draw(st.sampled_from([True, True, False]))
            events.append(chunk(draw(NAMES), *texts, append=append))
        else:
            state = draw(st.sampled_from([TaskState.WORKING, TaskState.INPUT_REQUIRED]))
            events.append(status(state, draw(st.sampled_from(["", f"m{number}"]))))
    if draw(st.booleans()):
        events.append(status(TaskState.COMPLETED, draw(st.sampled_from(["", "end"]))))
    return events


@given(histories(), st.integers(0, 13), st.integers(0, 13))
@settings(max_examples=500)
def test_what_was_shown_and_what_is_missing_are_the_peers_task(
    events: list[Event], cut: int, later: int
) -> None:
    cut = min(cut, len(events))
    asked = min(cut + later, len(events))
    seen = seeing(events[:cut])
    task = peer(events[:asked])
    for event in seen.missing(task):
        seen.apply(event)
    assert facts(seen.task()) == facts(task)
    # And then nothing is missing any more.
    assert seen.missing(task) == []


@given(histories(), st.integers(0, 13))
@settings(max_examples=100)
def test_a_task_that_is_known_has_nothing_missing(events: list[Event], cut: int) -> None:
    seen = seeing(events[:cut])
    shown = seen.task()
    assert shown is not None and seen.missing(shown) == []


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12, unique=True),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 12),
)
@settings(max_examples=300)
def test_what_a_stream_repeats_of_the_task_it_began_with_is_shown_once(
    texts: list[str], cut: int, read: int, overlap: int
) -> None:
    events: list[Event] = [chunk("a", text) for text in texts]
    cut = min(cut, len(events))
    read = min(cut + read, len(events))
    seen = seeing(events[:cut])
    task = peer(events[:read])
    for event in seen.missing(task):
        seen.apply(event)
    seen.expect_repetition(task)
    # The peer began to listen before it read the task.
    for event in events[max(0, read - overlap) :]:
        if not seen.is_repetition(event):
            seen.apply(event)
    assert facts(seen.task()) == facts(peer(events))


def test_a_task_that_holds_less_than_was_shown_is_behind() -> None:
    seen = seeing([chunk("a", "1"), chunk("a", "2")])
    assert seen.is_ahead_of(peer([chunk("a", "1")]))
    assert seen.is_ahead_of(peer([]))
    assert not seen.is_ahead_of(peer([chunk("a", "1"), chunk("a", "2")]))
    assert not seen.is_ahead_of(peer([chunk("a", "1"), chunk("a", "2"), chunk("a", "3")]))
    # One that was changed is not behind: it is shown anew.
    assert not seen.is_ahead_of(peer([chunk("a", "other")]))


def test_a_peer_that_joins_text_is_told_from_one_that_changed_it() -> None:
    seen = seeing([chunk("a", "one "), chunk("a", "two ")])
    joined_up = peer([chunk("a", "one two three")])
    assert seen.missing(joined_up) == [
        ArtifactUpdate(ID, CONTEXT, Artifact("a", [Part(text="three")]), append=True)
    ]
    changed = peer([chunk("a", "something else")])
    assert seen.missing(changed) == [
        ArtifactUpdate(ID, CONTEXT, Artifact("a", [Part(text="something else")]))
    ]


def test_the_message_of_a_status_is_not_told_again_from_the_history() -> None:
    seen = seeing([status(message="m1")])
    task = peer([status(message="m1"), status(message="m2")])
    # Some peers list the present message among the past ones as well.
    doubled = msgspec.structs.replace(task, history=[*task.history, said("m2")])
    assert seen.missing(doubled) == [status(message="m2")]


def test_what_the_caller_said_itself_is_not_told() -> None:
    seen = seeing([])
    task = msgspec.structs.replace(OPENING, history=[said("q", Role.USER), said("r", Role.USER)])
    assert seen.missing(task) == []


@given(histories(), st.sampled_from(["", "q", "m0"]))
@settings(max_examples=200)
def test_an_ended_task_is_told_alike_with_and_without_a_fold(
    events: list[Event], asked: str
) -> None:
    task = peer([*events, status(TaskState.COMPLETED, "end")])
    sent = [said(asked, Role.USER)] if asked else []
    task = msgspec.structs.replace(task, history=[*sent, *task.history])
    begun = msgspec.structs.replace(
        task, status=TaskStatus(TaskState.SUBMITTED), artifacts=[], history=sent
    )
    seen = ReplayFilter()
    seen.apply(begun)
    assert ReplayFilter().untold(task) == seen.missing(task)


def test_events_without_a_task_make_one() -> None:
    for event in (status(message="m"), chunk("a", "1")):
        seen = ReplayFilter()
        assert seen.task() is None and seen.task_id == ""
        seen.apply(event)
        assert seen.task_id == "t" and seen.state is TaskState.WORKING
