"""The tasks of one scope as the books have them: who does each, until when, and what it cost."""

from typing import NamedTuple

import apsw

from dragoman.model.identity import Scope
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.errands import COLUMNS, ErrandRow, errands
from dragoman.stores.sqlite.schema import run
from dragoman.stores.sqlite.writer import STATE_NUMBERS

_NAMES = ", ".join(f"errands.{name.strip()}" for name in COLUMNS.split(","))
_FROM = """
FROM scopes CROSS JOIN tasks ON tasks.scope = scopes.number
CROSS JOIN errands ON errands.task = tasks.number
WHERE scopes.agent = :scope_agent AND scopes.tenant = :tenant AND scopes.owner = :owner
"""
_ONE = f"SELECT {_NAMES} {_FROM} AND tasks.id = :task_id"
_WANTED = """
AND (:states = '' OR instr(:states, ',' || tasks.state || ',') > 0)
AND (:agent = '' OR errands.agent = :agent)
AND (:is_assigned IS NULL OR (errands.agent <> '') = :is_assigned)
"""
_PAGE = f"""
SELECT {_NAMES} {_FROM} {_WANTED} ORDER BY tasks.number DESC LIMIT :limit OFFSET :offset
"""
_TOTAL = f"SELECT count(*) {_FROM} {_WANTED}"


class Wanted(NamedTuple):
    """Which tasks are listed: all, unless told."""

    states: tuple[TaskState, ...] = ()
    agent: str = ""
    # Whether an agent was chosen; None: does not matter.
    is_assigned: bool | None = None


def one(connection: apsw.Connection, scope: Scope, task_id: str) -> ErrandRow | None:
    """Return one task of a scope."""
    found = errands(run(connection, _ONE, {**_place(scope), "task_id": task_id}))
    return found[0] if found else None


def page(
    connection: apsw.Connection, scope: Scope, wanted: Wanted, limit: int, offset: int
) -> tuple[list[ErrandRow], int]:
    """Return some of the tasks of a scope, newest first, and how many there are."""
    numbers = ",".join(str(STATE_NUMBERS[state]) for state in wanted.states)
    values = {
        **_place(scope),
        "states": f",{numbers}," if numbers else "",
        "agent": wanted.agent,
        "is_assigned": wanted.is_assigned,
    }
    rows = errands(run(connection, _PAGE, {**values, "limit": limit, "offset": offset}))
    return rows, int(run(connection, _TOTAL, values)[0][0])


def _place(scope: Scope) -> dict[str, str]:
    return {"scope_agent": scope.agent, "tenant": scope.tenant, "owner": scope.owner}
