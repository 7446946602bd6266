"""The W3C trace context: what is joined, what begins afresh, what is passed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.telemetry import tracing
from dragoman.telemetry.tracing import Here, Trace

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
GOOD = f"00-{ID}-{SPAN}-01"

# 512 characters, each member as long as it may be.
LONGEST = f"a={'x' * 253},b={'x' * 254}"

INVALID = [
    "",
    "00",
    "-",
    "00-" + ID,
    f"00-{ID}-{SPAN}",
    f"00-{ID}-{SPAN}-",
    f"00-{ID}-{SPAN}-1",
    f"00-{ID}-{SPAN}-001",
    f"00-{ID}-{SPAN}-0g",
    f"00-{ID}-{SPAN}-01-",
    f"00-{ID}-{SPAN}-01-more",
    f"00-{ID[:-1]}-{SPAN}-01",
    f"00-{ID}0-{SPAN}-01",
    f"00-{ID}-{SPAN[:-1]}-01",
    f"00-{ID}-{SPAN}0-01",
    f"00-{ID.upper()}-{SPAN}-01",
    f"00-{ID}-{SPAN.upper()}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{ID}-{'0' * 16}-01",
    f"00-{'z' * 32}-{SPAN}-01",
    f"ff-{ID}-{SPAN}-01",
    f"FF-{ID}-{SPAN}-01",
    f"0-{ID}-{SPAN}-01",
    f"000-{ID}-{SPAN}-01",
    f"cc-{ID}-{SPAN}-01.more",
    f"00_{ID}_{SPAN}_01",
    f"00-{ID}-{SPAN}-01\n",
    f" 00-{ID}-{SPAN}-01",
    f"00-{ID}-{SPAN}-01,00-{ID}-{SPAN}-01",
    f"00-٤{ID[1:]}-{SPAN}-01",
]


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_traceparent_is_not_joined(text: str) -> None:
    assert tracing.parse(text) is None


def test_a_valid_one_is_joined_with_its_flags() -> None:
    assert tracing.parse(GOOD) == Trace(ID, SPAN, "01")
    assert tracing.parse(f"00-{ID}-{SPAN}-00") == Trace(ID, SPAN, "00")
    # Bits without a meaning yet are not ours to set.
    assert tracing.parse(f"00-{ID}-{SPAN}-ff") == Trace(ID, SPAN, "03")


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    for text in (f"01-{ID}-{SPAN}-01", f"cc-{ID}-{SPAN}-01-more"):
        found = tracing.parse(text)
        assert found == Trace(ID, SPAN, "01")
        assert found.parent == GOOD


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("", ""),
        ("a=1", "a=1"),
        ("a=1, b=2 ,,c=3", "a=1,b=2,c=3"),
        ("vendor@system=x y", "vendor@system=x y"),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        (LONGEST, LONGEST),
        (LONGEST + "x", ""),
        ("a=" + "x" * 257, ""),
        ("a=1,b", ""),
        ("A=1", ""),
        ("a=1\nb=2", ""),
        ("a=é", ""),
    ],
)
def test_a_tracestate_is_passed_on_or_dropped_whole(state: str, kept: str) -> None:
    found = tracing.parse(GOOD, state)
    assert found is not None and found.state == kept


def test_two_traceparents_are_none_and_tracestates_are_one() -> None:
    parent = (b"traceparent", GOOD.encode())
    assert tracing.arrived([parent, parent]) is None
    assert tracing.arrived([(b"tracestate", b"a=1")]) is None
    states = [(b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    assert tracing.arrived([parent, *states]) == Trace(ID, SPAN, "01", "a=1,b=2")


def test_what_came_in_is_passed_on_as_it_is() -> None:
    token = tracing.here.set(Here(Trace(ID, SPAN, "01", "a=1")))
    try:
        assert tracing.outgoing() == {"traceparent": GOOD, "tracestate": "a=1"}
    finally:
        tracing.here.reset(token)


def test_what_began_here_has_a_trace_of_its_own() -> None:
    first, second = tracing.outgoing()["traceparent"], tracing.outgoing()["traceparent"]
    assert first != second
    assert tracing.parse(first) is not None and tracing.parse(second) is not None


def test_a_task_without_a_trace_has_always_the_same_which_does_not_tell_its_id() -> None:
    task = "0198f000-0000-7000-8000-0123456789ab"
    assert tracing.of_task(task) == tracing.of_task(task) != tracing.of_task(task + "c")
    assert tracing.parse(tracing.of_task(task).parent) is not None
    assert task.replace("-", "") != tracing.of_task(task).trace_id
    token = tracing.here.set(Here(None, task))
    try:
        assert tracing.outgoing() == tracing.of_task(task).headers
    finally:
        tracing.here.reset(token)


@given(st.text(max_size=80))
def test_whatever_is_joined_can_be_said_again(text: str) -> None:
    found = tracing.parse(text, text)
    if found is not None:
        assert tracing.parse(found.parent, found.state) == found


def test_events_can_tell_their_trace() -> None:
    assert tracing.event_metadata(Trace(ID, SPAN)) == {"traceId": ID, "spanId": SPAN}
    assert tracing.event_metadata(None) == {}
