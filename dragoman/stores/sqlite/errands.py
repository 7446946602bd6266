"""Errands as they are recorded: facts that outlive the tasks."""

from collections.abc import Iterable

import apsw
import msgspec

from dragoman.model.identity import Principal
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.escrow import KEPT
from dragoman.stores.sqlite.schema import Row, run

COLUMNS = """task, task_id, agent, requester, payee, skill, held, price, charged, fee, holds,
    began_at, due_at, ended_at, moves, state, cause, escrow, release_at"""
_BY_ID = f"SELECT {COLUMNS} FROM errands WHERE task_id = ? ORDER BY task DESC"
_BY_NUMBER = f"SELECT {COLUMNS} FROM errands WHERE task = ?"


class ErrandRow(msgspec.Struct, frozen=True, gc=False):
    """One errand. Amounts are micro-credits, times milliseconds since the epoch."""

    task: int
    task_id: str
    agent: str
    requester: Principal
    payee: Principal
    skill: str
    # Reserved at present, agreed, taken, and what of that the house kept.
    held: int
    price: int
    charged: int
    fee: int
    # How often the hold was made or changed.
    holds: int
    began_at: int
    # 0: whenever, and not yet.
    due_at: int
    ended_at: int
    # How often it was given to another agent, or to the same one elsewhere.
    moves: int
    state: TaskState | None
    cause: str
    # Where its price is (empty: there is no escrow), and until when if it is delivered.
    escrow: str
    release_at: int

    @property
    def earning(self) -> int:
        """What whoever did it got."""
        return self.charged - self.fee

    @property
    def is_kept(self) -> bool:
        """Whether its price is kept in escrow although it has ended."""
        return self.escrow in KEPT

    @property
    def cost(self) -> int:
        """What was taken for it, or what is about to be."""
        return self.price if self.is_kept else self.charged


def errands(rows: Iterable[Row]) -> list[ErrandRow]:
    """Return rows of `COLUMNS` as errands."""
    found: list[ErrandRow] = []
    for task, task_id, agent, requester, payee, *facts, state, cause, escrow, release_at in rows:
        sides = (Principal.read(requester), Principal.read(payee))
        ended = TaskState(state) if state else None
        values: Row = (task, task_id, agent, *sides, *facts, ended, cause, escrow, release_at)
        found.append(ErrandRow(*values))
    return found


def errands_of(connection: apsw.Connection, task_id: str) -> list[ErrandRow]:
    """Return the errands of an id, the latest first: callers may have chosen the same one."""
    return errands(run(connection, _BY_ID, (task_id,)))


def errand_of(connection: apsw.Connection, task: int) -> ErrandRow | None:
    """Return the errand of a task, by its number."""
    found = errands(run(connection, _BY_NUMBER, (task,)))
    return found[0] if found else None
