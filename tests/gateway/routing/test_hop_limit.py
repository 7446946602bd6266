"""A task that goes in circles is refused, and its time gets shorter with every gateway."""

import itertools
from typing import Any

import pytest

from dragoman.errors import HopLimit, InvalidParams, TaskFailed
from dragoman.gateway.routing.hop_limit import DEADLINE, HOPS, Arrival, arrive, depart

AT = 1_893_499_200_000
TIME = "2030-01-01T12:00:00Z"


def now() -> int:
    return AT - 60_000


def test_a_request_that_says_nothing_comes_from_nowhere_and_has_time() -> None:
    assert arrive({}, "g") == Arrival((), None)


def test_what_leaves_one_gateway_is_understood_by_the_next() -> None:
    metadata = depart({"mine": 1}, "a", AT, now)
    arrival = arrive(metadata, "b")
    assert metadata["mine"] == 1
    assert arrival == Arrival(("a",), AT - 100)
    assert arrive(depart(metadata, "b", arrival.deadline, now), "c").hops == ("a", "b")


def test_the_metadata_of_the_task_itself_stays_as_it_is() -> None:
    given: dict[str, Any] = {HOPS: ["a"], DEADLINE: TIME, "depth": 1}
    before = {**given, HOPS: ["a"]}
    depart(given, "b", None, now)
    assert given == before


def test_a_task_that_comes_back_is_refused() -> None:
    metadata = depart(depart({}, "a", None, now), "b", None, now)
    with pytest.raises(HopLimit, match="circle"):
        arrive(metadata, "a")


def test_eight_gateways_carry_a_task_and_the_ninth_refuses() -> None:
    metadata: dict[str, Any] = {}
    for name in "abcdefgh":
        arrive(metadata, name)
        metadata = depart(metadata, name, None, now)
    with pytest.raises(HopLimit, match="8"):
        arrive(metadata, "i")


@pytest.mark.parametrize("value", ["a", 3, {}, [1], [""], ["a b"], [["a"]], ["a", None], True])
def test_what_is_no_list_of_gateways_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams, match="dragoman/hops"):
        arrive({HOPS: value}, "g")


@pytest.mark.parametrize(
    "value",
    [
        1,
        "",
        "soon",
        "2030-01-01",
        "2030-01-01T12:00:00",
        "2030-01-01T12:00:00+02:00",
        "2030-02-30T12:00:00Z",
        "2030-01-01T25:00:00Z",
        "2030-01-01 12:00:00Z",
        "٢٠٣٠-01-01T12:00:00Z",
        ["2030-01-01T12:00:00Z"],
    ],
)
def test_what_is_no_time_in_utc_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams, match="dragoman/deadline"):
        arrive({DEADLINE: value}, "g")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (TIME, AT),
        ("2030-01-01t12:00:00z", AT),
        ("2030-01-01T12:00:00.5Z", AT + 500),
        ("2030-01-01T12:00:00.123456789Z", AT + 123),
        ("2030-01-01T12:00:00-00:00", AT),
    ],
)
def test_times_are_read_to_the_millisecond(text: str, at: int) -> None:
    assert arrive({DEADLINE: text}, "g").deadline == at


@pytest.mark.parametrize("own", [None, AT - 30_000, AT, AT + 1_000_000])
def test_a_deadline_is_never_extended(own: int | None) -> None:
    onward = arrive(depart({DEADLINE: TIME}, "a", own, now), "b").deadline
    assert onward is not None
    assert onward < min(AT, own or AT)


@pytest.mark.parametrize("left", [101, 1000, 5000, 60_000, 86_400_000])
def test_each_gateway_takes_the_same_whenever_it_forwards(left: int) -> None:
    first = arrive(depart({}, "a", AT + left, lambda: AT), "b").deadline
    later = arrive(depart({}, "a", AT + left, lambda: AT + left - 101), "b").deadline
    assert first == later == AT + left - 100


@pytest.mark.parametrize("left", [100, 1, 0, -1, -100_000])
def test_a_task_whose_time_is_over_is_not_forwarded(left: int) -> None:
    with pytest.raises(TaskFailed, match="deadline"):
        depart({}, "a", AT + left, lambda: AT)


def test_without_a_deadline_none_is_made_up() -> None:
    assert DEADLINE not in depart({}, "a", None, now)


def test_a_circle_of_gateways_ends_even_if_one_of_them_forgets_the_others() -> None:
    metadata: dict[str, Any] = {DEADLINE: TIME}
    with pytest.raises(TaskFailed):
        for turn in itertools.count():
            assert turn < 10_000
            metadata = depart({DEADLINE: metadata[DEADLINE]}, "a", None, now)


@pytest.mark.parametrize(("depth", "onward"), [(1, 2), (3, 4), (10, 11)])
def test_a_depth_as_corvid_counts_it_rises_by_one(depth: int, onward: int) -> None:
    assert depart({"depth": depth}, "a", None, now)["depth"] == onward


@pytest.mark.parametrize("depth", ["full", 0, 11, -1, 1.5, True, None, [1]])
def test_a_depth_of_another_kind_is_left_alone(depth: Any) -> None:
    assert depart({"depth": depth}, "a", None, now)["depth"] is depth
    assert arrive({"depth": depth}, "a") == Arrival()
