"""The ledger in memory: reads."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from dragoman.model.identity import Principal, Scope
from dragoman.model.order import DELIVERED
from dragoman.stores.interface.ledger import (
    PLACE_BITS,
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
from dragoman.stores.memory.tables import AccountingTables
from dragoman.stores.reconciliation import LedgerContents, reconcile


class MemoryLedger:
    """Accounts, transfers, orders and purchases."""

    def __init__(self, tables: AccountingTables) -> None:
        self._tables = tables

    async def balance(self, owner: str, account: str = USER) -> Balance | None:
        """Return what an account has."""
        row = self._tables.accounts.get((account, owner))
        return None if row is None else Balance(row.balance, row.held)

    async def balances(self, limit: int, offset: int) -> list[tuple[str, str, Balance]]:
        """Return accounts by kind and owner."""
        rows = sorted(self._tables.accounts.items())[offset : offset + limit]
        return [(*key, Balance(row.balance, row.held)) for key, row in rows]

    def _entries(self, owner: str) -> Iterable[tuple[int, PostedTransfer, LedgerEntry]]:
        """Yield number, transfer and entry of a user's account, the latest first."""
        for posted in reversed(self._tables.transfers.values()):
            for place in reversed(range(len(posted.entries))):
                entry = posted.entries[place]
                if (entry.account, entry.owner) == (USER, owner):
                    yield posted.number << PLACE_BITS | place, posted, entry

    async def statement(
        self, owner: str, kinds: Collection[str], *, limit: int, offset: int = 0, before: int = 0
    ) -> StatementPage:
        """Return lines of a user's account."""
        found = [
            StatementLine(
                number,
                posted.id,
                posted.at,
                entry.kind,
                entry.amount,
                entry.held,
                entry.balance,
                entry.reserved,
                posted.task,
                posted.reference,
                posted.memo,
                self._escrow(posted.task),
            )
            for number, posted, entry in self._entries(owner)
            if entry.kind in kinds
        ]
        page = [line for line in found if not before or line.number < before]
        return StatementPage(page[offset : offset + limit], len(found))

    def _escrow(self, task: int) -> str | None:
        order = self._tables.orders.get(task)
        return None if order is None else order.escrow

    async def days(self, owner: str, since: int) -> list[AccountDay]:
        """Return what each day came to."""
        found: dict[str, AccountDay] = {}
        for _, posted, entry in self._entries(owner):
            if posted.at < since or entry.kind not in ("task_debit", "task_credit"):
                continue
            date = datetime.fromtimestamp(posted.at / 1000, UTC).date().isoformat()
            day = found.get(date, AccountDay(date, 0, 0))
            if entry.kind == "task_debit":
                found[date] = day._replace(spent=day.spent - entry.amount)
            else:
                found[date] = day._replace(earned=day.earned + entry.amount)
        return [found[date] for date in sorted(found)]

    async def transfer(self, id: bytes) -> PostedTransfer | None:
        """Return a transfer."""
        number = self._tables.transfer_ids.get(id)
        return None if number is None else self._tables.transfers[number]

    async def transfers(self, after: int, limit: int) -> list[PostedTransfer]:
        """Return transfers in order."""
        return list(self._tables.transfers.values())[max(after, 0) : max(after, 0) + limit]

    async def order(self, task: int) -> OrderRow | None:
        """Return the order of a task."""
        return self._tables.orders.get(task)

    def _newest(self) -> Iterable[OrderRow]:
        return (self._tables.orders[task] for task in sorted(self._tables.orders, reverse=True))

    async def order_in(self, scope: Scope, task_id: str) -> OrderRow | None:
        """Return the order of a task in a scope."""
        for order in self._newest():
            task = self._tables.tasks.get(order.task)
            if order.task_id == task_id and task is not None and task[0] == scope:
                return order
        return None

    async def orders(
        self, scope: Scope, query: OrderQuery, *, limit: int, offset: int
    ) -> tuple[list[OrderRow], int]:
        """Return orders of a scope."""
        found = [order for order in self._newest() if self._is_listed(order, scope, query)]
        return found[offset : offset + limit], len(found)

    def _is_listed(self, order: OrderRow, scope: Scope, query: OrderQuery) -> bool:
        task = self._tables.tasks.get(order.task)
        return (
            task is not None
            and task[0] == scope
            and (not query.states or task[1] in query.states)
            and query.agent in ("", order.agent)
            and query.is_assigned in (None, bool(order.agent))
        )

    async def facts(self, task_id: str) -> list[OrderFacts]:
        """Return every order of an id."""
        return [self._tables.facts(one) for one in self._newest() if one.task_id == task_id]

    async def in_escrow(
        self, side: Principal, *, limit: int, after: int = 0
    ) -> tuple[list[OrderRow], int]:
        """Return what is in escrow."""
        found = [
            one for one in self._newest() if one.is_in_escrow and side in (one.requester, one.payee)
        ]
        return [one for one in found if not after or one.task < after][:limit], len(found)

    async def due(self, at: int, limit: int) -> list[OrderFacts]:
        """Return delivered orders whose time is over."""
        found = [
            one
            for one in self._tables.orders.values()
            if one.escrow == DELIVERED and one.release_at <= at
        ]
        found.sort(key=lambda one: one.release_at)
        return [self._tables.facts(one) for one in found[:limit]]

    async def stale(self) -> list[StaleOrder]:
        """Return orders that should have ended."""
        found: list[StaleOrder] = []
        for order in self._tables.orders.values():
            task = self._tables.tasks.get(order.task)
            if not order.ended_at and (task is None or task[1].is_terminal):
                found.append(StaleOrder(order, None if task is None else task[1]))
        return found

    async def checkout(self, id: str) -> Checkout | None:
        """Return a purchase."""
        return self._tables.checkouts.get(id)

    async def is_payment_recorded(self, event: str) -> bool:
        """Tell whether an event was recorded."""
        return event in self._tables.payments

    async def verify(self, expect: str = "") -> LedgerReport:
        """Recompute everything."""
        tables = self._tables
        contents = LedgerContents(
            tables.transfers.values(),
            sum(len(posted.entries) for posted in tables.transfers.values()),
            tables.accounts.values(),
            tables.orders.values(),
            tables.disputes.keys() - tables.decisions.keys(),
            [one.order.task for one in await self.stale()],
        )
        return reconcile(contents, expect)
