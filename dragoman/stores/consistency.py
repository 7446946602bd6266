"""What has to hold in every store on a disk, as questions in SQL: each counts what is wrong.

A file and a database are asked the same; only events lie differently. Whether ledger and trust are
whole is asked of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from dragoman.stores.named_sql import statements

_SQL = statements("dragoman.stores", "consistency.sql")
# Events by task and position, in a file and in a database.
FILE_LOG = _SQL["file_log"]
DATABASE_LOG = _SQL["database_log"]

# What is wrong, as words before the first of it, and the question that counts it.
_WRONG = {
    "counters differ from their tasks, the first of scope": "counters",
    "gaps in logs, the first of task": "gaps",
    "logs end elsewhere than their task says, the first of task": "ends",
    "events are of no task, the first of": "events",
    "snapshots are later than the log, the first of task": "snapshots",
    "tasks are of no scope, the first is": "scopes",
    "keys name a task of another scope, the first is": "keys",
    "receivers are further than their log, the first of task": "receivers",
    "dead letters are of no receiver, the first of": "letters",
}
_OF_TASKS = ("snapshots", "notes", "deadlines", "pushes", "withheld")


def questions(log: str) -> dict[str, str]:
    """Return what may be wrong, each with the question that gives how many are and the first."""
    of_tables = {
        f"{table} are of no task, the first of": _SQL["no_task"].format(table=table)
        for table in _OF_TASKS
    }
    return {what: _SQL[name].format(log=log) for what, name in _WRONG.items()} | of_tables


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
    for what, question in questions(log).items():
        ((number, first),) = await ask(question)
        if number:
            found.append(Inconsistency(what, int(number), int(first)))
    return found
