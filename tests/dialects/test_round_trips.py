"""Whatever the model can hold, each dialect can write and read back: all of it, or all but the
losses that `test_wire` lists."""

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import v0_3_shapes
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.dialects.v1_0 import V1_0
from dragoman.dialects.v1_0_shapes import without_extra
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded, TaskReading, decode_event, encode_event
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply

DIALECTS = pytest.mark.parametrize("dialect", [V1_0, V0_3, V0_2], ids=["1.0", "0.3", "0.2"])
PROTOS = [V0_3_PROTO, V0_3_PROTO_TEXT]
DIALECTS_AND_PROTOS = pytest.mark.parametrize(
    "dialect",
    [V1_0, V0_3, V0_2, *PROTOS],
    ids=["1.0", "0.3", "0.2", "0.3-proto", "0.3-proto-text"],
)
# How long an example takes says more about the machine's load than about us.
PATIENT = settings(max_examples=60)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
name = st.text(string.ascii_letters, min_size=1, max_size=6)
identifier = st.text(string.digits + string.punctuation + "az", min_size=1, max_size=12)
scalar = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
) | text
json_value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
RESERVED = {v0_3_shapes.MEDIA_TYPE, v0_3_shapes.FILENAME, v0_3_shapes.WRAPPED}
metadata = st.dictionaries(text.filter(lambda key: key not in RESERVED), json_value, max_size=2)
# Names that no version gives a meaning.
extra = st.dictionaries(name.map(lambda key: f"x-{key}"), json_value, max_size=2)
texts = st.lists(text, max_size=2)
moment = st.integers(0, 4_000_000_000_000).map(lambda milliseconds: stamp(milliseconds * 1000))
content = st.one_of(
    st.fixed_dictionaries({"text": text}),
    st.fixed_dictionaries({"raw": st.binary(max_size=8)}),
    st.fixed_dictionaries({"url": text}),
    st.fixed_dictionaries({"data": json_value}),
)
part = st.builds(
    lambda chosen, **rest: Part(**chosen, **rest),
    content,
    metadata=metadata,
    filename=text,
    media_type=text,
    extra=extra,
)
parts = st.lists(part, min_size=1, max_size=3)
message = st.builds(
    Message,
    message_id=identifier,
    role=st.sampled_from(Role),
    parts=parts,
    context_id=st.just("") | identifier,
    task_id=st.just("") | identifier,
    metadata=metadata,
    extensions=texts,
    reference_task_ids=st.lists(identifier, max_size=2),
    extra=extra,
)
artifact = st.builds(
    Artifact,
    artifact_id=identifier,
    parts=parts,
    name=text,
    description=text,
    metadata=metadata,
    extensions=texts,
    extra=extra,
)
status = st.builds(
    TaskStatus,
    state=st.sampled_from(TaskState),
    message=st.none() | message,
    timestamp=st.just("") | moment,
    extra=extra,
)
task = st.builds(
    Task,
    id=identifier,
    context_id=identifier,
    status=status,
    artifacts=st.lists(artifact, max_size=2),
    history=st.lists(message, max_size=2),
    metadata=metadata,
    extra=extra,
)
event = (
    task
    | message
    | st.builds(
        StatusUpdate,
        task_id=identifier,
        context_id=identifier,
        status=status,
        metadata=metadata,
        extra=extra,
    )
    | st.builds(
        ArtifactUpdate,
        task_id=identifier,
        context_id=identifier,
        artifact=artifact,
        append=st.booleans(),
        last_chunk=st.booleans(),
        metadata=metadata,
        extra=extra,
    )
)
history = st.none() | st.integers(0, 100)
printable = st.text(st.characters(exclude_categories=["C"]), max_size=8)
some_text = printable.filter(bool)
authentication = st.builds(PushAuthentication, scheme=st.just("") | name) | st.builds(
    PushAuthentication, scheme=name, credentials=printable
)
receiver = {
    "url": some_text,
    "id": st.just("") | identifier,
    "token": printable,
    "authentication": st.none() | authentication,
}
config = st.builds(PushConfig, task_id=identifier, **receiver)
send = {
    "message": message,
    "accepted_output_modes": texts,
    "history": history,
    "wait": st.booleans(),
    "push": st.none() | st.builds(PushConfig, **receiver),
    "metadata": metadata,
}
operation = st.one_of(
    st.builds(ops.SendMessage, **send),
    st.builds(ops.StreamMessage, **send),
    st.builds(ops.GetTask, task_id=identifier, history=history),
    st.builds(ops.CancelTask, task_id=identifier, metadata=metadata),
    st.builds(ops.SubscribeToTask, task_id=identifier),
    config.map(lambda config: ops.CreatePush(task_id=config.task_id, config=config)),
    st.builds(ops.GetPush, task_id=identifier, config_id=identifier),
    st.builds(ops.ListPush, task_id=identifier),
    st.builds(ops.DeletePush, task_id=identifier, config_id=identifier),
    st.builds(ops.GetExtendedCard),
)
push_listing = st.builds(
    ops.ListPush,
    task_id=identifier,
    page_size=st.integers(1, 100),
    page_token=text,
    tenant=st.just("") | identifier,
)
listing = st.builds(
    ops.ListTasks,
    context_id=st.just("") | identifier,
    state=st.none() | st.sampled_from(TaskState),
    page_size=st.integers(1, 100),
    page_token=text,
    history=history,
    status_since=st.none() | st.integers(0, 4_000_000_000_000).map(lambda at: at * 1000),
    include_artifacts=st.booleans(),
    tenant=st.just("") | identifier,
)


