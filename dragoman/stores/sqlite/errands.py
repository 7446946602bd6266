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
# Of all that is kept, by the indexes of what is delivered and of what is disputed.
_KEPT = """
SELECT task FROM errands INDEXED BY errands_delivered
WHERE escrow = 'delivered' AND :side IN (requester, payee)
UNION ALL
SELECT errands.task FROM disputes CROSS JOIN errands ON errands.task = disputes.task
WHERE disputes.outcome = '' AND escrow = 'disputed' AND :side IN (errands.requester, payee)
"""
_KEPT_COUNT = f"SELECT count(*) FROM ({_KEPT})"
_KEPT_PAGE = f"""
SELECT {COLUMNS} FROM errands WHERE task IN ({_KEPT})
ORDER BY task DESC LIMIT :limit OFFSET :offset
"""


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


def errands_kept(
    connection: apsw.Connection, side: Principal, limit: int, offset: int
) -> tuple[list[ErrandRow], int]:
    """Return some of the completed tasks of one side whose price is in escrow, the latest first,
    and how many there are."""
    who = {"side": side.text}
    rows = run(connection, _KEPT_PAGE, {**who, "limit": limit, "offset": offset})
    return errands(rows), int(run(connection, _KEPT_COUNT, who)[0][0])
