"""0.3 as ProtoJSON: what official peers of REST write, and what is written to them."""

import base64
import json
from typing import Any

import pytest

from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT, is_core, is_newer
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, MethodNotFound, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Nothing, PushPage, TaskPage, TaskReply
from dragoman.transports import rest

PNG = b"\x89PNG\r\n\x1a\n\x00"
URL = "https://a.example/hook"
SAID = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}
MESSAGE = Message(
    message_id=MessageId("m"),
    role=Role.AGENT,
    context_id=ContextId("c"),
    task_id=TaskId("t"),
    parts=[
        Part(text="hi", metadata={"a_b": {"content": 1}}),
        Part(data={"data": 1}),
        Part(data=[1, None]),
        Part(raw=PNG, media_type="image/png", filename="a.png"),
        Part(url="https://a.example/f", media_type="text/plain"),
    ],
    metadata={"message_id": "kept"},
    extensions=["urn:x"],
)
TASK = Task(
    id=TaskId("t"),
    context_id=ContextId("c"),
    status=TaskStatus(
        state=TaskState.CANCELED, message=MESSAGE, timestamp="2026-01-02T03:04:05.678Z"
    ),
    artifacts=[Artifact(artifact_id="a", parts=[Part(text="x")], name="n")],
    history=[MESSAGE],
    metadata={"k": 1},
)
STATUS = StatusUpdate(task_id=TaskId("t"), context_id=ContextId("c"), status=TASK.status)
CHUNK = ArtifactUpdate(
    task_id=TaskId("t"), context_id=ContextId("c"), artifact=TASK.artifacts[0], append=True
)
EVENTS: list[Event] = [TASK, MESSAGE, STATUS, CHUNK]
CONFIG = PushConfig(
    URL,
    id="cfg",
    task_id=TaskId("t"),
    token="secret",
    authentication=PushAuthentication("Bearer", "x"),
    version="0.3",
)


def encoded(event: Event) -> Any:
    return json.loads(V0_3_PROTO.encode_event(Recorded.of_event(0, event)))


def send(**params: Any) -> Any:
    return V0_3_PROTO.decode_request("message/send", params)


