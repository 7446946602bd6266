"""Errands as they are recorded: facts that outlive the tasks."""

from collections.abc import Iterable

import apsw
import msgspec

from dragoman.model.task import TaskState
from dragoman.stores.sqlite.schema import Row, run

COLUMNS = """task, task_id, agent, requester, payee, skill, held, price, charged, fee, holds,
    began_at, due_at, ended_at, moves, state, cause"""
_BY_ID = f"SELECT {COLUMNS} FROM errands WHERE task_id = ? ORDER BY task DESC"
_BY_NUMBER = f"SELECT {COLUMNS} FROM errands WHERE task = ?"


class ErrandRow(msgspec.Struct, frozen=True, gc=False):
    """One errand. Amounts are micro-credits, times milliseconds since the epoch."""

    task: int
    task_id: str
    agent: str
    requester: str
    payee: str
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

    @property
    def earning(self) -> int:
        """What whoever did it got."""
        return self.charged - self.fee


def errands(rows: Iterable[Row]) -> list[ErrandRow]:
    """Return rows of `COLUMNS` as errands."""
    found: list[ErrandRow] = []
    for *facts, state, cause in rows:
        values: Row = (*facts, TaskState(state) if state else None, cause)
        found.append(ErrandRow(*values))
    return found


def errands_of(connection: apsw.Connection, task_id: str) -> list[ErrandRow]:
    """Return the errands of an id, the latest first: callers may have chosen the same one."""
    return errands(run(connection, _BY_ID, (task_id,)))


def errand_of(connection: apsw.Connection, task: int) -> ErrandRow | None:
    """Return the errand of a task, by its number."""
    found = errands(run(connection, _BY_NUMBER, (task,)))
    return found[0] if found else None
