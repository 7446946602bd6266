"""What the suites write and read: tasks, events and rows of one shape, made in a line."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dragoman.errors import StoreConflict
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, Scope, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import (
    Append,
    Create,
    DeadLetter,
    LeaveNote,
    Push,
    Query,
    Snapshot,
    Store,
    TaskPosition,
    TaskRow,
    Write,
)

# The longest any test waits for a store.
WITHIN = 20.0
HERE = Scope("agent", "", "alice")
ELSEWHERE = [
    Scope("agent", "", "bob"),
    Scope("agent", "tenant", "alice"),
    Scope("other", "", "alice"),
]
# Later than any key a test makes: pruning up to here forgets all it may.
END_OF_TIME = 1 << 50


class WriteOutcome(NamedTuple):
    """What a store said to one write."""

    error: Exception | None
    number: int

    @property
    def is_refused(self) -> bool:
        """Whether the write lost to another."""
        return isinstance(self.error, StoreConflict)


async def submit(store: Store, *writes: Write) -> list[WriteOutcome]:
    """Hand writes over at the same moment and wait until each is durable or refused."""
    waiting: list[asyncio.Future[WriteOutcome]] = []
    for write in writes:
        future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        store.submit(write, _teller(future))
    return await asyncio.wait_for(asyncio.gather(*waiting), WITHIN)


def _teller(future: asyncio.Future[WriteOutcome]) -> Callable[[Exception | None, int], None]:
    def done(error: Exception | None, number: int) -> None:
        # Telling twice would raise here, and no test would pass.
        future.set_result(WriteOutcome(error, number))

    return done


async def write(store: Store, one: Write) -> int:
    """Make one write that succeeds; return the task's number."""
    (outcome,) = await submit(store, one)
    assert outcome.error is None, outcome.error
    return outcome.number


def status(task_id: str, state: TaskState, at: int = 1000) -> StatusUpdate:
    """Return a status event at a time in milliseconds."""
    return StatusUpdate(TaskId(task_id), ContextId("c"), TaskStatus(state, None, stamp(at * 1000)))


def chunk(task_id: str, text: str, *, append: bool = True) -> ArtifactUpdate:
    """Return one chunk of the artifact `a`."""
    artifact = Artifact("a", [Part(text=text)])
    return ArtifactUpdate(TaskId(task_id), ContextId("c"), artifact, append)


def opening(task_id: str, context: str = "c") -> Task:
    """Return the first event of a log."""
    said = Message(MessageId("m"), Role.USER, [Part(text="hello")])
    submitted = TaskStatus(TaskState.SUBMITTED, None, stamp(0))
    return Task(TaskId(task_id), ContextId(context), submitted, history=[said])


def numbered(events: Iterable[Event], first: int = 1) -> list[Recorded]:
    """Return events at consecutive places of a log."""
    return [Recorded.of_event(seq, event) for seq, event in enumerate(events, first)]


def creation(
    task_id: str,
    *more: Event,
    scope: Scope = HERE,
    context: str = "c",
    state: TaskState = TaskState.SUBMITTED,
    at: int = 1000,
    keys: Sequence[bytes] = (),
    snapshot: Snapshot | None = None,
    pushes: Sequence[PushConfig] = (),
    deadline: int = 0,
) -> Create:
    """Return a task's first write."""
    events = numbered([opening(task_id, context), *more])
    standing = TaskPosition(state, at, len(events))
    return Create(
        scope=scope,
        task_id=TaskId(task_id),
        context_id=ContextId(context),
        keys=list(keys),
        events=events,
        standing=standing,
        snapshot=snapshot,
        pushes=pushes,
        deadline=deadline,
    )


def addition(
    head: TaskRow,
    *events: Event,
    state: TaskState | None = None,
    at: int | None = None,
    keys: Sequence[bytes] = (),
    fence: int | None = None,
    next_fence: int | None = None,
    snapshot: Snapshot | None = None,
    notes: Sequence[int] = (),
) -> Append:
    """Return a write that goes on where the head stands."""
    before = head.standing
    after = TaskPosition(
        before.state if state is None else state,
        before.status_at if at is None else at,
        before.last_seq + len(events),
    )
    held = head.fence if fence is None else fence
    return Append(
        number=head.number,
        scope=head.scope,
        before=before,
        fence=held,
        next_fence=held if next_fence is None else next_fence,
        keys=list(keys),
        events=numbered(events, before.last_seq + 1),
        standing=after,
        snapshot=snapshot,
        notes=notes,
    )


def note(head: TaskRow, body: bytes, *keys: bytes) -> LeaveNote:
    """Return something for the holder of a task."""
    return LeaveNote(head.scope, head.number, list(keys), body)


def receiver(id: str, task_id: str = "t") -> PushConfig:
    """Return a receiver of a task's events with all that can be said of one."""
    secret = PushAuthentication("Bearer", "s3cret")
    return PushConfig(f"https://example.com/{id}", id, TaskId(task_id), "token", secret, "0.3")


def letter(push: Push, seq: int, at: int, problem: str = "500") -> DeadLetter:
    """Return an event that a receiver never took."""
    config = push.config
    return DeadLetter(push.number, config.task_id, config.id, config.url, seq, 10, at, problem)


def snapshot_of(task: Task, seq: int) -> Snapshot:
    """Return the snapshot of a task."""
    bare = Task(task.id, task.context_id, task.status, history=task.history)
    return Snapshot(seq, encode(bare), encode(task.artifacts))


async def head_of(store: Store, task_id: str, scope: Scope = HERE) -> TaskRow:
    """Return the row of a task that exists."""
    head = await store.head(scope, TaskId(task_id))
    assert head is not None, f"{task_id} is not there"
    return head


async def log_of(store: Store, head: TaskRow) -> list[Recorded]:
    """Return a whole log."""
    return await store.read(head.number, after=0, limit=1_000_000)


async def walk(store: Store, query: Query) -> list[TaskRow]:
    """Return all pages of a query; each must give the same total."""
    found: list[TaskRow] = []
    after: tuple[int, int] | None = None
    totals: set[int] = set()
    while True:
        page = await store.page(
            Query(
                query.scope, query.limit, query.context_id, query.state, query.status_since, after
            )
        )
        totals.add(page.total)
        found += page.heads
        assert len(page.heads) <= query.limit
        if len(page.heads) < query.limit:
            assert totals == {len(found)}
            return found
        after = place_of(page.heads[-1])


def place_of(head: TaskRow) -> tuple[int, int]:
    """Return where a task stands in the order of pages."""
    return head.standing.status_at, head.number
