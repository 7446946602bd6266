"""Push configurations in every version: what is read, what is refused, and what a post holds."""

from typing import Any

import msgspec
import pytest

from dragoman.dialects import push
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, AttemptStarted, Event, MessageAdded, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig, is_sendable
from dragoman.model.record import Recorded, encode_event
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.push.request import TOKEN_HEADER, headers
from dragoman.service import Nothing, PushPage

ALL = pytest.mark.parametrize("dialect", [V1_0, V0_3, V0_2], ids=["1.0", "0.3", "0.2"])
OLD = pytest.mark.parametrize("dialect", [V0_3, V0_2], ids=["0.3", "0.2"])
CONFIG = "tasks/pushNotificationConfig/"
URL = "https://a.example/"
TASK = TaskId("t")

MESSAGE = Message(MessageId("m"), Role.USER, [Part(text="x")])
CREATED = Task(TASK, ContextId("c"), TaskStatus(TaskState.SUBMITTED), history=[MESSAGE])
WORKING = StatusUpdate(TASK, ContextId("c"), TaskStatus(TaskState.WORKING))
CHUNK = ArtifactUpdate(TASK, ContextId("c"), Artifact("a", [Part(text="x")]))


def created(dialect: Dialect, config: Any) -> PushConfig:
    """Return what a version makes of a configuration, which is given in the shape of 1.0."""
    if dialect is V1_0:
        asked = dialect.decode_request(
            "CreateTaskPushNotificationConfig", {"taskId": "t", **config}
        )
    else:
        params = {"taskId": "t", "pushNotificationConfig": config}
        asked = dialect.decode_request(CONFIG + "set", params)
    assert isinstance(asked, ops.CreatePush)
    assert asked.task_id == asked.config.task_id == "t"
    return asked.config


def sent(dialect: Dialect, config: Any) -> PushConfig | None:
    method, name = "message/send", "pushNotificationConfig"
    if dialect is V1_0:
        method, name = "SendMessage", "taskPushNotificationConfig"
    _, params = dialect.encode_request(ops.SendMessage(message=MESSAGE))
    params = msgspec.json.decode(msgspec.json.encode(params))
    params["configuration"][name] = config
    asked = dialect.decode_request(method, params)
    assert isinstance(asked, ops.SendMessage)
    return asked.push


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(InvalidParams) as error:
        call(*args)
    return error.value.field


@pytest.mark.requirement("T-39")
@ALL
def test_a_configuration_remembers_the_version_that_registered_it(dialect: Dialect) -> None:
    assert created(dialect, {"url": URL}).version == dialect.version
    read = sent(dialect, {"url": URL})
    assert read == PushConfig(URL, version=dialect.version)


