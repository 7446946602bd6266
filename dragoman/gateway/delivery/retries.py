"""What may follow a failed call: pure decisions about whether, where and when to send again.

What an error says is decided by the predicates below; `Schedule` says when an agent is tried again;
`plan_retry` puts both together for a message that the agent has not acknowledged.
"""

import random

import msgspec

from dragoman.client.pending_request import NotDialled, NotServed
from dragoman.client.second_tries import wished_wait
from dragoman.client.streams.life_signs import NoSignOfLife, Silence
from dragoman.config import Settings
from dragoman.errors import (
    A2AError,
    AgentOffline,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    Overloaded,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.gateway.delivery.breaker import LONGEST_RETRY_AFTER

# Seconds between two attempts at an agent, at most.
LONGEST_PAUSE = 30.0
# Seconds after which a repeatable task moves to another address of the same agent.
_FAILOVER = 4.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How often an agent is tried, and how long after each failure: 1 s, 2 s, then 4 s if there
    are more attempts than three."""

    attempts: int = 3
    first: float = 1.0
    factor: float = 2.0
    # The part of each delay that is random, 0 to 1.
    jitter: float = 0.0

    def delay(self, failures: int) -> float | None:
        """Return the seconds to wait after so many failures; None: there is no other attempt."""
        if failures >= self.attempts:
            return None
        grown = self.first * self.factor ** (failures - 1)
        return grown * (1 - self.jitter * random.random()) if self.jitter else grown

    def wait(self, failures: int, error: A2AError) -> float | None:
        """Return the delay, or the agent's `Retry-After` if that is longer; None: give up, because
        there were enough attempts or the agent wants more time than a caller waits."""
        delay = self.delay(failures)
        requested = wished_wait(error)
        if delay is None or requested > LONGEST_RETRY_AFTER:
            return None
        return max(delay, requested)


class RetryPlan(msgspec.Struct, frozen=True):
    """What may be done about a message that an agent failed to acknowledge."""

    # Seconds until the same agent is tried again; None: it is not.
    wait: float | None
    # Whether the agent may have the message although it never said so.
    may_have_arrived: bool
    # Whether the agent is only asked for the task: a second message could begin a second one.
    asks_only: bool
    # Whether the message may go to another address or another agent.
    may_move: bool
    # Whether the answer was lost, so that the agent is asked for the task before the task fails.
    is_answer_lost: bool


def plan_retry(
    problem: A2AError,
    failures: int,
    schedule: Schedule,
    *,
    works_once: bool,
    repeatable: bool,
    patience_left: float,
) -> RetryPlan:
    """Return what may follow the latest of so many failures.

    `works_once`: the agent does the work once, however often it gets the message. `repeatable`: its
    tasks were registered as safe to do twice."""
    may_have_arrived = is_delivery_unknown(problem) or isinstance(
        problem, InvalidAgentResponse | InternalError
    )
    may_send = may_send_again(problem, works_once=works_once, repeatable=repeatable)
    asks_only = may_have_arrived and not works_once and not repeatable
    wait = schedule.wait(failures, problem)
    if works_once and isinstance(problem, NoSignOfLife):
        # Sending again is harmless, and may be answered: for as long as patience lasts.
        wait = min(LONGEST_PAUSE, schedule.first * schedule.factor ** (failures - 1))
    if wait is not None and wait > max(schedule.delay(failures) or 0.0, patience_left):
        wait = None
    return RetryPlan(
        wait if may_send and patience_left >= 0 else None,
        may_have_arrived,
        asks_only,
        may_move=repeatable or not may_have_arrived,
        is_answer_lost=isinstance(problem, DeliveryUnknown | TimedOut) or (may_send and asks_only),
    )


def is_retryable(error: A2AError) -> bool:
    """Say whether another attempt may succeed: after a lost connection, a time-out, a 5xx or a 429,
    but not where the agent understood the request and refused it."""
    if isinstance(error, NotServed | NotDialled):
        # The address is wrong, or not one that may be called.
        return False
    if isinstance(error, Unreachable | TimedOut | Overloaded | AgentOffline):
        return True
    # No JSON-RPC code is retried: -32603 ends what a 500 does not.
    return isinstance(error.code, int) and 500 <= error.code < 600 and error.code != 501


def may_send_again(error: A2AError, *, works_once: bool, repeatable: bool) -> bool:
    """Say whether a message may be sent to an agent once more after a failure.

    Where the first one may have arrived, only to an agent that works once on a message however
    often it comes, or whose tasks were registered as safe to repeat."""
    return is_retryable(error) and (works_once or repeatable or not is_delivery_unknown(error))


def is_delivery_unknown(error: A2AError) -> bool:
    """Say whether the agent may have taken the message and be working on it."""
    if isinstance(error, DeliveryUnknown | TimedOut):
        return True
    # A busy agent that names a time has not begun; a plain 503 may come from any proxy.
    if isinstance(error, Overloaded):
        return error.code != 429 and "retryAfter" not in error.facts
    return False


def may_refuse_context(error: A2AError) -> bool:
    """Say whether an agent refused a message before it began anything, maybe for its context.
    There is no error for an unknown context alone, so agents use these."""
    return isinstance(error, InvalidParams | InvalidRequest | TaskNotFound | UnsupportedOperation)


def is_failing(error: A2AError | TimeoutError) -> bool:
    """Say whether an agent did not answer, or not as a working agent: what a breaker counts. An
    address without A2A does answer, and stopping calls for a while does not help."""
    if isinstance(error, NotServed):
        return False
    if isinstance(error, Unreachable | TimeoutError | TimedOut | InvalidAgentResponse):
        return True
    return isinstance(error.code, int) and 500 <= error.code < 600


def is_answer(error: A2AError | TimeoutError) -> bool:
    """Say whether an error is the answer of an agent or of a proxy before it: a sign of life."""
    return isinstance(error, A2AError) and (
        error.code is not None or isinstance(error, InvalidAgentResponse)
    )


def is_absence(error: A2AError | TimeoutError) -> bool:
    """Say whether no connection was accepted. An agent that takes a message and breaks off, or
    never answers, may do so because of that message."""
    return isinstance(error, Unreachable) and error.code is None and not error.is_sent


def silence_limits(
    settings: Settings, *, repeatable: bool, may_repeat: bool, most: float | None = None
) -> Silence:
    """Return how long an agent may be silent; one that has the task for `most` seconds, if given.
    One with an open connection may be busy: it has longer than one that is away, also where the
    work may be done twice."""
    longest = settings.gateway.forward_patience
    soon = min(longest, settings.gateway.forward_timeout)
    return Silence(
        ask_after=settings.gateway.forward_quiet,
        most=most or (soon if repeatable else longest),
        begin=soon if may_repeat else longest,
    )


def patience(settings: Settings, *, repeatable: bool, has_other_address: bool) -> float:
    """Return for how many seconds an agent that has the task may be unreachable. A repeatable task
    moves on soon."""
    longest = settings.gateway.forward_patience
    if not repeatable:
        return longest
    return min(longest, _FAILOVER if has_other_address else settings.gateway.forward_timeout)