def plain(value: Any) -> Any:
    """Return JSON as a peer would read it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def kept(dialect: Dialect, model: Any) -> Any:
    """Return what of a model a dialect can say; only 0.x's JSON has room for unknown fields."""
    if dialect in PROTOS:
        return without_references(without_extra(model))
    return without_extra(model) if dialect is V1_0 else model


def without_references(value: Any) -> Any:
    """Return a model less what the proto of 0.3 has no field for."""
    if isinstance(value, list):
        return [without_references(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: without_references(getattr(value, name)) for name in value.__struct_fields__}
    return type(value)(**fields | ({"reference_task_ids": []} if "role" in fields else {}))


def posted_in(version: str, model: Any) -> Any:
    """Return a model whose push configurations were registered in a version."""
    match model:
        case PushConfig():
            return msgspec.structs.replace(model, version=version)
        case ops.CreatePush():
            return msgspec.structs.replace(model, config=posted_in(version, model.config))
        case ops.SendMessage():
            return msgspec.structs.replace(model, push=posted_in(version, model.push))
        case _:
            return model


@DIALECTS_AND_PROTOS
@PATIENT
@given(happened=event)
def test_events_come_back_as_they_were(dialect: Dialect, happened: Any) -> None:
    body = dialect.encode_event(Recorded.of_event(1, happened))
    assert dialect.decode_event(msgspec.json.decode(body)) == kept(dialect, happened)


@DIALECTS
@PATIENT
@given(asked=operation)
def test_operations_come_back_as_they_were(dialect: Dialect, asked: ops.Operation) -> None:
    asked = posted_in(dialect.version, asked)
    method, params = dialect.encode_request(asked)
    assert dialect.decode_request(method, plain(params)) == kept(dialect, asked)


@PATIENT
@given(asked=listing | push_listing)
def test_a_listing_comes_back_as_it_was(asked: ops.ListTasks | ops.ListPush) -> None:
    method, params = V1_0.encode_request(asked)
    assert V1_0.decode_request(method, plain(params)) == asked


@DIALECTS_AND_PROTOS
@PATIENT
@given(answer=task | message)
def test_replies_come_back_as_they_were(dialect: Dialect, answer: Task | Message) -> None:
    asked = ops.SendMessage(message=Message("m", Role.USER, [Part(text="x")]))  # type: ignore[arg-type]
    reply = TaskReply(TaskReading(1, answer)) if isinstance(answer, Task) else answer
    body = msgspec.json.decode(dialect.encode_reply(asked, reply))
    decoded = dialect.decode_reply(asked, body)
    found = decoded.reading.task if isinstance(decoded, TaskReply) else decoded
    assert found == kept(dialect, answer)


@PATIENT
@given(tasks=st.lists(task, max_size=3), token=text, include=st.booleans())
def test_pages_come_back_as_they_were(tasks: list[Task], token: str, include: bool) -> None:
    if not include:
        tasks = [msgspec.structs.replace(item, artifacts=[]) for item in tasks]
    asked = ops.ListTasks(include_artifacts=include)
    replies = [TaskReply(TaskReading(1, item)) for item in tasks]
    body = V1_0.encode_reply(asked, TaskPage(replies, token, 50, 7, include))
    value = msgspec.json.decode(body)
    assert all(("artifacts" in item) == include for item in value["tasks"])
    page = V1_0.decode_reply(asked, value)
    assert isinstance(page, TaskPage)
    assert [reply.reading.task for reply in page.tasks] == [without_extra(t) for t in tasks]
    assert (page.next_page_token, page.page_size, page.total_size) == (token, 50, 7)


@DIALECTS_AND_PROTOS
@PATIENT
@given(configs=st.lists(config, min_size=1, max_size=3))
def test_push_configurations_come_back_as_they_were(
    dialect: Dialect, configs: list[PushConfig]
) -> None:
    configs = [posted_in(dialect.version, config) for config in configs]
    task_id = TaskId("asked")
    replies: list[tuple[ops.Operation, Reply]] = [
        (ops.CreatePush(task_id=task_id, config=configs[0]), configs[0]),
        (ops.GetPush(task_id=task_id), configs[0]),
        (ops.ListPush(task_id=task_id), PushPage(configs)),
        (ops.DeletePush(task_id=task_id, config_id="c"), Nothing()),
    ]
    for asked, reply in replies:
        value = msgspec.json.decode(dialect.encode_reply(asked, reply))
        assert dialect.decode_reply(asked, value) == reply


@PATIENT
@given(happened=event)
def test_the_record_keeps_everything(happened: Any) -> None:
    assert decode_event(encode_event(happened)) == happened


@pytest.mark.requirement("P-1")
@PATIENT
@given(happened=event)
def test_a_peer_of_1_0_never_sees_an_unknown_field(happened: Any) -> None:
    value = msgspec.json.decode(V1_0.encode_event(Recorded.of_event(1, happened)))
    assert V1_0.decode_event(value) == without_extra(V1_0.decode_event(value))


@PATIENT
@given(happened=event)
def test_one_generation_hands_over_to_the_other_without_loss(happened: Any) -> None:
    happened = without_extra(happened)
    older = V0_3.decode_event(
        msgspec.json.decode(V0_3.encode_event(Recorded.of_event(1, happened)))
    )
    newer = V1_0.decode_event(msgspec.json.decode(V1_0.encode_event(Recorded.of_event(1, older))))
    assert newer == happened
