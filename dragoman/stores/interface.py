"""What a store promises. Every promise is a test in `dragoman.testing.stores`.

A write is one of four values handed to `submit`; writes that wait at the same moment may share
one transaction. A write happens whole or not at all, and `done` is called on the event loop once
it is durable or refused. Reads see every write whose `done` was called.

An open store is a worker: it has a number of its own and holds the tasks it writes. Its lease on
them is valid while it keeps renewing; then any other worker of the same store may claim them, which
raises their fence, and from then on every write under the old fence is refused.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dragoman.errors import StoreBroken
from dragoman.model.errand import Errand
from dragoman.model.identity import ContextId, Principal, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState

# A read ends after about so much: it is what each of a thousand readers that stopped reading holds.
READ_BYTES = 64 * 1024


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
    # The worker that writes it; 0: nobody.
    holder: int


def died_alone(held_by: int) -> bool:
    """Tell by who held a claimed task whether it was the only one under way when that worker
    died."""
    return held_by > 0


class Create(msgspec.Struct, frozen=True, gc=False):
    """A task's first events. Refused if the id exists or a key was used in this scope."""

    scope: Scope
    task_id: TaskId
    context_id: ContextId
    keys: Sequence[bytes]
    events: Sequence[Recorded]
    standing: Standing
    snapshot: Snapshot | None
    pushes: Sequence[PushConfig] = ()
    # When it has to have ended, in milliseconds; 0: whenever.
    deadline: int = 0
    # What it means to those who keep books. Refused with `HoldRefused` where it cannot be paid; a
    # write that ends the task settles it.
    errand: Errand | None = None
    # About how many bytes its events have.
    size: int = 0


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
    # Notes that this write deals with.
    notes: Sequence[int] = ()
    # What the log must not show, by the position of the event that stands for it.
    withheld: Sequence[tuple[int, bytes]] = ()
    # Whether nothing that was withheld before is needed any more.
    forgets: bool = False
    # What of its errand is another from here on.
    errand: Errand | None = None
    # When someone has to look at it from here on, in milliseconds; 0: never; None: as before.
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
    # Only errands of this registered agent; a store without books has none.
    errand_for: str = ""


class Found(msgspec.Struct, frozen=True, gc=False):
    """One page: rows in order, and how many there are in all."""

    heads: list[Head]
    total: int


class Survey(msgspec.Struct, frozen=True, gc=False):
    """Which tasks of all owners, latest made first: what only an operator asks for."""

    limit: int
    agent: str = ""
    # None: of every tenant.
    tenant: str | None = None
    owner: str | None = None
    state: TaskState | None = None
    task_id: TaskId = TaskId("")
    # The number of the last task of the page before; 0: from the start.
    before: int = 0


class Push(msgspec.Struct, frozen=True, gc=False):
    """A receiver of a task's events, and how far it is."""

    number: int
    # The task's number and scope; the public id is in the configuration.
    task: int
    scope: Scope
    config: PushConfig
    # The last event that is dealt with; how often the next one was tried.
    cursor: int
    tries: int = 0
    # Milliseconds since the epoch: the next try, and since when every try failed (0: it did not).
    due_at: int = 0
    failing_since: int = 0
    # Whether there may be anything more to deliver.
    is_open: bool = True
    problem: str = ""


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """An event that a receiver never took."""

    push: int
    task_id: TaskId
    config_id: str
    url: str
    seq: int
    tries: int
    at: int
    problem: str


class Note(msgspec.Struct, frozen=True, gc=False):
    """What was left for a task's holder."""

    number: int
    body: bytes


class Sealing(Protocol):
    """Makes what is secret unreadable to whoever has only the store's file.

    Keys go by ids of eight bytes. A sealed value is the byte 1, the id of its key and the rest, so
    that it tells its key and is never taken for JSON."""

    def ready(self, used: Sequence[bytes]) -> bytes:
        """Return the key to begin with, given those a store is sealed with already; raises
        `ConfigError` if one of them is missing."""
        ...

    def seal(self, plain: bytes, context: bytes, key: bytes) -> bytes:
        """Return a value that is opened in the same context only."""
        ...

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Return what was sealed; raises `StoreUnavailable`."""
        ...

    def trouble(self, used: Sequence[bytes]) -> str:
        """Say what would keep the next process from opening what these keys sealed; empty:
        nothing."""
        ...


class Store(Protocol):
    """Tasks and their logs."""

    @property
    def secret(self) -> bytes:
        """Seals what we hand out for callers to bring back; made once, lives with the data."""
        ...

    async def prepare(self) -> None:
        """Have `secret` at hand, however long that takes: nobody else waits for it."""
        ...

    # Our number among the workers of this store, while it is open.
    worker: int
    # Whether no other worker can write at present, so that what we know of it is all there is.
    is_alone: bool

    @property
    def lapses(self) -> int:
        """How often our lease had ended without our knowing; what we held may be another's."""
        ...

    async def open(self) -> None:
        """Make ready; raises `ConfigError` if the data cannot be used."""
        ...

    async def close(self) -> None:
        """Finish pending writes and let go."""
        ...

    async def broken(self) -> StoreBroken:
        """Return why, when the store failed to keep what it had taken, or is lost. It takes nothing
        more, and the server had better end."""
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

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last kept resting point."""
        ...

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show, by position, until a write forgets it."""
        ...

    async def page(self, query: Query) -> Found:
        """Return one page of tasks."""
        ...

    async def survey(self, survey: Survey) -> list[Head]:
        """Return tasks whoever they belong to."""
        ...

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have, however long it takes to
        find out: nobody else waits for it."""
        ...

    # Leases

    async def renew(self) -> None:
        """Prolong the lease on everything this worker holds, and find out who else lives."""
        ...

    def is_live(self, worker: int) -> bool:
        """Tell whether a worker's lease is valid."""
        ...

    async def claim(self, agent: str, limit: int) -> list[tuple[Head, int]]:
        """Take over tasks of an agent whose holder's lease has ended: those that do not rest, and
        those with a note. Return each as it is from here on, its fence raised, and who held it:
        negative if others did not rest there either, of whichever agent, whoever claims them."""
        ...

    async def notes(self, number: int) -> list[Note]:
        """Return what was left for the holder of a task, oldest first."""
        ...

    async def noted(self, agent: str) -> list[Head]:
        """Return the tasks of an agent that this worker holds and that have notes."""
        ...

    async def overdue(self, agent: str, now: int) -> list[Head]:
        """Return the tasks of an agent that should have ended by now and did not."""
        ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Have a function called whenever another worker may have written. Rings carry no content
        and may be late by a fraction of a second."""
        ...

    # Pushes

    async def put_push(
        self, number: int, config: PushConfig, after: int, *, most: int
    ) -> Push | None:
        """Keep a receiver for the events of a task after a position. One of the same id is
        replaced, and its successor goes on where it was. None: the task has so many already."""
        ...

    async def drop_push(self, number: int, config_id: str) -> None:
        """Forget a receiver, if there is one."""
        ...

    async def pushes(self, number: int) -> list[Push]:
        """Return a task's receivers in the order of their ids."""
        ...

    async def claim_pushes(self, limit: int) -> list[Push]:
        """Take over open receivers whose holder's lease has ended."""
        ...

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is, and what it never took. `StoreConflict`: it was dropped, or
        another worker has it."""
        ...

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return what receivers never took, latest first."""
        ...

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget terminal tasks older than a time, or beyond the newest `keep`; return how many.

        Keys outlive their tasks until that time, so that a late repetition starts nothing."""
        ...
