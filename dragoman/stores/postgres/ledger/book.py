"""The accounts that some transfers touch, and the end of the chain, in memory for the time of one
transaction. Pure: transfers are numbered, chained and folded here; `sealing` reads and writes."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dragoman.errors import HoldRefused, StoreConflict
from dragoman.stores.chain import AccountState, grant_transfer, transfer_hash
from dragoman.stores.interface.ledger import (
    GENESIS,
    ISSUED,
    SOLD,
    USER,
    LedgerEntry,
    Leg,
    PostedTransfer,
    Transfer,
)

# Kind and owner.
AccountKey = tuple[str, str]


class LedgerAccount(msgspec.Struct, gc=False):
    """An account as of the last transfer of the book."""

    number: int
    kind: str
    owner: str
    balance: int = 0
    held: int = 0
    # What transfers that are not sealed come to, as far as they count for what can be spent.
    ahead: int = 0

    @property
    def available(self) -> int:
        """What can be spent."""
        return self.balance - self.held + self.ahead


class Unsealed(NamedTuple):
    """A transfer without a number."""

    transfer: Transfer
    legs: Sequence[Leg]
    # What an account gets that it is the first to touch.
    grant: int = 0
    # Whether it counts already for what can be spent.
    is_counted: bool = False


class ChainEnd(NamedTuple):
    """The last transfer of a chain."""

    number: int = 0
    at: int = 0
    hash: bytes = GENESIS


class Book:
    """Adds transfers to a chain."""

    def __init__(self, end: ChainEnd) -> None:
        self._end = end
        self.accounts: dict[AccountKey, LedgerAccount] = {}
        # Accounts that were opened just now and have no transfer yet.
        self._new: set[AccountKey] = set()
        self.touched: set[AccountKey] = set()
        # What was added: transfers that were in the database without a number, and others.
        self.sealed: list[PostedTransfer] = []
        self.made: list[PostedTransfer] = []

    def has(self, account: LedgerAccount, *, is_new: bool) -> None:
        """Have an account in the book."""
        key = (account.kind, account.owner)
        self.accounts[key] = account
        if is_new:
            self._new.add(key)

    def seal(self, one: Unsealed) -> None:
        """Add a transfer that a task's write brought."""
        for leg in one.legs:
            self.open(leg.owner, one.grant, one.transfer.at, leg.account)
        if one.is_counted:
            for leg in one.legs:
                if leg.account == USER:
                    self.accounts[leg[:2]].ahead -= leg.amount - leg.held
        self.sealed.append(self._posted(one.transfer, one.legs))

    def post(self, transfer: Transfer, legs: Sequence[Leg], grant: int = 0) -> None:
        """Add a transfer of a deed; raises `StoreConflict` if it takes more than there is."""
        for leg in legs:
            self.open(leg.owner, grant, transfer.at, leg.account)
        self.made.append(self._posted(transfer, legs))

    def reserve(self, transfer: Transfer, owner: str, amount: int, grant: int) -> None:
        """Reserve something; raises `HoldRefused`."""
        self.open(owner, grant, transfer.at)
        available = self.accounts[USER, owner].available
        if available < amount:
            raise HoldRefused(balance=available, needed=amount)
        self.post(transfer, [Leg(USER, owner, "hold", held=amount)])

    def open(self, owner: str, grant: int, at: int, kind: str = USER) -> None:
        """Give a new account what it begins with; nothing to one that is not new."""
        if (kind, owner) in self._new:
            self._new.remove((kind, owner))
            self.post(*grant_transfer(owner, grant, at))

    def _posted(self, transfer: Transfer, legs: Sequence[Leg]) -> PostedTransfer:
        assert not sum(leg.amount for leg in legs), "what one account loses another one gets"
        states = [self._moved(leg) for leg in legs]
        number = self._end.number + 1
        # The ledger's own time: it never goes back, whatever a clock does.
        transfer = transfer._replace(at=max(self._end.at, transfer.at))
        digest = transfer_hash(self._end.hash, number, transfer, legs, states)
        self._end = ChainEnd(number, transfer.at, digest)
        entries = [LedgerEntry(*leg, *state) for leg, state in zip(legs, states, strict=True)]
        return PostedTransfer(number, *transfer, digest, entries)

    def _moved(self, leg: Leg) -> AccountState:
        key = (leg.account, leg.owner)
        self.touched.add(key)
        account = self.accounts[key]
        account.balance += leg.amount
        account.held += leg.held
        is_covered = account.balance >= account.held and account.available >= 0
        if account.held < 0 or not (is_covered or leg.account in (ISSUED, SOLD)):
            raise StoreConflict("an account would have less than it needs")
        return AccountState(account.number, account.balance, account.held)
