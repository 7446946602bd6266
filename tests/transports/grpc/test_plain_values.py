"""Messages as plain values and back: golden bytes of the official classes, and any values."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import InvalidParams, ParseFailed
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.field_count import check_fields
from dragoman.transports.grpc.plain_values import MAX_DEPTH, shape_of
from dragoman.transports.grpc.tables import ProtoSchema

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = {"v1_0": tables.V1_0, "v0_3": tables.V0_3}
CASES = [
    pytest.param(SCHEMAS[name], one, id=f"{name}-{one['message']}-{number}")
    for name in SCHEMAS
    for number, one in enumerate(json.loads((GOLDEN / f"{name}.json").read_text("utf-8")))
]


def with_bytes(value: Any, name: str = "") -> Any:
    """Return ProtoJSON as dialects that are carried by gRPC have it: bytes are bytes."""
    if isinstance(value, dict):
        return {key: with_bytes(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    return base64.b64decode(value) if name in ("raw", "fileWithBytes") else value


@pytest.mark.parametrize(("schema", "case"), CASES)
def test_messages_have_the_bytes_of_the_official_classes(
    schema: ProtoSchema, case: dict[str, Any]
) -> None:
    shape = shape_of(schema, case["message"])
    message = shape.message(with_bytes(case["json"]))
    assert message.SerializeToString(deterministic=True).hex() == case["bytes"]


@pytest.mark.parametrize(("schema", "case"), CASES)
def test_bytes_of_the_official_classes_are_read_as_the_values_they_were_made_of(
    schema: ProtoSchema, case: dict[str, Any]
) -> None:
    read = shape_of(schema, case["message"]).decode(bytes.fromhex(case["bytes"]))
    assert read == with_bytes(case["json"])


# What a message may hold, by the table alone.

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(
    allow_nan=False, allow_infinity=False, width=32
).map(lambda number: int(number) if number.is_integer() else number)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
INSTANTS = st.datetimes().map(
    lambda moment: f"{moment:%Y-%m-%dT%H:%M:%S}".zfill(19) + f".{moment.microsecond // 1000:03d}Z"
)
IDS = st.text("abc-", min_size=1, max_size=6)


def optional(**fields: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return fields


PARTS = st.one_of(
    *(
        st.fixed_dictionaries({name: of}, optional=optional(metadata=METADATA, filename=IDS))
        for METADATA in (st.dictionaries(TEXTS, JSON, max_size=3),)
        for name, of in {
            "text": TEXTS,
            "raw": st.binary(max_size=8),
            "url": TEXTS,
            "data": JSON,
        }.items()
    )
)
MESSAGES = st.fixed_dictionaries(
    {
        "messageId": IDS,
        "role": st.sampled_from(["ROLE_USER", "ROLE_AGENT"]),
        "parts": st.lists(PARTS, min_size=1, max_size=3),
    },
    optional=optional(contextId=IDS, taskId=IDS, extensions=st.lists(IDS, min_size=1, max_size=2)),
)
STATUSES = st.fixed_dictionaries(
    {"state": st.sampled_from(tables.V1_0.enums["TaskState"])},
    optional=optional(message=MESSAGES, timestamp=INSTANTS),
)
TASKS = st.fixed_dictionaries(
    {"id": IDS, "status": STATUSES},
    optional=optional(
        contextId=IDS,
        history=st.lists(MESSAGES, min_size=1, max_size=2),
        metadata=st.dictionaries(TEXTS, JSON, max_size=2),
    ),
)


@given(TASKS)
def test_a_task_is_the_same_after_a_trip_through_its_bytes(task: dict[str, Any]) -> None:
    shape = shape_of(tables.V1_0, "Task")
    assert shape.decode(shape.encode(task)) == task


@given(st.binary(max_size=200))
def test_any_bytes_are_values_or_a_refusal(data: bytes) -> None:
    for name in ("SendMessageRequest", "ListTasksRequest", "AgentCard"):
        try:
            shape_of(tables.V1_0, name).decode(data)
        except (ParseFailed, InvalidParams):
            continue


# What JSON cannot say, or only at a price.


def nested(levels: int, kind: str) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "object"])
def test_json_is_read_to_a_depth_and_no_deeper(kind: str) -> None:
    shape = shape_of(tables.V1_0, "Part")
    fits = {"data": nested(MAX_DEPTH - 1, kind)}
    assert shape.decode(shape.encode(fits)) == fits
    with pytest.raises(InvalidParams, match="levels"):
        shape.decode(shape.encode({"data": nested(MAX_DEPTH + 1, kind)}))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    shape = shape_of(tables.V1_0, "Part")
    message: Any = shape.make()
    message.data.number_value = number
    with pytest.raises(InvalidParams, match="numbers"):
        shape.values(message)


def test_integers_that_no_double_holds_become_the_largest_there_is() -> None:
    shape = shape_of(tables.V1_0, "Part")
    read = shape.decode(shape.encode({"data": [10**400, -(10**400)]}))
    assert read["data"] == [int(1.7976931348623157e308), -int(1.7976931348623157e308)]


@pytest.mark.parametrize(("seconds", "nanos"), [(2**40, 0), (-(2**40), 0), (0, -1), (0, 10**9)])
def test_instants_outside_of_the_calendar_are_refused(seconds: int, nanos: int) -> None:
    shape = shape_of(tables.V1_0, "ListTasksRequest")
    message: Any = shape.make()
    message.status_timestamp_after.seconds = seconds
    message.status_timestamp_after.nanos = nanos
    with pytest.raises(InvalidParams, match="time"):
        shape.values(message)


def test_a_state_of_a_later_version_is_read_by_its_number() -> None:
    shape = shape_of(tables.V1_0, "TaskStatus")
    assert shape.decode(b"\x08\x63") == {"state": "TASK_STATE_99"}


def test_members_without_a_field_are_left_out() -> None:
    shape = shape_of(tables.V1_0, "GetTaskRequest")
    assert shape.encode({"id": "t", "~": {"later": 1}, "historyLength": None}) == b"\x12\x01t"


def test_fields_are_counted_before_any_is_made() -> None:
    shape = shape_of(tables.V1_0, "Part")
    data = shape.encode({"data": [{}] * 1_000})
    check_fields(data, shape.make, 3_003)
    with pytest.raises(ParseFailed, match="values"):
        check_fields(data, shape.make, 1_000)


def test_a_long_text_is_one_field() -> None:
    shape = shape_of(tables.V1_0, "Part")
    check_fields(shape.encode({"text": "\n" * 100_000}), shape.make, 10)


@given(st.binary(min_size=30, max_size=300))
def test_counting_fields_of_any_bytes_ends(data: bytes) -> None:
    try:
        check_fields(data, shape_of(tables.V1_0, "SendMessageRequest").make, 10)
    except ParseFailed:
        return
