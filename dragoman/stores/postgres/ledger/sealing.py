"""Seals transfers: numbers them, chains them and moves the balances.

A process that does so has the lock of the chains, so there is one at a time. A
transaction that is broken off has sealed nothing, and the next one begins where it began.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from dragoman.stores.interface.ledger import (
    FEES,
    ISSUED,
    PLACE_BITS,
    SOLD,
    USER,
    Leg,
    PostedTransfer,
    Transfer,
)
from dragoman.stores.postgres.chores import Chore
from dragoman.stores.postgres.connections import (
    Connection,
    DatabaseConnections,
    ServerError,
    state_of,
)
from dragoman.stores.postgres.deeds import LOCKED, do
from dragoman.stores.postgres.ledger.book import AccountKey, Book, ChainEnd, LedgerAccount, Unsealed
from dragoman.stores.postgres.ledger.rows import LEDGER

# Transfers that are sealed in one transaction.
PORTION = 500
# Seconds that transfers wait for others, and between two looks for those that others left.
GATHER = 0.1
LOOK_EVERY = 1.0

_decode_legs = msgspec.json.Decoder(list[Leg]).decode
_PLATFORM: Sequence[AccountKey] = ((ISSUED, ""), (SOLD, ""), (FEES, ""))


async def open_book(
    connection: Connection, owners: Iterable[str] = (), *, upto: int | None = None
) -> tuple[Book, int]:
    """Return the end of the chain with what is not sealed added to it, and how much that was;
    `owners` are users whose accounts are needed besides. The caller has the lock of the chains.

    `upto` is the place of the last that is sealed; None: all that there are."""
    limit = None if upto is None else PORTION
    unsealed = [
        (Unsealed(Transfer(*columns), _decode_legs(legs), grant, is_counted))
        for *columns, legs, grant, is_counted in await connection.fetch(
            LEDGER["unsealed"], upto, limit
        )
    ]
    end = await connection.fetchrow(LEDGER["last_transfer"])
    book = Book(ChainEnd(*end) if end else ChainEnd())
    needed = {leg.owner for one in unsealed for leg in one.legs if leg.account == USER}
    await _add_accounts(connection, book, needed.union(owners))
    for one in unsealed:
        book.seal(one)
    return book, len(unsealed)


async def _add_accounts(connection: Connection, book: Book, owners: Collection[str]) -> None:
    """Have accounts in the book, locked. First those that are new, by owner, then all by number:
    the same order as in the writes of tasks."""
    opened = await connection.fetch(LEDGER["open_accounts"], sorted(owners))
    new = {(USER, owner) for (owner,) in opened}
    keys = [*((USER, owner) for owner in owners), *_PLATFORM]
    rows = await connection.fetch(LEDGER["lock_accounts"], *_columns(keys))
    for row in rows:
        account = LedgerAccount(*row)
        book.has(account, is_new=(account.kind, account.owner) in new)


async def close_book(connection: Connection, book: Book) -> None:
    """Write what was added to the chain."""
    posted = [*book.sealed, *book.made]
    if not posted:
        return
    touched = [book.accounts[key] for key in book.touched]
    accounts = [(one.number, one.balance, one.held, one.ahead) for one in touched]
    await connection.execute(LEDGER["set_accounts"], *_columns(accounts))
    if book.sealed:
        sealed = [(one.id, one.number, one.at, one.hash) for one in book.sealed]
        await connection.execute(LEDGER["seal"], *_columns(sealed))
    if book.made:
        made = [one[:8] for one in book.made]
        await connection.execute(LEDGER["add_transfers"], *_columns(made))
    entries = [row for one in posted for row in _entries(one)]
    await connection.execute(LEDGER["add_entries"], *_columns(entries))


def _entries(posted: PostedTransfer) -> list[tuple[Any, ...]]:
    assert len(posted.entries) < 1 << PLACE_BITS
    return [
        (
            posted.number << PLACE_BITS | place,
            entry.number,
            entry.kind,
            entry.amount,
            entry.held,
            entry.balance,
            entry.reserved,
        )
        for place, entry in enumerate(posted.entries)
    ]


def _columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _alone() -> bool:
    return True


class Sealer:
    """Seals in the background soon after transfers were written here, and at once for a reader.
    What a process left that ended is sealed by the one that has the duty."""

    def __init__(
        self, connections: DatabaseConnections, leads: Callable[[], Awaitable[bool]] = _alone
    ) -> None:
        """`leads` tells whether we have the duty."""
        self._connections = connections
        self._leads = leads
        self._has_own = False
        self._sealing = Chore("sealing", self._seal_now, every=LOOK_EVERY, gather=GATHER)
        # What is left at the end is sealed by the next reader, or by another process.
        self.start, self.stop = self._sealing.start, self._sealing.stop

    def wake(self) -> None:
        """Hear that something is to be sealed that was written here."""
        self._has_own = True
        self._sealing.wake()

    async def catch_up(self) -> bool:
        """Seal everything that is committed at this moment; tell whether there was something."""
        last = await self._last()
        if last is None:
            return False
        while await self._sealed_portion(last, "lock_chains"):
            pass
        return True

    async def _seal_now(self) -> None:
        """Seal what there is, unless another process is at it."""
        if not self._has_own and not await self._leads():
            return
        self._has_own = False
        last = await self._last()
        try:
            while last is not None and await self._sealed_portion(last, "try_lock_chains"):
                pass
        except ServerError as error:
            if state_of(error) != LOCKED:
                raise
            # The other one may have looked before ours were there.
            self.wake()

    async def _last(self) -> int | None:
        ((last,),) = await self._connections.rows(LEDGER["last_unsealed"])
        return last

    async def _sealed_portion(self, upto: int, lock: str) -> bool:
        """Seal some; tell whether there may be more."""

        async def seal(connection: Connection) -> bool:
            await connection.execute(LEDGER[lock])
            book, count = await open_book(connection, upto=upto)
            await close_book(connection, book)
            return count == PORTION

        # What was sealed before a connection was lost is not sealed again.
        return await do(self._connections, seal, is_repeatable=True)
