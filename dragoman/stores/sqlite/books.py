"""The books of errands: held when a task begins, taken when it is completed, else given back.

All of it happens in the transaction of the write that begins, changes or ends the task, so that
nobody can be charged for what is not recorded, nor the other way round; and a writer whose fence is
stale is refused with what it would have charged. A task is settled once: its row says that it has
ended, and both ways to settle it are one and the same transfer to the file. Under terms with an
escrow a completed task is not settled but delivered: the rest is in `escrow`.
"""

from typing import NamedTuple

import apsw

from dragoman.model.errand import Errand
from dragoman.model.money import Terms
from dragoman.model.task import TaskState
from dragoman.stores.sqlite import escrow
from dragoman.stores.sqlite.escrow import Settlement
from dragoman.stores.sqlite.journal import (
    FEES,
    USER,
    Leg,
    Transfer,
    hold,
    post,
    task_transfer,
    touch,
)
from dragoman.stores.sqlite.schema import run

# The states in which a task has ended, as its row has them.
_ENDED = {
    3: TaskState.COMPLETED,
    4: TaskState.FAILED,
    5: TaskState.CANCELED,
    7: TaskState.REJECTED,
}
# What a statement says of each kind.
_MEMOS = {
    "hold": "Reserved for a task",
    "capture": "Task completed",
    "release": "Task not completed",
    "refund": "Task refunded",
}
_LESS = "Less is reserved"
_BEGIN = """
INSERT INTO errands (task, task_id, agent, requester, payee, skill, held, price, holds, began_at,
    due_at, cause, moves, escrow, ended_at, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_FIND = """
SELECT task_id, agent, requester, payee, held, price, holds, escrow FROM errands
WHERE task = ? AND ended_at = 0
"""
_ASSIGN = """
UPDATE errands SET agent = :agent, payee = :payee, held = :held, price = :price, holds = :holds,
    escrow = :escrow
WHERE task = :task
"""
_NOTE = """
UPDATE errands SET skill = iif(:skill = '', skill, :skill), cause = iif(:cause = '', cause, :cause),
    due_at = iif(:due_at = 0, due_at, :due_at), moves = moves + :retries
