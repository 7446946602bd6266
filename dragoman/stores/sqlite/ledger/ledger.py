"""The ledger of a file: reads."""

from collections.abc import Collection, Iterator
from typing import Any

import apsw
import msgspec

from dragoman.model.identity import Principal, Scope
from dragoman.model.task import TaskState
from dragoman.stores.columns import STATE_NUMBERS
from dragoman.stores.interface.ledger import (
    USER,
    AccountDay,
    Balance,
    Checkout,
    LedgerEntry,
    LedgerReport,
    PostedTransfer,
    StatementLine,
    StatementPage,
)
from dragoman.stores.interface.orders import OrderFacts, OrderQuery, OrderRow, StaleOrder
from dragoman.stores.reconciliation import AccountRow, LedgerContents, reconcile
from dragoman.stores.sqlite.ledger.rows import (
    LEDGER,
    ORDER_COLUMNS,
    TRUST,
    order_facts,
    order_row,
    orders,
)
from dragoman.stores.sqlite.ledger.transactions import one_moment
from dragoman.stores.sqlite.schema import queries, rows_of, run
from dragoman.stores.sqlite.transactions import FileTransactions
from dragoman.stores.sqlite.writer import scope_number

_EVERYTHING = 1 << 60
# Tasks of a scope from which on its newest are sought from the end of all tasks.
_MANY = 2_000
_STATES = {number: state for state, number in STATE_NUMBERS.items()}
_TASKS = queries()


