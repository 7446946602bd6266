"""Which task is meant when money or reputation depends on it.

An id may be a caller's choice: two requesters may have tasks of one id, and one requester a second
task of an id whose first is deleted. Our own number is given once. So refunds, receipts, ratings
and disputes go by the number; an id alone will do only where it can mean one task.
"""

from collections.abc import Callable, Sequence

import apsw
import msgspec

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.stores.sqlite.errands import ErrandRow, errands_of


class TaskReference(msgspec.Struct, frozen=True):
    """A task by its id, and by our number where the id alone could mean several."""

    id: str
    # 0: the caller gave none.
    number: int = 0

    def __str__(self) -> str:
        return f"{self.id} number {self.number}" if self.number else self.id


class AmbiguousTask(InvalidParams):
    """Several tasks have this id; say which by its number"""

    def __init__(self, tasks: Sequence[ErrandRow]) -> None:
        super().__init__("several tasks have this id; say which by its number", field="number")
        # What the id could mean, the latest first; all of them concern the caller.
        self.tasks = tasks


def errand_meant(
    connection: apsw.Connection, task: TaskReference, concerns: Callable[[ErrandRow], bool]
) -> ErrandRow:
    """Return the one errand that is meant, of those that concern the caller.

    Raises `TaskNotFound`, also for a task of others, and `AmbiguousTask`."""
    fitting = [
        one
        for one in errands_of(connection, task.id)
        if task.number in (0, one.task) and concerns(one)
    ]
    if not fitting:
        raise TaskNotFound(taskId=task.id)
    if len(fitting) > 1:
        raise AmbiguousTask(fitting)
    return fitting[0]
