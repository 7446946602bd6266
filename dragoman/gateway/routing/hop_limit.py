"""Which gateways a task has passed, and its deadline.

Both travel in the metadata of a request, so that a task in a loop is refused by the first gateway
that sees it twice, and no gateway works for a caller that has given up.

    arrival = hop_limit.arrive(operation.metadata, own_id)        # on the way in; raises HopLimit
    metadata = hop_limit.depart(metadata, own_id, deadline, now)  # and out; raises TaskFailed
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from dragoman.errors import HopLimit, InvalidParams, TaskFailed
from dragoman.model.clock import stamp
from dragoman.model.identity import is_id
from dragoman.model.message import Metadata
from dragoman.model.request_metadata import DEADLINE, HOPS, deadline_of

# What corvid agents count instead, from 1. Only numbers in this range are theirs: the name is
# common, and other values under it have another meaning.
DEPTH = "depth"
_DEPTHS = range(1, 11)
# Gateways that a task may pass.
MOST = 8
# Milliseconds that are subtracted from the deadline, so that an answer is back before the caller
# gives up. Constant: a message that is sent again has to be the same message.
MARGIN = 100


class Arrival(msgspec.Struct, frozen=True):
    """What a request says about its path so far."""

    # The gateways it passed, in order.
    hops: tuple[str, ...] = ()
    # When the task has to have ended, in milliseconds since the epoch; None: no deadline.
    deadline: int | None = None


def arrive(metadata: Metadata, own_id: str, most: int = MOST) -> Arrival:
    """Return what the metadata of a request says.

    Raises `HopLimit` if it was here before or passed as many gateways as it may, and
    `InvalidParams` for an invalid list of gateways or an invalid time."""
    passed = _hops(metadata)
    if own_id in passed:
        raise HopLimit(
            "The task came back to a gateway that forwarded it: look for agents that are "
            "registered with each other in a circle"
        )
    if len(passed) >= most:
        raise HopLimit(f"The task passed {len(passed)} gateways, and {most} is the most")
    return Arrival(passed, _deadline(metadata))


def depart(
    metadata: Metadata,
    own_id: str,
    deadline: int | None,
    now: Callable[[], int],
) -> Metadata:
    """Return the metadata to forward a task with: one gateway more, and less time.

    The deadline, in milliseconds since the epoch, is that of the task here; one that the metadata
    has already is kept if it is earlier. Raises `TaskFailed` once it has passed."""
    onward: Metadata = {**metadata, HOPS: [*_hops(metadata), own_id]}
    given = _deadline(metadata)
    ends = given if deadline is None or (given is not None and given < deadline) else deadline
    if ends is not None:
        if ends - now() <= MARGIN:
            raise TaskFailed("The task's deadline passed before it could be forwarded.")
        onward[DEADLINE] = stamp((ends - MARGIN) * 1000)
    depth = metadata.get(DEPTH)
    if type(depth) is int and depth in _DEPTHS:
        onward[DEPTH] = depth + 1
    return onward


def _hops(metadata: Metadata) -> tuple[str, ...]:
    value: object = metadata.get(HOPS)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidParams("must be a list of gateway ids", field=f"metadata.{HOPS}")
    ids = cast("list[Any]", value)
    if not all(isinstance(one, str) and is_id(one) for one in ids):
        raise InvalidParams("must be a list of gateway ids", field=f"metadata.{HOPS}")
    return tuple(ids)


def _deadline(metadata: Metadata) -> int | None:
    try:
        return deadline_of(metadata)
    except ValueError as error:
        raise InvalidParams(str(error), field=f"metadata.{DEADLINE}") from None