WHERE task = :task AND ended_at = 0
"""
# Whoever comes second finds nothing.
END = """
UPDATE errands SET ended_at = max(:at, began_at), state = :state
WHERE task = :task AND ended_at = 0
RETURNING task_id, agent, requester, payee, held, price, holds, escrow
"""
SETTLE = "UPDATE errands SET held = 0, charged = ?, fee = ?, escrow = ? WHERE task = ?"
_CAUSE = "UPDATE errands SET cause = ? WHERE task = ? AND cause = ''"
# Tasks that have ended, or that are gone, while their errands have not.
STALE = """
SELECT errands.task, tasks.state FROM errands INDEXED BY errands_open
LEFT JOIN tasks ON tasks.number = errands.task
WHERE ended_at = 0 AND (tasks.state IS NULL OR tasks.state IN (3, 4, 5, 7))
"""


class _Row(NamedTuple):
    """What of an errand moves money. The two sides are the texts of principals."""

    task_id: str
    agent: str
    requester: str
    payee: str
    held: int
    price: int
    holds: int
    escrow: str


class Stale(NamedTuple):
    """An errand that should have ended with its task, and what its task came to."""

    task: int
    # None: there is no such task any more.
    state: TaskState | None


class Books:
    """Keeps the books of one file; the writer asks it with every write.

    It remembers nothing but the terms: whatever another process did to the file is known here.
    """

    def __init__(self, terms: Terms | None = None) -> None:
        self.terms = terms or Terms()

    @property
    def is_used(self) -> bool:
        """Whether there may be errands. A store that is given books is a gateway's, where every
        task is one, also those that another process began; a look at the file would cost as much
        as the one that finds nothing to settle."""
        return True

    def begin(
        self,
        connection: apsw.Connection,
        task: int,
        task_id: str,
        errand: Errand,
        at: int,
        state: TaskState = TaskState.SUBMITTED,
    ) -> bool:
        """Record an errand and hold what it may cost; raises `HoldRefused`. Say whether it is over:
        one that nothing is held for ends with its task, be it in the same write."""
        requester, payee = errand.requester.text, errand.payee.text
        held = _to_hold(errand.agent, requester, errand)
        is_over = state.is_terminal and not held
        values = (task, task_id, errand.agent, requester, payee, errand.skill)
        began_at = errand.began_at or at
        prices = (held, errand.price, int(held > 0), began_at, errand.due_at, errand.cause)
        outcome = (max(at, began_at), state.value) if is_over else (0, "")
        standing = (errand.retries, self._funded(held), *outcome)
        run(connection, _BEGIN, (*values, *prices, *standing))
        if held:
            transfer = _transfer(task, task_id, "hold", 0, at)
            hold(connection, transfer, requester, held, self.terms.grant)
        return is_over

    def assign(self, connection: apsw.Connection, task: int, errand: Errand, at: int) -> None:
        """Note what is another from here on: with an agent, who is paid and how much; the rest
        where it says anything. The hold follows; raises `HoldRefused`."""
        if errand.agent:
            for found in run(connection, _FIND, (task,)):
                self._assign(connection, task, _Row(*found), errand, at)
        if errand.skill or errand.cause or errand.due_at or errand.retries:
            noted = {"skill": errand.skill, "cause": errand.cause, "due_at": errand.due_at}
            run(connection, _NOTE, {"task": task, "retries": errand.retries, **noted})

    def _assign(
        self, connection: apsw.Connection, task: int, row: _Row, errand: Errand, at: int
    ) -> None:
        held = _to_hold(errand.agent, row.requester, errand)
        values: dict[str, str | int]
        values = {"agent": errand.agent, "payee": errand.payee.text, "price": errand.price}
        holds = row.holds + int(held != row.held)
        values |= {"held": held, "holds": holds, "escrow": self._funded(held)}
        run(connection, _ASSIGN, {"task": task, **values})
        transfer = _transfer(task, row.task_id, "hold", row.holds, at)
        if held > row.held:
            hold(connection, transfer, row.requester, held - row.held, self.terms.grant)
        elif held < row.held:
            back = Leg(USER, row.requester, "release", held=held - row.held)
            post(connection, transfer._replace(memo=_LESS), [back])

    def end(self, connection: apsw.Connection, task: int, state: TaskState, at: int) -> None:
        """Settle a task that has ended; nothing if it was no errand, or is settled."""
        values = {"task": task, "state": state.value, "at": at}
        for found in run(connection, END, values):
            self._settle(connection, task, _Row(*found), state, at)

    def _settle(
        self, connection: apsw.Connection, task: int, row: _Row, state: TaskState, at: int
    ) -> None:
        if not row.held:
            return
        charged = row.price if state is TaskState.COMPLETED and row.agent else 0
        fee, _ = self.terms.shares(charged)
        if charged and self.terms.escrow:
            self._deliver(connection, task, row, fee, at)
            return
        is_told = row.escrow or self.terms.escrow
        outcome = (escrow.RELEASED if charged else escrow.REFUNDED) if is_told else ""
        run(connection, SETTLE, (charged, fee, outcome, task))
        one = Settlement(task, row.task_id, row.requester, row.payee, row.held, charged, fee)
        memo = _MEMOS["capture" if charged else "release"]
        escrow.settle(connection, one, memo, at, self.terms.grant)

    def _deliver(
        self, connection: apsw.Connection, task: int, row: _Row, fee: int, at: int
    ) -> None:
        """Keep the price reserved, and nothing beyond it."""
        surplus = row.held - row.price
        if surplus:
            transfer = _transfer(task, row.task_id, "hold", row.holds, at)
            back = Leg(USER, row.requester, "release", held=-surplus)
            post(connection, transfer._replace(memo=_LESS), [back])
        # Whoever pays later may have other terms, or none.
        touch(connection, row.payee, self.terms.grant, at)
        escrow.deliver(
            connection,
            task,
            held=row.price,
            holds=row.holds + int(surplus > 0),
            release_at=at + self.terms.escrow,
            fee=fee,
        )

    def _funded(self, held: int) -> str:
        return escrow.FUNDED if held and self.terms.escrow else ""

    def refund(self, connection: apsw.Connection, task: int, memo: str, at: int) -> bool:
        """Give back what a task cost, once; tell whether anything had been taken. Raises
        `apsw.ConstraintError` if that was done before, or if who earned it has spent it."""
        sql = "SELECT task_id, requester, payee, charged, fee FROM errands WHERE task = ?"
        for task_id, requester, payee, charged, fee in run(connection, sql, (task,)):
            if not charged:
                return False
            transfer = _transfer(task, task_id, "refund", 0, at)
            transfer = transfer._replace(memo=memo or transfer.memo)
            legs = [
                Leg(USER, requester, "refund", charged),
                Leg(USER, payee, "refund", fee - charged),
            ]
            if fee:
                legs.append(Leg(FEES, "", "refund", -fee))
            post(connection, transfer, legs)
            return True
        return False

    def stale(self, connection: apsw.Connection) -> list[Stale]:
        """Return errands that have not ended though their tasks have, or are gone."""
        rows = run(connection, STALE)
        return [Stale(task, _ENDED[state] if state else None) for task, state in rows]

    def resolve(self, connection: apsw.Connection, at: int) -> list[Stale]:
        """Settle such errands as their tasks ended; one whose task is gone was not completed."""
        found = self.stale(connection)
        for task, state in found:
            if state is None:
                run(connection, _CAUSE, ("lost", task))
            self.end(connection, task, state or TaskState.FAILED, at)
        return found


def _to_hold(agent: str, requester: str, errand: Errand) -> int:
    """Return what is to be reserved: nothing where nobody else is paid."""
    # As long as nobody was chosen, nobody knows whom it will be paid to.
    if agent and requester == errand.payee.text:
        return 0
    return max(errand.held, errand.price)


def _transfer(task: int, task_id: str, kind: str, n: int, at: int) -> Transfer:
    return Transfer(task_transfer(task, task_id, kind, n), kind, at, task, task_id, _MEMOS[kind])
