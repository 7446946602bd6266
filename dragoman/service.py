"""The waist: whatever can answer an A2A call has this shape, so that they stack."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from dragoman.model.card import AgentCard
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message
from dragoman.model.operations import Operation
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, who asks, and from where in a stream."""

    operation: Operation
    caller: Caller = ANONYMOUS
    # The last position a reader has seen; None: from here.
    after: int | None = None
    # Extensions the caller asked for.
    extensions: frozenset[str] = frozenset()
    # Whether a stream ends when the task waits for its caller, as 0.x and 1.0 sends do.
    closes_on_input: bool = True
    # Seconds a blocking send may wait before it answers with the task as it is; 0: no limit.
    patience: float = 0.0
    # Whether a task may be created under an id the caller chose.
    client_task_id: bool = False


class TaskReply(msgspec.Struct, frozen=True):
    """A task; how much of its history the caller wants to see."""

    reading: TaskReading
    history: int | None = None


class TaskPage(msgspec.Struct, frozen=True):
    """One page of tasks."""

    tasks: list[TaskReply]
    next_page_token: str
    page_size: int
    total_size: int
    include_artifacts: bool


class PushPage(msgspec.Struct, frozen=True):
    """One page of a task's push configurations."""

    configs: list[PushConfig]
    next_page_token: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """It is done, and there is nothing to say about it."""


Reply = TaskReply | Message | TaskPage | AgentCard | PushConfig | PushPage | Nothing


class Opening(msgspec.Struct, frozen=True):
    """The Task a stream begins with: the state as of a position."""

    reply: TaskReply
    # Whether the reader named a position that the log never had, so that it begins anew.
    is_reset: bool = False


# Events come in batches: whatever is there when the reader is ready, so that a fast task costs a
# reader one wake-up and one write for many events.
Batch = Opening | Message | Sequence[Recorded]


class Service(Protocol):
    """Anything that can answer an A2A call: an engine, a remote peer, a gateway."""

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        ...

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call: an opening Task or a Message, then batches of events."""
        ...
