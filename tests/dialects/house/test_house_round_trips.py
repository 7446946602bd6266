"""What the model can hold comes back from the two houses that a client speaks too, all but what
their shapes have no place for; and what they hold comes back unchanged."""

import contextlib
import string
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import HOUSES
from dragoman.dialects import house
from dragoman.dialects.house import (
    CORVID,
    NEXUS,
    Nexus,
    corvid,
    nexus_shapes,
    r,
    selectools,
    v0_1,
)
from dragoman.errors import A2AError
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import TaskReading, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import TaskReply

PATIENT = settings(max_examples=30)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
name = st.text(string.ascii_letters, min_size=1, max_size=6)
identifier = st.text(string.digits + string.punctuation + "az", min_size=1, max_size=12)
scalar = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
kind = st.sampled_from(["image", "file", "audio", "video"])
rest: dict[str, Any] = {"filename": text, "media_type": st.sampled_from(["", "image/png", "a/b"])}
file_of = st.one_of(st.just({}), kind.map(lambda one: {nexus_shapes.TYPE: one}))
own = st.just({}) | st.just({nexus_shapes.TYPE: "chart"})
part = st.one_of(
    st.builds(Part, text=text, metadata=st.dictionaries(name, scalar, max_size=1), **rest),
    st.builds(Part, raw=st.binary(max_size=8), metadata=file_of, **rest),
    st.builds(Part, url=name.map(lambda one: f"https://a.example/{one}"), metadata=file_of, **rest),
    st.builds(Part, data=value, metadata=own, **rest),
)
parts = st.lists(part, min_size=1, max_size=3)
message = st.builds(
    Message,
    message_id=identifier,
    role=st.sampled_from(Role),
    parts=parts,
    context_id=st.just("") | identifier,
    task_id=st.just("") | identifier,
    metadata=st.dictionaries(name, scalar, max_size=1),
    reference_task_ids=st.lists(identifier, max_size=1),
)
artifact = st.builds(Artifact, artifact_id=identifier, parts=parts, name=text, description=text)
moment = st.integers(0, 4_000_000_000_000).map(lambda milliseconds: stamp(milliseconds * 1000))
task = st.builds(
    Task,
    id=identifier,
    context_id=identifier,
    status=st.builds(
        TaskStatus,
        state=st.sampled_from(TaskState),
        message=st.none() | message,
        timestamp=moment,
    ),
    artifacts=st.lists(artifact, max_size=2),
    history=st.lists(message, max_size=3),
    metadata=st.dictionaries(name, scalar, max_size=1),
)


def over_the_wire(sent: Any) -> Any:
    return msgspec.json.decode(encode(sent))


# NEXUS


def nexus_part(part: Part) -> Part:
    """Return what NEXUS keeps of a part: not the media type, nor the name of a file."""
    if isinstance(part.text, str):
        return Part(text=part.text)
    if isinstance(part.raw, bytes) or isinstance(part.url, str):
        usual = "image" if part.media_type == "image/png" else "file"
        marks = {nexus_shapes.TYPE: part.metadata.get(nexus_shapes.TYPE, usual)}
        return Part(raw=part.raw, url=part.url, metadata=marks)
    return Part(data=part.data, metadata=part.metadata)


def kept(said: list[Message], speaker: str, parts_of: Any) -> list[Message]:
    """Return messages that have a place for an id, in the words of a house."""
    return [
        Message(MessageId(f"{speaker}:messages[{place}]"), one.role, parts_of(one))
        for place, one in enumerate(said)
    ]


def last_of(said: list[Message]) -> Message | None:
    return said.pop() if said and said[-1].role is Role.AGENT else None


@given(task)
@PATIENT
def test_a_task_comes_back_from_nexus_without_ids_contexts_and_times(task: Task) -> None:
    """N-7, N-8, N-9: what has no place is what the table of losses says."""
    said = [*task.history, *([task.status.message] if task.status.message else [])]
    results = [part for artifact in task.artifacts for part in artifact.parts]
    is_said = any(one.role is Role.AGENT for one in said)
    if results and not is_said and task.status.state.is_terminal:
        said.append(Message(MessageId(""), Role.AGENT, results))
    expected = kept(said, "nexus", lambda one: [nexus_part(part) for part in one.parts])
    last = last_of(expected)
    wire = over_the_wire(nexus_shapes.encode_task(task))
    assert nexus_shapes.decode_task(wire) == Task(
        id=task.id,
        context_id=ContextId(""),
        status=TaskStatus(task.status.state, last),
        artifacts=[
            Artifact(
                artifact_id=f"artifact-{number}",
                parts=[nexus_part(part) for part in one.parts],
                name=one.name,
                description=one.description,
            )
            for number, one in enumerate(task.artifacts)
        ],
        history=expected,
    )
    again = over_the_wire(nexus_shapes.encode_task(nexus_shapes.decode_task(wire)))
    assert again == wire, "what the wire holds is not lost a second time"


@given(message)
@PATIENT
def test_a_message_to_nexus_is_read_as_it_was_sent(message: Message) -> None:
    """N-4, N-5, N-6, N-15: but for what has no place."""
    method, params = NEXUS.encode_request(ops.SendMessage(message=message))
    read = Nexus().decode_request(method, over_the_wire(params))
    assert isinstance(read, ops.SendMessage)
    assert read.message == Message(
        message_id=read.message.message_id,
        role=message.role,
        parts=[nexus_part(part) for part in message.parts],
        context_id=message.context_id,
        task_id=message.task_id,
    )