@ALL
@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "url"),
        ({"url": None}, "url"),
        ({"url": ""}, "url"),
        ({"url": 7}, "url"),
        ({"url": "x" * 2049}, "url"),
        ({"url": URL, "id": "a b"}, "id"),
        ({"url": URL, "id": "c" * 257}, "id"),
        ({"url": URL, "token": "x" * 4097}, "token"),
        ({"url": URL, "token": []}, "token"),
        ({"url": URL, "authentication": "Bearer"}, "authentication"),
        ({"url": URL, "authentication": {"scheme": 1}}, "authentication.scheme"),
        ({"url": URL, "authentication": {"scheme": "x" * 257}}, "authentication.scheme"),
        ({"url": URL, "authentication": {"schemes": "Bearer"}}, "authentication.schemes"),
        ({"url": URL, "authentication": {"schemes": [1]}}, "authentication.schemes[0]"),
        ({"url": URL, "authentication": {"credentials": "x"}}, "authentication.credentials"),
        (
            {"url": URL, "authentication": {"scheme": "Bearer", "credentials": "x" * 8193}},
            "authentication.credentials",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_by_field(
    dialect: Dialect, config: Any, field: str
) -> None:
    outer = "" if dialect is V1_0 else "pushNotificationConfig."
    assert refused(created, dialect, config) == outer + field
    name = "taskPushNotificationConfig" if dialect is V1_0 else "pushNotificationConfig"
    assert refused(sent, dialect, config) == f"configuration.{name}.{field}"


@ALL
@pytest.mark.parametrize(
    "sign", ["\r", "\n", "\x00", "\t", "\x1b", "\x7f", "\x85", "\u200b", "\u202e"]
)
@pytest.mark.parametrize("name", ["url", "token", "scheme", "schemes", "credentials"])
def test_no_text_may_end_the_header_it_would_stand_in(
    dialect: Dialect, name: str, sign: str
) -> None:
    authentication: dict[str, Any] = {"scheme": "Bearer", "credentials": "x"}
    config: dict[str, Any] = {"url": URL, "token": "t", "authentication": authentication}
    bad = f"a{sign}b"
    if name == "schemes":
        authentication.pop("scheme")
        authentication["schemes"] = [bad]
    else:
        (config if name in config else authentication)[name] = bad
    for field in (refused(created, dialect, config), refused(sent, dialect, config)):
        assert field.split(".")[-1].removesuffix("[0]") == name


@ALL
@pytest.mark.parametrize("scheme", ["Bearer x", "a,b", "B\u00e4r", "a:b", " ", "a/b", '"a"'])
def test_a_scheme_is_one_word_of_a_header(dialect: Dialect, scheme: str) -> None:
    config = {"url": URL, "authentication": {"scheme": scheme, "credentials": "x"}}
    assert refused(created, dialect, config).endswith("authentication.scheme")


@ALL
@pytest.mark.parametrize("text", ["a b", "p\u00e4ss", "\u6f22", 'a,b;c="d"', "x" * 50])
def test_what_is_taken_here_is_taken_by_the_way_out(dialect: Dialect, text: str) -> None:
    authentication = {"scheme": "Api-Key", "credentials": text}
    config = created(dialect, {"url": URL, "token": text, "authentication": authentication})
    made = headers(config, b"", id="m", seq=1, content_type="a/b", now=0, secrets=[b"s"])
    assert is_sendable(made["authorization"]) and is_sendable(made[TOKEN_HEADER])


@ALL
def test_the_longest_texts_are_taken(dialect: Dialect) -> None:
    config = {
        "url": "u" * push.MAX_URL_LENGTH,
        "id": "i" * 256,
        "token": "t" * push.MAX_TOKEN_LENGTH,
        "authentication": {"scheme": "s", "credentials": "c" * push.MAX_CREDENTIALS_LENGTH},
    }
    assert len(created(dialect, config).url) == 2048


@ALL
@pytest.mark.parametrize("config", [1, "x", [], True])
def test_a_configuration_must_be_an_object(dialect: Dialect, config: Any) -> None:
    assert refused(sent, dialect, config).endswith("ushNotificationConfig")
    assert sent(dialect, None) is None


@pytest.mark.requirement("2.12-schemes")
@OLD
@pytest.mark.parametrize(
    ("given", "kept", "emitted"),
    [
        ({"schemes": ["Bearer", "Basic"]}, PushAuthentication("Bearer"), {"schemes": ["Bearer"]}),
        ({"schemes": []}, PushAuthentication(""), {"schemes": []}),
        (None, None, None),
    ],
)
def test_of_several_schemes_the_first_is_kept(
    dialect: Dialect, given: Any, kept: Any, emitted: Any
) -> None:
    config = created(dialect, {"url": URL, "authentication": given})
    assert config.authentication == kept
    _, params = dialect.encode_request(ops.CreatePush(task_id=TASK, config=config))
    assert params["pushNotificationConfig"].get("authentication") == emitted


@OLD
def test_a_read_of_0_x_need_not_say_which_configuration(dialect: Dialect) -> None:
    assert dialect.decode_request(CONFIG + "get", {"id": "t"}) == ops.GetPush(task_id=TASK)
    named = {"id": "t", "pushNotificationConfigId": "c", "metadata": {}}
    assert dialect.decode_request(CONFIG + "get", named) == ops.GetPush(task_id=TASK, config_id="c")


@OLD
@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("set", {"taskId": "t"}, "pushNotificationConfig"),
        ("set", {"id": "t", "pushNotificationConfig": {"url": URL}}, "taskId"),
        ("get", {"id": "t", "pushNotificationConfigId": 7}, "pushNotificationConfigId"),
        ("get", {"taskId": "t"}, "id"),
        ("list", {}, "id"),
        ("delete", {"id": "t"}, "pushNotificationConfigId"),
        ("delete", {"id": "t", "pushNotificationConfigId": ""}, "pushNotificationConfigId"),
    ],
)
def test_what_0_x_must_name_is_named(
    dialect: Dialect, method: str, params: Any, field: str
) -> None:
    assert refused(dialect.decode_request, CONFIG + method, params) == field


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("CreateTaskPushNotificationConfig", {"url": URL}, "taskId"),
        ("CreateTaskPushNotificationConfig", {"url": URL, "taskId": ""}, "taskId"),
        ("CreateTaskPushNotificationConfig", {"url": URL, "taskId": "t", "tenant": 0}, "tenant"),
        ("GetTaskPushNotificationConfig", {"taskId": "t"}, "id"),
        ("GetTaskPushNotificationConfig", {"id": "c"}, "taskId"),
        ("DeleteTaskPushNotificationConfig", {"taskId": "t", "id": ""}, "id"),
        ("ListTaskPushNotificationConfigs", {}, "taskId"),
        ("ListTaskPushNotificationConfigs", {"taskId": "t", "pageSize": -1}, "pageSize"),
        ("ListTaskPushNotificationConfigs", {"taskId": "t", "pageToken": 1}, "pageToken"),
    ],
)
def test_what_1_0_must_name_is_named(method: str, params: Any, field: str) -> None:
    assert refused(V1_0.decode_request, method, params) == field


