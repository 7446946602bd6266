"""The operations of callers. One struct each; the wire names are in `dialects.operations`."""

from typing import ClassVar

import msgspec

from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Metadata
from dragoman.model.push import PushConfig
from dragoman.model.task import TaskState


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A request, decoded and valid."""

    streams: ClassVar[bool] = False
    # Whether its answer is for this caller alone, and must not be kept on the way.
    is_private: ClassVar[bool] = False
    tenant: str = ""


class SendMessage(Operation, frozen=True, kw_only=True):
    """Give a message to a task or start one; answer when it rests, or at once."""

    message: Message
    accepted_output_modes: list[str] = []
    # None: everything; otherwise at most that many of the latest messages.
    history: int | None = None
    wait: bool = True
    # Where to post the events, stored before the first of them.
    push: PushConfig | None = None
    metadata: Metadata = {}


class StreamMessage(SendMessage, frozen=True, kw_only=True):
    """Give a message and follow the task."""

    streams: ClassVar[bool] = True


class GetTask(Operation, frozen=True, kw_only=True):
    """Read a task."""

    task_id: TaskId
    history: int | None = None


class ListTasks(Operation, frozen=True, kw_only=True):
    """Read one page of the caller's tasks, latest status first."""

    context_id: ContextId = ContextId("")
    state: TaskState | None = None
    page_size: int = 50
    page_token: str = ""
    history: int | None = None
    # Microseconds since the epoch; tasks whose status is at least that recent.
    status_since: int | None = None
    include_artifacts: bool = False
    # Of a gateway: only tasks of this registered agent. Set from the address, not from the wire.
    agent: str = ""


class CancelTask(Operation, frozen=True, kw_only=True):
    """End a task before it is done."""

    task_id: TaskId
    metadata: Metadata = {}


class SubscribeToTask(Operation, frozen=True, kw_only=True):
    """Follow a task from here, or from a position seen before."""

    streams: ClassVar[bool] = True
    task_id: TaskId


class GetExtendedCard(Operation, frozen=True, kw_only=True):
    """Read the card for authenticated callers."""

    is_private: ClassVar[bool] = True


class CreatePush(Operation, frozen=True, kw_only=True):
    """Post a task's events to a receiver; the same id replaces a configuration."""

    task_id: TaskId
    config: PushConfig


class GetPush(Operation, frozen=True, kw_only=True):
    """Read one push configuration."""

    task_id: TaskId
    # Empty: any one of the task's, as 0.x allows.
    config_id: str = ""


class ListPush(Operation, frozen=True, kw_only=True):
    """Read one page of a task's push configurations."""

    task_id: TaskId
    page_size: int = 50
    page_token: str = ""


class DeletePush(Operation, frozen=True, kw_only=True):
    """Stop posting to a receiver; deleting a missing one succeeds."""

    task_id: TaskId
    config_id: str
