"""How tasks and events stand in columns: the same in every store that keeps them on a disk."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.model.events import ArtifactUpdate
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.model.task import TaskState
from dragoman.stores.interface.inspection import TaskLine
from dragoman.stores.interface.pushes import DeadLetter, Push
from dragoman.stores.interface.tasks import TaskPosition, TaskRow

# The numbers on disk; they are for ever.
STATE_NUMBERS = {
    TaskState.SUBMITTED: 1,
    TaskState.WORKING: 2,
    TaskState.COMPLETED: 3,
    TaskState.FAILED: 4,
    TaskState.CANCELED: 5,
    TaskState.INPUT_REQUIRED: 6,
    TaskState.REJECTED: 7,
    TaskState.AUTH_REQUIRED: 8,
}
STATES = {number: state for state, number in STATE_NUMBERS.items()}

_CHUNK = b'{"artifactUpdate"'
_CHUNKS_ALONE = {ArtifactUpdate}
# Without a step of Python for each event.
_body_of = attrgetter("body")
_event_of = attrgetter("event")
_decode_config = msgspec.json.Decoder(PushConfig).decode


def packed(events: Sequence[Recorded]) -> tuple[int, int, int, bytes]:
    """Return the events of one write as a row: the last position, how many, whether all are chunks
    of artifacts, and their bodies."""
    is_chunks = type(events[0].event) is ArtifactUpdate and (
        set(map(type, map(_event_of, events))) == _CHUNKS_ALONE
    )
    # JSON never holds a bare newline, so lines are safe to split again.
    bodies = b"\n".join(map(_body_of, events))
    return events[-1].seq, len(events), int(is_chunks), bodies


def unpacked(
    rows: Iterable[tuple[int, int, bytes]],
    *,
    after: int,
    limit: int,
    size: int,
    artifacts: bool = True,
) -> list[Recorded]:
    """Return the events of rows after a position, until there are so many or so many bytes."""
    events: list[Recorded] = []
    for last, count, bodies in rows:
        # The first row may begin before the position asked for.
        for seq, body in enumerate(bodies.split(b"\n"), last - count + 1):
            if seq > after and (artifacts or not body.startswith(_CHUNK)):
                events.append(Recorded.of_body(seq, body))
                size -= len(body)
                if len(events) >= limit or size <= 0:
                    return events
    return events


def task_row(row: Iterable[Any], scope: Scope) -> TaskRow:
    """Return a task from its columns; the fourth is the number of its scope."""
    number, task_id, context, _, state, status_at, last_seq, fence, holder = row
    return TaskRow(
        number,
        TaskId(task_id),
        ContextId(context),
        scope,
        TaskPosition(STATES[state], status_at, last_seq),
        fence,
        holder,
    )


def receiver_line(row: Iterable[Any]) -> tuple[Push, int]:
    """Return a receiver from its columns, with the last event of its task."""
    number, task, agent, tenant, owner, config, last, cursor, *rest = row
    tries, due_at, failing_since, is_open, problem = rest
    scope = Scope(agent, tenant, owner)
    progress = cursor, tries, due_at, failing_since, bool(is_open), problem
    return Push(number, task, scope, _decode_config(config), *progress), last


def dead_letter(row: Iterable[Any]) -> DeadLetter:
    """Return a dead letter from its columns and those of its receiver."""
    push, body, seq, tries, at, problem = row
    config = _decode_config(body)
    return DeadLetter(push, config.task_id, config.id, config.url, seq, tries, at, problem)


def task_line(row: Iterable[Any]) -> TaskLine:
    """Return a task as tools see it from its columns."""
    number, task_id, context, state, status_at, last_seq, agent, tenant, owner = row
    ids = number, TaskId(task_id), ContextId(context)
    return TaskLine(*ids, STATES[state], status_at, last_seq, agent, tenant, owner)
