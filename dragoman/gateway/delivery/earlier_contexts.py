"""In which context of an agent a caller's conversation goes on, read from the caller's own tasks.

The log of each task says which agent had it, at which address, and in which context there. So the
answer is the same after a restart and in every process of one store. Only tasks of one scope and
one context are read: no caller joins the conversation of another.
"""

from dragoman.engine.log import TaskLog
from dragoman.model.events import Forwarded
from dragoman.stores.interface.store import Store
from dragoman.stores.interface.tasks import Query, TaskRow

# How many of a context's latest tasks are looked at, and how many events of each: an agent names
# its context with its first answer.
_LATEST = 20
_FIRST_EVENTS = 50


async def earlier_context(store: Store, log: TaskLog, agent: str) -> Forwarded | None:
    """Return where the agent has the conversation that a new task belongs to; None: the agent has
    none, as far as the latest tasks say."""
    page = await store.page(Query(log.scope, _LATEST, context_id=log.context_id))
    for head in page.heads:
        if head.task_id == log.task_id:
            continue
        found = await _forwarded(store, head)
        if found is not None and found.agent == agent and found.context_id:
            return found
    return None


async def _forwarded(store: Store, head: TaskRow) -> Forwarded | None:
    """Return where a task was sent."""
    found: Forwarded | None = None
    # The first event is the caller's message, which may be large.
    after, last = 1, 1 + _FIRST_EVENTS
    while after < last:
        batch = await store.read(head.number, after=after, limit=last - after, artifacts=False)
        if not batch:
            break
        for recorded in batch:
            if recorded.body.startswith(b'{"forwarded"'):
                event = recorded.event
                assert isinstance(event, Forwarded), "by its bytes it is"
                found = event
        after = batch[-1].seq
    return found
