"""Reads the states that a task went through from its log."""

from dragoman.model.events import StatusUpdate
from dragoman.model.task import Task, TaskState
from dragoman.model.transition import MAX_TRANSITIONS, Transition, Transitions
from dragoman.stores.interface import Store

_READ_AT_ONCE = 500


async def read_transitions(store: Store, number: int, *, after: int, upto: int) -> Transitions:
    """Return the transitions of a task after a position, as of another: not more than are told at
    once. A status of the state that the task is in already is none."""
    found: list[Transition] = []
    state: TaskState | None = None
    read = 0
    while read < upto:
        # What a task made is most of its log, and nothing of this.
        batch = await store.read(number, after=read, limit=_READ_AT_ONCE, artifacts=False)
        for recorded in batch:
            if recorded.seq > upto:
                return Transitions(found)
            # Looked at as bytes: most of the rest need not be decoded.
            if not (recorded.is_status or recorded.seq == 1):
                continue
            event = recorded.event
            if not isinstance(event, Task | StatusUpdate) or event.status.state is state:
                continue
            state = event.status.state
            if recorded.seq <= after:
                continue
            if len(found) == MAX_TRANSITIONS:
                return Transitions(found, found[-1].position)
            found.append(Transition(recorded.seq, state, event.status.timestamp))
        if not batch:
            break
        read = batch[-1].seq
    return Transitions(found)
