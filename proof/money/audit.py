"""The ledger of a file, looked at from outside: by statements of its own where the product has some
too, so that one mistake is not made twice."""

import contextlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import apsw

from dragoman.stores.at_once import at_once
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.ledger.transactions import DirectTransactions
from dragoman.stores.sqlite.schema import run as query

_TOLD = 10
# The first schema with the ledger of today: a process may die before it has made them.
_SCHEMA = 9
_PATIENCE_MS = 10_000
_SUMS = """
SELECT 'all balances', sum(balance) FROM accounts HAVING sum(balance) <> 0
UNION ALL
SELECT 'transfer ' || (number >> 3), sum(amount) FROM entries GROUP BY number >> 3
    HAVING sum(amount) <> 0
UNION ALL
SELECT 'account ' || kind || ' ' || owner, balance - coalesce(folded, 0) FROM accounts LEFT JOIN
    (SELECT account, sum(amount) AS folded, sum(held) AS reserved FROM entries GROUP BY account)
    ON account = number
WHERE balance <> coalesce(folded, 0) OR held <> coalesce(reserved, 0)
"""
_OVERSPENT = "SELECT owner FROM accounts WHERE kind = 'user' AND (balance < held OR held < 0)"
_DOUBLED = """
SELECT task_id FROM errands JOIN
    (SELECT task, count(*) AS captures,
        (SELECT -sum(amount) FROM entries WHERE number >> 3 = transfers.number
            AND kind = 'task_debit') AS taken
    FROM transfers WHERE kind = 'capture' GROUP BY task) AS captured
    ON captured.task = errands.task
WHERE captures > 1 OR taken <> price OR state <> 'TASK_STATE_COMPLETED'
UNION ALL
SELECT reference FROM transfers WHERE kind = 'purchase' GROUP BY reference HAVING count(*) > 1
UNION ALL
SELECT owner FROM accounts JOIN entries ON account = accounts.number
WHERE entries.kind = 'initial_grant' AND accounts.kind = 'user' GROUP BY owner HAVING count(*) > 1
"""
_LEFT = """
SELECT task_id FROM errands JOIN tasks ON tasks.number = errands.task
WHERE errands.held > 0 AND escrow NOT IN ('delivered', 'disputed')
    AND (ended_at > 0 OR tasks.state IN (3, 4, 5, 7))
"""
_HELD = "SELECT count(*) FROM errands WHERE held > 0"


@contextlib.contextmanager
def opened(store: Path) -> Generator[apsw.Connection]:
    """Open a file to read it, also one that a process died over before it was a store."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(_PATIENCE_MS)
    try:
        yield connection
    finally:
        connection.close()


class Audit:
    """Looks at the ledger after each crash, and counts."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.findings: list[str] = []

    def look(self, store: Path, acks: Path, *, is_over: bool = False) -> None:
        """Hold the file against itself and against what was acknowledged."""
        if not store.exists() or not store.stat().st_size:
            return
        with opened(store) as connection:
            ((schema,),) = query(connection, "PRAGMA user_version")
            if schema < _SCHEMA:
                return
            self._find("sum_violations", store, connection, _SUMS)
            self._find("overspend", store, connection, _OVERSPENT)
            self._find("double_charges", store, connection, _DOUBLED)
            self._find("holds_left", store, connection, _LEFT)
            accounting = SQLiteAccounting(DirectTransactions(connection))
            report = at_once(accounting.ledger.verify())
            for text in report.differences:
                self._note("differences", f"{store.name}: {text}")
            self._acknowledged(connection, acks)
            if is_over:
                ((held,),) = query(connection, _HELD)
                if held:
                    self._note("holds_left", f"{store.name}: {held} holds when all was over")
                for name in ("errands", "transfers"):
                    ((count,),) = query(connection, f"SELECT count(*) FROM {name}")
                    self.counts[name] += count

    def _find(self, name: str, store: Path, connection: apsw.Connection, sql: str) -> None:
        for row in query(connection, sql):
            self._note(name, f"{store.name}: {name.replace('_', ' ')}: {row}")

    def _note(self, name: str, text: str) -> None:
        self.counts[name] += 1
        if len(self.findings) < _TOLD:
            self.findings.append(text)

    def _acknowledged(self, connection: apsw.Connection, acks: Path) -> None:
        begun = {
            id: ended for id, ended in query(connection, "SELECT task_id, ended_at FROM errands")
        }
        paid = {id for (id,) in query(connection, "SELECT id FROM checkouts WHERE paid_at > 0")}
        told = acks.read_text().splitlines() if acks.exists() else []
        for line in told:
            what, _, id = line.partition(" ")
            kept = id in paid if what == "paid" else id in begun
            if not kept or (what == "ended" and not begun[id]):
                self._note("lost", f"acknowledged and gone: {line}")
