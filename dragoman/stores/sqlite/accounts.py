"""What accounts say: balances, statements, transfers with all their entries. Reads only."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import apsw
import msgspec

from dragoman.stores.sqlite.journal import PLACE_BITS, USER
from dragoman.stores.sqlite.schema import Row, rows_of, run

_BALANCE = "SELECT balance, held FROM accounts WHERE kind = ? AND owner = ?"
_ALL = "SELECT kind, owner, balance, held FROM accounts ORDER BY kind, owner LIMIT ? OFFSET ?"
# The reading of an owner's account goes from the latest entry back, whatever the planner thinks.
_STATEMENT = f"""
SELECT entries.number, transfers.id, at, entries.kind, amount, entries.held, entries.balance,
    reserved, transfers.task, reference, memo,
    (SELECT escrow FROM errands WHERE errands.task = transfers.task)
FROM accounts CROSS JOIN entries INDEXED BY entries_by_account ON account = accounts.number
CROSS JOIN transfers ON transfers.number = entries.number >> {PLACE_BITS}
WHERE accounts.kind = :account AND owner = :owner AND entries.number < :before
    AND entries.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY entries.number DESC LIMIT :limit OFFSET :offset
"""
_TOTAL = """
SELECT count(*) FROM accounts CROSS JOIN entries INDEXED BY entries_by_account
    ON account = accounts.number
WHERE accounts.kind = :account AND owner = :owner
    AND entries.kind IN (SELECT value FROM json_each(:kinds))
"""
# Times of transfers never fall, so the period is at the end.
_BEFORE = "SELECT number FROM transfers WHERE at < ? ORDER BY number DESC LIMIT 1"
_DAYS = f"""
SELECT date(at / 1000, 'unixepoch') AS day,
    -coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_debit'), 0),
    coalesce(sum(amount) FILTER (WHERE entries.kind = 'task_credit'), 0)
FROM accounts CROSS JOIN entries INDEXED BY entries_by_account ON account = accounts.number
CROSS JOIN transfers ON transfers.number = entries.number >> {PLACE_BITS}
WHERE accounts.kind = 'user' AND owner = :owner AND entries.number >= :first
    AND entries.kind IN ('task_debit', 'task_credit')
GROUP BY day ORDER BY day
"""
_BY_ID = "SELECT number FROM transfers WHERE id = ?"
_TRANSFERS = f"""
SELECT transfers.number, id, transfers.kind, at, task, reference, memo, hash, accounts.kind, owner,
    entries.kind, amount, entries.held, entries.account, entries.balance, reserved
FROM transfers CROSS JOIN entries
    ON entries.number BETWEEN transfers.number << {PLACE_BITS}
        AND (transfers.number << {PLACE_BITS}) + {(1 << PLACE_BITS) - 1}
CROSS JOIN accounts ON accounts.number = entries.account
WHERE transfers.number BETWEEN ? AND ? ORDER BY entries.number
"""
_EVERYTHING = 1 << 62


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What somebody has, in micro-credits."""

    total: int = 0
    held: int = 0

    @property
    def available(self) -> int:
        """What can be spent."""
        return self.total - self.held


class Line(msgspec.Struct, frozen=True, gc=False):
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


class Day(NamedTuple):
    """What a day came to."""

    date: str
    spent: int
    earned: int


class Entry(NamedTuple):
    """What a transfer did to an account, and what was there then."""

    account: str
    owner: str
    kind: str
    amount: int
    held: int
    number: int
    balance: int
    reserved: int


class Posted(NamedTuple):
    """A transfer as it is in the file."""

    number: int
    id: bytes
    kind: str
    at: int
    task: int
    reference: str
    memo: str
    hash: bytes
    entries: list[Entry]


def balance(connection: apsw.Connection, owner: str, account: str = USER) -> Balance | None:
    """Return what somebody has; None: there is no account."""
    rows = run(connection, _BALANCE, (account, owner))
    return Balance(*rows[0]) if rows else None


def balances(
    connection: apsw.Connection, limit: int, offset: int
) -> list[tuple[str, str, Balance]]:
    """Return kind, owner and balance of all accounts."""
    rows = run(connection, _ALL, (limit, offset))
    return [(kind, owner, Balance(*both)) for kind, owner, *both in rows]


def statement(
    connection: apsw.Connection,
    owner: str,
    kinds: Collection[str],
    *,
    account: str = USER,
    limit: int,
    offset: int = 0,
    before: int = 0,
) -> list[Line]:
    """Return lines of some kinds, the latest first."""
    values = {
        **_asked(owner, account, kinds),
        "before": before or _EVERYTHING,
        "limit": limit,
        "offset": offset,
    }
    return [Line(*row) for row in run(connection, _STATEMENT, values)]


def total(
    connection: apsw.Connection, owner: str, kinds: Collection[str], account: str = USER
) -> int:
    """Return how many lines of some kinds there are."""
    return int(run(connection, _TOTAL, _asked(owner, account, kinds))[0][0])


def _asked(owner: str, account: str, kinds: Collection[str]) -> dict[str, str | int]:
    known = msgspec.json.encode(list(kinds)).decode()
    return {"owner": owner, "account": account, "kinds": known}


def days(connection: apsw.Connection, owner: str, since: int) -> list[Day]:
    """Return what each day since a time came to, of those on which anything happened."""
    before = run(connection, _BEFORE, (since,))
    first = (before[0][0] + 1 if before else 0) << PLACE_BITS
    return [Day(*row) for row in run(connection, _DAYS, {"owner": owner, "first": first})]


def find(connection: apsw.Connection, id: bytes) -> Posted | None:
    """Return a transfer by its id."""
    rows = run(connection, _BY_ID, (id,))
    return transfer(connection, int(rows[0][0])) if rows else None


def transfer(connection: apsw.Connection, number: int) -> Posted | None:
    """Return a transfer by its number."""
    return next(transfers(connection, number, number), None)


def transfers(
    connection: apsw.Connection, first: int = 0, last: int = _EVERYTHING
) -> Iterator[Posted]:
    """Return transfers in their order, with what they did."""
    found: Posted | None = None
    for row in rows_of(connection, _TRANSFERS, (first, last)):
        if found is None or found.number != row[0]:
            if found is not None:
                yield found
            found = _posted(row)
        found.entries.append(Entry(*row[8:]))
    if found is not None:
        yield found


def _posted(row: Row) -> Posted:
    return Posted(*row[:8], entries=[])
