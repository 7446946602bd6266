"""Whose breakers an outcome counts for: an address's, for everybody, or one caller's."""

import pytest
from hand_clock import Time

from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    Overloaded,
    TimedOut,
    Unreachable,
)
from dragoman.gateway import circuits
from dragoman.gateway.breaker import CONNECTIONS, FIRST, LEAST
from dragoman.gateway.circuits import Circuits
from dragoman.gateway.retrying import is_absence, is_answer
from dragoman.model.identity import Principal

URL = "http://a.example.com"
ALICE, BOB = Principal("", "alice"), Principal("", "bob")


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def found(time: Time) -> Circuits:
    return Circuits(time)


def with_code(error: A2AError, code: int) -> A2AError:
    error.code = code
    return error


def sent(error: Unreachable) -> Unreachable:
    error.is_sent = True
    return error


ABSENT = Unreachable("h: refused")
# What may be a message's own doing.
OF_A_MESSAGE: list[A2AError | TimeoutError] = [
    with_code(InternalError(), 500),
    with_code(Overloaded(), 503),
    with_code(DeliveryUnknown(), 502),
    DeliveryUnknown(),
    sent(Unreachable()),
    TimedOut(),
    TimeoutError(),
    InvalidAgentResponse(),
]


def fail(found: Circuits, who: Principal, error: A2AError | TimeoutError, times: int) -> None:
    for _ in range(times):
        passage = found.call(URL, who)
        assert passage.admit() == 0
        passage.failed(error)


def test_connections_that_nobody_accepts_are_everybodys(found: Circuits) -> None:
    assert is_absence(ABSENT) and not is_answer(ABSENT)
    fail(found, ALICE, ABSENT, CONNECTIONS)
    assert found.is_open(URL, ALICE) and found.is_open(URL, BOB)
    assert found.retry_in(URL, BOB) == FIRST and found.caller(URL, ALICE) is None


@pytest.mark.parametrize("error", OF_A_MESSAGE, ids=repr)
def test_what_a_message_comes_to_is_its_callers(
    found: Circuits, error: A2AError | TimeoutError
) -> None:
    assert not is_absence(error)
    fail(found, ALICE, error, LEAST)
    assert found.is_open(URL, ALICE) and not found.is_open(URL, BOB)
    assert found.call(URL, ALICE).admit() == FIRST and found.call(URL, BOB).admit() == 0
    assert not found.is_open("http://b.example.com", ALICE)


def test_an_agent_that_answers_again_is_called_again(time: Time, found: Circuits) -> None:
    fail(found, ALICE, OF_A_MESSAGE[0], LEAST)
    time.at += FIRST
    passage = found.call(URL, ALICE)
    assert passage.admit() == 0
    # One call tries, and no other of the same caller.
    assert found.call(URL, ALICE).admit() > 0 and found.call(URL, BOB).admit() == 0
    passage.succeeded()
    # Nothing is kept of callers whose calls do not fail.
    assert found.caller(URL, ALICE) is None and found.retry_in(URL, ALICE) == 0


def test_a_try_that_a_callers_own_circuit_forbids_is_left_to_others(
    time: Time, found: Circuits
) -> None:
    fail(found, ALICE, with_code(Overloaded(retryAfter=240), 503), LEAST)
    # What was counted at the address is of another time by then.
    time.at += 20
    fail(found, BOB, ABSENT, CONNECTIONS)
    time.at += FIRST
    assert found.address(URL).state == "half-open"
    assert found.call(URL, ALICE).admit() > FIRST
    assert found.call(URL, BOB).admit() == 0


def test_an_answer_shows_that_somebody_is_there_again(time: Time, found: Circuits) -> None:
    fail(found, ALICE, ABSENT, CONNECTIONS)
    time.at += FIRST
    passage = found.call(URL, ALICE)
    assert passage.admit() == 0
    passage.failed(with_code(InternalError(), 500))
    assert not found.is_open(URL, BOB) and found.call(URL, BOB).admit() == 0


def test_a_call_that_is_given_up_says_nothing(time: Time, found: Circuits) -> None:
    fail(found, ALICE, OF_A_MESSAGE[0], LEAST)
    time.at += FIRST
    passage = found.call(URL, ALICE)
    assert passage.admit() == 0
    passage.left()
    assert found.call(URL, ALICE).admit() == 0


def test_the_time_that_an_agent_names_is_kept_to(time: Time, found: Circuits) -> None:
    busy = with_code(Overloaded(retryAfter=240), 503)
    fail(found, ALICE, busy, LEAST)
    assert found.retry_in(URL, ALICE) == 240
    # None is believed for ever.
    fail(found, BOB, with_code(Overloaded(retryAfter=99_999), 503), LEAST)
    assert found.retry_in(URL, BOB) == 600
    time.at += 240
    assert found.call(URL, ALICE).admit() == 0


def test_only_so_many_callers_are_remembered(
    found: Circuits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuits, "MOST_CALLERS", 3)
    for number in range(10):
        fail(found, Principal("", f"caller-{number}"), OF_A_MESSAGE[0], 1)
    assert len(found._callers) == 3
    assert found.caller(URL, Principal("", "caller-9")) is not None


def test_a_refusal_is_an_answer_and_no_failure() -> None:
    assert is_answer(with_code(InvalidParams("x"), -32602))
    assert not is_answer(TimeoutError()) and not is_answer(TimedOut())
