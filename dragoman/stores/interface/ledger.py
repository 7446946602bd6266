"""What a store promises of the ledger. Every promise is a test in `dragoman.testing.promises`.

The ledger is double entry, written once and never changed. A transfer is known by a hash of what
it is for, so its repetition is refused. Each transfer is chained to the one before it, with all it
did to accounts, so an edit of the past is found by recomputing the chain. Writes are effects: see
`stores.interface.effects`.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec

from dragoman.model.identity import Principal, Scope
from dragoman.stores.interface.orders import OrderFacts, OrderQuery, OrderRow, StaleOrder

# Kinds of accounts. The last three are the platform's and have no owner.
USER, FEES, ISSUED, SOLD = "user", "fees", "issued", "sold"
# The hash before the first transfer.
GENESIS = bytes(32)
# Entries are numbered by their transfer and their place in it.
PLACE_BITS = 3


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What an account has, in micro-credits."""

    total: int = 0
    held: int = 0

    @property
    def available(self) -> int:
        """What can be spent."""
        return self.total - self.held


class StatementLine(msgspec.Struct, frozen=True, gc=False):
    """One line of a statement: an entry, and the transfer it is of."""

    number: int
    transfer: bytes
    at: int
    kind: str
    amount: int
    held: int
    balance: int
    reserved: int
    task: int
    reference: str
    memo: str
    # Where the price of the task is at present; empty or None: there is no escrow, or no task.
    escrow: str | None


class StatementPage(msgspec.Struct, frozen=True):
    """Lines of a statement, and how many there are in all."""

    lines: list[StatementLine]
    total: int


class AccountDay(NamedTuple):
    """What was spent and earned on one day."""

    date: str
    spent: int
    earned: int


class Transfer(NamedTuple):
    """What a transfer is for."""

    id: bytes
    kind: str
    at: int
    task: int = 0
    reference: str = ""
    memo: str = ""


class Leg(NamedTuple):
    """What a transfer does to one account."""

    account: str
    owner: str
    # What the statement of the owner calls it.
    kind: str
    amount: int = 0
    held: int = 0


class LedgerEntry(NamedTuple):
    """What a transfer did to an account, and what the account had afterwards."""

    account: str
    owner: str
    kind: str
    amount: int
    held: int
    number: int
    balance: int
    reserved: int


class PostedTransfer(NamedTuple):
    """A transfer as it was recorded."""

    number: int
    id: bytes
    kind: str
    at: int
    task: int
    reference: str
    memo: str
    hash: bytes
    entries: list[LedgerEntry]


class Checkout(msgspec.Struct, frozen=True, gc=False):
    """A purchase. Credits are micro-credits, the price is in cents of the provider's currency."""

    id: str
    owner: str
    package: str
    credits: int
    cents: int
    made_at: int
    # 0: not paid.
    paid_at: int = 0


class LedgerReport(msgspec.Struct):
    """What a check of the whole ledger found."""

    transfers: int = 0
    entries: int = 0
    orders: int = 0
    charged: int = 0
    # The hash of the last transfer. Noted down elsewhere, it later shows that no end was cut off.
    head: str = GENESIS.hex()
    # Whether the head that was expected is in the chain.
    is_expected: bool = True
    differences: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to explain."""
        return not self.differences


class LedgerStore(Protocol):
    """Accounts, transfers, orders and purchases: reads."""

    async def balance(self, owner: str, account: str = USER) -> Balance | None:
        """Return what an account has; None: there is no such account."""
        ...

    async def balances(self, limit: int, offset: int) -> list[tuple[str, str, Balance]]:
        """Return kind, owner and balance of accounts, by kind and owner."""
        ...

    async def statement(
        self, owner: str, kinds: Collection[str], *, limit: int, offset: int = 0, before: int = 0
    ) -> StatementPage:
        """Return lines of a user's account, the latest first; `before` is the number of a line."""
        ...

    async def days(self, owner: str, since: int) -> list[AccountDay]:
        """Return what a user spent and earned by day since a time, for days with entries."""
        ...

    async def transfer(self, id: bytes) -> PostedTransfer | None:
        """Return a transfer by its id."""
        ...

    async def transfers(self, after: int, limit: int) -> list[PostedTransfer]:
        """Return transfers after a number, in order, with their entries."""
        ...

    async def order(self, task: int) -> OrderRow | None:
        """Return the order of a task, by the task's number."""
        ...

    async def order_in(self, scope: Scope, task_id: str) -> OrderRow | None:
        """Return the order of a task in a scope, where ids are unique."""
        ...

    async def orders(
        self, scope: Scope, query: OrderQuery, *, limit: int, offset: int
    ) -> tuple[list[OrderRow], int]:
        """Return orders of the tasks in a scope, newest first, and how many there are."""
        ...

    async def facts(self, task_id: str) -> list[OrderFacts]:
        """Return every order whose task has this id, the latest first."""
        ...

    async def in_escrow(
        self, side: Principal, *, limit: int, after: int = 0
    ) -> tuple[list[OrderRow], int]:
        """Return orders of a requester or payee that have ended and whose price is in escrow, the
        latest first, after the task of a number, and how many there are."""
        ...

    async def due(self, at: int, limit: int) -> list[OrderFacts]:
        """Return delivered orders whose time for a dispute is over, the earliest first."""
        ...

    async def stale(self) -> list[StaleOrder]:
        """Return orders that have not ended though their tasks have, or are gone."""
        ...

    async def checkout(self, id: str) -> Checkout | None:
        """Return a purchase."""
        ...

    async def is_payment_recorded(self, event: str) -> bool:
        """Tell whether a payment provider's event was recorded before."""
        ...

    async def verify(self, expect: str = "") -> LedgerReport:
        """Recompute everything as of one moment; `expect` is a head that has to be in the chain."""
        ...
