"""Whether and when a request is made again: only where that cannot repeat work."""

import asyncio
import random

from dragoman.client.pending_request import NotDialled, NotServed
from dragoman.errors import A2AError, DeliveryUnknown, Overloaded, TimedOut, Unreachable
from dragoman.model import operations as ops

TRIES = 3
LONGEST_WAIT = 30.0


def may_repeat(operation: ops.Operation, error: A2AError, *, works_once: bool) -> bool:
    """Say whether a request is worth making again, and cannot do anything twice. `works_once`: the
    peer works once on a message that is sent twice."""
    if isinstance(error, NotServed | NotDialled) or wished_wait(error) > LONGEST_WAIT:
        # Who wants to be left alone for long is asked again by a person, if at all.
        return False
    is_send = isinstance(operation, ops.SendMessage)
    if isinstance(error, Overloaded):
        # A peer that names a time to retry has not begun.
        has_not_begun = error.code == 429 or "retryAfter" in error.facts
        return not is_send or works_once or has_not_begun
    if isinstance(error, DeliveryUnknown):
        return works_once
    return isinstance(error, Unreachable | TimedOut) and (
        not is_send or not isinstance(error, TimedOut) or works_once
    )


async def pause(tries: int, error: A2AError, backoff: float) -> None:
    """Wait before another try: as long as the peer says, or a little longer each time."""
    grown = backoff * 2 ** min(tries - 1, 10)
    jitter = 0.75 + random.random() / 2
    await asyncio.sleep(min(LONGEST_WAIT, max(asked_wait(error), grown * jitter)))


def asked_wait(error: A2AError) -> float:
    """Return how many seconds to leave a peer alone that asks for it."""
    return min(LONGEST_WAIT, wished_wait(error))


def wished_wait(error: A2AError) -> float:
    """Return how many seconds a peer wants to be left alone; what is no number is no wish."""
    text = error.facts.get("retryAfter", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0
