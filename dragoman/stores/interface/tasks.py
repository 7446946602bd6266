"""Tasks, their logs, and what a caller may repeat.

A write is one of four values handed to `submit`; writes that wait at the same moment may share
one transaction. A write happens whole or not at all, and `done` is called on the event loop once
it is durable or refused. Reads see every write whose `done` was called.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from dragoman.model.identity import ContextId, Principal, Scope, TaskId
from dragoman.model.order import Order
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState

# A read ends after about so much: it is what each of a thousand readers that stopped reading holds.
READ_BYTES = 64 * 1024
# After every time and every number.
LATEST = (1 << 62) - 1


def whole_task(head: bytes, artifacts: bytes) -> bytes:
    """Return a task with its artifacts, from the two pieces of a snapshot."""
    return head if artifacts == b"[]" else b'%b,"artifacts":%b}' % (head[:-1], artifacts)


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A task at a resting point in two pieces of JSON, so that lists need not touch artifacts."""

    seq: int
    # The task without its artifacts, and the array of those.
    head: bytes
    artifacts: bytes

    def reading(self, *, artifacts: bool = True) -> TaskReading:
        """Return what readers get of it."""
        body = whole_task(self.head, self.artifacts) if artifacts else self.head
        return TaskReading(self.seq, body=body)


class TaskPosition(msgspec.Struct, frozen=True, gc=False):
    """Where a task stands after a write: what its row in the store says."""

    state: TaskState
    # Milliseconds since the epoch, as the wire shows them.
    status_at: int
    last_seq: int


class TaskRow(msgspec.Struct, frozen=True, gc=False):
    """A task's row: its ids, how far it is, and which worker may write it."""

    number: int
    task_id: TaskId
    context_id: ContextId
    scope: Scope
    standing: TaskPosition
    fence: int
    # The worker that writes it; 0: none.
    holder: int


class Create(msgspec.Struct, frozen=True, gc=False):
    """A task's first events. Refused if the id exists or a key was used in this scope."""

    scope: Scope
    task_id: TaskId
    context_id: ContextId
    keys: Sequence[bytes]
    events: Sequence[Recorded]
    standing: TaskPosition
    snapshot: Snapshot | None
    pushes: Sequence[PushConfig] = ()
    # When it has to have ended, in milliseconds; 0: whenever.
    deadline: int = 0
    # What it costs and whom. Refused with `HoldRefused` where it cannot be paid; a
    # write that ends the task settles it.
    order: Order | None = None
    # About how many bytes its events have.
    size: int = 0


class Append(msgspec.Struct, frozen=True, gc=False):
    """More events. Refused unless the log ends where the writer thinks and its fence is current."""

    number: int
    scope: Scope
    before: TaskPosition
    fence: int
    # The fence after this write: higher when a worker takes the task over.
    next_fence: int
    keys: Sequence[bytes]
    events: Sequence[Recorded]
    standing: TaskPosition
    snapshot: Snapshot | None
    # Notes that this write deals with.
    notes: Sequence[int] = ()
    # What the log must not show, by the position of the event that stands for it.
    withheld: Sequence[tuple[int, bytes]] = ()
    # Whether nothing that was withheld before is needed any more.
    forgets: bool = False
    # What of its order changes.
    order: Order | None = None
    # When a worker has to look at it again, in milliseconds; 0: never; None: as before.
    deadline: int | None = None
    # About how many bytes its events have.
    size: int = 0


class LeaveNote(msgspec.Struct, frozen=True, gc=False):
    """Something for the holder of a task, who alone writes its log. Refused if the task is gone or
    has ended, or a key was used in this scope."""

    scope: Scope
    number: int
    keys: Sequence[bytes]
    body: bytes


class KeepReply(msgspec.Struct, frozen=True, gc=False):
    """An answer that made no task, kept so that a repeated message gets it again."""

    scope: Scope
    key: bytes
    body: bytes


Write = Create | Append | LeaveNote | KeepReply
# None: durable. For `Create` the number of the task is passed as the second argument.
Done = Callable[[Exception | None, int], None]


_W = TypeVar("_W")
_W_contra = TypeVar("_W_contra", contravariant=True)


class TakesWrites(Protocol[_W_contra]):
    """Anything that makes writes durable and calls back."""

    def submit(self, write: _W_contra, done: Done, /) -> None:
        """Queue a write; `done` is called on the event loop once it is durable or refused."""
        ...


async def write(store: TakesWrites[_W], one: _W) -> int:
    """Make a write durable and return the task's number; raises what `done` would be told.

    For writes off the hot path: a caller that is cancelled meanwhile hears nothing of it."""
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None, number: int) -> None:
        if written.done():
            return
        if error is None:
            written.set_result(number)
        else:
            written.set_exception(error)

    store.submit(one, done)
    return await written


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
    # Only tasks ordered from this registered agent; a store without a ledger has none.
    ordered_from: str = ""


