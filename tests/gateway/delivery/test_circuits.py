"""Whose breakers an outcome counts for: an address's, for everybody, or one caller's."""

import pytest
from harness.clock import Clock

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
from dragoman.gateway.delivery import circuits
from dragoman.gateway.delivery.breaker import CONNECTIONS, FIRST, LEAST, Breaker
from dragoman.gateway.delivery.circuits import Circuits
from dragoman.gateway.delivery.retries import is_absence, is_answer
from dragoman.model.identity import Principal

URL = "http://a.example.com"
ALICE, BOB = Principal("", "alice"), Principal("", "bob")


@pytest.fixture
def time() -> Clock:
    return Clock()


@pytest.fixture
def found(time: Clock) -> Circuits:
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
        call = found.call(URL, who)
        assert call.admit() == 0
        call.failed(error)


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


def test_an_agent_that_answers_again_is_called_again(time: Clock, found: Circuits) -> None:
    fail(found, ALICE, OF_A_MESSAGE[0], LEAST)
    time.now += FIRST
    call = found.call(URL, ALICE)
    assert call.admit() == 0
    # One call tries, and no other of the same caller.
    assert found.call(URL, ALICE).admit() > 0 and found.call(URL, BOB).admit() == 0
    call.succeeded()
    # Nothing is kept of callers whose calls do not fail.
    assert found.caller(URL, ALICE) is None and found.retry_in(URL, ALICE) == 0


def test_a_try_that_a_callers_own_circuit_forbids_is_left_to_others(
    time: Clock, found: Circuits
) -> None:
    fail(found, ALICE, with_code(Overloaded(retryAfter=240), 503), LEAST)
    # What was counted at the address is of another time by then.
    time.now += 20
    fail(found, BOB, ABSENT, CONNECTIONS)
    time.now += FIRST
    assert found.address(URL).state == "half-open"
    assert found.call(URL, ALICE).admit() > FIRST
    assert found.call(URL, BOB).admit() == 0


def test_an_answer_shows_that_somebody_is_there_again(time: Clock, found: Circuits) -> None:
    fail(found, ALICE, ABSENT, CONNECTIONS)
    time.now += FIRST
    call = found.call(URL, ALICE)
    assert call.admit() == 0
    call.failed(with_code(InternalError(), 500))
    assert not found.is_open(URL, BOB) and found.call(URL, BOB).admit() == 0


def test_a_call_that_is_given_up_says_nothing(time: Clock, found: Circuits) -> None:
    fail(found, ALICE, OF_A_MESSAGE[0], LEAST)
    time.now += FIRST
    call = found.call(URL, ALICE)
    assert call.admit() == 0
    call.abandoned()
    assert found.call(URL, ALICE).admit() == 0


def test_the_time_that_an_agent_names_is_kept_to(time: Clock, found: Circuits) -> None:
    busy = with_code(Overloaded(retryAfter=240), 503)
    fail(found, ALICE, busy, LEAST)
    assert found.retry_in(URL, ALICE) == 240
    # None is believed for ever.
    fail(found, BOB, with_code(Overloaded(retryAfter=99_999), 503), LEAST)
    assert found.retry_in(URL, BOB) == 600
    time.now += 240
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


def test_what_opens_in_one_process_is_open_in_another_for_the_same_callers(time: Clock) -> None:
    there = Circuits(time)

    def changed(url: str, caller: Principal | None, breaker: Breaker) -> None:
        there.adopt(url, caller, breaker.retry_in, breaker.opened)

    here = Circuits(time, changed)
    fail(here, ALICE, TimedOut(), LEAST)
    assert there.is_open(URL, ALICE) and not there.is_open(URL, BOB)
    fail(here, BOB, ABSENT, CONNECTIONS)
    assert there.is_open(URL, BOB)
    time.now += FIRST + 1
    call = here.call(URL, ALICE)
    assert not call.admit()
    call.succeeded()
    for who in (ALICE, BOB):
        assert there.caller(URL, who) is None and there.address(URL).state == "closed"
