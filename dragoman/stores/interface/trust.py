"""What a store promises of trust: a chained log of what was observed of agents, and sums by day.

What is observed and what counts is decided in `gateway.trust`. Writes are effects: see
`stores.interface.effects`.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec

from dragoman.stores.interface.orders import OrderFacts, OrderRow

# The hash before the first event.
NOTHING = "0" * 64
# One task that counts in full.
UNIT = 1_000_000
DAY_MS = 24 * 3600 * 1000


class TrustEventRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One observation. Its JSON, in this order, is what is hashed."""

    number: int = 0
    # The hash of the event before.
    prev: str = NOTHING
    # When it happened, in milliseconds.
    at: int
    agent: str
    type: str
    # What it is worth by itself, from -10 to 10. These are not added up.
    score: int
    reason: str
    # The task's number in its store, and the id that its requester knows.
    task: int = 0
    task_id: str = ""
    requester: str = ""
    is_own: bool = False
    skill: str = ""
    # Micro-credits that went to another.
    charged: int = 0
    response_ms: int = 0
    rating: int = 0
    # How a dispute ended: upheld or rejected.
    outcome: str = ""


class TrustDay(NamedTuple):
    """What came from one requester on one day."""

    completed: int = 0
    failed: int = 0
    response_ms: int = 0
    ratings: int = 0
    rating_sum: int = 0

    def plus(self, more: "TrustDay") -> "TrustDay":
        """Return both together."""
        return TrustDay(*(one + other for one, other in zip(self, more, strict=True)))


# Agent, requester, whether it is the requester's own agent, and the day since the epoch.
DayKey = tuple[str, str, bool, int]


class TrustSums(NamedTuple):
    """What counts of an agent's days; counts in millionths."""

    completed: int
    failed: int
    response_ms: int
    ratings: int
    rating_sum: int
    recent_completed: int
    recent_failed: int
    active: int
    last_day: int


class SumWindow(NamedTuple):
    """How sums are made: a requester's day counts for `cap` tasks at most; `recent` and `active`
    are the last days that are too old to be."""

    cap: int
    recent: int
    active: int


class TrustFigures(NamedTuple):
    """What counts of agents, by their ids, and when each broke a rule."""

    sums: dict[str, TrustSums]
    violations: dict[str, list[int]]


class TrustHistory(NamedTuple):
    """A page of an agent's events, the latest first; comments of ratings by task; the total."""

    events: list[TrustEventRow]
    comments: dict[int, str]
    total: int


class DisputeRow(NamedTuple):
    """A dispute without a decision."""

    task: int
    task_id: str
    agent: str
    requester: str
    reason: str
    opened_at: int


class TrustLine(NamedTuple):
    """An event as it was recorded: its text, its hash, and what it is filed under."""

    body: bytes
    hash: str
    agent: str
    type: str
    task: int
    at: int


class TrustContents(NamedTuple):
    """All there is, as of one moment."""

    lines: list[TrustLine]
    # Orders that have ended.
    orders: list[OrderRow]
    # Pairs: they travel as JSON, whose keys have one part.
    days: list[tuple[DayKey, TrustDay]]
    payers: set[str]


class TrustStore(Protocol):
    """Events and their sums: reads."""

    async def last_number(self) -> int:
        """Return the number of the last event."""
        ...

    async def after(self, number: int, limit: int) -> list[TrustEventRow]:
        """Return the events after one, in order."""
        ...

    async def unobserved(self, limit: int) -> list[OrderFacts]:
        """Return orders that ended and are not among the events, the earliest first."""
        ...

    async def agents_of(self, requester: str) -> list[str]:
        """Return the agents that did tasks for a requester."""
        ...

    async def figures(self, agents: Collection[str] | None, window: SumWindow) -> TrustFigures:
        """Return what counts of these agents, or of all."""
        ...

    async def totals(self, agent: str) -> TrustDay:
        """Return all that was observed of an agent, whether it counts or not."""
        ...

    async def history(self, agent: str, *, limit: int, offset: int) -> TrustHistory:
        """Return a page of an agent's events."""
        ...

    async def disputes(self, *, limit: int, after: int = 0) -> tuple[list[DisputeRow], int]:
        """Return disputes without a decision, the oldest first, after the task of a number, and how
        many there are."""
        ...

    async def contents(self) -> TrustContents:
        """Return everything, for a check or an export."""
        ...
