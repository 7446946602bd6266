"""What becomes of the price of a task, pure: reserved when the task begins, taken when it is
completed, else given back; with an escrow, reserved until it is accepted, disputed or due.

Every function returns effects, or none where there is nothing to do. The store applies them: those
of a task's own write in its transaction. So a task is charged exactly when its end is recorded, and
a writer whose fence is stale charges nothing. A task is settled once: both ways to settle it are
one and the same transfer. What an escrow needs is on the order since the delivery, so later terms
change nothing.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.model.identity import Principal
from dragoman.model.money import Terms
from dragoman.model.order import (
    DELIVERED,
    DISPUTED,
    FUNDED,
    REFUNDED,
    RELEASED,
    RESOLVED,
    Order,
)
from dragoman.model.task import TaskState
from dragoman.stores.chain import task_transfer_id
from dragoman.stores.interface.effects import (
    Effect,
    OpenAccount,
    Post,
    PutOrder,
    Reserve,
    SetOrder,
)
from dragoman.stores.interface.ledger import FEES, USER, Leg, Transfer
from dragoman.stores.interface.orders import OrderRow

# What statements say.
_RESERVED = "Reserved for a task"
_LESS = "Less is reserved"
_COMPLETED = "Task completed"
_NOT_COMPLETED = "Task not completed"
_REFUNDED = "Task refunded"
ACCEPTED = "Task accepted: escrow released"
IN_TIME = "Task not disputed in time: escrow released"
_REJECTED = "Dispute rejected: escrow resolved"
_UPHELD = "Dispute upheld: escrow refunded"
_GIVEN_BACK = "Given back by its agent: escrow refunded"


class TaskOrderRules:
    """The rules of a gateway's terms, for the writes of tasks."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.terms = terms or Terms()

    def begin(
        self, task: int, task_id: str, order: Order, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a task's first write."""
        held = _to_hold(order.requester, order)
        row = OrderRow(
            task,
            task_id,
            order.agent,
            order.requester,
            order.payee,
            skill=order.skill,
            held=held,
            price=order.price,
            holds=int(held > 0),
            began_at=order.began_at or at,
            due_at=order.due_at,
            cause=order.cause,
            moves=order.retries,
            escrow=self._funded(held),
        )
        effects: list[Effect] = []
        if held:
            transfer = _transfer(row, "hold", at, _RESERVED)
            effects.append(Reserve(transfer, row.requester.text, held, self.terms.grant))
        if state.is_terminal:
            row = self._end(row, state, at, effects)
        effects.insert(0, PutOrder(row))
        return effects

    def change(
        self, row: OrderRow, order: Order | None, at: int, state: TaskState
    ) -> Sequence[Effect]:
        """Return the effects of a further write of a task whose order has not ended. With an agent
        the payee and the price are others from here on; the rest changes where it is given."""
        effects: list[Effect] = []
        after = row
        if order is not None:
            if order.agent:
                after = self._assign(after, order, at, effects)
            after = replace(
                after,
                skill=order.skill or after.skill,
                cause=order.cause or after.cause,
                due_at=order.due_at or after.due_at,
                moves=after.moves + order.retries,
            )
        if state.is_terminal:
            after = self._end(after, state, at, effects)
        if after is not row:
            effects.insert(0, SetOrder(row, after))
        return effects

    def _assign(self, row: OrderRow, order: Order, at: int, effects: list[Effect]) -> OrderRow:
        held = _to_hold(row.requester, order)
        transfer = _transfer(row, "hold", at, _RESERVED, row.holds)
        if held > row.held:
            more = held - row.held
            effects.append(Reserve(transfer, row.requester.text, more, self.terms.grant))
        elif held < row.held:
            effects.append(_less(row, row.held - held, at))
        return replace(
            row,
            agent=order.agent,
            payee=order.payee,
            price=order.price,
            held=held,
            holds=row.holds + int(held != row.held),
            escrow=self._funded(held),
        )

    def _end(self, row: OrderRow, state: TaskState, at: int, effects: list[Effect]) -> OrderRow:
        row = replace(row, ended_at=max(at, row.began_at), state=state)
        if not row.held:
            return row
        charged = row.price if state is TaskState.COMPLETED and row.agent else 0
        fee, _ = self.terms.shares(charged)
        if charged and self.terms.escrow:
            return self._deliver(row, fee, at, effects)
        has_escrow = row.escrow or self.terms.escrow
        escrow = (RELEASED if charged else REFUNDED) if has_escrow else ""
        memo = _COMPLETED if charged else _NOT_COMPLETED
        effects.append(_settlement(row, charged, fee, memo, at, self.terms.grant))
        return replace(row, held=0, charged=charged, fee=fee, escrow=escrow)

    def _deliver(self, row: OrderRow, fee: int, at: int, effects: list[Effect]) -> OrderRow:
        """Keep the price reserved, and nothing beyond it."""
        surplus = row.held - row.price
        if surplus:
            effects.append(_less(row, surplus, at))
        # The process that pays later may have other terms, or none.
        effects.append(OpenAccount(row.payee.text, self.terms.grant, at))
        return replace(
            row,
            held=row.price,
            holds=row.holds + int(surplus > 0),
            escrow=DELIVERED,
            release_at=at + self.terms.escrow,
            fee_due=fee,
        )

    def _funded(self, held: int) -> str:
        return FUNDED if held and self.terms.escrow else ""


def _to_hold(requester: Principal, order: Order) -> int:
    """Return what is to be reserved: nothing where the requester would be paid."""
    # Before an agent is chosen it is not known who will be paid.
    if order.agent and requester == order.payee:
        return 0
    return max(order.held, order.price)


def _transfer(row: OrderRow, kind: str, at: int, memo: str, n: int = 0) -> Transfer:
    id = task_transfer_id(row.task, row.task_id, kind, n)
    return Transfer(id, kind, at, row.task, row.task_id, memo)


def _less(row: OrderRow, surplus: int, at: int) -> Post:
    back = Leg(USER, row.requester.text, "release", held=-surplus)
    return Post(_transfer(row, "hold", at, _LESS, row.holds), [back])


def _settlement(row: OrderRow, charged: int, fee: int, memo: str, at: int, grant: int = 0) -> Post:
    """Return the transfer that settles a task."""
    kind, debit = ("capture", "task_debit") if charged else ("release", "release")
    id = task_transfer_id(row.task, row.task_id, "settle")
    transfer = Transfer(id, kind, at, row.task, row.task_id, memo)
    payee = row.payee.text
    legs = [Leg(USER, row.requester.text, debit, -charged, -row.held)]
    if charged:
        legs.append(Leg(USER, payee, "task_credit", charged - fee))
    if fee:
        # A line for the payee's statement; the platform's account gets the amount.
        legs.append(Leg(USER, payee, "platform_fee"))
        legs.append(Leg(FEES, "", "platform_fee", fee))
    return Post(transfer, legs, grant)


def release(row: OrderRow, memo: str, at: int) -> list[Effect]:
    """Pay for an order that is delivered and not disputed."""
    return _leave(row, RELEASED, memo, at) if row.escrow == DELIVERED else []


def stop_release(row: OrderRow, at: int) -> list[Effect]:
    """Keep the price of a delivered order in escrow until a dispute is decided; nothing if the time
    for that is over."""
    if row.escrow != DELIVERED or row.release_at <= at:
        return []
    return [SetOrder(row, replace(row, escrow=DISPUTED))]


def decide(row: OrderRow, at: int, *, is_upheld: bool) -> list[Effect]:
    """Give the price of a disputed order back, or pay it."""
    if row.escrow != DISPUTED:
        return []
    escrow, memo = (REFUNDED, _UPHELD) if is_upheld else (RESOLVED, _REJECTED)
    return _leave(row, escrow, memo, at)


def give_back(row: OrderRow, memo: str, at: int) -> list[Effect]:
    """Give a price back that is in escrow, disputed or not."""
    return _leave(row, REFUNDED, memo or _GIVEN_BACK, at) if row.is_in_escrow else []


def _leave(row: OrderRow, escrow: str, memo: str, at: int) -> list[Effect]:
    charged, fee = (0, 0) if escrow == REFUNDED else (row.price, row.fee_due)
    after = replace(row, held=0, charged=charged, fee=fee, escrow=escrow)
    return [SetOrder(row, after), _settlement(row, charged, fee, memo, at)]


def refund_id(row: OrderRow) -> bytes:
    """Return the id of the transfer that gives back what an order cost."""
    return task_transfer_id(row.task, row.task_id, "refund")


def settlement_id(row: OrderRow) -> bytes:
    """Return the id of the transfer that settled an order."""
    return task_transfer_id(row.task, row.task_id, "settle")


def refund(row: OrderRow, memo: str, at: int) -> list[Effect]:
    """Give back what an order cost."""
    if not row.charged:
        return []
    legs = [
        Leg(USER, row.requester.text, "refund", row.charged),
        Leg(USER, row.payee.text, "refund", -row.earning),
    ]
    if row.fee:
        legs.append(Leg(FEES, "", "refund", -row.fee))
    return [Post(_transfer(row, "refund", at, memo or _REFUNDED), legs)]
