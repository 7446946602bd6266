"""The tasks of one scope as the books have them: who does each, until when, and what it cost."""

from typing import Any, NamedTuple

import apsw

from dragoman.model.identity import Scope
from dragoman.model.task import TaskState
from dragoman.stores.sqlite.errands import COLUMNS, ErrandRow, errands
from dragoman.stores.sqlite.schema import run
from dragoman.stores.sqlite.writer import STATE_NUMBERS

_NAMES = ", ".join(f"errands.{name.strip()}" for name in COLUMNS.split(","))
_SCOPE = "SELECT number FROM scopes WHERE agent = ? AND tenant = ? AND owner = ?"
_ONE = f"""
SELECT {_NAMES} FROM tasks CROSS JOIN errands ON errands.task = tasks.number
WHERE tasks.id = ? AND tasks.scope = ?
"""
_IN_STATES = "tasks.state IN (SELECT value FROM json_each(:states))"
# Numbers rise, so the newest are at the end of the table. Where a scope has many tasks, some are
# found there soon; the tasks of one that has few are found by its index, and sorted.
_NEWEST = """
SELECT number FROM tasks {indexed} WHERE scope = :scope AND {states}
ORDER BY number DESC LIMIT :limit OFFSET :offset
"""
_BY_END = _NEWEST.format(indexed="NOT INDEXED", states=_IN_STATES)
_BY_INDEX = _NEWEST.format(indexed="", states=_IN_STATES)
_PAGE = f"""
SELECT {_NAMES} FROM ({{numbers}}) AS page CROSS JOIN errands ON errands.task = page.number
ORDER BY errands.task DESC
"""
_TOTAL = f"""
SELECT coalesce(sum(n), 0) FROM counts AS tasks WHERE scope = :scope AND {_IN_STATES}
"""
_OF_AGENT = f"""
FROM tasks CROSS JOIN errands ON errands.task = tasks.number
WHERE tasks.scope = :scope AND {_IN_STATES} AND (:agent = '' OR errands.agent = :agent)
    AND (:is_assigned IS NULL OR (errands.agent <> '') = :is_assigned)
"""
_PAGE_OF_AGENT = f"""
SELECT {_NAMES} {_OF_AGENT} ORDER BY tasks.number DESC LIMIT :limit OFFSET :offset
"""
_TOTAL_OF_AGENT = f"SELECT count(*) {_OF_AGENT}"
_MANY = 2_000


class Wanted(NamedTuple):
    """Which tasks are listed: all, unless told."""

    states: tuple[TaskState, ...] = ()
    agent: str = ""
    # Whether an agent was chosen; None: does not matter.
    is_assigned: bool | None = None


def one(connection: apsw.Connection, scope: Scope, task_id: str) -> ErrandRow | None:
    """Return one task of a scope."""
    number = _number(connection, scope)
    found = errands(run(connection, _ONE, (task_id, number)))
    return found[0] if found else None


def page(
    connection: apsw.Connection, scope: Scope, wanted: Wanted, limit: int, offset: int
) -> tuple[list[ErrandRow], int]:
    """Return some of the tasks of a scope, newest first, and how many there are."""
    states = [STATE_NUMBERS[state] for state in wanted.states or TaskState]
    asked: dict[str, Any] = {"scope": _number(connection, scope), "states": str(states)}
    place = {"limit": limit, "offset": offset}
    if wanted.agent or wanted.is_assigned is not None:
        asked |= {"agent": wanted.agent, "is_assigned": wanted.is_assigned}
        rows = run(connection, _PAGE_OF_AGENT, {**asked, **place})
        return errands(rows), int(run(connection, _TOTAL_OF_AGENT, asked)[0][0])
    total = int(run(connection, _TOTAL, asked)[0][0])
    numbers = _BY_END if total > _MANY else _BY_INDEX
    rows = run(connection, _PAGE.format(numbers=numbers), {**asked, **place})
    return errands(rows), total


def _number(connection: apsw.Connection, scope: Scope) -> int:
    """Return the number of a scope; of one that has no tasks, the number of none."""
    found = run(connection, _SCOPE, (scope.agent, scope.tenant, scope.owner))
    return int(found[0][0]) if found else 0
