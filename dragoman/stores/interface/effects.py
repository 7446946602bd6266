"""Changes of ledger and trust as data: pure code decides on them, a store applies them.

A store knows no fee, no terms and no escrow. It applies a list of effects whole or not at all. An
effect that does not fit what is stored is refused with `StoreConflict`: another process was faster,
and the deed is decided again on fresh facts. `Reserve` alone may be refused for want of credits.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface.ledger import Checkout, LedgerStore, Leg, Transfer
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.interface.trust import DayKey, TrustDay, TrustEventRow, TrustStore

# Why effects are refused whose facts are others by now.
CHANGED = "what this was decided on has changed"


class PutOrder(msgspec.Struct, frozen=True, gc=False):
    """Record an order."""

    row: OrderRow


class SetOrder(msgspec.Struct, frozen=True, gc=False):
    """Change an order. Refused unless it is as it was when the change was decided."""

    before: OrderRow
    after: OrderRow


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Reserve something of what a user can spend. Raises `HoldRefused` where that is too little.

    A user without an account gets one with the grant."""

    transfer: Transfer
    owner: str
    amount: int
    grant: int = 0


class Post(msgspec.Struct, frozen=True, gc=False):
    """Make a transfer. Refused if it was made before, or takes more than there is.

    A user without an account gets one with the grant."""

    transfer: Transfer
    legs: Sequence[Leg]
    grant: int = 0


class OpenAccount(msgspec.Struct, frozen=True, gc=False):
    """Open a user's account with the grant; nothing if there is one."""

    owner: str
    grant: int
    at: int


class PutCheckout(msgspec.Struct, frozen=True, gc=False):
    """Record a purchase that is to be paid."""

    checkout: Checkout


class RecordPayment(msgspec.Struct, frozen=True, gc=False):
    """Record a payment provider's event, so that its repetition is known. Refused if it was."""

    event: str
    checkout: str
    at: int


class MarkPaid(msgspec.Struct, frozen=True, gc=False):
    """Note that a purchase is paid. Refused if it was."""

    checkout: str
    at: int


class AppendEvents(msgspec.Struct, frozen=True, gc=False):
    """Add events to the chain of trust, which numbers them. Refused if a task has one of a type
    already."""

    events: Sequence[TrustEventRow]


class AddDay(msgspec.Struct, frozen=True, gc=False):
    """Add to the sums of a requester's day."""

    key: DayKey
    day: TrustDay


class AddPayer(msgspec.Struct, frozen=True, gc=False):
    """Note that a requester paid another user."""

    requester: str


class SetObserved(msgspec.Struct, frozen=True, gc=False):
    """Note that outcomes are among the events, or have no place there. Refused if one was noted
    before, or was charged since."""

    orders: Sequence[OrderRow]


class PutRating(msgspec.Struct, frozen=True, gc=False):
    """Record a requester's rating of an order. Refused if there is one, or if its dispute is not as
    it was when the rating was decided on."""

    order: OrderRow
    rating: int
    comment: str
    at: int
    dispute: str | None


class PutDispute(msgspec.Struct, frozen=True, gc=False):
    """Record that a requester disputes an order. Refused if that was done before."""

    order: OrderRow
    reason: str
    at: int


class DecideDispute(msgspec.Struct, frozen=True, gc=False):
    """Record how a dispute was decided. Refused unless it is open."""

    task: int
    outcome: str
    note: str
    at: int


Effect = (
    PutOrder
    | SetOrder
    | Reserve
    | Post
    | OpenAccount
    | PutCheckout
    | RecordPayment
    | MarkPaid
    | AppendEvents
    | AddDay
    | AddPayer
    | SetObserved
    | PutRating
    | PutDispute
    | DecideDispute
)


class OrderRules(Protocol):
    """Decides what a task's own write does to its order. A store that is given rules asks them in
    the transaction of the write, so that a task is charged exactly when its end is recorded."""

    def begin(
        self, task: int, task_id: str, order: Order, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a task's first write."""
        ...

    def change(
        self, row: OrderRow, order: Order | None, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a further write of a task whose order has not ended."""
        ...


class AccountingStore(Protocol):
    """Ledger and trust of one store. Some deeds change both, so one call applies all effects."""

    @property
    def ledger(self) -> LedgerStore:
        """The ledger."""
        ...

    @property
    def trust(self) -> TrustStore:
        """What was observed of agents."""
        ...

    async def apply(self, effects: Sequence[Effect]) -> None:
        """Apply effects in their order, in one transaction; raises `StoreConflict` and
        `HoldRefused`."""
        ...
