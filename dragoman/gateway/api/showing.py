"""A task with what the books and its log know of it, as this API shows it."""

from dragoman.gateway.api.asking import row_of
from dragoman.gateway.api.record import TaskRecord, record
from dragoman.gateway.api.table import Ask
from dragoman.model.events import Forwarded
from dragoman.model.task import Task
from dragoman.stores.interface import Store
from dragoman.stores.sqlite.errands import ErrandRow

_AT_ONCE = 1000


async def shown_task(ask: Ask, task: Task, row: ErrandRow | None = None) -> TaskRecord:
    """Return a task of the caller's; `row` spares a look where it is at hand."""
    row = row or await row_of(ask, task.id)
    retries = 0 if row is None else await retries_of(ask.gateway.store, row.task)
    return record(task, row, retries=retries)


async def retries_of(store: Store, number: int) -> int:
    """Return how often a message of a task was given to somebody else, or to the same agent
    elsewhere, because it did not go well."""
    moves: dict[int, int] = {}
    after = 0
    while events := await store.read(number, after=after, limit=_AT_ONCE, artifacts=False):
        for recorded in events:
            event = None if recorded.is_public else recorded.event
            if isinstance(event, Forwarded):
                moves[event.turn] = max(event.moves, moves.get(event.turn, 0))
        after = events[-1].seq
    return sum(moves.values())
