"""What 0.3 and 0.2 accept beyond their schema, what they refuse, and what they emit."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import BY_V0_METHOD
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, MethodNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.card import JSONRPC, AgentCapabilities, AgentCard, AgentInterface
from dragoman.model.events import ArtifactUpdate, AttemptStarted, MessageAdded, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId, is_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import TaskPage, TaskReply

pytestmark = pytest.mark.parametrize("dialect", [V0_3, V0_2], ids=["0.3", "0.2"])

HELLO = {"kind": "text", "text": "hello"}


def send(dialect: Dialect, message: Any = None, **params: Any) -> ops.SendMessage:
    message = {"messageId": "m", "role": "user", "parts": [HELLO]} | (message or {})
    operation = dialect.decode_request("message/send", {"message": message, **params})
    assert isinstance(operation, ops.SendMessage)
    return operation


def part(dialect: Dialect, value: Any) -> Part:
    (read,) = send(dialect, {"parts": [value]}).message.parts
    return read


def refused_field(dialect: Dialect, method: str, params: Any) -> str:
    with pytest.raises(InvalidParams) as refused:
        dialect.decode_request(method, params)
    return refused.value.field


def event(dialect: Dialect, happened: Any) -> Any:
    return msgspec.json.decode(dialect.encode_event(Recorded.of_event(1, happened)))


def said(message: Message) -> Task:
    return Task(TaskId("t"), ContextId("c"), TaskStatus(TaskState.WORKING), history=[message])


def encoded_part(dialect: Dialect, value: Part) -> Any:
    message = Message(MessageId("m"), Role.AGENT, [value])
    return msgspec.json.decode(dialect.encode_reply(send(dialect), message))["parts"][0]


@pytest.mark.parametrize("method", BY_V0_METHOD)
def test_every_method_is_understood(dialect: Dialect, method: str) -> None:
    params = {
        "id": "t",
        "taskId": "t",
        "message": {"messageId": "m", "parts": [HELLO]},
        "pushNotificationConfig": {"url": "https://a.example/"},
        "pushNotificationConfigId": "c",
    }
    operation = dialect.decode_request(method, params)
    assert type(operation) is BY_V0_METHOD[method].operation
    assert getattr(operation, "task_id", "t") == "t"


@pytest.mark.requirement("V-7")
def test_the_extended_card_has_two_names(dialect: Dialect) -> None:
    for name in ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"):
        assert dialect.decode_request(name, {}) == ops.GetExtendedCard()
    assert dialect.encode_request(ops.GetExtendedCard()) == (
        "agent/getAuthenticatedExtendedCard",
        {},
    )


@pytest.mark.requirement("V-8")
@pytest.mark.parametrize("method", ["tasks/list", "SendMessage", "tasks/send", ""])
def test_methods_of_other_versions_are_unknown(dialect: Dialect, method: str) -> None:
    with pytest.raises(MethodNotFound) as refused:
        dialect.decode_request(method, {})
    assert refused.value.facts == {"method": method}


def test_tasks_cannot_be_listed(dialect: Dialect) -> None:
    with pytest.raises(UnsupportedOperation):
        dialect.encode_request(ops.ListTasks())
    with pytest.raises(UnsupportedOperation):
        dialect.encode_reply(ops.ListTasks(), TaskPage([], "", 50, 0, False))


def test_a_message_without_id_role_and_kind_is_given_them(dialect: Dialect) -> None:
    read = dialect.decode_request("message/send", {"message": {"parts": [HELLO]}})
    assert isinstance(read, ops.SendMessage)
    assert read.message.role is Role.USER
    assert is_id(read.message.message_id)


def test_an_agents_message_without_role_is_the_agents(dialect: Dialect) -> None:
    reply = dialect.decode_reply(send(dialect), {"kind": "message", "parts": [HELLO]})
    assert isinstance(reply, Message)
    assert reply.role is Role.AGENT


def test_the_messages_own_id_wins_over_the_one_beside_it(dialect: Dialect) -> None:
    assert send(dialect, messageId="beside").message.message_id == "m"
    assert send(dialect, {"messageId": None}, messageId="beside").message.message_id == "beside"


@pytest.mark.requirement("P-6", "P-7")
@pytest.mark.parametrize(
    "value",
    [
        HELLO,
        {"type": "text", "text": "hello"},
        {"text": "hello"},
        {"kind": None, "text": "hello"},
    ],
)
def test_a_text_part_may_name_its_kind_loosely(dialect: Dialect, value: Any) -> None:
    assert part(dialect, value) == Part(text="hello")


@pytest.mark.requirement("P-5")
@pytest.mark.parametrize("name", ["bytes", "fileWithBytes", "data"])
def test_the_bytes_of_a_file_have_several_names(dialect: Dialect, name: str) -> None:
    value = {"kind": "file", "file": {name: "aGk=", "mimeType": "text/plain", "name": "a"}}
    assert part(dialect, value) == Part(raw=b"hi", media_type="text/plain", filename="a")


@pytest.mark.requirement("P-5")
@pytest.mark.parametrize("name", ["uri", "fileWithUri", "url"])
def test_the_address_of_a_file_has_several_names(dialect: Dialect, name: str) -> None:
    assert part(dialect, {"file": {name: "https://a.example/"}}) == Part(url="https://a.example/")


@pytest.mark.requirement("P-2")
@pytest.mark.parametrize(
    "file",
    [
        {},
        {"bytes": "aGk=", "uri": "https://a.example/"},
        {"bytes": "aGk=", "fileWithBytes": "aGk="},
        "https://a.example/",
    ],
)
def test_a_file_has_exactly_one_content(dialect: Dialect, file: Any) -> None:
    params = {"message": {"parts": [{"kind": "file", "file": file}]}}
    assert refused_field(dialect, "message/send", params).startswith("message.parts[0].file")


@pytest.mark.requirement("P-3")
def test_a_data_part_is_unwrapped_only_under_its_flag(dialect: Dialect) -> None:
    wrapped = {"kind": "data", "data": {"value": [1]}}
    flagged = wrapped | {"metadata": {"data_part_compat": True, "k": 1}}
    assert part(dialect, wrapped) == Part(data={"value": [1]})
    assert part(dialect, flagged) == Part(data=[1], metadata={"k": 1})
    more = flagged | {"data": {"value": 1, "other": 2}}
    assert part(dialect, more).data == {"value": 1, "other": 2}


@pytest.mark.requirement("P-3")
@pytest.mark.parametrize("data", [[], [1], [{"kind": "data", "data": [1]}]])
def test_data_may_be_an_array_in_and_out(dialect: Dialect, data: Any) -> None:
    given = {"kind": "data", "data": data, "metadata": {"k": 1}}
    assert part(dialect, given) == Part(data=data, metadata={"k": 1})
    assert encoded_part(dialect, Part(data=data, metadata={"k": 1})) == given


@pytest.mark.requirement("P-3")
@pytest.mark.parametrize("data", [1, "text", None, True])
def test_data_that_is_neither_an_object_nor_an_array_is_refused(
    dialect: Dialect, data: Any
) -> None:
    params = {"message": {"parts": [{"kind": "data", "data": data}]}}
    assert refused_field(dialect, "message/send", params) == "message.parts[0].data"


@pytest.mark.requirement("P-3")
@pytest.mark.parametrize("data", [1, "text", None, True])
def test_data_that_is_neither_an_object_nor_an_array_is_wrapped(
    dialect: Dialect, data: Any
) -> None:
    assert encoded_part(dialect, Part(data=data, metadata={"k": 1})) == {
        "kind": "data",
        "data": {"value": data},
        "metadata": {"k": 1, "data_part_compat": True},
    }


@pytest.mark.requirement("P-4")
def test_media_type_and_name_of_a_text_travel_in_its_metadata(dialect: Dialect) -> None:
    text = Part(text="# Hi", media_type="text/markdown", filename="hi.md")
    value = encoded_part(dialect, text)
    assert value["metadata"] == {"a2a:mediaType": "text/markdown", "a2a:filename": "hi.md"}
    assert part(dialect, value) == text


@pytest.mark.requirement("P-4")
def test_metadata_that_is_no_media_type_stays_metadata(dialect: Dialect) -> None:
    read = part(dialect, HELLO | {"metadata": {"a2a:mediaType": 7}})
    assert (read.media_type, read.metadata) == ("", {"a2a:mediaType": 7})


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"kind": "task", "parts": [HELLO]}, "message.kind"),
        ({"parts": []}, "message.parts"),
        ({}, "message.parts"),
        ({"parts": [HELLO], "role": "ROLE_USER"}, "message.role"),
        ({"parts": [HELLO], "role": 1}, "message.role"),
        ({"parts": [HELLO], "messageId": ""}, "message.messageId"),
        ({"parts": [HELLO], "taskId": "a b"}, "message.taskId"),
        ({"parts": [{"kind": "image", "text": "x"}]}, "message.parts[0].kind"),
        ({"parts": [{"kind": 1, "text": "x"}]}, "message.parts[0].kind"),
        ({"parts": [{"kind": "text"}]}, "message.parts[0].text"),
        ({"parts": [{"kind": "data", "data": 1}]}, "message.parts[0].data"),
        ({"parts": [{"kind": "data", "data": None}]}, "message.parts[0].data"),
        ({"parts": [{"text": "x", "data": {}}]}, "message.parts[0]"),
        ({"parts": [{}]}, "message.parts[0]"),
        ({"parts": ["text"]}, "message.parts[0]"),
        ({"parts": [HELLO], "metadata": []}, "message.metadata"),
        ("hello", "message"),
        (None, "message"),
    ],
)
def test_a_wrong_message_is_refused_by_field(dialect: Dialect, message: Any, field: str) -> None:
    assert refused_field(dialect, "message/send", {"message": message}) == field


@pytest.mark.parametrize(
    ("configuration", "wait"),
    [(None, True), ({}, True), ({"blocking": True}, True), ({"blocking": False}, False)],
)
def test_a_send_waits_unless_told_not_to(dialect: Dialect, configuration: Any, wait: bool) -> None:
    assert send(dialect, configuration=configuration).wait is wait


@pytest.mark.parametrize(("length", "history"), [(0, 0), (7, 7), (None, None)])
def test_the_history_length_is_kept(dialect: Dialect, length: Any, history: int | None) -> None:
    assert send(dialect, configuration={"historyLength": length}).history == history
    read = dialect.decode_request("tasks/get", {"id": "t", "historyLength": length})
    assert read == ops.GetTask(task_id=TaskId("t"), history=history)


@pytest.mark.parametrize("length", [-1, 1.5, "many", True])
def test_a_wrong_history_length_is_refused(dialect: Dialect, length: Any) -> None:
    params = {"id": "t", "historyLength": length}
    assert refused_field(dialect, "tasks/get", params) == "historyLength"
    params = {"message": {"parts": [HELLO]}, "configuration": {"historyLength": length}}
    assert refused_field(dialect, "message/send", params) == "configuration.historyLength"


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("tasks/get", {}, "id"),
        ("tasks/cancel", {"id": ""}, "id"),
        ("tasks/resubscribe", {"id": 7}, "id"),
        ("tasks/pushNotificationConfig/set", {"id": "t"}, "taskId"),
        ("tasks/pushNotificationConfig/get", {"taskId": "t"}, "id"),
        ("message/send", {}, "message"),
    ],
)
def test_a_missing_id_is_named(dialect: Dialect, method: str, params: Any, field: str) -> None:
    assert refused_field(dialect, method, params) == field


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("cancelled", TaskState.CANCELED),
        ("TASK_STATE_CANCELLED", TaskState.CANCELED),
        ("input_required", TaskState.INPUT_REQUIRED),
        ("auth_required", TaskState.AUTH_REQUIRED),
        ("started", TaskState.SUBMITTED),
        ("unknown", TaskState.WORKING),
    ],
)
def test_states_have_loose_spellings(dialect: Dialect, name: str, state: TaskState) -> None:
    task = dialect.decode_event({"kind": "task", "id": "t", "status": {"state": name}})
    assert isinstance(task, Task)
    assert task.status.state is state


@pytest.mark.parametrize("state", ["TASK_STATE_WORKING", "paused", 2, None])
def test_a_state_nobody_knows_is_refused(dialect: Dialect, state: Any) -> None:
    with pytest.raises(InvalidParams) as refused:
        dialect.decode_event({"kind": "task", "id": "t", "status": {"state": state}})
    assert refused.value.field == "result.status.state"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("2024-03-15T10:10:00", "2024-03-15T10:10:00.000Z"),
        ("2024-03-15T12:10:00.5+02:00", "2024-03-15T10:10:00.500Z"),
        ("2024-03-15T10:10:00.123456789Z", "2024-03-15T10:10:00.123Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("", ""),
        (None, ""),
    ],
)
def test_times_are_read_as_utc(dialect: Dialect, given: Any, read: str) -> None:
    value = {"kind": "task", "id": "t", "status": {"state": "working", "timestamp": given}}
    task = dialect.decode_event(value)
    assert isinstance(task, Task)
    assert task.status.timestamp == read


@pytest.mark.parametrize(
    "given", ["soon", 7, "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"]
)
def test_what_is_no_time_is_refused(dialect: Dialect, given: Any) -> None:
    with pytest.raises(InvalidParams) as refused:
        dialect.decode_event(
            {"kind": "task", "id": "t", "status": {"state": "working", "timestamp": given}}
        )
    assert refused.value.field == "result.status.timestamp"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"id": "t", "status": {"state": "working"}}, Task),
        ({"taskId": "t", "status": {"state": "working"}}, StatusUpdate),
        ({"taskId": "t", "artifact": {"artifactId": "a", "parts": [HELLO]}}, ArtifactUpdate),
        ({"parts": [HELLO]}, Message),
    ],
)
def test_an_event_without_kind_is_told_by_its_members(
    dialect: Dialect, value: Any, kind: type
) -> None:
    assert isinstance(dialect.decode_event(value), kind)


@pytest.mark.parametrize("value", [{}, {"kind": "other"}, {"kind": ["task"]}, [], None, "task"])
def test_what_is_no_event_is_refused(dialect: Dialect, value: Any) -> None:
    with pytest.raises(InvalidParams):
        dialect.decode_event(value)


def test_a_stream_event_does_not_answer_a_send(dialect: Dialect) -> None:
    update = {"kind": "status-update", "taskId": "t", "status": {"state": "working"}}
    with pytest.raises(InvalidParams):
        dialect.decode_reply(send(dialect), update)


@pytest.mark.requirement("E-3", "T-14")
@pytest.mark.parametrize("state", TaskState)
def test_final_is_emitted_and_true_where_streams_end(dialect: Dialect, state: TaskState) -> None:
    update = StatusUpdate(TaskId("t"), ContextId("c"), TaskStatus(state))
    value = event(dialect, update)
    assert value["final"] is (state.is_terminal or state is TaskState.INPUT_REQUIRED)


@pytest.mark.requirement("V-9")
def test_objects_begin_with_their_kind_and_name_their_context(dialect: Dialect) -> None:
    context = ContextId("")
    status, task = TaskStatus(TaskState.WORKING), TaskId("t")
    artifact = Artifact("a", [Part(text="x")])
    message = Message(MessageId("m"), Role.USER, [Part(text="x")])
    for happened, kind in (
        (Task(task, context, status, history=[message]), "task"),
        (StatusUpdate(task, context, status), "status-update"),
        (ArtifactUpdate(task, context, artifact), "artifact-update"),
    ):
        value = event(dialect, happened)
        assert next(iter(value.items())) == ("kind", kind)
        assert value["contextId"] == ""
    assert event(dialect, message) == {
        "kind": "message",
        "messageId": "m",
        "role": "user",
        "parts": [{"kind": "text", "text": "x"}],
    }


def test_entries_of_the_log_that_no_stream_shows_are_not_encoded(dialect: Dialect) -> None:
    message = Message(MessageId("m"), Role.USER, [Part(text="x")])
    for hidden in (MessageAdded(message), AttemptStarted(2)):
        with pytest.raises(ValueError, match="not part of any stream"):
            event(dialect, hidden)


def test_an_event_is_encoded_once(dialect: Dialect) -> None:
    recorded = Recorded.of_event(1, said(Message(MessageId("m"), Role.USER, [Part(text="x")])))
    assert dialect.encode_event(recorded) is dialect.encode_event(recorded)
    assert recorded.shapes.keys() == {"0.3"}


def test_unknown_fields_go_out_again_but_never_over_known_ones(dialect: Dialect) -> None:
    message = {"parts": [HELLO | {"x": 1}], "y": {"deep": [None]}, "messageId": "m"}
    _, params = dialect.encode_request(send(dialect, message))
    assert params["message"]["y"] == {"deep": [None]}
    assert params["message"]["parts"][0] == HELLO | {"x": 1}
    # A peer of 1.0 may send names that only older versions give a meaning.
    sly = Part(text="x", extra={"kind": "file", "file": {}, "type": "data", "z": 1})
    assert encoded_part(dialect, sly) == {"kind": "text", "text": "x", "type": "data", "z": 1}


def test_unknown_fields_of_every_object_are_kept(dialect: Dialect) -> None:
    value = {
        "kind": "task",
        "id": "t",
        "contextId": "c",
        "status": {"state": "working", "a": 1},
        "artifacts": [{"artifactId": "x", "parts": [HELLO], "b": 2}],
        "history": [
            {"kind": "message", "messageId": "m", "role": "user", "parts": [HELLO], "c": 3}
        ],
        "d": 4,
    }
    assert event(dialect, dialect.decode_event(value)) == value


@pytest.mark.requirement("T-30")
@pytest.mark.parametrize(("wanted", "shown"), [(None, 3), (0, 0), (2, 2), (9, 3)])
def test_a_reply_shows_the_latest_messages_asked_for(
    dialect: Dialect, wanted: int | None, shown: int
) -> None:
    history = [Message(MessageId(f"m{n}"), Role.USER, [Part(text="x")]) for n in range(3)]
    task = msgspec.structs.replace(said(history[0]), history=history)
    reply = TaskReply(TaskReading(1, task), wanted)
    for body in (
        dialect.encode_reply(ops.GetTask(task_id=TaskId("t")), reply),
        dialect.encode_opening(reply),
    ):
        value = msgspec.json.decode(body)
        assert [m["messageId"] for m in value.get("history", [])] == [
            f"m{n}" for n in range(3 - shown, 3)
        ]
        assert ("history" in value) == bool(shown)
    assert task.history == history


def test_an_extended_card_has_the_shape_of_the_version(dialect: Dialect) -> None:
    card = AgentCard(
        name="A",
        description="",
        supported_interfaces=[AgentInterface("https://a.example/", JSONRPC, "0.3")],
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    body = dialect.encode_reply(ops.GetExtendedCard(), card)
    value = msgspec.json.decode(body)
    assert value["protocolVersion"] == {"0.3": "0.3.0", "0.2": "0.2.6"}[dialect.version]
    assert dialect.decode_reply(ops.GetExtendedCard(), value).name == "A"  # type: ignore[union-attr]


def test_a_tenant_has_no_place(dialect: Dialect) -> None:
    _, params = dialect.encode_request(ops.GetTask(task_id=TaskId("t"), tenant="acme"))
    assert params == {"id": "t"}


@pytest.mark.requirement("P-1")
def test_what_came_in_0_x_goes_out_to_1_0_without_a_trace_of_it(dialect: Dialect) -> None:
    task = dialect.decode_event(
        {
            "kind": "task",
            "id": "t",
            "contextId": "c",
            "status": {"state": "canceled"},
            "history": [{"kind": "message", "messageId": "m", "role": "user", "parts": [HELLO]}],
            "x": 1,
        }
    )
    assert msgspec.json.decode(V1_0.encode_event(Recorded.of_event(1, task))) == {
        "task": {
            "id": "t",
            "contextId": "c",
            "status": {"state": "TASK_STATE_CANCELED"},
            "history": [{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}],
        }
    }


def test_an_empty_text_is_content(dialect: Dialect) -> None:
    assert part(dialect, {"kind": "text", "text": ""}).text == ""
    assert part(dialect, {"kind": "text", "text": ""}).raw is UNSET
