"""Operations, replies and events over protobuf: what the dialects make of them is unchanged."""

from typing import Any

import pytest

from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, MethodNotFound
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply
from dragoman.transports.grpc.codec import V0, V0_TEXT, V1, GrpcCodec, codec_of, find, positioned

MOST = 10_000
MESSAGE = Message(
    message_id=MessageId("m"),
    role=Role.USER,
    parts=[Part(text="hi"), Part(raw=b"\x00\xff", filename="f"), Part(data={"n": [1, 2.5]})],
    context_id=ContextId("c"),
    task_id=TaskId("t"),
    metadata={"k": {"v": None}},
)
TASK = Task(
    id=TaskId("t"),
    context_id=ContextId("c"),
    status=TaskStatus(TaskState.CANCELED, MESSAGE, "2026-01-02T03:04:05.678Z"),
    artifacts=[Artifact(artifact_id="a", parts=[Part(text="r")], name="n")],
    history=[MESSAGE],
    metadata={"m": True},
)
CONFIG = PushConfig(
    url="https://h.example/h",
    id="p",
    task_id=TaskId("t"),
    token="tok",
    authentication=PushAuthentication("Bearer", "c"),
)
OPERATIONS = [
    ops.SendMessage(message=MESSAGE, history=3, wait=False, accepted_output_modes=["text/plain"]),
    ops.StreamMessage(message=MESSAGE, metadata={"x": 1}),
    ops.GetTask(task_id=TaskId("t"), history=2),
    ops.CancelTask(task_id=TaskId("t")),
    ops.SubscribeToTask(task_id=TaskId("t")),
    ops.CreatePush(task_id=TaskId("t"), config=CONFIG),
    ops.GetPush(task_id=TaskId("t"), config_id="p"),
    ops.ListPush(task_id=TaskId("t"), page_size=7, page_token="n"),
    ops.DeletePush(task_id=TaskId("t"), config_id="p"),
    ops.GetExtendedCard(),
]
LIST = ops.ListTasks(
    context_id=ContextId("c"),
    state=TaskState.WORKING,
    page_size=5,
    history=0,
    status_since=1_700_000_000_123_000,
    include_artifacts=True,
)


def asked(codec: GrpcCodec, operation: ops.Operation) -> ops.Operation:
    path, request = codec.encode_request(operation)
    called = find(path)
    return codec.decode_request(called.name, codec.request_values(called.name, request, MOST))


@pytest.mark.parametrize("operation", [*OPERATIONS, LIST], ids=lambda one: type(one).__name__)
def test_an_operation_of_1_0_arrives_as_it_was_sent(operation: ops.Operation) -> None:
    assert asked(V1, operation) == operation


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("codec", [V0, V0_TEXT], ids=["bytes", "text"])
def test_an_operation_of_0_3_arrives_as_it_was_sent(
    codec: GrpcCodec, operation: ops.Operation
) -> None:
    came = asked(codec, operation)
    if isinstance(operation, ops.CreatePush):
        assert isinstance(came, ops.CreatePush)
        assert (came.task_id, came.config.url) == (operation.task_id, operation.config.url)
    else:
        assert came == operation


REPLIES: list[tuple[ops.Operation, Reply]] = [
    (OPERATIONS[0], TaskReply(TaskReading(0, TASK))),
    (OPERATIONS[0], MESSAGE),
    (OPERATIONS[2], TaskReply(TaskReading(0, TASK))),
    (OPERATIONS[5], CONFIG),
    (OPERATIONS[7], PushPage([CONFIG], "next")),
    (OPERATIONS[8], Nothing()),
]


@pytest.mark.parametrize(("operation", "reply"), REPLIES)
@pytest.mark.parametrize("codec", [V1, V0, V0_TEXT], ids=["1.0", "0.3", "0.3-text"])
def test_a_reply_arrives_as_it_was_given(
    codec: GrpcCodec, operation: ops.Operation, reply: Reply
) -> None:
    name = codec.encode_request(operation).path.rpartition("/")[2]
    data = codec.encode_reply(name, operation, reply)
    value = codec.reply_values(operation, data, MOST)
    came = codec.dialect.decode_reply(operation, value)
    if isinstance(reply, TaskReply):
        assert isinstance(came, TaskReply)
        assert came.reading.task == reply.reading.task
    elif isinstance(reply, PushConfig):
        assert isinstance(came, PushConfig)
        assert (came.id, came.url, came.token) == (reply.id, reply.url, reply.token)
    elif isinstance(reply, PushPage):
        assert isinstance(came, PushPage)
        assert (len(came.configs), came.next_page_token) == (1, "next")
    else:
        assert came == reply


