"""Ledger and trust in memory: the same promises as on disk, until the process ends.

Effects are applied at once, on the event loop. Each step notes how it is undone, so that a list of
effects that is refused leaves nothing behind.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.errors import HoldRefused, StoreConflict
from dragoman.stores.chain import AccountState, grant_transfer, linked_events, transfer_hash
from dragoman.stores.interface import Append, Create
from dragoman.stores.interface import effects as fx
from dragoman.stores.interface.effects import CHANGED
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
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.interface.trust import NOTHING, TrustDay, TrustEventRow
from dragoman.stores.memory.ledger import MemoryLedger
from dragoman.stores.memory.tables import AccountingTables
from dragoman.stores.memory.trust import MemoryTrust
from dragoman.stores.reconciliation import AccountRow


class MemoryAccounting:
    """Ledger and trust of one process. With rules, orders follow the writes of their tasks."""

    def __init__(self, rules: fx.OrderRules | None = None) -> None:
        self._rules = rules
        self._tables = AccountingTables()
        self._undo: list[Callable[[], object]] = []
        self.ledger = MemoryLedger(self._tables)
        self.trust = MemoryTrust(self._tables)

    async def apply(self, effects: Sequence[fx.Effect]) -> None:
        """Apply effects, all or none."""
        self._apply(effects)

    def refers_to(self, agent: str) -> bool:
        """Tell whether an event, or an order whose outcome is not among the events, names an
        agent."""
        tables = self._tables
        return any(line.agent == agent for line in tables.lines.values()) or any(
            order.agent == agent and not (order.ended_at and order.is_observed)
            for order in tables.orders.values()
        )

    # What the store of the tasks calls

    def record(self, write: Create | Append, number: int) -> None:
        """Record what a write means to its order; raises `HoldRefused`, and then nothing of the
        write may stay."""
        if self._rules is None:
            return
        at, state = write.standing.status_at, write.standing.state
        if isinstance(write, Create):
            if write.order is None:
                return
            self._apply(self._rules.begin(number, write.task_id, write.order, at, state))
        else:
            row = self._tables.orders.get(number)
            if row is None:
                return
            if not row.ended_at and (write.order is not None or state.is_terminal):
                self._apply(self._rules.change(row, write.order, at, state))
        self._tables.tasks[number] = (write.scope, state)

    def forget(self, number: int) -> None:
        """Note that a task is gone; its order stays."""
        self._tables.tasks.pop(number, None)

    def agent_of(self, number: int) -> str:
        """Return the agent that a task was ordered from; empty: none."""
        row = self._tables.orders.get(number)
        return "" if row is None else row.agent

    # Effects

    def _apply(self, effects: Sequence[fx.Effect]) -> None:
        self._undo.clear()
        try:
            for effect in effects:
                self._apply_one(effect)
        except BaseException:
            for step in reversed(self._undo):
                step()
            raise

    def _apply_one(self, effect: fx.Effect) -> None:
        tables = self._tables
        match effect:
            case fx.PutOrder(row):
                self._add(tables.orders, row.task, row)
            case fx.SetOrder(before, after):
                self._expect(tables.orders.get(before.task) == before)
                self._put(tables.orders, before.task, after)
            case fx.Reserve():
                self._reserve(effect)
            case fx.Post(transfer, legs, grant):
                for leg in legs:
                    if leg.account == USER:
                        self._open(leg.owner, grant, transfer.at)
                self._record(transfer, legs)
            case fx.OpenAccount(owner, grant, at):
                self._open(owner, grant, at)
            case fx.PutCheckout(checkout):
                self._add(tables.checkouts, checkout.id, checkout)
            case fx.RecordPayment(event, checkout, _):
                self._add(tables.payments, event, checkout)
            case fx.MarkPaid(id, at):
                checkout = tables.checkouts.get(id)
                if checkout is None or checkout.paid_at:
                    raise StoreConflict("the purchase is gone or paid")
                self._put(tables.checkouts, id, replace(checkout, paid_at=at))
            case fx.AppendEvents(events):
                self._append_events(events)
            case fx.AddDay(key, day):
                self._put(tables.days, key, tables.days.get(key, TrustDay()).plus(day))
            case fx.AddPayer(requester):
                self._put(tables.payers, requester, True)
            case fx.SetObserved(orders):
                for order in orders:
                    self._set_observed(order)
            case fx.PutRating(order, _, _, _, dispute):
                self._expect(tables.dispute(order.task) == dispute)
                self._add(tables.ratings, order.task, effect)
            case fx.PutDispute(order):
                self._add(tables.disputes, order.task, effect)
            case fx.DecideDispute(task):
                self._expect(task in tables.disputes)
                self._add(tables.decisions, task, effect)

    def _expect(self, is_as_it_was: bool) -> None:
        if not is_as_it_was:
            raise StoreConflict(CHANGED)

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.__setitem__(key, before))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def _add(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Put what must not be there."""
        if key in table:
            raise StoreConflict("it is recorded already")
        self._put(table, key, value)

    def _reserve(self, effect: fx.Reserve) -> None:
        self._open(effect.owner, effect.grant, effect.transfer.at)
        account = self._tables.accounts[USER, effect.owner]
        if account.balance - account.held < effect.amount:
            raise HoldRefused(balance=account.balance - account.held, needed=effect.amount)
        self._record(effect.transfer, [Leg(USER, effect.owner, "hold", held=effect.amount)])

    def _open(self, owner: str, grant: int, at: int) -> None:
        accounts = self._tables.accounts
        if (USER, owner) not in accounts:
            row = AccountRow(len(accounts) + 1, USER, owner, 0, 0)
            self._put(accounts, (USER, owner), row)
            self._record(*grant_transfer(owner, grant, at))

    def _record(self, transfer: Transfer, legs: Sequence[Leg]) -> None:
        assert not sum(leg.amount for leg in legs), "what one account loses another one gets"
        tables = self._tables
        if transfer.id in tables.transfer_ids:
            raise StoreConflict("the transfer was made before")
        states = [self._move(leg) for leg in legs]
        number = len(tables.transfers) + 1
        last = tables.transfers.get(number - 1)
        # The ledger's own time: it never goes back, whatever a clock does.
        transfer = transfer._replace(at=max(last.at if last else 0, transfer.at))
        prior = last.hash if last else GENESIS
        digest = transfer_hash(prior, number, transfer, legs, states)
        entries = [LedgerEntry(*leg, *state) for leg, state in zip(legs, states, strict=True)]
        posted = PostedTransfer(number, *transfer, digest, entries)
        self._put(tables.transfers, number, posted)
        self._put(tables.transfer_ids, transfer.id, number)

    def _move(self, leg: Leg) -> AccountState:
        key = (leg.account, leg.owner)
        row = self._tables.accounts[key]
        row = row._replace(balance=row.balance + leg.amount, held=row.held + leg.held)
        is_covered = row.balance >= row.held or leg.account in (ISSUED, SOLD)
        if row.held < 0 or not is_covered:
            raise StoreConflict("an account would have less than it needs")
        self._put(self._tables.accounts, key, row)
        return AccountState(row.number, row.balance, row.held)

    def _append_events(self, events: Sequence[TrustEventRow]) -> None:
        tables = self._tables
        last = len(tables.lines)
        prev = tables.lines[last].hash if last else NOTHING
        for number, line in enumerate(linked_events(last, prev, events), last + 1):
            if line.task:
                types = tables.types.get(line.task, frozenset())
                if line.type in types:
                    raise StoreConflict("the task has such an event")
                self._put(tables.types, line.task, types | {line.type})
            self._put(tables.lines, number, line)

    def _set_observed(self, order: OrderRow) -> None:
        row = self._tables.orders.get(order.task)
        if row is None or row.is_observed or row.charged != order.charged:
            raise StoreConflict(CHANGED)
        self._put(self._tables.orders, order.task, replace(row, is_observed=True))