class SQLiteLedger:
    """Accounts, transfers, orders and purchases of a file."""

    def __init__(self, file: FileTransactions) -> None:
        self._file = file

    async def balance(self, owner: str, account: str = USER) -> Balance | None:
        """Return what an account has."""
        rows = await self._rows("balance", (account, owner))
        return Balance(*rows[0]) if rows else None

    async def balances(self, limit: int, offset: int) -> list[tuple[str, str, Balance]]:
        """Return all accounts."""
        rows = await self._rows("balances", (limit, offset))
        return [(kind, owner, Balance(*both)) for kind, owner, *both in rows]

    async def statement(
        self, owner: str, kinds: Collection[str], *, limit: int, offset: int = 0, before: int = 0
    ) -> StatementPage:
        """Return lines of an account."""
        about = {"owner": owner, "kinds": msgspec.json.encode(list(kinds)).decode()}
        page = {"before": before or _EVERYTHING, "limit": limit, "offset": offset}

        def read(connection: apsw.Connection) -> StatementPage:
            lines = run(connection, LEDGER["statement"], {**about, **page})
            ((total,),) = run(connection, LEDGER["statement_total"], about)
            return StatementPage([StatementLine(*line) for line in lines], total)

        return await self._file.read_tx(read)

    async def days(self, owner: str, since: int) -> list[AccountDay]:
        """Return what each day came to."""

        def read(connection: apsw.Connection) -> list[AccountDay]:
            before = run(connection, LEDGER["last_transfer_before"], (since,))
            first = before[0][0] + 1 if before else 0
            rows = run(connection, LEDGER["days"], {"owner": owner, "first": first})
            return [AccountDay(*row) for row in rows]

        return await self._file.read_tx(read)

    async def transfer(self, id: bytes) -> PostedTransfer | None:
        """Return a transfer."""

        def read(connection: apsw.Connection) -> PostedTransfer | None:
            for (number,) in run(connection, LEDGER["transfer_number"], (id,)):
                return next(_transfers(connection, number, number), None)
            return None

        return await self._file.read_tx(read)

    async def transfers(self, after: int, limit: int) -> list[PostedTransfer]:
        """Return transfers in order."""

        def read(connection: apsw.Connection) -> list[PostedTransfer]:
            ((last,),) = run(connection, LEDGER["page_end"], (after, limit))
            return list(_transfers(connection, after + 1, last or 0))

        return await self._file.read_tx(read)

    async def order(self, task: int) -> OrderRow | None:
        """Return the order of a task."""
        rows = await self._rows("order", (task,))
        return order_row(rows[0]) if rows else None

    async def order_in(self, scope: Scope, task_id: str) -> OrderRow | None:
        """Return the order of a task in a scope."""

        def read(connection: apsw.Connection) -> OrderRow | None:
            number = scope_number(connection, _TASKS, scope) or 0
            rows = run(connection, LEDGER["order_in"], (task_id, number))
            return order_row(rows[0]) if rows else None

        return await self._file.read_tx(read)

    async def orders(
        self, scope: Scope, query: OrderQuery, *, limit: int, offset: int
    ) -> tuple[list[OrderRow], int]:
        """Return orders of a scope."""
        states = [STATE_NUMBERS[state] for state in query.states or TaskState]
        page = {"limit": limit, "offset": offset}

        def read(connection: apsw.Connection) -> tuple[list[OrderRow], int]:
            number = scope_number(connection, _TASKS, scope) or 0
            about: dict[str, Any] = {"scope": number, "states": str(states)}
            name, total = "newest_by_index", "orders_total"
            if query.agent or query.is_assigned is not None:
                name, total = "orders_of_agent", "orders_of_agent_total"
                about |= {"agent": query.agent, "is_assigned": query.is_assigned}
            ((count,),) = run(connection, LEDGER[total], about)
            if name == "newest_by_index" and count > _MANY:
                name = "newest_from_the_end"
            return orders(run(connection, LEDGER[name], {**about, **page})), count

        return await self._file.read_tx(read)

    async def facts(self, task_id: str) -> list[OrderFacts]:
        """Return every order of an id."""
        return order_facts(await self._rows("facts", (task_id,)))

    async def in_escrow(
        self, side: Principal, *, limit: int, after: int = 0
    ) -> tuple[list[OrderRow], int]:
        """Return what is in escrow."""

        def read(connection: apsw.Connection) -> tuple[list[OrderRow], int]:
            about = {"side": side.text}
            page = {**about, "after": after or _EVERYTHING, "limit": limit}
            rows = run(connection, LEDGER["in_escrow"], page)
            ((total,),) = run(connection, LEDGER["in_escrow_total"], about)
            return orders(rows), total

        return await self._file.read_tx(read)

    async def due(self, at: int, limit: int) -> list[OrderFacts]:
        """Return delivered orders whose time is over."""
        return order_facts(await self._rows("due", (at, limit)))

    async def stale(self) -> list[StaleOrder]:
        """Return orders that should have ended."""
        return [
            StaleOrder(order_row(row[:ORDER_COLUMNS]), _STATES.get(row[ORDER_COLUMNS]))
            for row in await self._rows("stale", ())
        ]

    async def checkout(self, id: str) -> Checkout | None:
        """Return a purchase."""
        rows = await self._rows("checkout", (id,))
        return Checkout(*rows[0]) if rows else None

    async def is_payment_recorded(self, event: str) -> bool:
        """Tell whether an event was recorded."""
        return bool(await self._rows("payment", (event,)))

    async def verify(self, expect: str = "") -> LedgerReport:
        """Recompute everything, one row after the other."""

        def check(connection: apsw.Connection) -> LedgerReport:
            with one_moment(connection):
                return reconcile(_contents(connection), expect)

        return await self._file.read_tx(check)

    async def _rows(self, name: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._file.read_tx(lambda c: run(c, LEDGER[name], values))


def _transfers(
    connection: apsw.Connection, first: int = 0, last: int = _EVERYTHING
) -> Iterator[PostedTransfer]:
    found: PostedTransfer | None = None
    for row in rows_of(connection, LEDGER["transfers"], (first, last)):
        if found is None or found.number != row[0]:
            if found is not None:
                yield found
            found = PostedTransfer(*row[:8], entries=[])
        found.entries.append(LedgerEntry(*row[8:]))
    if found is not None:
        yield found


def _contents(connection: apsw.Connection) -> LedgerContents:
    return LedgerContents(
        _transfers(connection),
        run(connection, LEDGER["entry_count"])[0][0],
        (AccountRow(*row) for row in rows_of(connection, LEDGER["accounts"], ())),
        (order_row(row) for row in rows_of(connection, LEDGER["all_orders"], ())),
        {task for (task,) in run(connection, TRUST["disputed"])},
        (row[0] for row in rows_of(connection, LEDGER["stale"], ())),
    )
