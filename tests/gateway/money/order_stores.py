"""Stores with orders as a gateway writes them, on disk and in memory, for tests of money."""

from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from harness.databases import new_database
from msgspec.structs import replace

from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.model.identity import Principal, Scope
from dragoman.model.money import MICRO, Terms
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.interface import Store
from dragoman.stores.interface.effects import AccountingStore
from dragoman.stores.interface.ledger import Balance
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.memory import MemoryStore
from dragoman.stores.memory.accounting import MemoryAccounting
from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.ledger.task_orders import TaskOrders
from dragoman.stores.sqlite.ledger.transactions import DirectTransactions
from dragoman.stores.sqlite.schema import migrate, run
from dragoman.testing.promises.samples import addition, creation, head_of, status, write

TEN = 10 * MICRO
KINDS = ("sqlite", "memory", "postgres")
# Those that do every deed `at_once`, without an event loop.
AT_ONCE = ("sqlite", "memory")


class OrderingStore(NamedTuple):
    """A store of tasks whose orders are in a ledger."""

    store: Store
    accounting: AccountingStore
    rules: TaskOrderRules

    def ledger(self, **parts: object) -> Ledger:
        """Return the gateway's ledger on it."""
        return Ledger(self.accounting, self.rules, self.store, **parts)  # type: ignore[arg-type]  # by name

    async def order(self, task_id: str) -> OrderRow:
        """Return the one order of an id."""
        (found,) = await self.accounting.ledger.facts(task_id)
        return found.order

    async def has(self, owner: str, account: str = "user") -> tuple[float, float]:
        """Return what an account can spend, and what is held, in whole credits."""
        found = await self.accounting.ledger.balance(owner, account) or Balance()
        return found.available / MICRO, found.held / MICRO

    async def differences(self) -> list[str]:
        """Return what is wrong with the ledger."""
        return (await self.accounting.ledger.verify()).differences


def ordering(kind: str, path: Path | str, terms: Terms | None = None, **more: str) -> OrderingStore:
    """Return a store that is not open yet; of PostgreSQL the path is the address."""
    rules = TaskOrderRules(terms)
    if kind == "postgres":
        store = PostgresGatewayStore(Addresses(str(path)), rules)
        return OrderingStore(store, store.accounting, rules)
    if kind == "sqlite":
        return ordering_file(Path(path), terms, **more)
    accounting = MemoryAccounting(rules)
    return OrderingStore(MemoryStore(orders=accounting), accounting, rules)


class OrderingFile(OrderingStore):
    """One on disk, which a test may look into and tamper with."""

    @property
    def _file(self) -> SQLiteStore:
        assert isinstance(self.store, SQLiteStore)
        return self.store

    async def read(self, sql: str) -> list[tuple[Any, ...]]:
        """Return rows."""
        return await self._file.read_tx(lambda connection: run(connection, sql))

    async def tamper(self, *statements: str) -> None:
        """Change the file behind the ledger's back."""

        def change(connection: apsw.Connection) -> None:
            for sql in statements:
                run(connection, sql)

        await self._file.write_tx(change)


def ordering_file(path: Path, terms: Terms | None = None, **more: str) -> OrderingFile:
    """Return a store on disk that is not open yet."""
    rules = TaskOrderRules(terms)
    store = SQLiteStore(path, orders=TaskOrders(rules), **more)
    return OrderingFile(store, SQLiteAccounting(store), rules)


def bare_accounting(kind: str) -> AccountingStore:
    """Return an empty ledger without tasks, for deeds `at_once`."""
    if kind == "memory":
        return MemoryAccounting()
    connection = apsw.Connection(":memory:")
    migrate(connection)
    return SQLiteAccounting(DirectTransactions(connection))


def scope_of(owner: str) -> Scope:
    return Scope("gateway", "", owner)


async def location(request: pytest.FixtureRequest, folder: Path) -> Path | str:
    """Return where a fixture's store is: in a new database, or in a file of the folder."""
    if request.param != "postgres":
        return folder / "tasks.db"
    return await new_database(request)


async def begin(
    store: Store, task_id: str, price: int = TEN, requester: str = "alice", at: int = 1000
) -> None:
    """Begin a task of the agent `a1`, which is bob's."""
    order = Order(
        agent="a1",
        requester=Principal.read(requester),
        payee=Principal.read("bob"),
        price=price,
        held=price,
    )
    await write(store, replace(creation(task_id, scope=scope_of(requester), at=at), order=order))


async def end(
    store: Store,
    task_id: str,
    state: TaskState = TaskState.COMPLETED,
    requester: str = "alice",
    at: int = 2000,
) -> None:
    """End it."""
    head = await head_of(store, task_id, scope_of(requester))
    await write(store, addition(head, status(task_id, state, at), state=state, at=at))


async def done(store: Store, task_id: str, price: int = TEN, at: int = 2000) -> None:
    """Have a task done."""
    await begin(store, task_id, price, at=at)
    await end(store, task_id, at=at)
