"""Limits that all workers of a store count together: how often, and how many at once.

A limit is a bucket that is full at first and fills evenly. A worker does not ask for each request:
it draws a portion, and what it does not use it gives back. Portions are large while a bucket is
full and small when it is nearly empty, so that little lies unused with one worker while another
refuses.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Draw(msgspec.Struct, frozen=True):
    """What a worker wants of one bucket."""

    # Which limit, and whose bucket of it.
    name: str
    key: bytes
    # What a full bucket holds, and the seconds in which an empty one is full. 0: seats, of which
    # none come back but by those who took them, or with their deaths.
    count: int
    seconds: int
    # The least that is of use, 0 if nothing is wanted; what there is use for at once; and what
    # comes back unused.
    need: int = 1
    want: int = 1
    back: int = 0
    # Of seats, instead: how many the worker has. A draw whose answer was lost is made good by the
    # next one, which does not say that it has what it was not told of.
    held: int = 0


class Drawn(msgspec.Struct, frozen=True):
    """What it was given."""

    granted: int
    # What is left in the bucket; less than `need` if nothing was granted.
    left: float


class SharedLimits(Protocol):
    """Buckets of which all workers take."""

    @property
    def worker(self) -> int:
        """Our number, under which seats are taken; another one has none."""
        ...

    @property
    def workers(self) -> int:
        """How many workers there were when we last heard; 0: we have not yet."""
        ...

    async def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        """Take from several buckets, no two of them the same; raises `StoreUnavailable` soon if
        the store does not answer. A draw whose answer is lost may have been taken."""
        ...
