"""Ordinary answers of 1.0 are read by type; what the typed reader takes, the tolerant one reads to
the same event, and what it does not take is the tolerant one's to decide."""

import copy
from typing import Any

import pytest

from dragoman.dialects.plain_answers import plain_event
from dragoman.dialects.v1_0 import decode_event
from dragoman.errors import InvalidParams

MESSAGE: dict[str, Any] = {
    "messageId": "m1",
    "role": "ROLE_AGENT",
    "parts": [{"text": "hello"}, {"text": "{}", "mediaType": "application/json"}],
    "contextId": "c",
    "taskId": "t",
    "metadata": {"a": {"b": [1, None, "x"]}},
    "extensions": ["urn:x"],
    "referenceTaskIds": ["t0"],
}
STATUS = {
    "state": "TASK_STATE_INPUT_REQUIRED",
    "message": MESSAGE,
    "timestamp": "2026-02-28T23:59:59.123456789Z",
}
ARTIFACT: dict[str, Any] = {
    "artifactId": "a1",
    "parts": [{"text": "x"}],
    "name": "n",
    "description": "d",
    "metadata": {"k": 1},
    "extensions": [],
}
TASK = {
    "id": "t",
    "contextId": "c",
    "status": STATUS,
    "artifacts": [ARTIFACT, {"artifactId": "", "parts": []}],
    "history": [MESSAGE, {"messageId": "m0", "role": "ROLE_USER", "parts": [{"text": ""}]}],
    "metadata": {},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "task": TASK,
    "message": MESSAGE,
    "statusUpdate": {"taskId": "t", "contextId": "", "status": STATUS, "metadata": {"k": []}},
    "artifactUpdate": {
        "taskId": "t",
        "contextId": "c",
        "artifact": ARTIFACT,
        "append": True,
        "lastChunk": False,
    },
}
# Values that a member may get instead of its own, most of which do not fit there.
ODD: list[Any] = [
    None, 0, 1, 3, 1.0, True, "", "x", "\x00", "i d", "é", "x" * 257, "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00+01:00", "2026-01-01 00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00", "2026-01-01T00:00:00z", "2026-01-01T00:00:00.1234567890Z",
    "TASK_STATE_CANCELLED", "TASK_STATE_NEW", "TASK_STATE_UNSPECIFIED", "ROLE_USER",
    [], {}, [None], [{}], [""], [{"text": 1}], [{"data": None}], [{"raw": "eA=="}],
    [{"text": "a", "url": "b"}], [{"text": "a", "~": {}}], [{"text": "a"}] * 1001,
    {"k": "x" * 70_000}, {"~": {}},
]  # fmt: skip


def outcome(value: Any) -> Any:
    try:
        return decode_event(value)
    except InvalidParams as error:
        return error


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_ordinary_answer_is_read_by_type_as_the_tolerant_reader_reads_it(kind: str) -> None:
    read = plain_event({kind: ANSWERS[kind]})
    assert read is not None
    assert read == decode_event({kind: ANSWERS[kind]})


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_the_typed_reader_takes_the_tolerant_one_reads_to_the_same(kind: str) -> None:
    """Every member of every object is left out, doubled by an unknown one and by its other
    spelling, and replaced by each odd value."""
    taken = refused = 0
    for changed in mutations(ANSWERS[kind]):
        answer = {kind: changed}
        read = plain_event(answer)
        if read is None:
            refused += 1
        else:
            taken += 1
            assert read == outcome(answer), answer
    assert taken > 20 and refused > 200


@pytest.mark.parametrize("value", [None, [], "x", 1, {}, {"task": TASK, "message": MESSAGE}])
def test_what_is_no_single_answer_is_left_to_the_tolerant_reader(value: Any) -> None:
    assert plain_event(value) is None


def mutations(value: Any) -> list[Any]:
    """Return a value with one change each, at any depth."""
    found: list[Any] = []
    for name in list(value) if isinstance(value, dict) else range(len(value)):

        def changed(new: Any, name: Any = name) -> Any:
            whole = copy.copy(value)
            whole[name] = new
            return whole

        inner = value[name]
        found += [changed(odd) for odd in ODD]
        if isinstance(inner, dict | list):
            found += [changed(one) for one in mutations(inner)]
        if isinstance(value, dict):
            without = {key: item for key, item in value.items() if key != name}
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            found += [without, {**value, f"{name}s?": inner}, {**without, snake: inner}]
            found += [{**value, snake: inner}, {**value, "~": {}}]
    return found
