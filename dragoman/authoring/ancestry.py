"""Where a task comes from, as its caller claims: the agents it passed, the tasks that wait for it.
Such claims only bound calls; they grant nothing.
"""

from collections.abc import Container
from typing import Any

from dragoman.engine.running.worker import Worker
from dragoman.errors import TaskFailed
from dragoman.model.clock import stamp
from dragoman.model.message import Metadata
from dragoman.model.operations import SendMessage
from dragoman.model.request_metadata import DEADLINE

# Metadata of a call: how many agents it passed.
DEPTH = "depth"
# Tasks that wait for each other and are named in a call: the nearest.
_LONGEST = 16


def depth(worker: Worker) -> int:
    """Return how many agents a task passed."""
    return _depth(worker.replay.began)


def _depth(operation: SendMessage) -> int:
    claimed: Any = operation.metadata.get(DEPTH)
    # The first agent has depth 1; a caller cannot claim less.
    is_count = isinstance(claimed, int) and not isinstance(claimed, bool)
    return max(1, claimed) if is_count else 1


def chain(worker: Worker) -> list[str]:
    """Return the tasks that wait for this one, the nearest last."""
    found: dict[str, None] = {}
    for operation in (worker.replay.began, worker.operation):
        # References of a caller that is not an agent may be any tasks.
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
    # The task itself does not wait yet, unless the call came back to it.
    if sum(one == own or one in ours for one in above) > rounds:
        raise TaskFailed("Invocation loop: the task comes from a call of the same agent.")


def references(worker: Worker, more: list[str]) -> list[str]:
    """Return the references of a call: its own, and the tasks that wait for it."""
    return list(dict.fromkeys([*more, *chain(worker), worker.log.task_id]))


def call_metadata(worker: Worker, metadata: Metadata) -> Metadata:
    """Return the metadata of a call."""
    found: Metadata = {**metadata, DEPTH: depth(worker) + 1}
    if worker.deadline:
        found[DEADLINE] = stamp(worker.deadline * 1000)
    return found
