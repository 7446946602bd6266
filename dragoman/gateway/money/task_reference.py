"""Which task is meant when money or reputation depends on it.

A caller may choose a task's id: two requesters may have tasks of one id, and one requester a second
task of an id whose first is deleted. The number is given by the store, once. So refunds, receipts,
ratings and disputes go by the number; an id alone is enough where only one task has it.
"""

from collections.abc import Callable, Sequence

import msgspec

from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.stores.interface.orders import OrderFacts, OrderRow


class TaskReference(msgspec.Struct, frozen=True):
    """A task by its id, and by its number where several tasks have the id."""

    id: str
    # 0: the caller gave none.
    number: int = 0

    def __str__(self) -> str:
        return f"{self.id} number {self.number}" if self.number else self.id


class AmbiguousTask(InvalidParams):
    """Several tasks have this id; say which by its number"""

    def __init__(self, tasks: Sequence[OrderRow]) -> None:
        super().__init__("several tasks have this id; say which by its number", field="number")
        # What the id could mean, the latest first; all of them concern the caller.
        self.tasks = tasks


def order_meant(
    orders: Sequence[OrderFacts], task: TaskReference, concerns: Callable[[OrderFacts], bool]
) -> OrderFacts:
    """Return the one order that is meant, of those with its id that concern the caller.

    Raises `TaskNotFound`, also for a task of others, and `AmbiguousTask`."""
    fitting = [one for one in orders if task.number in (0, one.order.task) and concerns(one)]
    if not fitting:
        raise TaskNotFound(taskId=task.id)
    if len(fitting) > 1:
        raise AmbiguousTask([one.order for one in fitting])
    return fitting[0]
