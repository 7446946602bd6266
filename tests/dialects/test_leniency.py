"""Answers in the shape of another version than is spoken: read for what they mean, and said so."""

from typing import Any

import pytest

from dragoman.dialects import leniency
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import Nexus
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.task import Task, TaskState
from dragoman.service import TaskReply

OLD = {
    "kind": "status-update",
    "taskId": "t",
    "contextId": "c",
    "status": {
        "state": "input-required",
        "message": {"role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "hi"}]},
    },
    "final": True,
}
NEW = {
    "statusUpdate": {
        "taskId": "t",
        "contextId": "c",
        "status": {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": {"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "hi"}]},
        },
    }
}
MIXED = {**OLD, "status": NEW["statusUpdate"]["status"]}
RAW = {
    "artifactUpdate": {
        "taskId": "t",
        "artifact": {"artifactId": "a", "parts": [{"raw": "AAH/", "mediaType": "image/png"}]},
    }
}


def event(dialect: Dialect, value: Any) -> tuple[Any, list[str]]:
    noted: list[str] = []
    return leniency.decode_event(dialect, value, noted.append), noted


@pytest.mark.parametrize("value", [OLD, NEW, MIXED], ids=["0.3", "1.0", "mixed"])
@pytest.mark.parametrize("dialect", [V1_0, V0_3, V0_2, V0_3_PROTO], ids=["1.0", "0.3", "0.2", "p"])
def test_an_event_means_the_same_in_every_shape(dialect: Dialect, value: Any) -> None:
    found, noted = event(dialect, value)
    assert isinstance(found, StatusUpdate)
    assert (found.task_id, found.context_id) == ("t", "c")
    assert found.status.state is TaskState.INPUT_REQUIRED
    assert found.status.message is not None and found.status.message.text == "hi"
    own = {V1_0: [NEW], V0_3: [OLD], V0_2: [OLD], V0_3_PROTO: [OLD, NEW, MIXED]}
    assert bool(noted) is (value not in own[dialect])


def test_parts_that_only_1_0_has_are_read_in_0_x() -> None:
    for dialect in (V0_3, V0_2, V0_3_PROTO):
        found, noted = event(dialect, RAW)
        assert isinstance(found, ArtifactUpdate) and noted
        assert found.artifact.parts[0].raw == b"\x00\x01\xff"


@pytest.mark.parametrize(
    "operation", [ops.GetTask(task_id=TaskId("t")), ops.CancelTask(task_id=TaskId("t"))]
)
def test_a_task_is_read_flat_or_wrapped(operation: Any) -> None:
    flat = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"}}
    for value in (flat, {"task": flat}):
        noted: list[str] = []
        reply = leniency.decode_reply(V1_0, operation, value, noted.append)
        assert isinstance(reply, TaskReply) and noted
        assert reply.reading.task.status.state is TaskState.COMPLETED


def test_a_flat_answer_to_a_send_is_a_task_or_a_message() -> None:
    message = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"text": "hi"}]}
    task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}}
    assert isinstance(event(V1_0, message)[0], Message)
    assert isinstance(event(V1_0, task)[0], Task)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        {"kind": "task"},
        {"kind": "task", "id": "t", "status": {}},
        {"kind": "status-update", "taskId": "t", "status": {}},
        {"kind": "status-update", "taskId": "t", "status": {"state": "sleeping"}},
        {"statusUpdate": {"taskId": "t", "status": {}}},
    ],
)
@pytest.mark.parametrize("dialect", [V1_0, V0_3], ids=["1.0", "0.3"])
def test_what_means_nothing_is_refused_as_ever(dialect: Dialect, value: Any) -> None:
    with pytest.raises(InvalidParams):
        event(dialect, value)


def test_houses_are_read_by_their_own_dialect_alone() -> None:
    with pytest.raises(InvalidParams):
        leniency.decode_reply(Nexus(), ops.GetTask(task_id=TaskId("t")), {"task": {}}, print)