@pytest.mark.parametrize(("asked", "size"), [(0, 50), (None, 50), (7, 7), ("7", 7), (1000, 100)])
def test_a_page_is_of_a_size_we_give(asked: Any, size: int) -> None:
    params = {"taskId": "t", "pageSize": asked}
    listing = V1_0.decode_request("ListTaskPushNotificationConfigs", params)
    assert listing == ops.ListPush(task_id=TASK, page_size=size)


@pytest.mark.parametrize(
    "params",
    [
        {"taskId": "t", "id": "c", "url": URL},
        {"task_id": "t", "id": "c", "url": URL},
        {"taskId": "t", "pushNotificationConfig": {"id": "c", "url": URL}},
        {"config": {"taskId": "t", "pushNotificationConfig": {"id": "c", "url": URL}}},
        {"taskId": "t", "config": {"taskId": "other", "id": "c", "url": URL}},
        {"taskId": "t", "configId": "c", "config": {"pushNotificationConfig": {"url": URL}}},
        {"taskId": "t", "id": "c", "push_notification_config": {"id": "d", "url": URL}},
        {"taskId": "t", "name": "tasks/u", "pushNotificationConfig": {"id": "c", "url": URL}},
    ],
)
def test_1_0_understands_configurations_that_are_nested(params: Any) -> None:
    read = V1_0.decode_request("CreateTaskPushNotificationConfig", params)
    config = PushConfig(URL, id="c", task_id=TASK)
    assert read == ops.CreatePush(task_id=TASK, config=config)


def test_a_fault_inside_a_nested_configuration_is_named_where_it_is() -> None:
    params = {"taskId": "t", "pushNotificationConfig": {"url": ""}}
    method = "CreateTaskPushNotificationConfig"
    assert refused(V1_0.decode_request, method, params) == "pushNotificationConfig.url"
    params = {"taskId": 1, "pushNotificationConfig": {"url": URL}}
    assert refused(V1_0.decode_request, method, params) == "taskId"


def test_the_configuration_of_a_send_belongs_to_the_message_s_task() -> None:
    assert sent(V1_0, {"url": URL, "taskId": "other"}) == PushConfig(URL)


def test_1_0_cannot_ask_for_whichever_configuration() -> None:
    with pytest.raises(UnsupportedOperation):
        V1_0.encode_request(ops.GetPush(task_id=TASK))


def test_a_reply_of_1_0_names_the_tenant_that_asked() -> None:
    config = PushConfig(URL, id="c", task_id=TASK)
    flat = {"tenant": "acme", "id": "c", "taskId": "t", "url": URL}
    get = ops.GetPush(task_id=TASK, config_id="c", tenant="acme")
    assert msgspec.json.decode(V1_0.encode_reply(get, config)) == flat
    listing = ops.ListPush(task_id=TASK, tenant="acme")
    page = msgspec.json.decode(V1_0.encode_reply(listing, PushPage([config])))
    assert page == {"configs": [flat], "nextPageToken": ""}


