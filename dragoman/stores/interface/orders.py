"""Orders as a store keeps them. An order outlives its task.

Amounts are micro-credits, times are milliseconds since the epoch.
"""

import msgspec

from dragoman.model.identity import Principal
from dragoman.model.order import DELIVERED, DISPUTED
from dragoman.model.task import TaskState


class OrderRow(msgspec.Struct, frozen=True, gc=False):
    """One order."""

    # The task's number in its store, and its id: several callers may have chosen the same id.
    task: int
    task_id: str
    agent: str
    requester: Principal
    payee: Principal
    skill: str = ""
    # Reserved at present, agreed, taken, and the platform's part of what was taken.
    held: int = 0
    price: int = 0
    charged: int = 0
    fee: int = 0
    # How often the hold was made or changed.
    holds: int = 0
    began_at: int = 0
    # 0: no deadline; 0: not ended.
    due_at: int = 0
    ended_at: int = 0
    state: TaskState | None = None
    cause: str = ""
    # Whether its outcome is among the events of trust, or has no place there.
    is_observed: bool = False
    # How often it was given to another agent, or to the same one at another address.
    moves: int = 0
    # Where its price is (empty: there is no escrow), until when if it is delivered, and the
    # platform's part as of the delivery.
    escrow: str = ""
    release_at: int = 0
    fee_due: int = 0

    @property
    def earning(self) -> int:
        """What the payee got."""
        return self.charged - self.fee

    @property
    def is_in_escrow(self) -> bool:
        """Whether its price is still reserved although it has ended."""
        return self.escrow in (DELIVERED, DISPUTED)

    @property
    def cost(self) -> int:
        """What was taken for it, or what is about to be."""
        return self.price if self.is_in_escrow else self.charged

    @property
    def is_own(self) -> bool:
        """Whether a caller ordered from their own agent. The local user is the operator and is
        believed: there is no other user to deceive."""
        return self.requester == self.payee and bool(self.requester.text)

    @property
    def response_ms(self) -> int:
        """How long it took."""
        return max(self.ended_at - self.began_at, 0)


class OrderFacts(msgspec.Struct, frozen=True, gc=False):
    """An order, and what was recorded about it besides."""

    order: OrderRow
    # Types of the events of trust that its task has.
    events: frozenset[str] = frozenset()
    # From 1 to 5; None: not rated.
    rating: int | None = None
    # How a dispute was decided; empty: it is open; None: there is none.
    dispute: str | None = None


class StaleOrder(msgspec.Struct, frozen=True, gc=False):
    """An order that has not ended though its task has."""

    order: OrderRow
    # None: there is no such task any more.
    state: TaskState | None


class OrderQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which orders of a scope are listed: all, unless a field says otherwise."""

    states: tuple[TaskState, ...] = ()
    agent: str = ""
    # Whether an agent was chosen; None: either.
    is_assigned: bool | None = None
