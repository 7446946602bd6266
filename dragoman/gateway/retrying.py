"""When an agent that failed is asked again: which failures are worth it, which are safe, how soon.

schedule = Schedule()
for failures in itertools.count(1):
    try: ...                                            # one attempt
    except A2AError as error:
        wait = schedule.wait(failures, error)           # None: enough
        if wait is None or not may_send_again(
            error, works_once=line.works_once, repeatable=agent.repeatable
        ): raise
"""

import random

import msgspec

from dragoman.client.remote import NotDialled, NotServed
from dragoman.errors import (
    A2AError,
    AgentOffline,
    DeliveryUnknown,
    InvalidAgentResponse,
    Overloaded,
    TimedOut,
    Unreachable,
)
from dragoman.gateway.breaker import LONGEST_WISH


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How often an agent is asked, and how long after each failure: 1 s, 2 s, then 4 s if there
    are more attempts than three."""

    attempts: int = 3
    first: float = 1.0
    factor: float = 2.0
    # The part of each delay that is left to chance, 0 to 1.
    jitter: float = 0.0

    def delay(self, failures: int) -> float | None:
        """Return the seconds to wait after so many failures; None: there is no other attempt."""
        if failures >= self.attempts:
            return None
        grown = self.first * self.factor ** (failures - 1)
        return grown * (1 - self.jitter * random.random()) if self.jitter else grown

    def wait(self, failures: int, error: A2AError) -> float | None:
        """Return the delay, or what the agent asked for if that is longer; None: give up, since
        there were enough attempts or the agent wants to be left alone for too long."""
        delay = self.delay(failures)
        asked = wish(error)
        # The task is durable, but somebody waits for it.
        if delay is None or asked > LONGEST_WISH:
            return None
        return max(delay, asked)


def is_retryable(error: A2AError) -> bool:
    """Say whether another attempt may end better: it may after a lost connection, a timeout, a 5xx
    or a 429, and will not where the agent understood the request and said no."""
    if isinstance(error, NotServed | NotDialled):
        # The address is wrong, or not one that is called.
        return False
    if isinstance(error, Unreachable | TimedOut | Overloaded | AgentOffline):
        return True
    # Of JSON-RPC codes none is retried, so that -32603 ends what a 500 does not.
    return isinstance(error.code, int) and 500 <= error.code < 600 and error.code != 501


def may_send_again(error: A2AError, *, works_once: bool, repeatable: bool) -> bool:
    """Say whether a message may be sent to an agent once more after a failure.

    Where nobody knows whether the first one arrived, only to an agent that works once on a message
    however often it comes, or whose tasks were registered as safe to repeat."""
    return is_retryable(error) and (works_once or repeatable or not is_delivery_unknown(error))


def is_delivery_unknown(error: A2AError) -> bool:
    """Say whether the agent may have taken the message and be at work on it."""
    if isinstance(error, DeliveryUnknown | TimedOut):
        return True
    # Whoever is busy and names a time has not begun; a plain 503 may come from anything on the way.
    if isinstance(error, Overloaded):
        return error.code != 429 and "retryAfter" not in error.facts
    return False


def is_failing(error: A2AError | TimeoutError) -> bool:
    """Say whether an agent did not answer, or not as one that works: what a breaker counts. An
    address at which there is no A2A answers, and leaving it alone for a while mends nothing."""
    if isinstance(error, NotServed):
        return False
    if isinstance(error, Unreachable | TimeoutError | TimedOut | InvalidAgentResponse):
        return True
    return isinstance(error.code, int) and 500 <= error.code < 600


def is_answer(error: A2AError | TimeoutError) -> bool:
    """Say whether an error is what an agent, or what stands before it, answered: whatever that
    says, it is a sign of life."""
    return isinstance(error, A2AError) and (
        error.code is not None or isinstance(error, InvalidAgentResponse)
    )


def is_absence(error: A2AError | TimeoutError) -> bool:
    """Say whether nobody accepted a connection. One who takes a message and breaks off, or never
    answers, may do so over that message alone."""
    return isinstance(error, Unreachable) and error.code is None and not error.is_sent


def wish(error: A2AError) -> float:
    """Return how many seconds a peer wants to be left alone."""
    asked = error.facts.get("retryAfter", "")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0
