"""A task as this API shows it: a flat record, with the states and parts of NEXUS."""

from typing import Any, Literal, cast

import msgspec

from dragoman.dialects.house.nexus_shapes import conversation, encode_message
from dragoman.errors import ParseFailed
from dragoman.gateway.delivery.task_input import result_of
from dragoman.gateway.registry.agent_keys import REQUESTER
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.money import MICRO, micro_credits
from dragoman.model.order import DELIVERED, Escrow
from dragoman.model.task import OVERDUE, Task, TaskState
from dragoman.stores.interface.orders import OrderRow
from dragoman.transports import json_text

Status = Literal["pending", "assigned", "running", "completed", "failed", "cancelled"]

_STATUSES: dict[TaskState, Status] = {
    TaskState.SUBMITTED: "assigned",
    TaskState.WORKING: "running",
    TaskState.INPUT_REQUIRED: "running",
    TaskState.AUTH_REQUIRED: "running",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "failed",
    TaskState.CANCELED: "cancelled",
}
# The states of a status. Pending and assigned have the same: they differ by the agent.
STATES: dict[Status, tuple[TaskState, ...]] = {
    "pending": (TaskState.SUBMITTED,),
    "assigned": (TaskState.SUBMITTED,),
    "running": (TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED),
    "completed": (TaskState.COMPLETED,),
    "failed": (TaskState.FAILED, TaskState.REJECTED),
    "cancelled": (TaskState.CANCELED,),
}
_TIMED_OUT = "Task timed out"


class PartRecord(msgspec.Struct, frozen=True):
    """One piece of content."""

    type: str
    data: Any


class MessageRecord(msgspec.Struct, frozen=True):
    """One message."""

    role: Literal["user", "agent"]
    parts: list[PartRecord]


class ArtifactRecord(msgspec.Struct, frozen=True):
    """One result."""

    name: str
    description: str
    parts: list[PartRecord]


class Output(msgspec.Struct, frozen=True):
    """The first result."""

    result: Any


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `a2a_state` is the exact state of the protocol, where `status` has fewer words."""

    id: str
    # The gateway's number, which is unique; null before it is recorded.
    number: int | None
    title: str
    description: str
    status: Status
    a2a_state: str
    requester_agent_id: str | None
    assigned_agent_id: str | None
    input: Any
    output: Output | None
    messages: list[MessageRecord]
    artifacts: list[ArtifactRecord]
    max_budget_credits: float | None
    actual_cost_credits: float | None
    timeout_at: str | None
    retry_count: int
    error_message: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    # Where its price is, and when it is released from escrow without a decision.
    escrow: Escrow | msgspec.UnsetType = msgspec.UNSET
    escrow_release_at: str | msgspec.UnsetType = msgspec.UNSET


def status_of(task: Task, row: OrderRow | None) -> Status:
    """Return the status of a task in this API."""
    if task.status.state is TaskState.SUBMITTED and not (row is not None and row.agent):
        return "pending"
    return _STATUSES[task.status.state]


def record(task: Task, row: OrderRow | None) -> TaskRecord:
    """Return a task as this API shows it."""
    state = task.status.state
    status = status_of(task, row)
    ended = task.status.timestamp or None
    if row is not None and row.ended_at:
        ended = stamp(row.ended_at * 1000)
    updated = task.status.timestamp or (stamp(row.began_at * 1000) if row else "")
    return TaskRecord(
        id=task.id,
        number=row.task if row else None,
        title=_text(task, "title") or _first_words(task),
        description=_text(task, "description"),
        status=status,
        a2a_state=state.value.removeprefix("TASK_STATE_").lower().replace("_", "-"),
        requester_agent_id=_text(task, REQUESTER) or None,
        assigned_agent_id=(row.agent or None) if row else None,
        input=_input(task),
        output=_output(task),
        messages=[message_record(message) for message in conversation(task)],
        artifacts=[artifact_record(artifact) for artifact in task.artifacts],
        max_budget_credits=_budget(task),
        actual_cost_credits=_cost(row),
        timeout_at=stamp(row.due_at * 1000) if row and row.due_at else None,
        retry_count=0 if row is None else row.moves,
        error_message=_error(task, row),
        created_at=stamp(row.began_at * 1000) if row and row.began_at else updated,
        updated_at=updated,
        completed_at=ended if state.is_terminal else None,
        escrow=escrow_of(row.escrow if row else ""),
        escrow_release_at=_release(row),
    )


def escrow_of(state: str | None) -> Escrow | msgspec.UnsetType:
    """Return the escrow of a task as this API shows it; unset without one."""
    return msgspec.convert(state, Escrow) if state else msgspec.UNSET


def _release(row: OrderRow | None) -> str | msgspec.UnsetType:
    if row is None or row.escrow != DELIVERED:
        return msgspec.UNSET
    return stamp(row.release_at * 1000)


def _cost(row: OrderRow | None) -> float | None:
    """Return what was charged for a task; None: that is not known yet."""
    return credit(row.charged) if row and row.ended_at and not row.is_in_escrow else None


def credit(amount: int) -> float:
    """Return micro-credits as the number of credits that JSON shows."""
    return amount / MICRO


def _text(task: Task, name: str) -> str:
    value = task.metadata.get(name)
    return value if isinstance(value, str) else ""


def _first_words(task: Task) -> str:
    """Return a title for a task that was not made by this API and has none."""
    text = task.history[0].text if task.history else ""
    return " ".join(text.split())[:80]


def _input(task: Task) -> Any:
    """Return the input of a task: the JSON of its first message, if this API made it."""
    if not task.history:
        return {}
    first = task.history[0]
    if first.data is not None:
        return first.data
    try:
        value = json_text.parse(first.text.encode())
    except ParseFailed:
        return {"message": first.text}
    return cast(Any, value) if isinstance(value, dict) else {"message": first.text}


def _output(task: Task) -> Output | None:
    found = result_of(task)
    return None if found is None else Output(_parts([found])[0].data)


def message_record(message: Message) -> MessageRecord:
    """Return one message."""
    return MessageRecord("user" if message.role is Role.USER else "agent", _parts(message.parts))


def artifact_record(artifact: Artifact) -> ArtifactRecord:
    """Return one result."""
    return ArtifactRecord(artifact.name, artifact.description, _parts(artifact.parts))


def _parts(parts: list[Part]) -> list[PartRecord]:
    shown = encode_message(Message(MessageId(""), Role.AGENT, parts))["parts"]
    return msgspec.convert(shown, list[PartRecord])


def _budget(task: Task) -> float | None:
    value = task.metadata.get("maxBudget")
    try:
        return credit(micro_credits(str(value))) if value is not None else None
    except ValueError:
        return None


def _error(task: Task, row: OrderRow | None) -> str | None:
    if task.status.state not in (TaskState.FAILED, TaskState.REJECTED):
        return None
    text = task.status.message.text if task.status.message else ""
    if text == OVERDUE or (row is not None and row.cause == "timeout"):
        return _TIMED_OUT
    return text or "The task failed"
