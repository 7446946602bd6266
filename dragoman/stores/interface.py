"""What a store promises. Every promise is a test in `dragoman.testing.stores`.

A write is one of three values handed to `submit`; writes that wait at the same moment may share
one transaction. A write happens whole or not at all, and `done` is called on the event loop once
it is durable or refused. Reads see every write whose `done` was called.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A task at a resting point in two pieces of JSON, so that lists need not touch artifacts."""

    seq: int
    # The task without its artifacts, and the array of those.
    head: bytes
    artifacts: bytes

    def whole(self) -> bytes:
        """Return the task with its artifacts."""
        if self.artifacts == b"[]":
            return self.head
        return b'%b,"artifacts":%b}' % (self.head[:-1], self.artifacts)


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Where a task stands after a write: what its row in the store says."""

    state: TaskState
    # Milliseconds since the epoch, as the wire shows them.
    status_at: int
    last_seq: int


class Head(msgspec.Struct, frozen=True, gc=False):
    """A task's row: who it is, where it stands, who may write."""

    number: int
    task_id: TaskId
    context_id: ContextId
    scope: Scope
    standing: Standing
    fence: int


class Create(msgspec.Struct, frozen=True, gc=False):
    """A task's first events. Refused if the id exists or a key was used in this scope."""

    scope: Scope
    task_id: TaskId
    context_id: ContextId
    keys: Sequence[bytes]
    events: Sequence[Recorded]
    standing: Standing
    snapshot: Snapshot | None


class Append(msgspec.Struct, frozen=True, gc=False):
    """More events. Refused unless the log ends where the writer thinks and its fence is current."""

    number: int
    scope: Scope
    before: Standing
    fence: int
    # The fence after this write: higher when a worker takes the task over.
    next_fence: int
    keys: Sequence[bytes]
    events: Sequence[Recorded]
    standing: Standing
    snapshot: Snapshot | None


class KeepReply(msgspec.Struct, frozen=True, gc=False):
    """An answer that made no task, kept so that a repeated message gets it again."""

    scope: Scope
    key: bytes
    body: bytes


Write = Create | Append | KeepReply
# None: durable. For `Create` the number of the task is passed as the second argument.
Done = Callable[[Exception | None, int], None]


class Known(msgspec.Struct, frozen=True, gc=False):
    """What a key stands for: a task, or the reply that was given."""

    task_id: TaskId = TaskId("")
    reply: bytes = b""


class Query(msgspec.Struct, frozen=True, gc=False):
    """Which tasks of a scope, after which place in the order (latest status first)."""

    scope: Scope
    limit: int
    context_id: ContextId = ContextId("")
    state: TaskState | None = None
    status_since: int | None = None
    # The place of the last task of the page before: its status time and number.
    after: tuple[int, int] | None = None


class Found(msgspec.Struct, frozen=True, gc=False):
    """One page: rows in order, and how many there are in all."""

    heads: list[Head]
    total: int


class Store(Protocol):
    """Tasks and their logs."""

    # Seals what we hand out for callers to bring back; made once, lives with the data.
    secret: bytes

    async def open(self) -> None:
        """Make ready; raises `ConfigError` if the data cannot be used."""
        ...

    async def close(self) -> None:
        """Finish pending writes and let go."""
        ...

    def submit(self, write: Write, done: Done) -> None:
        """Make a write durable and call `done`; `StoreConflict` says that it was refused."""
        ...

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for in a scope."""
        ...

    async def head(self, scope: Scope, task_id: TaskId) -> Head | None:
        """Return a task's row, if it is in this scope."""
        ...

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[Head, TaskReading | None] | None:
        """Return a task's row and, if its log ends at a kept resting point, the task itself:
        in one look-up what most reads ask for."""
        ...

    async def read(
        self, number: int, *, after: int, limit: int, artifacts: bool = True
    ) -> list[Recorded]:
        """Return the events after a position in order, optionally without artifact chunks.

        Some and at most `limit` if there are any; a store may return fewer to spare memory."""
        ...

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last kept resting point."""
        ...

    async def page(self, query: Query) -> Found:
        """Return one page of tasks."""
        ...

    async def unfinished(self, agent: str) -> list[Head]:
        """Return the tasks of an agent that are neither terminal nor interrupted."""
        ...

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget terminal tasks older than a time, or beyond the newest `keep`; return how many.

        Keys outlive their tasks until that time, so that a late repetition starts nothing."""
        ...
