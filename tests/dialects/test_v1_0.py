"""What 1.0 accepts as ProtoJSON, what it refuses, and that its output suits a strict peer."""

from typing import Any

import msgspec
import pytest

from dragoman.dialects.operations import BY_V1_METHOD
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, MethodNotFound
from dragoman.model import operations as ops
from dragoman.model.card import JSONRPC, AgentCapabilities, AgentCard, AgentInterface
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import TaskPage, TaskReply

HELLO = {"text": "hello"}
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [HELLO]}


def send(**params: Any) -> ops.SendMessage:
    operation = V1_0.decode_request("SendMessage", {"message": MESSAGE, **params})
    assert isinstance(operation, ops.SendMessage)
    return operation


def refused_field(method: str, params: Any) -> str:
    with pytest.raises(InvalidParams) as refused:
        V1_0.decode_request(method, params)
    return refused.value.field


@pytest.mark.requirement("V-5")
@pytest.mark.parametrize("method", BY_V1_METHOD)
def test_every_method_is_understood(method: str) -> None:
    params = {"id": "t", "taskId": "t", "message": MESSAGE, "url": "https://a.example/"}
    operation = V1_0.decode_request(method, params)
    assert type(operation) is BY_V1_METHOD[method].operation
    assert getattr(operation, "task_id", "t") == "t"


@pytest.mark.parametrize("method", ["message/send", "tasks/list", "sendMessage", ""])
def test_methods_of_other_versions_are_unknown(method: str) -> None:
    with pytest.raises(MethodNotFound):
        V1_0.decode_request(method, {})


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "ROLE_USER", "parts": [HELLO]}, "message.messageId"),
        (MESSAGE | {"messageId": ""}, "message.messageId"),
        ({"messageId": "m", "parts": [HELLO]}, "message.role"),
        (MESSAGE | {"role": "ROLE_UNSPECIFIED"}, "message.role"),
        (MESSAGE | {"role": "user"}, "message.role"),
        (MESSAGE | {"role": True}, "message.role"),
        (MESSAGE | {"role": []}, "message.role"),
        (MESSAGE | {"parts": []}, "message.parts"),
        (MESSAGE | {"parts": None}, "message.parts"),
        (MESSAGE | {"parts": [HELLO] * 1001}, "message.parts"),
        (MESSAGE | {"parts": [{}]}, "message.parts[0]"),
        (MESSAGE | {"parts": [HELLO, {"text": "x", "url": "y"}]}, "message.parts[1]"),
        (MESSAGE | {"parts": [{"kind": "text"}]}, "message.parts[0]"),
        (MESSAGE | {"parts": [{"raw": "not base64!"}]}, "message.parts[0].raw"),
        (MESSAGE | {"contextId": "c" * 257}, "message.contextId"),
        (MESSAGE | {"context_id": "c", "contextId": "c"}, "message.contextId"),
        (MESSAGE | {"metadata": {"k": "x" * 65_536}}, "message.metadata"),
        (MESSAGE | {"extensions": "x"}, "message.extensions"),
        (MESSAGE | {"referenceTaskIds": [""]}, "message.referenceTaskIds[0]"),
        ([], "message"),
        (None, "message"),
    ],
)
def test_a_wrong_message_is_refused_by_field(message: Any, field: str) -> None:
    assert refused_field("SendMessage", {"message": message}) == field


@pytest.mark.requirement("X-5")
@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("GetTask", {}, "id"),
        ("GetTask", {"id": "t", "historyLength": -1}, "historyLength"),
        ("GetTask", {"id": "t", "historyLength": 1.5}, "historyLength"),
        ("GetTask", {"id": "t", "historyLength": 2**31}, "historyLength"),
        ("CancelTask", {"id": "t", "metadata": 1}, "metadata"),
        ("CreateTaskPushNotificationConfig", {"url": "x"}, "taskId"),
        ("ListTasks", {"pageSize": 0}, "pageSize"),
        ("ListTasks", {"pageSize": 101}, "pageSize"),
        ("ListTasks", {"status": "working"}, "status"),
        ("ListTasks", {"statusTimestampAfter": "soon"}, "statusTimestampAfter"),
        ("ListTasks", {"includeArtifacts": "true"}, "includeArtifacts"),
        ("SendMessage", {"message": MESSAGE, "configuration": []}, "configuration"),
        (
            "SendMessage",
            {"message": MESSAGE, "configuration": {"taskPushNotificationConfig": 1}},
            "configuration.taskPushNotificationConfig",
        ),
    ],
)
def test_a_wrong_parameter_is_refused_by_field(method: str, params: Any, field: str) -> None:
    assert refused_field(method, params) == field


