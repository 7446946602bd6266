"""The state machine: every move of the table, and the fold of any log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.lifecycle import Draft, TaskIsFinished, evolve, next_state
from dragoman.errors import InvalidAgentResponse
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, AttemptStarted, Event, MessageAdded, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

S = TaskState
ID, CONTEXT = TaskId("t"), ContextId("c")
TERMINAL = [S.COMPLETED, S.FAILED, S.CANCELED, S.REJECTED]
# The table of the protocol, a row per state: - forbidden, + allowed; columns in this order.
COLUMNS = [
    S.SUBMITTED,
    S.WORKING,
    S.INPUT_REQUIRED,
    S.AUTH_REQUIRED,
    S.COMPLETED,
    S.FAILED,
    S.CANCELED,
    S.REJECTED,
]
TABLE: list[tuple[TaskState | None, str]] = [
    (None, "++++++-+"),
    (S.SUBMITTED, "-+++++++"),
    (S.WORKING, "-+++++++"),
    (S.INPUT_REQUIRED, "-+++++++"),
    (S.AUTH_REQUIRED, "-+++++++"),
    (S.COMPLETED, "--------"),
    (S.FAILED, "--------"),
    (S.CANCELED, "--------"),
    (S.REJECTED, "--------"),
]
CELLS = [
    (before, after, mark == "+")
    for before, row in TABLE
    for after, mark in zip(COLUMNS, row, strict=True)
]


def said(text: str, role: Role = Role.USER) -> Message:
    return Message(MessageId(text), role, [Part(text=text)], CONTEXT, ID)


def new(state: TaskState = S.SUBMITTED, text: str = "") -> Task:
    message = said(text, Role.AGENT) if text else None
    return Task(ID, CONTEXT, TaskStatus(state, message), history=[said("first")])


def status(state: TaskState, text: str = "") -> StatusUpdate:
    message = said(text, Role.AGENT) if text else None
    return StatusUpdate(ID, CONTEXT, TaskStatus(state, message))


def chunk(name: str, *texts: str, append: bool = False, title: str = "") -> ArtifactUpdate:
    artifact = Artifact(name, [Part(text=text) for text in texts], name=title)
    return ArtifactUpdate(ID, CONTEXT, artifact, append)


def moved(before: TaskState | None, after: TaskState) -> TaskState:
    return next_state(before, new(after) if before is None else status(after))


@pytest.mark.requirement("T-1")
@pytest.mark.parametrize(("before", "after", "allowed"), CELLS)
def test_a_state_follows_another_as_the_table_says(
    before: TaskState | None, after: TaskState, allowed: bool
) -> None:
    if allowed:
        assert moved(before, after) is after
    else:
        with pytest.raises((TaskIsFinished, InvalidAgentResponse)):
            moved(before, after)


def test_the_table_has_every_pair() -> None:
    assert len(CELLS) == (len(TaskState) + 1) * len(TaskState)
    assert len({(before, after) for before, after, _ in CELLS}) == len(CELLS)


@pytest.mark.requirement("T-1")
@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize(
    "event",
    [
        status(S.WORKING),
        chunk("a", "x"),
        chunk("unknown", "x", append=True),
        MessageAdded(said("more")),
        AttemptStarted(2),
        new(),
        said("hello"),
    ],
)
def test_nothing_happens_to_a_task_that_ended(state: TaskState, event: Event) -> None:
    draft = Draft(new(state, "bye"))
    before = draft.task()
    with pytest.raises(TaskIsFinished):
        draft.apply(event)
    assert draft.task() == before


@pytest.mark.requirement("T-8")
@pytest.mark.parametrize(
    "event", [status(S.WORKING), chunk("a", "x"), MessageAdded(said("x")), AttemptStarted(2)]
)
def test_a_log_begins_with_its_task(event: Event) -> None:
    with pytest.raises(InvalidAgentResponse):
        next_state(None, event)


@pytest.mark.requirement("T-5", "T-8")
@pytest.mark.parametrize("state", [None, S.SUBMITTED, S.WORKING, S.INPUT_REQUIRED])
def test_a_bare_message_has_no_place_in_a_log(state: TaskState | None) -> None:
    with pytest.raises(InvalidAgentResponse):
        next_state(state, said("hello"))


@pytest.mark.parametrize("state", [S.SUBMITTED, S.WORKING, S.INPUT_REQUIRED, S.AUTH_REQUIRED])
def test_a_log_has_one_task(state: TaskState) -> None:
    with pytest.raises(InvalidAgentResponse):
        next_state(state, new(S.WORKING))


@pytest.mark.parametrize("state", [S.SUBMITTED, S.WORKING, S.INPUT_REQUIRED, S.AUTH_REQUIRED])
@pytest.mark.parametrize("event", [chunk("a", "x"), MessageAdded(said("x")), AttemptStarted(2)])
def test_only_a_status_changes_the_state(state: TaskState, event: Event) -> None:
    assert next_state(state, event) is state


# History


@pytest.mark.requirement("T-26", "T-27")
def test_a_status_message_is_history_once_its_status_is_not_current() -> None:
    task = new()
    task = evolve(task, status(S.WORKING, "looking"))
    assert (task.status.message, task.history) == (said("looking", Role.AGENT), [said("first")])
    task = evolve(task, status(S.WORKING, "found"))
    assert [message.text for message in task.history] == ["first", "looking"]
    task = evolve(task, status(S.COMPLETED))
    assert [message.text for message in task.history] == ["first", "looking", "found"]
    assert task.status.message is None


@pytest.mark.requirement("T-27", "T-4")
def test_a_question_is_history_when_its_answer_arrives() -> None:
    task = evolve(new(), status(S.INPUT_REQUIRED, "which?"))
    task = evolve(task, MessageAdded(said("this")))
    assert [message.text for message in task.history] == ["first", "which?", "this"]
    assert task.status == TaskStatus(S.INPUT_REQUIRED)
    task = evolve(task, status(S.WORKING))
    assert [message.text for message in task.history] == ["first", "which?", "this"]


@pytest.mark.requirement("T-26", "T-3")
def test_messages_stand_in_the_order_they_came() -> None:
    task = new()
    for n in range(5):
        task = evolve(task, MessageAdded(said(f"more {n}")))
    assert [message.text for message in task.history] == ["first", *(f"more {n}" for n in range(5))]


@pytest.mark.requirement("T-28")
def test_artifacts_are_not_history() -> None:
    task = evolve(new(), chunk("a", "x"))
    assert task.history == [said("first")]


# Artifacts


@pytest.mark.requirement("E-1")
def test_without_append_an_artifact_is_created_or_replaced_in_its_place() -> None:
    task = new()
    for event in (chunk("a", "1"), chunk("b", "2"), chunk("a", "3", "4", title="third")):
        task = evolve(task, event)
    assert [(a.artifact_id, a.name, [p.text for p in a.parts]) for a in task.artifacts] == [
        ("a", "third", ["3", "4"]),
        ("b", "", ["2"]),
    ]


@pytest.mark.requirement("E-1", "T-17")
def test_with_append_parts_are_added_to_the_artifact_of_that_id() -> None:
    task = new()
    for event in (
        chunk("a", "1", title="kept"),
        chunk("b", "x"),
        chunk("a", "2", "3", append=True, title="not this"),
        chunk("a", "4", append=True),
    ):
        task = evolve(task, event)
    first, second = task.artifacts
    assert (first.name, [part.text for part in first.parts]) == ("kept", ["1", "2", "3", "4"])
    assert [part.text for part in second.parts] == ["x"]


@pytest.mark.requirement("E-1")
def test_appending_to_an_unknown_artifact_is_the_agents_fault() -> None:
    draft = Draft(new(S.WORKING))
    with pytest.raises(InvalidAgentResponse):
        draft.apply(chunk("a", "x", append=True))
    assert draft.task() == new(S.WORKING)
    draft.apply(chunk("a", "x"))
    draft.lighten()
    draft.apply(chunk("a", "y", append=True))
    with pytest.raises(InvalidAgentResponse):
        draft.apply(chunk("b", "x", append=True))


def test_folding_leaves_what_it_was_given_as_it_was() -> None:
    first = evolve(new(S.WORKING, "hello"), chunk("a", "x"))
    before = evolve(new(S.WORKING, "hello"), chunk("a", "x"))
    draft = Draft(first)
    draft.apply(chunk("a", "y", append=True))
    draft.apply(status(S.WORKING, "more"))
    shown = draft.task()
    draft.apply(chunk("a", "z", append=True))
    draft.apply(MessageAdded(said("x")))
    assert first == before
    assert [part.text for part in shown.artifacts[0].parts] == ["x", "y"]
    assert len(shown.history) == 2


# Any log

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.lists(st.sampled_from(["x", "y", ""]), max_size=3)
EVENTS = st.one_of(
    st.builds(status, st.sampled_from(list(TaskState)), st.sampled_from(["", "hm", "so"])),
    st.builds(lambda n, t, a: chunk(n, *t, append=a), NAMES, TEXTS, st.booleans()),
    st.builds(lambda text: MessageAdded(said(text)), st.sampled_from(["q", "r"])),
    st.builds(AttemptStarted, st.integers(2, 5)),
)


def folded(events: list[Event], light_after: int | None = None) -> tuple[Draft, list[bool]]:
    """Return the draft after all events and which of them were allowed."""
    draft = Draft(new())
    allowed: list[bool] = []
    for index, event in enumerate(events):
        if index == light_after:
            draft.lighten()
        try:
            draft.apply(event)
        except (TaskIsFinished, InvalidAgentResponse):
            allowed.append(False)
        else:
            allowed.append(True)
    return draft, allowed


@given(st.lists(EVENTS, max_size=25))
def test_a_draft_is_the_fold_of_every_prefix(events: list[Event]) -> None:
    task = new()
    draft = Draft(new())
    for event in events:
        try:
            following = evolve(task, event)
        except (TaskIsFinished, InvalidAgentResponse) as refusal:
            with pytest.raises(type(refusal)):
                draft.apply(event)
        else:
            draft.apply(event)
            task = following
        assert draft.task() == task
        assert draft.state is task.status.state


@given(st.lists(EVENTS, max_size=25), st.integers(0, 25))
def test_a_draft_goes_on_from_any_snapshot(events: list[Event], cut: int) -> None:
    whole, allowed = folded(events)
    happened = [event for event, was in zip(events, allowed, strict=True) if was]
    early, _ = folded(happened[:cut])
    late = Draft(early.task())
    for event in happened[cut:]:
        late.apply(event)
    assert late.task() == whole.task()


@given(st.lists(EVENTS, max_size=25), st.integers(0, 25))
def test_a_light_draft_has_the_same_states_and_refusals(events: list[Event], cut: int) -> None:
    whole, allowed = folded(events)
    light, allowed_light = folded(events, light_after=cut)
    assert light.state is whole.state
    assert allowed_light == allowed
