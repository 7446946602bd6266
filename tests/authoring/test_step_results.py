"""What a step returns comes back as what it was, or the step is told by name what is wrong."""

import dataclasses
import enum
import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from dragoman.authoring.steps import MAX_RESULT_BYTES, decode_result, encode_result

if TYPE_CHECKING:
    from collections.abc import Sized


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: str
    right: str


class Row(TypedDict):
    name: str


class Colour(enum.Enum):
    RED = "red"


class Model:
    """As pydantic's models are, as far as anyone can see who does not import it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.size == self.size

    def __repr__(self) -> str:
        return f"Model({self.size})"

    def model_dump(self, *, mode: str) -> Any:
        assert mode == "json"
        return {"size": self.size}

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if "size" not in value:
            raise ValueError("size is missing")
        return cls(value["size"])


def returning(kind: Any) -> Callable[..., Any]:
    """Return a function that says it returns a type."""

    def function() -> None: ...

    function.__annotations__["return"] = kind
    return function


def kept(value: Any, function: Callable[..., Any]) -> Any:
    return decode_result("it", encode_result("it", value), function)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, None),
        (None, str | None),
        (True, bool),
        (7, int),
        (2**70, int),
        (0.1, float),
        ("å\n\u2028", str),
        (b"\x00\xff", bytes),
        ([1, 2], list[int]),
        ((1, "a"), tuple[int, str]),
        ({1, 2}, set[int]),
        ({1: "a"}, dict[int, str]),
        ({"a": [None]}, dict[str, Any]),
        (Order(1, ["a"]), Order),
        ([Order(1)], list[Order]),
        (Point(1, 2), Point),
        ({"p": Point(1)}, dict[str, Point]),
        (Pair("a", "b"), Pair),
        ({"name": "a"}, Row),
        (Colour.RED, Colour),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime),
        (date(2026, 1, 2), date),
        (timedelta(hours=1), timedelta),
        (Decimal("1.10"), Decimal),
        (UUID(int=1), UUID),
        (Model(3), Model),
        ([Model(3)], list[Model]),
        (None, Model | None),
    ],
    ids=repr,
)
def test_a_result_comes_back_in_the_type_it_is_annotated_with(value: Any, kind: Any) -> None:
    found = kept(value, returning(kind))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1), {"x": 1, "y": 0}),
        ((1, 2), [1, 2]),
        ({1: 2}, {"1": 2}),
        (b"hi", "aGk="),
        (Model(1), {"size": 1}),
    ],
)
@pytest.mark.parametrize("function", [len, lambda: None, returning(Any), returning(object)])
def test_without_a_type_a_result_is_plain_json(
    value: Any, plain: Any, function: Callable[..., Any]
) -> None:
    assert kept(value, function) == plain


def test_a_class_makes_its_own() -> None:
    assert kept(Point(1, 2), Point) == Point(1, 2)
    assert kept({"a": 1}, dict) == {"a": 1}


def test_a_function_with_some_arguments_given_has_the_type_of_the_function() -> None:
    def point(x: int, y: int) -> Point:
        return Point(x, y)

    assert kept(Point(1, 2), functools.partial(functools.partial(point, 1), 2)) == Point(1, 2)


def test_a_method_has_its_own_type() -> None:
    class Shop:
        def order(self) -> Order:
            return Order(1)

    assert kept(Order(1), Shop().order) == Order(1)


def test_a_type_that_only_a_type_checker_knows_is_none() -> None:
    def sized() -> "Sized":
        return [1]

    assert kept([1], sized) == [1]


def test_a_type_that_json_cannot_become_is_none() -> None:
    assert kept(1, returning(Awaitable[int])) == 1
    assert kept({"x": 1}, returning(Order | Point)) == {"x": 1}


def cyclic() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": [object()]},
        lambda: None,
        iter([1]),
        float("nan"),
        [float("inf")],
        "\ud800",
        {(1, 2): 3},
        msgspec.Raw(b"1\n2"),
        cyclic(),
        returning,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_is_refused_with_the_name_of_the_step(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^step charge: its result cannot be kept as JSON: "):
        encode_result("charge", value)


def test_what_is_kept_has_no_line_breaks() -> None:
    # A line is an event where the log is stored.
    assert b"\n" not in bytes(encode_result("it", {"a\n": ["b\r\n"]}))


def test_a_result_may_be_as_large_as_the_limit_and_no_larger() -> None:
    encode_result("it", "x" * (MAX_RESULT_BYTES - 2))
    with pytest.raises(ValueError, match=f"step charge: its result has {MAX_RESULT_BYTES + 1} b"):
        encode_result("charge", "x" * (MAX_RESULT_BYTES - 1))


@pytest.mark.parametrize(
    ("value", "kind"),
    [("a", int), (None, str), ({"id": "a"}, Order), ({}, Model), ([1], list[str])],
)
def test_a_result_of_another_type_than_annotated_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(TypeError, match="the result of step charge does not fit what its function"):
        decode_result("charge", encode_result("charge", value), returning(kind))
