"""The ledger of a database: reads. Balances and transfers are sealed before they are read."""

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

import msgspec

from dragoman.model.identity import Principal, Scope
from dragoman.model.task import TaskState
from dragoman.stores.columns import STATE_NUMBERS, STATES
from dragoman.stores.interface.ledger import (
    USER,
    AccountDay,
    Balance,
    Checkout,
    LedgerEntry,
    LedgerReport,
    Leg,
    PostedTransfer,
    StatementLine,
    StatementPage,
    Transfer,
)
from dragoman.stores.interface.orders import OrderFacts, OrderQuery, OrderRow, StaleOrder
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.ledger.rows import LEDGER, TRUST, order_facts, order_row, orders
from dragoman.stores.postgres.ledger.sealing import Sealer
from dragoman.stores.postgres.scopes import Scopes
from dragoman.stores.reconciliation import AccountRow, Reconciliation

_EVERYTHING = 1 << 60
# Transfers and orders that a check has in memory at a time.
_STEP = 1_000
_decode_legs = msgspec.json.Decoder(list[Leg]).decode


class PostgresLedger:
    """Accounts, transfers, orders and purchases of a database."""

    def __init__(self, connections: DatabaseConnections, scopes: Scopes, sealer: Sealer) -> None:
        self._connections = connections
        self._scopes = scopes
        self._sealer = sealer

    async def balance(self, owner: str, account: str = USER) -> Balance | None:
        """Return what an account has."""
        await self._sealer.catch_up()
        rows = await self._rows("balance", account, owner)
        return Balance(*rows[0]) if rows else None

    async def balances(self, limit: int, offset: int) -> list[tuple[str, str, Balance]]:
        """Return all accounts."""
        await self._sealer.catch_up()
        rows = await self._rows("balances", limit, offset)
        return [(kind, owner, Balance(*both)) for kind, owner, *both in rows]

    async def statement(
        self, owner: str, kinds: Collection[str], *, limit: int, offset: int = 0, before: int = 0
    ) -> StatementPage:
        """Return lines of an account."""
        await self._sealer.catch_up()
        about = (owner, list(kinds))
        page = (before or _EVERYTHING, limit, offset)

        async def read(connection: Connection) -> StatementPage:
            lines = await connection.fetch(LEDGER["statement"], *about, *page)
            total = await connection.fetchval(LEDGER["statement_total"], *about)
            return StatementPage([StatementLine(*line) for line in lines], total)

        return await self._connections.at_one_moment(read)

    async def days(self, owner: str, since: int) -> list[AccountDay]:
        """Return what each day came to."""
        await self._sealer.catch_up()
        return [AccountDay(*row) for row in await self._rows("days", owner, since)]

    async def transfer(self, id: bytes) -> PostedTransfer | None:
        """Return a transfer by its id."""
        await self._sealer.catch_up()
        rows = await self._rows("transfer_number", id)
        if not rows:
            return None
        (found,) = _transfers(await self._rows("transfers", rows[0][0] - 1, 1))
        return found

    async def transfers(self, after: int, limit: int) -> list[PostedTransfer]:
        """Return transfers in order."""
        await self._sealer.catch_up()
        return _transfers(await self._rows("transfers", max(after, 0), limit))

    async def order(self, task: int) -> OrderRow | None:
        """Return the order of a task."""
        rows = await self._rows("order", task)
        return order_row(rows[0]) if rows else None

    async def order_in(self, scope: Scope, task_id: str) -> OrderRow | None:
        """Return the order of a task in a scope."""
        number = await self._scopes.number(scope)
        rows = await self._rows("order_in", task_id, number)
        return order_row(rows[0]) if rows else None

    async def orders(
        self, scope: Scope, query: OrderQuery, *, limit: int, offset: int
    ) -> tuple[list[OrderRow], int]:
        """Return orders of a scope."""
        number = await self._scopes.number(scope)
        states = [STATE_NUMBERS[state] for state in query.states or TaskState]
        about: list[Any] = [number, states]
        name, total = "orders", "orders_total"
        if query.agent or query.is_assigned is not None:
            name, total = "orders_of_agent", "orders_of_agent_total"
            about += [query.agent, query.is_assigned]

        async def read(connection: Connection) -> tuple[list[OrderRow], int]:
            count = await connection.fetchval(LEDGER[total], *about)
            rows = await connection.fetch(LEDGER[name], *about, limit, offset)
            return orders(rows), count

        return await self._connections.at_one_moment(read)

    async def facts(self, task_id: str) -> list[OrderFacts]:
        """Return every order of an id."""
        return order_facts(await self._rows("facts", task_id))

    async def in_escrow(
        self, side: Principal, *, limit: int, after: int = 0
    ) -> tuple[list[OrderRow], int]:
        """Return what is in escrow."""

        async def read(connection: Connection) -> tuple[list[OrderRow], int]:
            rows = await connection.fetch(
                LEDGER["in_escrow"], side.text, after or _EVERYTHING, limit
            )
            total = await connection.fetchval(LEDGER["in_escrow_total"], side.text)
            return orders(rows), total

        return await self._connections.at_one_moment(read)

    async def due(self, at: int, limit: int) -> list[OrderFacts]:
        """Return delivered orders whose time is over."""
        return order_facts(await self._rows("due", at, limit))

    async def stale(self) -> list[StaleOrder]:
        """Return orders that should have ended."""
        return [
            StaleOrder(order_row(columns), None if state is None else STATES[state])
            for *columns, state in await self._rows("stale")
        ]

    async def checkout(self, id: str) -> Checkout | None:
        """Return a purchase."""
        rows = await self._rows("checkout", id)
        return Checkout(*rows[0]) if rows else None

    async def is_payment_recorded(self, event: str) -> bool:
        """Tell whether an event was recorded."""
        return bool(await self._rows("payment", event))

    async def verify(self, expect: str = "") -> LedgerReport:
        """Recompute everything, some rows after the other."""
        await self._sealer.catch_up()

        async def read(connection: Connection) -> LedgerReport:
            check = Reconciliation(expect)
            async for posted in _every_transfer(connection):
                check.add_transfer(posted)
            check.end_chain(await connection.fetchval(LEDGER["entry_count"]))
            for row in await connection.fetch(LEDGER["accounts"]):
                check.add_account(AccountRow(*row))
            for kind, task, reference, legs in await connection.fetch(LEDGER["unsealed_legs"]):
                # Written while we look: part of the orders that we see, and of no account.
                transfer = Transfer(b"", kind, 0, task, reference)
                check.add_unsealed(transfer, _decode_legs(legs))
            disputed = {task for (task,) in await connection.fetch(TRUST["disputed"])}
            last = -1
            while rows := await connection.fetch(LEDGER["orders_after"], last, _STEP):
                for order in orders(rows):
                    check.add_order(order, is_disputed=order.task in disputed)
                last = rows[-1][0]
            stale = [row[0] for row in await connection.fetch(LEDGER["stale"])]
            return check.finish(stale)

        return await self._connections.at_one_moment(read)

    async def _rows(self, name: str, *values: Any) -> list[Row]:
        return await self._connections.rows(LEDGER[name], *values)


def _transfers(rows: Iterable[Row]) -> list[PostedTransfer]:
    found: list[PostedTransfer] = []
    for row in rows:
        if not found or found[-1].number != row[0]:
            found.append(PostedTransfer(*row[:8], entries=[]))
        found[-1].entries.append(LedgerEntry(*row[8:]))
    return found


async def _every_transfer(connection: Connection) -> AsyncIterator[PostedTransfer]:
    end = await connection.fetchrow(LEDGER["last_transfer"])
    for after in range(0, end[0] if end else 0, _STEP):
        for posted in _transfers(await connection.fetch(LEDGER["transfers"], after, _STEP)):
            yield posted