class Bodies(msgspec.Struct, frozen=True, gc=False):
    """What a page brings besides its rows: the tasks that rest, until they have so many bytes."""

    size: int
    artifacts: bool = True


class TaskRows(msgspec.Struct, frozen=True, gc=False):
    """One page: rows in order, and how many there are in all."""

    heads: list[TaskRow]
    total: int
    # Of each row, if bodies were asked for: the task as `at_rest` has it. None: it does not rest,
    # or the rows before it have all the bytes there may be.
    readings: Sequence[TaskReading | None] = ()


class Survey(msgspec.Struct, frozen=True, gc=False):
    """Which tasks of all owners, after which place in the order (latest status first)."""

    limit: int
    agent: str = ""
    # None: of every tenant.
    tenant: str | None = None
    owner: str | None = None
    # Only what belongs to it; None: to anyone.
    principal: Principal | None = None
    state: TaskState | None = None
    task_id: TaskId = TaskId("")
    context_id: ContextId = ContextId("")
    # Milliseconds: not before the first, and before the second.
    status_since: int = 0
    status_before: int | None = None
    # The place of the last task of the page before: its status time and number.
    after: tuple[int, int] | None = None

    def starts_below(self) -> tuple[int, int]:
        """Return the place below which the page begins."""
        places = [(LATEST, LATEST)]
        places += [] if self.after is None else [self.after]
        # Numbers are above 0.
        places += [] if self.status_before is None else [(self.status_before, 0)]
        return min(places)

    @property
    def is_of_some(self) -> bool:
        """Whether it asks for some scopes only."""
        of_any = self.tenant is None and self.owner is None and self.principal is None
        return bool(self.agent) or not of_any

    def covers(self, head: TaskRow) -> bool:
        """Tell whether it asks for a task, at whatever place in the order."""
        scope, standing = head.scope, head.standing
        return (
            self.task_id in ("", head.task_id)
            and self.context_id in ("", head.context_id)
            and self.agent in ("", scope.agent)
            and self.tenant in (None, scope.tenant)
            and self.owner in (None, scope.owner)
            and self.principal in (None, scope.principal)
            and self.state in (None, standing.state)
            and self.status_since <= standing.status_at
            and (self.status_before is None or standing.status_at < self.status_before)
        )


class Note(msgspec.Struct, frozen=True, gc=False):
    """What was left for a task's holder."""

    number: int
    body: bytes


class TaskStore(Protocol):
    """Tasks and their logs."""

    @property
    def is_far(self) -> bool:
        """Whether every question is a journey, so that several are better asked together."""
        ...

    def submit(self, write: Write, done: Done) -> None:
        """Make a write durable and call `done`; `StoreConflict` says that it was refused."""
        ...

    def is_new(self, key: bytes) -> bool:
        """Tell whether it is certain, without a look, that a key stands for nothing."""
        ...

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for in a scope."""
        ...

    async def head(self, scope: Scope, task_id: TaskId) -> TaskRow | None:
        """Return a task's row, if it is in this scope."""
        ...

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[int, int, TaskReading | None] | None:
        """Return a task's number, the last position of its log and, if that is a kept resting
        point, the task itself: in one look-up what most reads ask for."""
        ...

    async def read(
        self,
        number: int,
        *,
        after: int,
        limit: int,
        artifacts: bool = True,
        size: int = READ_BYTES,
    ) -> list[Recorded]:
        """Return the events after a position in order, optionally without artifact chunks.

        Some and at most `limit` if there are any; fewer once they have about so many bytes."""
        ...

    async def read_many(
        self, places: Sequence[tuple[int, int]], *, limit: int, size: int = READ_BYTES
    ) -> list[list[Recorded]]:
        """Return what `read` would for each task's number and position: in one go where the store
        is far away."""
        ...

    async def last_seqs(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the last position of each task's log, by the tasks' numbers; those that are gone
        are left out."""
        ...

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last kept resting point."""
        ...

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show, by position, until a write forgets it."""
        ...

    async def page(self, query: Query, *, bodies: Bodies | None = None) -> TaskRows:
        """Return one page of tasks and its total, of the same moment."""
        ...

    async def survey(self, survey: Survey) -> list[TaskRow]:
        """Return tasks of all owners, by indexes of each scope. It may take long where there are
        very many scopes; the event loop does not wait for it."""
        ...

    async def counts(self) -> dict[TaskState, int]:
        """Return how many tasks of all owners are in each state, from counters."""
        ...

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have. May take long; the event loop
        does not wait for it."""
        ...

    async def notes(self, number: int) -> list[Note]:
        """Return what was left for the holder of a task, oldest first."""
        ...

    async def noted(self, agent: str) -> list[TaskRow]:
        """Return the tasks of an agent that this worker holds and that have notes."""
        ...

    async def overdue(self, agent: str, now: int) -> list[TaskRow]:
        """Return the tasks of an agent that should have ended by now and did not."""
        ...

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget terminal tasks older than a time, or beyond the newest `keep`; return how many.

        Keys outlive their tasks until that time, so that a late repetition starts nothing."""
        ...