# corvid

STATES = {
    TaskState.COMPLETED: TaskState.COMPLETED,
    TaskState.FAILED: TaskState.FAILED,
    TaskState.CANCELED: TaskState.FAILED,
    TaskState.REJECTED: TaskState.FAILED,
}
ENDINGS = {
    TaskState.FAILED: "Task failed",
    TaskState.CANCELED: "Task canceled",
    TaskState.REJECTED: "Task rejected",
}


def words(parts: list[Part]) -> list[Part]:
    """Return what corvid keeps of parts: a text."""
    found: list[str] = []
    for one in parts:
        if isinstance(one.text, str):
            found.append(one.text)
        elif isinstance(one.url, str):
            found.append(one.url)
        elif isinstance(one.raw, bytes):
            found.append(f"[{one.filename or one.media_type or 'application/octet-stream'}]")
        else:
            found.append(encode(one.data).decode())
    return [Part(text="\n".join(found))]


@given(task)
@PATIENT
def test_a_task_comes_back_from_corvid_as_words_in_one_of_three_states(task: Task) -> None:
    """C-2, C-4, C-14: what waits is at work, and what came of it is said last."""
    said = [*task.history]
    state, results = task.status.state, [part for one in task.artifacts for part in one.parts]
    if task.status.message is not None:
        said.append(task.status.message)
    elif state.is_terminal and (results or state in ENDINGS):
        answer = results or [Part(text=ENDINGS[state])]
        said.append(Message(MessageId(""), Role.AGENT, answer))
    expected = kept(said, "corvid", lambda one: words(one.parts))
    last = last_of(expected)
    wire = over_the_wire(corvid.encode_task(task))
    assert corvid.decode_task(wire) == Task(
        id=task.id,
        context_id=task.context_id,
        status=TaskStatus(STATES.get(state, TaskState.WORKING), last),
        history=expected,
    )


@given(text.filter(lambda one: bool(one.strip())), st.none() | name)
@PATIENT
def test_a_text_to_corvid_is_read_as_it_was_sent(said: str, skill: str | None) -> None:
    """C-1: with the skill, how often it was passed on, and how long it may take."""
    message = Message(MessageId("m"), Role.USER, [Part(text=said)])
    told: dict[str, Any] = {corvid.TIMEOUT: 5000, corvid.DEPTH: 2}
    more = {"skillId": skill} if skill else {}
    verb, path, body = CORVID.request(ops.SendMessage(message=message, metadata=told | more))
    assert (verb, path) == ("POST", corvid.SEND_PATH)
    read = CORVID.decode_request("tasks/send", over_the_wire(body))
    assert isinstance(read, ops.SendMessage) and not read.wait
    assert (read.message.text, read.message.role) == (said, Role.USER)
    assert read.metadata == told | ({"skill": skill} if skill else {})


# Whatever comes

MEMBERS = [
    *("message", "parts", "kind", "type", "data", "text", "role", "id", "taskId", "contextId"),
    *("sessionId", "messageId", "metadata", "inputRequest", "toolUseId", "params", "timeoutMs"),
    *("depth", "skill", "configuration"),
]
WORDS = ["text", "data", "file", "tool-result", "user", "data:a/b;base64,x"]


def members(inner: Any) -> Any:
    return st.dictionaries(st.sampled_from(MEMBERS) | name, inner, max_size=4)


loose = st.recursive(
    scalar | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | members(inner),
    max_leaves=16,
)


@given(
    st.sampled_from(["message/send", "message/stream", "tasks/send", "tasks/get", "x/y"]),
    loose | st.fixed_dictionaries({"message": st.fixed_dictionaries({"parts": loose})}),
)
@settings(PATIENT, max_examples=120)
def test_whatever_is_asked_is_decoded_or_refused(method: str, params: Any) -> None:
    """N-11, R-9, S-13, C-17: by an error of the protocol, and never by one of ours."""
    by_body = house.by_request(method, params, HOUSES)
    for dialect in (NEXUS, r.RX, r.RX_REST, selectools.SELECTOOLS_TEXT, CORVID, v0_1.V0_1()):
        with contextlib.suppress(A2AError):
            dialect.decode_request(method, params)
    if by_body is not None:
        with contextlib.suppress(A2AError):
            by_body.decode_request(method, params)


@given(task)
@PATIENT
def test_whatever_a_task_is_every_house_can_show_it(task: Task) -> None:
    """N-7, R-5, S-7, C-2: with its question and its parts, whoever made them."""
    reply = TaskReply(TaskReading(1, task))
    get = ops.GetTask(task_id=task.id)
    for dialect in (NEXUS, r.RX, r.RX_ABROAD, selectools.SELECTOOLS, CORVID, v0_1.V0_1()):
        shown = msgspec.json.decode(dialect.encode_reply(get, reply))
        assert shown["id"] == task.id


@given(identifier)
@PATIENT
def test_a_task_is_asked_for_by_any_id(id: str) -> None:
    """N-10, C-3: whatever a peer may use."""
    get = ops.GetTask(task_id=TaskId(id))
    method, params = NEXUS.encode_request(get)
    assert NEXUS.decode_request(method, over_the_wire(params)) == get
    assert CORVID.decode_request("tasks/get", {"id": id}) == get
