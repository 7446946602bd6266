"""Which failures are worth another attempt, which are safe to repeat, and how soon."""

from typing import Any

import pytest

from dragoman import errors
from dragoman.client.pending_request import NotDialled, NotServed
from dragoman.client.streams.life_signs import NoSignOfLife
from dragoman.errors import A2AError
from dragoman.gateway.delivery.retries import (
    LONGEST_PAUSE,
    RetryPlan,
    Schedule,
    is_retryable,
    may_send_again,
    plan_retry,
)


def coded(error: A2AError, code: int) -> A2AError:
    error.code = code
    return error


def test_three_attempts_have_delays_of_one_and_two_seconds() -> None:
    assert [Schedule().delay(n) for n in (1, 2, 3)] == [1, 2, None]


def test_four_seconds_is_the_next_delay_if_there_are_more_attempts() -> None:
    assert [Schedule(attempts=5).delay(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, None]


def test_chance_only_shortens_a_delay_and_only_where_it_is_wanted() -> None:
    delays = {Schedule(jitter=0.5).delay(2) for _ in range(100)}
    assert len(delays) > 1
    assert all(delay is not None and 1 <= delay <= 2 for delay in delays)


@pytest.mark.parametrize(
    ("wish", "wait"), [("", 1), ("0", 1), ("7", 7), ("600", 600), ("601", None), ("soon", 1)]
)
def test_an_agent_that_asks_for_time_gets_it_within_reason(wish: str, wait: float | None) -> None:
    busy = errors.Overloaded(retryAfter=wish) if wish else errors.Overloaded()
    assert Schedule().wait(1, busy) == wait


def test_a_wish_does_not_buy_another_attempt() -> None:
    assert Schedule().wait(3, errors.Overloaded(retryAfter=1)) is None


RETRIED: list[A2AError] = [
    errors.Unreachable(),
    errors.DeliveryUnknown(),
    errors.TimedOut(),
    errors.AgentOffline(),
    coded(errors.Overloaded(), 503),
    coded(errors.Overloaded(), -32603),
    coded(errors.RateLimited(), 429),
    coded(errors.InternalError(), 500),
    coded(errors.InvalidAgentResponse(), 502),
]
FINAL: list[A2AError] = [
    NotServed(),
    NotDialled(),
    coded(errors.InternalError(), -32603),
    errors.InternalError(),
    coded(errors.InvalidParams(), -32602),
    coded(errors.InvalidRequest(), 400),
    coded(errors.MethodNotFound(), -32601),
    coded(errors.ParseFailed(), -32700),
    coded(errors.UnsupportedOperation(), 501),
    coded(errors.Unauthenticated(), 401),
    coded(errors.PermissionDenied(), 403),
    coded(errors.TaskNotFound(), 404),
    errors.InvalidAgentResponse("not JSON"),
    errors.CardInvalid(),
    errors.CredentialsMissing(),
    errors.HopLimit(),
    errors.InsufficientCredits(),
]


def name(error: A2AError) -> str:
    return f"{type(error).__name__}-{error.code}"


@pytest.mark.parametrize("error", RETRIED, ids=name)
def test_what_may_pass_is_retried(error: A2AError) -> None:
    assert is_retryable(error)
    assert may_send_again(error, works_once=True, repeatable=False)
    assert may_send_again(error, works_once=False, repeatable=True)


@pytest.mark.parametrize("error", FINAL, ids=name)
def test_what_was_understood_and_refused_is_not(error: A2AError) -> None:
    assert not is_retryable(error)
    assert not may_send_again(error, works_once=True, repeatable=True)


@pytest.mark.parametrize(
    "error",
    [
        errors.DeliveryUnknown(),
        errors.TimedOut(),
        coded(errors.Overloaded(), 503),
        coded(errors.DeliveryUnknown(), 504),
    ],
    ids=name,
)
def test_what_may_have_arrived_is_not_sent_twice_to_just_anyone(error: A2AError) -> None:
    assert not may_send_again(error, works_once=False, repeatable=False)


@pytest.mark.parametrize(
    "error",
    [
        errors.Unreachable(),
        coded(errors.Overloaded(retryAfter=1), 503),
        coded(errors.RateLimited(), 429),
        coded(errors.InternalError(), 500),
        errors.AgentOffline(),
    ],
    ids=name,
)
def test_what_did_not_arrive_or_was_answered_is_sent_again_to_anyone(error: A2AError) -> None:
    assert may_send_again(error, works_once=False, repeatable=False)


def plan(problem: A2AError, failures: int = 1, **more: Any) -> RetryPlan:
    facts: dict[str, Any] = {"works_once": False, "repeatable": False, "patience_left": 300.0}
    return plan_retry(problem, failures, Schedule(), **facts | more)


def test_a_message_that_did_not_arrive_is_sent_again_or_elsewhere() -> None:
    found = plan(errors.Unreachable())
    assert (found.wait, found.may_move, found.may_have_arrived) == (1, True, False)
    assert not found.asks_only and not found.is_answer_lost
    # After the last attempt it may still go elsewhere.
    last = plan(errors.Unreachable(), failures=3)
    assert last.wait is None and last.may_move


def test_a_message_that_may_have_arrived_is_sent_again_only_where_that_does_no_harm() -> None:
    found = plan(errors.TimedOut())
    assert (found.wait, found.may_move, found.is_answer_lost) == (None, False, True)
    assert plan(errors.TimedOut(), works_once=True).wait == 1
    moved = plan(errors.TimedOut(), repeatable=True)
    assert moved.wait == 1 and moved.may_move


def test_an_agent_that_failed_over_a_message_is_only_asked_for_its_task() -> None:
    found = plan(coded(errors.InternalError(), 500))
    assert found.wait == 1 and found.asks_only and found.is_answer_lost and not found.may_move
    assert not plan(coded(errors.InternalError(), 500), works_once=True).asks_only


def test_no_wait_is_longer_than_patience() -> None:
    busy = errors.Overloaded(retryAfter=60)
    assert plan(busy).wait == 60
    assert plan(busy, patience_left=59).wait is None
    assert plan(errors.Unreachable(), patience_left=-1).wait is None


def test_silence_is_waited_out_where_sending_again_does_no_harm() -> None:
    assert plan(NoSignOfLife(), failures=5, works_once=True).wait == 16
    assert plan(NoSignOfLife(), failures=9, works_once=True).wait == LONGEST_PAUSE
