"""Orders that ended, as a gateway leaves them, without a gateway."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.trust import recording
from dragoman.gateway.trust.reputation import facts_in
from dragoman.gateway.trust.scores import Facts
from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.stores.at_once import at_once
from dragoman.stores.interface.effects import AccountingStore, PutOrder
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.interface.trust import TrustContents, TrustEventRow
from dragoman.stores.memory.accounting import MemoryAccounting
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.ledger.transactions import DirectTransactions
from dragoman.stores.sqlite.schema import connect, migrate, run

DAY = 24 * 3600 * 1000
# Noon, so that a few hours more or less are the same day.
NOW = 1_790_000_000_000 // DAY * DAY + DAY // 2
STATES = {
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "rejected": "TASK_STATE_REJECTED",
}


class Past(NamedTuple):
    """An order that ended."""

    agent: str = "a"
    requester: str = ""
    payee: str = "owner"
    state: str = "completed"
    seconds: float = 1.0
    charged: int = 0
    at: int = NOW
    due_at: int = 0
    cause: str = ""
    skill: str = "s"
    task_id: str = ""


class Roll:
    """Registered agents, in memory."""

    def __init__(self, *agents: Registered) -> None:
        self.agents = {one.id: one for one in agents}

    def get(self, ref: str) -> Registered | None:
        found = [one for one in self.agents.values() if ref in (one.id, one.name)]
        return found[0] if found else None

    def all(self) -> Sequence[Registered]:
        return list(self.agents.values())


def agent(id: str = "a", days: int = 0, owner: str = "owner") -> Registered:
    """Return an agent that was registered so many days ago."""
    return Registered(
        id=id,
        name=f"{id}-name",
        title=id,
        url="http://127.0.0.1:1",
        owner=Principal.read(owner),
        created_at=NOW - days * DAY,
    )


def opened(path: Path | str = ":memory:") -> apsw.Connection:
    """Return a connection to a file with the present schema."""
    if path == ":memory:":
        connection = apsw.Connection(":memory:")
    else:
        connection = connect(str(path), "off")
    migrate(connection)
    return connection


class Desk:
    """Ledger and trust without a gateway, in memory or in a file of its own, without a loop."""

    def __init__(self, kind: str = "memory") -> None:
        self.connection = opened() if kind == "sqlite" else None
        self.accounting: AccountingStore = (
            MemoryAccounting()
            if self.connection is None
            else SQLiteAccounting(DirectTransactions(self.connection))
        )
        self.trust = self.accounting.trust
        self._last = 0

    def end(self, *orders: Past) -> list[str]:
        """Record orders that ended; return their tasks' ids."""
        rows = past_orders(self._last, *orders)
        self._last += len(rows)
        at_once(self.accounting.apply([PutOrder(row) for row in rows]))
        return [row.task_id for row in rows]

    def observe(self, limit: int) -> int:
        return at_once(recording.observe(self.accounting, limit))

    def rate(self, agent: str, task: str, requester: str, rating: Any, comment: str = "") -> None:
        meant, who = TaskReference(task), Principal.read(requester)
        at_once(recording.rate(self.accounting, agent, meant, who, rating, comment, NOW))

    def dispute(self, agent: str, task: str, requester: str, reason: str) -> None:
        meant, who = TaskReference(task), Principal.read(requester)
        at_once(recording.dispute(self.accounting, agent, meant, who, reason, NOW))

    def resolve(self, task: str, is_upheld: bool, note: str = "") -> None:
        at_once(recording.resolve(self.accounting, TaskReference(task), is_upheld, note, NOW))

    def violate(self, agent: str, at: int) -> None:
        at_once(recording.violate(self.accounting, agent, "a card of another origin", at))

    def events(self) -> list[TrustEventRow]:
        return at_once(self.trust.after(0, 10_000))

    def facts(self, created: dict[str, int], cap: int = 20, at: int = NOW) -> dict[str, Facts]:
        return at_once(facts_in(self.trust, created, cap, at))

    def contents(self) -> TrustContents:
        return at_once(self.trust.contents())


def past_orders(last: int, *orders: Past) -> list[OrderRow]:
    """Return orders that ended, as rows after a number."""
    return [
        OrderRow(
            number,
            one.task_id or f"t{number}",
            one.agent,
            Principal.read(one.requester),
            Principal.read(one.payee),
            skill=one.skill,
            price=one.charged,
            charged=one.charged,
            began_at=one.at - int(one.seconds * 1000),
            due_at=one.due_at,
            ended_at=one.at,
            state=TaskState(STATES[one.state]),
            cause=one.cause,
        )
        for number, one in enumerate(orders, last + 1)
    ]


def end(connection: apsw.Connection, *orders: Past) -> list[str]:
    """Write orders that ended into a file of any schema; return their tasks' ids."""
    ((last,),) = run(connection, "SELECT ifnull(max(task), 0) FROM errands")
    rows = past_orders(last, *orders)
    for row in rows:
        run(
            connection,
            "INSERT INTO errands (task, task_id, agent, requester, payee, skill, held, price, "
            "charged, began_at, due_at, ended_at, state, cause) "
            "VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.task,
                row.task_id,
                row.agent,
                row.requester.text,
                row.payee.text,
                row.skill,
                row.price,
                row.charged,
                row.began_at,
                row.due_at,
                row.ended_at,
                row.state.value if row.state else "",
                row.cause,
            ),
        )
    return [row.task_id for row in rows]


def enroll(connection: apsw.Connection, *agents: Registered) -> None:
    """Write agents as a registry does."""
    for number, one in enumerate(agents, 1):
        run(
            connection,
            "INSERT INTO agents (id, name, body, status, last_seen_at, beat_at, version) "
            "VALUES (?, ?, ?, 'online', 0, 0, ?)",
            (one.id, one.name, msgspec.json.encode(one), number),
        )