@pytest.mark.requirement("T-19")
@pytest.mark.parametrize(
    ("configuration", "wait"),
    [
        (None, True),
        ({}, True),
        ({"returnImmediately": False}, True),
        ({"returnImmediately": True}, False),
        ({"return_immediately": True}, False),
        ({"blocking": False}, True),
    ],
)
def test_a_send_waits_unless_told_not_to(configuration: Any, wait: bool) -> None:
    assert send(configuration=configuration).wait is wait


def test_null_is_unset_everywhere_but_in_data() -> None:
    parts = [{"text": "x", "url": None}, {"data": None}]
    read = send(message=MESSAGE | {"parts": parts, "metadata": None, "taskId": None}).message
    assert read.parts == [Part(text="x"), Part(data=None)]
    assert (read.metadata, read.task_id) == ({}, "")


def test_a_listing_without_parameters_is_the_default_page() -> None:
    assert V1_0.decode_request("ListTasks", {}) == ops.ListTasks(page_size=50)
    unset = {"status": "TASK_STATE_UNSPECIFIED", "pageSize": "7"}
    assert V1_0.decode_request("ListTasks", unset) == ops.ListTasks(page_size=7)


@pytest.mark.requirement("E-2")
@pytest.mark.parametrize("value", [{}, {"task": {}, "message": {}}, {"other": {}}, [], None])
def test_a_stream_item_has_exactly_one_member(value: Any) -> None:
    with pytest.raises(InvalidParams):
        V1_0.decode_event(value)


def test_a_stream_event_does_not_answer_a_send() -> None:
    update = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    with pytest.raises(InvalidParams):
        V1_0.decode_reply(send(), {"statusUpdate": update})


@pytest.mark.requirement("V-9")
def test_only_answers_to_a_send_are_wrapped() -> None:
    task = Task(TaskId("t"), ContextId("c"), TaskStatus(TaskState.WORKING))
    bare = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    reply = TaskReply(TaskReading(1, task))
    assert msgspec.json.decode(V1_0.encode_reply(send(), reply)) == {"task": bare}
    get = ops.GetTask(task_id=TaskId("t"))
    assert msgspec.json.decode(V1_0.encode_reply(get, reply)) == bare
    assert msgspec.json.decode(V1_0.encode_opening(reply)) == {"task": bare}


def test_an_event_without_unknown_fields_goes_out_as_it_was_recorded() -> None:
    update = StatusUpdate(TaskId("t"), ContextId("c"), TaskStatus(TaskState.WORKING))
    recorded = Recorded.of_event(1, update)
    assert V1_0.encode_event(recorded) is recorded.body
    assert recorded.shapes == {}


def test_an_event_with_unknown_fields_is_cleaned_once() -> None:
    message = Message(MessageId("m"), Role.USER, [Part(text="x", extra={"y": 1})])
    recorded = Recorded.of_event(1, message)
    cleaned = V1_0.encode_event(recorded)
    assert V1_0.encode_event(recorded) is cleaned
    assert msgspec.json.decode(cleaned) == {
        "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    }


@pytest.mark.requirement("T-38")
def test_a_page_always_has_its_members_and_artifacts_only_when_asked_for() -> None:
    history = [Message(MessageId(f"m{n}"), Role.USER, [Part(text="x")]) for n in range(3)]
    task = Task(TaskId("t"), ContextId("c"), TaskStatus(TaskState.WORKING), history=history)
    empty = V1_0.encode_reply(ops.ListTasks(), TaskPage([], "", 50, 0, False))
    assert msgspec.json.decode(empty) == {
        "tasks": [],
        "nextPageToken": "",
        "pageSize": 50,
        "totalSize": 0,
    }
    for include in (True, False):
        page = TaskPage([TaskReply(TaskReading(1, task), 2)], "next", 1, 2, include)
        value = msgspec.json.decode(V1_0.encode_reply(ops.ListTasks(), page))
        (shown,) = value["tasks"]
        assert [message["messageId"] for message in shown["history"]] == ["m1", "m2"]
        assert shown.get("artifacts") == ([] if include else None)


def test_an_extended_card_is_bare() -> None:
    card = AgentCard(
        name="A",
        description="",
        supported_interfaces=[AgentInterface("https://a.example/", JSONRPC, "1.0")],
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    value = msgspec.json.decode(V1_0.encode_reply(ops.GetExtendedCard(), card))
    assert value["name"] == "A"
    assert V1_0.decode_reply(ops.GetExtendedCard(), value) == card