@ALL
def test_an_empty_list_is_a_list(dialect: Dialect) -> None:
    body = dialect.encode_reply(ops.ListPush(task_id=TASK), PushPage([]))
    empty = {"configs": [], "nextPageToken": ""} if dialect is V1_0 else []
    assert msgspec.json.decode(body) == empty


@ALL
@pytest.mark.requirement("V-10", "V-13")
@pytest.mark.parametrize("value", [None, {}, "", True])
def test_whatever_answers_a_deletion_says_nothing(dialect: Dialect, value: Any) -> None:
    asked = ops.DeletePush(task_id=TASK, config_id="c")
    assert dialect.encode_reply(asked, Nothing()) == b"null"
    assert dialect.decode_reply(asked, value) == Nothing()


@ALL
def test_a_reply_without_task_is_about_the_one_asked_for(dialect: Dialect) -> None:
    inner = {"id": "c", "url": URL}
    item = inner if dialect is V1_0 else {"pushNotificationConfig": inner}
    config = PushConfig(URL, id="c", task_id=TASK, version=dialect.version)
    assert dialect.decode_reply(ops.GetPush(task_id=TASK), item) == config
    items = {"configs": [item]} if dialect is V1_0 else [item]
    assert dialect.decode_reply(ops.ListPush(task_id=TASK), items) == PushPage([config])


@pytest.mark.requirement("2.12-secrets")
@ALL
def test_what_is_masked_is_not_emitted(dialect: Dialect) -> None:
    config = PushConfig(URL, id="c", authentication=PushAuthentication("Bearer", "hunter2"))
    asked = ops.GetPush(task_id=TASK, config_id="c")
    assert b"hunter2" in dialect.encode_reply(asked, config)
    assert b"hunter2" not in dialect.encode_reply(asked, config.masked())


def recorded_both_ways(event: Event) -> list[Recorded]:
    return [Recorded.of_event(3, event), Recorded.of_body(3, encode_event(event))]


@ALL
@pytest.mark.parametrize(
    ("event", "is_new", "is_old"),
    [
        (CREATED, True, True),
        (WORKING, True, True),
        (CHUNK, True, False),
        (MessageAdded(MESSAGE), False, False),
        (AttemptStarted(2), False, False),
    ],
    ids=["creation", "status", "artifact", "message added", "attempt started"],
)
def test_0_x_posts_tasks_and_1_0_whatever_streams_show(
    dialect: Dialect, event: Event, is_new: bool, is_old: bool
) -> None:
    for recorded in recorded_both_ways(event):
        assert dialect.posts(recorded) is (is_new if dialect is V1_0 else is_old)


@pytest.mark.requirement("4.4-push")
@pytest.mark.parametrize("event", [CREATED, WORKING, CHUNK])
def test_a_post_of_1_0_is_the_event_as_streams_show_it(event: Event) -> None:
    for recorded in recorded_both_ways(event):
        assert V1_0.encode_push(recorded, None) == V1_0.encode_event(recorded)
    assert (V1_0.push_needs_task, V1_0.push_content_type) == (False, "application/a2a+json")


@pytest.mark.requirement("4.4-push")
@OLD
def test_a_post_of_0_x_is_the_task_as_of_the_event(dialect: Dialect) -> None:
    task = msgspec.structs.replace(CREATED, status=WORKING.status, artifacts=[CHUNK.artifact])
    for recorded in recorded_both_ways(WORKING):
        body = msgspec.json.decode(dialect.encode_push(recorded, task))
        assert (body["kind"], body["status"]["state"]) == ("task", "working")
        assert dialect.decode_event(body) == task
        with pytest.raises(ValueError, match="needs the task"):
            dialect.encode_push(recorded, None)
    for recorded in recorded_both_ways(CREATED):
        body = msgspec.json.decode(dialect.encode_push(recorded, None))
        assert dialect.decode_event(body) == CREATED
    assert (dialect.push_needs_task, dialect.push_content_type) == (True, "application/json")
