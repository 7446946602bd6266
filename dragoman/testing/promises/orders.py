"""Rules and rows that the suites of ledger and trust use: simple ones, without fees or escrow."""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.errors import StoreConflict
from dragoman.model.identity import Principal
from dragoman.model.order import Order
from dragoman.model.task import TaskState
from dragoman.stores.chain import task_transfer_id
from dragoman.stores.interface.effects import (
    AccountingStore,
    Effect,
    Post,
    PutOrder,
    Reserve,
    SetOrder,
)
from dragoman.stores.interface.ledger import USER, Leg, Transfer
from dragoman.stores.interface.orders import OrderRow

GRANT = 1_000


class SampleRules:
    """Reserves the price with the first write of a task; pays it or lets it go with the last."""

    def begin(
        self, task: int, task_id: str, order: Order, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a task's first write."""
        row = OrderRow(
            task,
            task_id,
            order.agent,
            order.requester,
            order.payee,
            held=order.price,
            price=order.price,
            began_at=at,
        )
        transfer = Transfer(task_transfer_id(task, task_id, "hold"), "hold", at, task, task_id)
        return [
            PutOrder(row),
            Reserve(transfer, row.requester.text, row.price, GRANT),
            *(self.change(row, None, at, state) if state.is_terminal else ()),
        ]

    def change(
        self, row: OrderRow, order: Order | None, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a further write."""
        after = row if order is None else replace(row, agent=order.agent)
        if not state.is_terminal:
            return [SetOrder(row, after)]
        is_done = state is TaskState.COMPLETED
        charged = row.price if is_done else 0
        after = replace(after, held=0, charged=charged, ended_at=at, state=state)
        return [SetOrder(row, after), settlement(row, charged, at)]


def settlement(row: OrderRow, charged: int, at: int) -> Post:
    """Return the transfer that settles an order."""
    id = task_transfer_id(row.task, row.task_id, "settle")
    kind = "capture" if charged else "release"
    transfer = Transfer(id, kind, at, row.task, row.task_id)
    debit = "task_debit" if charged else "release"
    legs = [Leg(USER, row.requester.text, debit, -charged, -row.held)]
    if charged:
        legs.append(Leg(USER, row.payee.text, "task_credit", charged))
    return Post(transfer, legs, GRANT)


def order(price: int = 10, requester: str = "alice", payee: str = "bob") -> Order:
    """Return what the first write of a task says of its order."""
    return Order(
        agent="a1",
        requester=Principal.read(requester),
        payee=Principal.read(payee),
        price=price,
        held=price,
    )


def past_order(task: int, state: TaskState = TaskState.COMPLETED, *, charged: int = 0) -> OrderRow:
    """Return an order of alice from bob's agent that has ended."""
    return OrderRow(
        task,
        f"t{task}",
        "a1",
        Principal.read("alice"),
        Principal.read("bob"),
        price=charged,
        charged=charged,
        began_at=1_000,
        ended_at=2_000,
        state=state,
    )


async def refuse(store: AccountingStore, effects: Sequence[Effect]) -> None:
    """Find effects refused."""
    try:
        await store.apply(effects)
    except StoreConflict:
        return
    raise AssertionError("they were not refused")
