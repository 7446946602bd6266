"""Escrow: a price stays reserved after its task is completed, until it is paid or given back.

Each step is one conditional change of the errand, in the transaction of whoever calls, with the
transfer that it stands for: whoever comes second finds nothing to change, in this process or in
another. What a step needs is on the errand since the delivery, so that it is the same whoever takes
it, with whatever settings.
"""

from typing import NamedTuple

import apsw

from dragoman.stores.sqlite.journal import FEES, USER, Leg, Transfer, post, task_transfer
from dragoman.stores.sqlite.schema import run

FUNDED, DELIVERED, DISPUTED = "funded", "delivered", "disputed"
RELEASED, RESOLVED, REFUNDED = "released", "resolved", "refunded"
# The money of a completed task is not moved yet.
KEPT = (DELIVERED, DISPUTED)
# What statements say.
ACCEPTED = "Task accepted: escrow released"
IN_TIME = "Task not disputed in time: escrow released"
REJECTED = "Dispute rejected: escrow resolved"
UPHELD = "Dispute upheld: escrow refunded"
GIVEN_BACK = "Given back by its agent: escrow refunded"

_DELIVER = """
UPDATE errands SET held = :held, holds = :holds, escrow = 'delivered', release_at = :release_at,
    fee_due = :fee_due
WHERE task = :task
"""
_DUE = """
SELECT task FROM errands INDEXED BY errands_delivered
WHERE escrow = 'delivered' AND release_at <= ? ORDER BY release_at LIMIT ?
"""
_DISPUTE = """
UPDATE errands SET escrow = 'disputed'
WHERE task = :task AND escrow = 'delivered' AND release_at > :at RETURNING task
"""
# Whoever comes second finds nothing.
LEAVE = """
UPDATE errands SET held = 0, escrow = :escrow, charged = iif(:is_paid, price, 0),
    fee = iif(:is_paid, fee_due, 0)
WHERE task = :task AND escrow IN (:first, :second)
RETURNING task, task_id, requester, payee, price, charged, fee
"""


class Settlement(NamedTuple):
    """How a task is settled: what is let go of, and what of that is taken."""

    task: int
    task_id: str
    requester: str
    payee: str
    held: int
    charged: int
    # The part of it that the house keeps.
    fee: int


def settle(
    connection: apsw.Connection, one: Settlement, memo: str, at: int, grant: int = 0
) -> None:
    """Move the money of a task, once: both ways to settle it are one transfer to the file."""
    kind = "capture" if one.charged else "release"
    id = task_transfer(one.task, one.task_id, "settle")
    transfer = Transfer(id, kind, at, one.task, one.task_id, memo)
    debit = "task_debit" if one.charged else "release"
    legs = [Leg(USER, one.requester, debit, -one.charged, -one.held)]
    if one.charged:
        legs.append(Leg(USER, one.payee, "task_credit", one.charged - one.fee))
    if one.fee:
        # Told to whoever earned, and taken by the house.
        legs.append(Leg(USER, one.payee, "platform_fee"))
        legs.append(Leg(FEES, "", "platform_fee", one.fee))
    post(connection, transfer, legs, grant)


def deliver(
    connection: apsw.Connection, task: int, *, held: int, holds: int, release_at: int, fee: int
) -> None:
    """Note that a task is completed, and until when its price stays reserved."""
    values = {"held": held, "holds": holds, "release_at": release_at, "fee_due": fee}
    run(connection, _DELIVER, {"task": task, **values})


def due(connection: apsw.Connection, at: int, limit: int) -> list[int]:
    """Return tasks whose time is over, the earliest first, by their numbers."""
    return [task for (task,) in run(connection, _DUE, (at, limit))]


def release(connection: apsw.Connection, task: int, memo: str, at: int) -> bool:
    """Pay for a task that is delivered and not disputed; False: there is none."""
    return _leave(connection, task, (DELIVERED,), RELEASED, memo, at)


def dispute(connection: apsw.Connection, task: int, at: int) -> bool:
    """Stop the clock of a delivered task; False: it is none, or its time is over."""
    return bool(run(connection, _DISPUTE, {"task": task, "at": at}))


def decide(connection: apsw.Connection, task: int, at: int, *, is_upheld: bool) -> bool:
    """Give the price of a disputed task back, or pay it; False: it is not in escrow."""
    escrow, memo = (REFUNDED, UPHELD) if is_upheld else (RESOLVED, REJECTED)
    return _leave(connection, task, (DISPUTED,), escrow, memo, at)


def give_back(connection: apsw.Connection, task: int, memo: str, at: int) -> bool:
    """Give a price back that is in escrow, disputed or not; False: it is not."""
    return _leave(connection, task, KEPT, REFUNDED, memo or GIVEN_BACK, at)


def _leave(
    connection: apsw.Connection, task: int, states: tuple[str, ...], escrow: str, memo: str, at: int
) -> bool:
    is_paid = escrow != REFUNDED
    values = {"task": task, "escrow": escrow, "first": states[0], "second": states[-1]}
    for found in run(connection, LEAVE, {**values, "is_paid": is_paid}):
        settle(connection, Settlement(*found), memo, at)
        return True
    return False