def names(value: Any) -> set[str]:
    """Return the names of all members but those of free-form objects."""
    if isinstance(value, list):
        return set().union(*(names(item) for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    inner = (names(v) for k, v in value.items() if k not in ("metadata", "data"))
    return set(value).union(*inner)


@pytest.mark.parametrize("dialect", [V0_3_PROTO, V0_3_PROTO_TEXT])
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_the_way_out_and_back(event: Event, dialect: Any) -> None:
    assert (
        dialect.decode_event(json.loads(dialect.encode_event(Recorded.of_event(0, event)))) == event
    )


def test_a_task_is_spelled_as_the_proto_has_it() -> None:
    task = encoded(TASK)["task"]
    assert task["status"]["state"] == "TASK_STATE_CANCELLED"
    assert task["artifacts"] == [{"artifactId": "a", "name": "n", "parts": [{"text": "x"}]}]
    (message,) = task["history"]
    assert (message["role"], message["taskId"]) == ("ROLE_AGENT", "t")
    text, nested, wrapped, inline, linked = message["content"]
    assert text == {"text": "hi", "metadata": {"a_b": {"content": 1}}}
    assert nested == {"data": {"data": {"data": 1}}}
    assert wrapped["data"] == {"data": {"value": [1, None]}}
    assert inline["file"] == {
        "fileWithBytes": base64.b64encode(PNG).decode(),
        "mimeType": "image/png",
        "name": "a.png",
    }
    assert linked["file"] == {"fileWithUri": "https://a.example/f", "mimeType": "text/plain"}


def test_what_the_proto_has_no_field_for_does_not_go_out() -> None:
    message = Message(
        message_id=MessageId("m"),
        role=Role.USER,
        parts=[Part(text="x", extra={"unknown": 1})],
        reference_task_ids=[TaskId("r")],
        extra={"unknown": 1},
    )
    assert encoded(message)["message"] == {
        "messageId": "m",
        "role": "ROLE_USER",
        "content": [{"text": "x"}],
    }
    for event in EVENTS:
        assert not names(encoded(event)) & {"kind", "unknown", "uri", "bytes", "referenceTaskIds"}


def test_a_status_that_ends_a_stream_is_final() -> None:
    assert encoded(STATUS)["statusUpdate"]["final"] is True
    working = TaskStatus(state=TaskState.WORKING)
    update = StatusUpdate(task_id=TaskId("t"), context_id=ContextId("c"), status=working)
    assert encoded(update)["statusUpdate"]["final"] is False


@pytest.mark.requirement("V-12")
@pytest.mark.parametrize(
    "params",
    [
        {"message": SAID},
        {"request": SAID},
        {"message": {"message_id": "m", "role": 1, "content": [{"text": "hi"}]}},
        {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}},
        {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
    ],
)
def test_a_send_is_read_in_every_spelling(params: Any) -> None:
    said = Message(message_id=MessageId("m"), role=Role.USER, parts=[Part(text="hi")])
    assert send(**params) == ops.SendMessage(message=said)


@pytest.mark.requirement("V-12")
@pytest.mark.parametrize(
    "member",
    ["pushNotification", "push_notification", "pushNotificationConfig", "push_notification_config"],
)
def test_a_send_may_bring_its_receiver_under_either_name(member: str) -> None:
    config = {"id": "cfg", "url": URL, "token": "secret", "authentication": {"schemes": ["Basic"]}}
    operation = send(message=SAID, configuration={member: config})
    assert operation.push == PushConfig(
        URL,
        id="cfg",
        token="secret",
        authentication=PushAuthentication("Basic"),
        version="0.3",
    )


@pytest.mark.parametrize(
    ("configuration", "waits"),
    [(None, True), ({}, False), ({"blocking": True}, True), ({"blocking": False}, False)],
)
def test_a_configuration_that_does_not_say_to_wait_does_not(
    configuration: Any, waits: bool
) -> None:
    assert send(message=SAID, configuration=configuration).wait is waits


@pytest.mark.parametrize(("length", "history"), [(0, None), ("0", None), (3, 3), ("3", 3)])
def test_no_history_is_all_of_it(length: Any, history: int | None) -> None:
    assert send(message=SAID, configuration={"historyLength": length}).history == history
    read: Any = V0_3_PROTO.decode_request("tasks/get", {"id": "t", "historyLength": length})
    assert read.history == history


def test_a_reply_is_cut_here_because_the_proto_cannot_ask_for_none() -> None:
    asked = ops.GetTask(task_id=TaskId("t"), history=0)
    assert V0_3_PROTO.encode_request(asked) == ("tasks/get", {"name": "tasks/t"})
    reply = V0_3_PROTO.decode_reply(asked, encoded(TASK)["task"])
    assert isinstance(reply, TaskReply)
    assert reply.reading.task.history == []


@pytest.mark.requirement("P-8")
def test_bytes_that_are_base64_once_more_are_decoded_once_more() -> None:
    def read(content: bytes, kind: str, dialect: Any = V0_3_PROTO) -> Any:
        file = {"fileWithBytes": base64.b64encode(content).decode(), "mimeType": kind}
        said = {**SAID, "content": [{"file": file}]}
        return dialect.decode_request("message/send", {"message": said}).message.parts[0].raw

    twice = base64.b64encode(PNG)
    assert read(PNG, "image/png") == PNG
    assert read(twice, "image/png") == PNG
    # Nothing shows that these are not the files themselves.
    assert read(base64.b64encode(b"hello"), "image/png") == base64.b64encode(b"hello")
    assert read(base64.b64encode(b"hello"), "text/plain") == base64.b64encode(b"hello")
    # Those who always do it are known by name.
    assert read(base64.b64encode(b"hello"), "text/plain", V0_3_PROTO_TEXT) == b"hello"
    assert read(b"not base64", "text/plain", V0_3_PROTO_TEXT) == b"not base64"


def test_peers_that_read_text_for_bytes_get_text() -> None:
    part = json.loads(V0_3_PROTO_TEXT.encode_event(Recorded.of_event(0, MESSAGE)))["message"][
        "content"
    ][3]
    assert base64.b64decode(part["file"]["fileWithBytes"]) == base64.b64encode(PNG)


def test_streams_of_both_kinds_do_not_share_an_event() -> None:
    recorded = Recorded.of_event(0, MESSAGE)
    shapes = [d.encode_event(recorded) for d in (V0_3_PROTO, V0_3_PROTO_TEXT, V0_3, V1_0)]
    assert len(set(shapes)) == 4


@pytest.mark.requirement("V-11")
@pytest.mark.parametrize(
    "body",
    [
        {
            "parent": "tasks/t",
            "configId": "cfg",
            "config": {
                "name": "tasks/t/pushNotificationConfigs/cfg",
                "pushNotificationConfig": {"url": URL},
            },
        },
        {
            "parent": "tasks/t/pushNotificationConfigs",
            "config": {"pushNotificationConfig": {"id": "cfg", "url": URL}},
        },
        {
            "name": "tasks/t/pushNotificationConfigs/cfg",
            "pushNotificationConfig": {"url": URL},
        },
        {"config": {"taskId": "t", "pushNotificationConfig": {"id": "cfg", "url": URL}}},
        {"taskId": "t", "pushNotificationConfig": {"id": "cfg", "url": URL}},
        {"taskId": "t", "id": "cfg", "url": URL},
    ],
)
def test_a_push_configuration_is_read_in_every_shape(body: Any) -> None:
    method = "tasks/pushNotificationConfig/set"
    config = PushConfig(URL, id="cfg", task_id=TaskId("t"), version="0.3")
    wanted = ops.CreatePush(task_id=TaskId("t"), config=config)
    assert V0_3_PROTO.decode_request(method, body) == wanted
    # What the path says arrives like this, and wins.
    named = V0_3_PROTO.decode_request(method, body | {"taskId": "p"})
    assert isinstance(named, ops.CreatePush)
    assert (named.task_id, named.config.task_id) == ("p", "p")


def test_a_configuration_without_an_id_is_not_called_none() -> None:
    body = {
        "parent": "tasks/t",
        "config": {
            "name": "tasks/t/pushNotificationConfigs/None",
            "pushNotificationConfig": {"url": URL},
        },
    }
    created = V0_3_PROTO.decode_request("tasks/pushNotificationConfig/set", body)
    assert isinstance(created, ops.CreatePush)
    assert created.config.id == ""


OPERATIONS: list[tuple[ops.Operation, str, str, Any]] = [
    (
        ops.SendMessage(message=Message(MessageId("m"), Role.USER, [Part(text="hi")]), wait=False),
        "POST",
        "/v1/message:send",
        {"message": SAID, "configuration": {"blocking": False}},
    ),
    (
        ops.StreamMessage(
            message=Message(MessageId("m"), Role.USER, [Part(text="hi")]),
            history=3,
            accepted_output_modes=["text/plain"],
            metadata={"k": 1},
            push=PushConfig(URL, version="0.3"),
        ),
        "POST",
        "/v1/message:stream",
        {
            "message": SAID,
            "configuration": {
                "blocking": True,
                "acceptedOutputModes": ["text/plain"],
                "historyLength": 3,
                "pushNotification": {"url": URL},
            },
            "metadata": {"k": 1},
        },
    ),
    (
        ops.GetTask(task_id=TaskId("a:b"), history=2),
        "GET",
        "/v1/tasks/a%3Ab?historyLength=2",
        None,
    ),
    (ops.CancelTask(task_id=TaskId("t")), "POST", "/v1/tasks/t:cancel", {"name": "tasks/t"}),
    (ops.SubscribeToTask(task_id=TaskId("t")), "GET", "/v1/tasks/t:subscribe", None),
    (
        ops.CreatePush(task_id=TaskId("t"), config=CONFIG),
        "POST",
        "/v1/tasks/t/pushNotificationConfigs",
        {
            "parent": "tasks/t",
            "configId": "cfg",
            "config": {
                "name": "tasks/t/pushNotificationConfigs/cfg",
                "pushNotificationConfig": {
                    "id": "cfg",
                    "url": URL,
                    "token": "secret",
                    "authentication": {"schemes": ["Bearer"], "credentials": "x"},
                },
            },
        },
    ),
    (
        ops.GetPush(task_id=TaskId("t"), config_id="cfg"),
        "GET",
        "/v1/tasks/t/pushNotificationConfigs/cfg",
        None,
    ),
    (
        ops.ListPush(task_id=TaskId("t"), page_size=7, page_token="p"),
        "GET",
        "/v1/tasks/t/pushNotificationConfigs?pageSize=7&pageToken=p",
        None,
    ),
    (
        ops.DeletePush(task_id=TaskId("t"), config_id="cfg"),
        "DELETE",
        "/v1/tasks/t/pushNotificationConfigs/cfg",
        None,
    ),
    (ops.GetExtendedCard(), "GET", "/v1/card", None),
]


@pytest.mark.requirement("1.1-names")
@pytest.mark.parametrize(("operation", "verb", "path", "body"), OPERATIONS)
def test_an_operation_becomes_the_request_official_servers_know(
    operation: ops.Operation, verb: str, path: str, body: Any
) -> None:
    assert rest.request(V0_3_PROTO, operation) == rest.Outgoing(verb, path, body)


@pytest.mark.parametrize("operation", [row[0] for row in OPERATIONS])
def test_an_operation_survives_the_way_out_and_back(operation: ops.Operation) -> None:
    method, params = V0_3_PROTO.encode_request(operation)
    assert V0_3_PROTO.decode_request(method, params) == operation
    # Over REST the ids travel in the path alone.
    out = rest.request(V0_3_PROTO, operation)
    path, _, query = out.path.replace("%3A", ":").partition("?")
    route = rest.find_0_3(out.verb, path)
    assert isinstance(route, rest.RestRoute)
    given = rest.params(route, query.encode(), out.body)
    assert V0_3_PROTO.decode_request(rest.method(route, V0_3_PROTO), given) == operation


def test_what_0_3_cannot_say_is_refused() -> None:
    with pytest.raises(UnsupportedOperation):
        V0_3_PROTO.encode_request(ops.ListTasks())
    with pytest.raises(UnsupportedOperation):
        V0_3_PROTO.encode_request(ops.GetPush(task_id=TaskId("t")))
    with pytest.raises(MethodNotFound):
        V0_3_PROTO.decode_request("tasks/nosuch", {})
    for params in ({}, {"name": "tasks/"}, {"name": "task/t"}, {"name": 7}):
        with pytest.raises(InvalidParams):
            V0_3_PROTO.decode_request("tasks/get", params)


@pytest.mark.requirement("V-13")
def test_replies_are_read_wrapped_and_bare() -> None:
    sent = ops.SendMessage(message=MESSAGE)
    core = json.loads(V0_3.encode_event(Recorded.of_event(0, TASK)))
    for value in (encoded(TASK), encoded(TASK)["task"], core, {"task": core}):
        for operation in (sent, ops.GetTask(task_id=TaskId("t"))):
            reply = V0_3_PROTO.decode_reply(operation, value)
            assert isinstance(reply, TaskReply)
            assert reply.reading.task == TASK
    for value in (encoded(MESSAGE), {"msg": encoded(MESSAGE)["message"]}):
        assert V0_3_PROTO.decode_reply(sent, value) == MESSAGE
    for asked, wrong in (
        (ops.GetTask(task_id=TaskId("t")), encoded(MESSAGE)),
        (sent, encoded(STATUS)),
        (sent, {}),
        (sent, None),
        (sent, {"task": 7}),
        (sent, {"message": None}),
        (sent, encoded(TASK) | encoded(MESSAGE)),
    ):
        with pytest.raises(InvalidParams):
            V0_3_PROTO.decode_reply(asked, wrong)
    deleted = ops.DeletePush(task_id=TaskId("t"), config_id="c")
    assert V0_3_PROTO.decode_reply(deleted, None) == Nothing()


def test_events_are_read_raw_too() -> None:
    for event in EVENTS:
        raw = json.loads(V0_3.encode_event(Recorded.of_event(0, event)))
        bare = {name: item for name, item in raw.items() if name != "kind"}
        assert V0_3_PROTO.decode_event(raw) == event
        assert V0_3_PROTO.decode_event(bare) == event


@pytest.mark.parametrize("status", [{}, {"state": 0}, {"state": "TASK_STATE_UNSPECIFIED"}])
def test_a_state_a_peer_leaves_out_is_one_that_may_still_change(status: Any) -> None:
    event = V0_3_PROTO.decode_event({"statusUpdate": {"task_id": "t", "status": status}})
    assert isinstance(event, StatusUpdate)
    assert event.status.state is TaskState.WORKING


def test_an_artifact_a_peer_leaves_the_parts_out_of_is_empty() -> None:
    event = V0_3_PROTO.decode_event(
        {"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a"}, "lastChunk": True}}
    )
    assert isinstance(event, ArtifactUpdate)
    assert (event.artifact.parts, event.last_chunk) == ([], True)


