"""Where a task comes from, by what its caller says: how many agents it passed, and which tasks of
theirs wait for it. All of it is somebody's word: it bounds calls, and grants nothing.
"""

from collections.abc import Container
from typing import Any

from dragoman.engine.worker import Worker
from dragoman.errors import TaskFailed
from dragoman.model.deadline import DEADLINE
from dragoman.model.instant import stamp
from dragoman.model.message import Metadata
from dragoman.model.operations import SendMessage

# What goes along with a call: how many agents it passed.
DEPTH = "depth"
# So many tasks that wait for each other are told, the nearest of them.
_LONGEST = 16


def depth(worker: Worker) -> int:
    """Return how many agents a task passed."""
    return _depth(worker.replay.began)


def _depth(operation: SendMessage) -> int:
    said: Any = operation.metadata.get(DEPTH)
    # Nobody is nearer than whoever began it all.
    return max(1, said) if isinstance(said, int) and not isinstance(said, bool) else 1


def chain(worker: Worker) -> list[str]:
    """Return the tasks that wait for this one, the nearest last."""
    found: dict[str, None] = {}
    for operation in (worker.replay.began, worker.operation):
        # What somebody else refers to may be anything.
        if _depth(operation) > 1:
            found |= dict.fromkeys(operation.message.reference_task_ids)
    return list(found)[-_LONGEST:]


def check(worker: Worker, ours: Container[str], goes_to: str, *, depth: int, rounds: int) -> None:
    """Raise `TaskFailed` for a call too deep, or one more round of a circle. `ours` are tasks of
    the same agent that wait for others, and `goes_to` is the task that is called, if it is one."""
    if _depth(worker.replay.began) > depth:
        raise TaskFailed("Invocation depth limit exceeded.")
    above, own = chain(worker), worker.log.task_id
    if goes_to and (goes_to == own or goes_to in above):
        raise TaskFailed("Invocation loop: the task would wait for itself.")
    # The task itself waits for nobody yet, unless this is how it came back to itself.
    if sum(one == own or one in ours for one in above) > rounds:
        raise TaskFailed("Invocation loop: the task comes from a call of the same agent.")


def references(worker: Worker, more: list[str]) -> list[str]:
    """Return what a call refers to: what it says itself, and the tasks that wait for it."""
    return list(dict.fromkeys([*more, *chain(worker), worker.log.task_id]))


def onward(worker: Worker, metadata: Metadata) -> Metadata:
    """Return the metadata of a call."""
    said: Metadata = {**metadata, DEPTH: depth(worker) + 1}
    if worker.deadline:
        said[DEADLINE] = stamp(worker.deadline * 1000)
    return said
