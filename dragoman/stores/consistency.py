"""What has to hold in every store on a disk, as questions in SQL: each counts what is wrong.

A file and a database are asked the same; only events lie differently. Whether ledger and trust are
whole is asked of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

# Events by task and position, in a file and in a database.
FILE_LOG = "SELECT position >> 20 AS task, position & 1048575 AS last, n FROM events"
DATABASE_LOG = "SELECT task, last, n FROM events"

_OF_TASKS = ("snapshots", "notes", "deadlines", "pushes", "withheld")
_NO_TASK = "NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.number = {}.task)"

# Each gives how many are wrong, and the first of them.
QUESTIONS: dict[str, str] = {
    "counters differ from their tasks, the first of scope": """
        SELECT count(*), min(scope) FROM (
            SELECT scope, state, sum(n) AS n FROM (
                SELECT scope, state, n FROM counts
                UNION ALL SELECT scope, state, -count(*) FROM tasks GROUP BY scope, state
            ) AS both_of GROUP BY scope, state
        ) AS differing WHERE n <> 0""",
    "gaps in logs, the first of task": """
        SELECT count(*), min(task) FROM (
            SELECT task, last - n AS begins, lag(last, 1, 0) OVER (PARTITION BY task ORDER BY last)
                AS ended FROM ({log}) AS log
        ) AS pieces WHERE begins <> ended""",
    "logs end elsewhere than their task says, the first of task": """
        SELECT count(*), min(number) FROM tasks
        LEFT JOIN (SELECT task, max(last) AS last FROM ({log}) AS log GROUP BY task) AS ends
            ON task = number WHERE coalesce(last, 0) <> last_seq""",
    "events are of no task, the first of": """
        SELECT count(*), min(task) FROM (SELECT DISTINCT task FROM ({log}) AS log) AS logged
        WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE number = task)""",
    "snapshots are later than the log, the first of task": """
        SELECT count(*), min(task) FROM snapshots JOIN tasks ON number = task
        WHERE seq > last_seq""",
    "tasks are of no scope, the first is": """
        SELECT count(*), min(number) FROM tasks
        WHERE NOT EXISTS (SELECT 1 FROM scopes WHERE scopes.number = tasks.scope)""",
    "keys name a task of another scope, the first is": """
        SELECT count(*), min(number) FROM keys JOIN tasks ON number = keys.task
        WHERE keys.scope <> tasks.scope""",
    "receivers are further than their log, the first of task": """
        SELECT count(*), min(task) FROM pushes JOIN tasks ON tasks.number = task
        WHERE cursor > last_seq""",
    "dead letters are of no receiver, the first of": """
        SELECT count(*), min(push) FROM dead_letters
        WHERE NOT EXISTS (SELECT 1 FROM pushes WHERE pushes.number = push)""",
    **{
        f"{name} are of no task, the first of": f"""
        SELECT count(*), min(task) FROM {name} WHERE {_NO_TASK.format(name)}"""
        for name in _OF_TASKS
    },
}

Ask = Callable[[str], Awaitable[Sequence[tuple[Any, ...]]]]


class Inconsistency(NamedTuple):
    """Something that should not be."""

    what: str
    number: int
    first: int

    def __str__(self) -> str:
        return f"{self.number} {self.what} {self.first}"


async def inconsistencies(ask: Ask, log: str) -> list[Inconsistency]:
    """Ask all questions of one moment; return what is wrong."""
    found: list[Inconsistency] = []
    for what, question in QUESTIONS.items():
        ((number, first),) = await ask(question.replace("{log}", log))
        if number:
            found.append(Inconsistency(what, int(number), int(first)))
    return found
