"""Makes the status updates of a task, and shows its events in traces."""

from collections.abc import Sequence

import msgspec

from dragoman.engine.log import TaskLog
from dragoman.model.clock import stamp_ms
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Metadata, Part, agent_message
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.telemetry import tracing
from dragoman.telemetry.tracing import Span, Trace

CANCELED = "The task was canceled."


# A status of a task, and its time in milliseconds.
TimedStatus = tuple[StatusUpdate, int]


def status_update(
    log: TaskLog,
    state: TaskState,
    parts: list[Part] | None = None,
    metadata: Metadata | None = None,
    references: Sequence[str] = (),
) -> TimedStatus:
    """Return a status of the task as of now."""
    now = log.now()
    message = None
    if parts:
        message = agent_message(
            parts, context_id=log.context_id, task_id=log.task_id, metadata=metadata
        )
        if references:
            message = msgspec.structs.replace(message, reference_task_ids=list(references))
    status = TaskStatus(state, message, stamp_ms(now))
    return StatusUpdate(log.task_id, log.context_id, status), now


def trace_event(log: TaskLog, event: Event, parent: Trace | None) -> None:
    """Record a span for an event of the protocol, without its content."""
    attributes: dict[str, object] = {
        "agent.id": log.scope.agent,
        "agent.task.id": log.task_id,
        "session.id": log.context_id,
        "a2a.event.position": log.seq,
    }
    match event:
        case Task() | StatusUpdate():
            attributes["a2a.state"] = event.status.state.word
            name = "a2a.task" if isinstance(event, Task) else "a2a.status"
        case ArtifactUpdate():
            attributes["a2a.artifact.append"] = event.append
            attributes["a2a.artifact.last_chunk"] = event.last_chunk
            name = "a2a.artifact"
        case _:
            return
    tracing.mark_event(name, attributes, parent=parent)


def relayed_status(log: TaskLog, status: TaskStatus, metadata: Metadata | None) -> TimedStatus:
    """Return another agent's status as one of the task: its message stays as it is, under the
    task's ids and without references to the other agent's own task."""
    now = log.now()
    message = status.message
    if message is not None:
        message = msgspec.structs.replace(
            message,
            task_id=log.task_id,
            context_id=log.context_id,
            reference_task_ids=[
                one for one in message.reference_task_ids if one != message.task_id
            ],
        )
    own = TaskStatus(status.state, message, stamp_ms(now))
    update = StatusUpdate(log.task_id, log.context_id, own, metadata or {})
    return update, now


def turn_span(log: TaskLog, turn: int, attempt: int) -> Span | None:
    """Begin the span of a turn. It lasts until the outcome of the turn is recorded."""
    agent = log.scope.agent
    return tracing.begin(
        f"agent[{agent}]",
        {
            "agent.id": agent,
            "agent.task.id": log.task_id,
            "session.id": log.context_id,
            "agent.iteration": turn + 1,
            "agent.attempt": attempt,
        },
    )


def observe(span: Span, log: TaskLog, event: Event) -> None:
    """Show in the trace of a turn that there was an event of the protocol, without its content."""
    if tracing.per_event:
        trace_event(log, event, span.trace)
    elif isinstance(event, StatusUpdate):
        span.event("a2a.status", {"a2a.state": event.status.state.word})
    elif isinstance(event, ArtifactUpdate):
        span.event("a2a.artifact")