def test_push_replies_survive_the_way_out_and_back() -> None:
    created = ops.CreatePush(task_id=TaskId("t"), config=CONFIG)
    value = json.loads(V0_3_PROTO.encode_reply(created, CONFIG))
    assert value["name"] == "tasks/t/pushNotificationConfigs/cfg"
    assert V0_3_PROTO.decode_reply(created, value) == CONFIG
    listed = ops.ListPush(task_id=TaskId("t"))
    page = PushPage([CONFIG], "next")
    value = json.loads(V0_3_PROTO.encode_reply(listed, page))
    assert V0_3_PROTO.decode_reply(listed, value) == page
    assert V0_3_PROTO.decode_reply(listed, value["configs"]) == PushPage([CONFIG])


def test_tasks_are_listed_without_pages() -> None:
    operation = V0_3_PROTO.decode_request("tasks/list", {})
    page = TaskPage([TaskReply(TaskReading(0, TASK))], "next", 100, 1, include_artifacts=True)
    assert json.loads(V0_3_PROTO.encode_reply(operation, page)) == [encoded(TASK)["task"]]


def test_posts_are_those_of_0_3() -> None:
    assert V0_3_PROTO.encode_push(Recorded.of_event(0, TASK), None) == V0_3.encode_event(
        Recorded.of_event(0, TASK)
    )
    status = Recorded.of_event(1, STATUS)
    assert V0_3_PROTO.encode_push(status, TASK) == V0_3.encode_push(status, TASK)


@pytest.mark.requirement("4.2-rest-0.3")
@pytest.mark.parametrize(
    ("body", "core", "newer"),
    [
        (None, False, False),
        ([], False, False),
        ({"message": SAID}, False, False),
        ({"request": SAID}, False, False),
        ({"message": {"kind": "message", "parts": []}}, True, False),
        ({"message": {"role": "user", "parts": []}}, True, False),
        ({"message": {"parts": [{"kind": "text", "text": "hi"}]}}, True, False),
        ({"message": {"role": "ROLE_USER", "parts": [{"text": "hi"}]}}, False, True),
        ({"message": {"role": ["ROLE_USER"], "parts": [7]}}, False, False),
        ({"taskId": "t", "pushNotificationConfig": {}}, True, False),
        ({"name": "tasks/t", "pushNotificationConfig": {}}, False, False),
    ],
)
def test_a_body_shows_whose_shape_it_has(body: Any, core: bool, newer: bool) -> None:
    assert (is_core(body), is_newer(body)) == (core, newer)