def test_a_page_arrives_as_it_was_given() -> None:
    page = TaskPage([TaskReply(TaskReading(0, TASK))], "n", 5, 9, include_artifacts=True)
    value = V1.reply_values(LIST, V1.encode_reply("ListTasks", LIST, page), MOST)
    came = V1.dialect.decode_reply(LIST, value)
    assert isinstance(came, TaskPage)
    assert came.tasks[0].reading.task == TASK
    assert (came.next_page_token, came.page_size, came.total_size) == ("n", 5, 9)


CARD = AgentCard(
    name="A",
    description="d",
    supported_interfaces=[
        AgentInterface("https://a.example", "JSONRPC", "1.0"),
        AgentInterface("https://a.example", "JSONRPC", "0.3"),
        AgentInterface("a.example:443", "GRPC", "0.3"),
    ],
    version="1",
    capabilities=AgentCapabilities(streaming=True, push_notifications=False),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[
        AgentSkill(
            "s",
            "S",
            "d",
            ["t"],
            security_requirements=[{"schemes": {"bearer": {"list": ["read"]}}}],
        )
    ],
    security_schemes={"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
    security_requirements=[{"schemes": {"bearer": {"list": ["read"]}}}],
)


@pytest.mark.parametrize("codec", [V1, V0], ids=["1.0", "0.3"])
def test_a_card_arrives_as_it_was_given(codec: GrpcCodec) -> None:
    operation = ops.GetExtendedCard()
    name = codec.encode_request(operation).path.rpartition("/")[2]
    value = codec.reply_values(operation, codec.encode_reply(name, operation, CARD), MOST)
    came = codec.dialect.decode_reply(operation, value)
    assert isinstance(came, AgentCard)
    assert came.security_schemes == CARD.security_schemes
    assert came.security_requirements == CARD.security_requirements
    assert came.skills == CARD.skills
    assert came.supported_interfaces[0].url == "https://a.example"


EVENTS = [
    StatusUpdate(task_id=TaskId("t"), context_id=ContextId("c"), status=TASK.status),
    ArtifactUpdate(
        task_id=TaskId("t"), context_id=ContextId("c"), artifact=TASK.artifacts[0], append=True
    ),
    TASK,
    MESSAGE,
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("codec", [V1, V0], ids=["1.0", "0.3"])
def test_an_event_arrives_with_its_position(codec: GrpcCodec, event: Any) -> None:
    recorded = Recorded.of_event(300, event)
    plain = codec.encode_event(recorded)
    assert codec.encode_event(recorded) is plain, "made once for all readers"
    assert codec.event_values(plain, MOST).position == 0
    value, position = codec.event_values(positioned(plain, 2**40 + 300), MOST)
    assert position == 2**40 + 300
    assert codec.dialect.decode_event(value) == event


def test_an_opening_has_no_more_history_than_was_asked_for() -> None:
    operation = ops.StreamMessage(message=MESSAGE, history=0)
    for codec in (V1, V0):
        opening = codec.encode_opening(operation, TaskReply(TaskReading(1, TASK), history=0))
        event = codec.dialect.decode_event(codec.event_values(opening, MOST).value)
        assert isinstance(event, Task)
        assert event.history == []


def test_what_json_dialects_refuse_is_refused_with_its_path() -> None:
    request = V1.encode_request(
        ops.SendMessage(message=Message(MessageId("m"), Role.USER, parts=[]))
    ).request
    with pytest.raises(InvalidParams) as refused:
        V1.decode_request("SendMessage", V1.request_values("SendMessage", request, MOST))
    assert refused.value.field == "message.parts"


@pytest.mark.parametrize("name", ["tasks", "", "tasks/", "projects/t"])
def test_a_resource_that_has_no_such_name_is_refused(name: str) -> None:
    request = b"\x0a" + bytes([len(name)]) + name.encode()
    with pytest.raises(InvalidParams):
        V0.decode_request("GetTask", V0.request_values("GetTask", request, MOST))


def test_names_of_older_rpcs_are_known() -> None:
    assert find("/a2a.v1.A2AService/CreateTaskPushNotification").rpc.operation is ops.CreatePush
    assert V0.encode_request(OPERATIONS[5]).path.endswith("/CreateTaskPushNotificationConfig")
    with pytest.raises(MethodNotFound):
        find("/a2a.v1.A2AService/ListTasks")
    with pytest.raises(MethodNotFound):
        find("/grpc.health.v1.Health/Check")


def test_a_codec_is_found_by_its_dialect() -> None:
    assert codec_of(V1_0) is V1
    assert codec_of(V0_3_PROTO) is V0
