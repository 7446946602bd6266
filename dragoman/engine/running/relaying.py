"""Records what another agent does with a task, or with a part of it."""

from dragoman.engine.running.replay import ELSEWHERE, QuestionRecord
from dragoman.engine.running.worker import Worker
from dragoman.engine.task_events import relayed_status
from dragoman.model.events import Delegated, Forwarded, StepKind, StepRecorded
from dragoman.model.message import Metadata
from dragoman.model.record import Recorded
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskStatus


def record_relayed(
    worker: Worker, status: TaskStatus, metadata: Metadata | None = None
) -> Recorded:
    """Record a status of another agent as the task's own."""
    worker.decide()
    if any(request.sensitive for request in open_requests(status)):
        _be_discreet(worker)
    update, at = relayed_status(worker.log, status, metadata)
    return worker.emit(update, at)


def _be_discreet(worker: Worker) -> None:
    """Withhold the messages that come: they answer a sensitive question of another agent."""
    if not worker.replay.is_discreet:
        is_sensitive = QuestionRecord(sensitive=True).encoded()
        at = worker.log.now()
        worker.note(StepRecorded(StepKind.ASK, ELSEWHERE, "relay", is_sensitive, at=at))


def record_forwarded(worker: Worker, forwarded: Forwarded) -> None:
    """Record where the task was sent, or what became of it there."""
    worker.decide()
    before = worker.replay.forwarded
    is_more = (
        before is not None
        and (before.moves, before.turn) == (forwarded.moves, forwarded.turn)
        and before.task_id in ("", forwarded.task_id)
    )
    # An unwritten event that says less of the same place is replaced; a written one stays.
    event = worker.forwarded_event
    if event is None or not is_more or not worker.log.amend_last(event, forwarded):
        worker.forwarded_event = worker.emit(forwarded)
    worker.replay.apply(forwarded)


def record_delegated(worker: Worker, delegated: Delegated) -> None:
    """Record the id that another agent gave to its part of the task."""
    worker.decide()
    worker.emit(delegated)
    worker.replay.apply(delegated)
