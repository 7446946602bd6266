"""What every store promises, as a class of tests.

Subclass `StorePromises` under a name that starts with `Test`, give it a fixture `store` that yields
an open, empty store, and say in `successor` how another worker comes to the same data. The tests
are plain coroutines, for a runner such as anyio's plugin.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import StoreConflict
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import Caller, ContextId, MessageId, Scope, TaskId
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Part, Role
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.model.record import Recorded, decode_task, encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import (
    Append,
    Create,
    DeadLetter,
    Head,
    KeepReply,
    Known,
    LeaveNote,
    Push,
    Query,
    Snapshot,
    Standing,
    Store,
    Survey,
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


class Outcome(NamedTuple):
    """What a store said to one write."""

    error: Exception | None
    number: int

    @property
    def is_refused(self) -> bool:
        """Whether the write lost to another."""
        return isinstance(self.error, StoreConflict)


async def submit(store: Store, *writes: Write) -> list[Outcome]:
    """Hand writes over at the same moment and wait until each is durable or refused."""
    waiting: list[asyncio.Future[Outcome]] = []
    for write in writes:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        store.submit(write, _teller(future))
    return await asyncio.wait_for(asyncio.gather(*waiting), WITHIN)


def _teller(future: asyncio.Future[Outcome]) -> Callable[[Exception | None, int], None]:
    def done(error: Exception | None, number: int) -> None:
        # Telling twice would raise here, and no test would pass.
        future.set_result(Outcome(error, number))

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
    return [Recorded(seq, event) for seq, event in enumerate(events, first)]


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
    standing = Standing(state, at, len(events))
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
    head: Head,
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
    after = Standing(
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


def note(head: Head, body: bytes, *keys: bytes) -> LeaveNote:
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


def kept(task: Task, seq: int) -> Snapshot:
    """Return the snapshot of a task."""
    bare = Task(task.id, task.context_id, task.status, history=task.history)
    return Snapshot(seq, encode(bare), encode(task.artifacts))


async def head_of(store: Store, task_id: str, scope: Scope = HERE) -> Head:
    """Return the row of a task that exists."""
    head = await store.head(scope, TaskId(task_id))
    assert head is not None, f"{task_id} is not there"
    return head


async def log_of(store: Store, head: Head) -> list[Recorded]:
    """Return a whole log."""
    return await store.read(head.number, after=0, limit=1_000_000)


async def walk(store: Store, query: Query) -> list[Head]:
    """Return all pages of a query; each must give the same total."""
    found: list[Head] = []
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


def place_of(head: Head) -> tuple[int, int]:
    """Return where a task stands in the order of pages."""
    return head.standing.status_at, head.number


class StorePromises:
    """Every promise of `stores.interface.Store`."""

    async def successor(self, store: Store) -> Store:
        """Return another open worker on the same data, for which the first one's lease has ended
        although it let nothing go. It may be the same object, under another number."""
        raise NotImplementedError

    # Writes

    async def test_what_was_created_can_be_read(self, store: Store) -> None:
        """A created task has its row, its log and its key."""
        working = status("t", TaskState.WORKING)
        first = creation("t", working, state=TaskState.WORKING, at=1234, keys=[b"key"])
        number = await write(store, first)
        head = await head_of(store, "t")
        assert head == Head(
            number,
            TaskId("t"),
            ContextId("c"),
            HERE,
            Standing(TaskState.WORKING, 1234, 2),
            fence=1,
            holder=store.worker,
        )
        assert [recorded.event for recorded in await log_of(store, head)] == [
            opening("t"),
            working,
        ]
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        assert await store.snapshot(number) is None

    async def test_positions_have_no_gaps_over_many_appends(self, store: Store) -> None:
        """Appends of any size continue the log where it ended."""
        await write(store, creation("t"))
        for size in (1, 3, 70, 1, 200):
            head = await head_of(store, "t")
            chunks = [chunk("t", f"{size}.{n}") for n in range(size)]
            assert await write(store, addition(head, *chunks)) == head.number
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.seq for recorded in log] == list(range(1, 277))

    async def test_bodies_come_back_byte_for_byte(self, store: Store) -> None:
        """What is read has the bytes that were written."""
        text = 'a "quoted" ütf-8 \N{GRINNING FACE} line\n\t\x7f'
        first = creation("t", chunk("t", text, append=False))
        await write(store, first)
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.body for recorded in log] == [recorded.body for recorded in first.events]

    async def test_an_append_is_refused_once_the_log_moved_on(self, store: Store) -> None:
        """Of two writers with one view of the log, the first wins and the second leaves nothing."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "first", append=False)))
        stale = addition(head, chunk("t", "second", append=False), keys=[b"stale"])
        (outcome,) = await submit(store, stale)
        assert outcome.is_refused
        log = await log_of(store, await head_of(store, "t"))
        assert [recorded.event for recorded in log[1:]] == [chunk("t", "first", append=False)]
        assert await store.known(HERE, b"stale") is None

    async def test_of_two_appends_at_the_same_moment_one_wins(self, store: Store) -> None:
        """The race is decided once, and the log holds the winner's events only."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        rivals = [
            addition(head, status("t", TaskState.COMPLETED), state=TaskState.COMPLETED),
            addition(head, status("t", TaskState.CANCELED), state=TaskState.CANCELED),
            addition(head, status("t", TaskState.FAILED), state=TaskState.FAILED),
        ]
        outcomes = await submit(store, *rivals)
        winners = [rival for rival, o in zip(rivals, outcomes, strict=True) if o.error is None]
        assert len(winners) == 1
        assert [outcome.is_refused for outcome in outcomes].count(True) == 2
        after = await head_of(store, "t")
        assert after.standing == winners[0].standing
        log = await log_of(store, after)
        assert [recorded.body for recorded in log[1:]] == [r.body for r in winners[0].events]
        found = await store.page(Query(HERE, 10, state=after.standing.state))
        assert found.total == 1

    async def test_a_raised_fence_shuts_the_old_writer_out(self, store: Store) -> None:
        """After a take-over nothing is accepted under the old fence, wherever the log ends."""
        await write(store, creation("t"))
        old = await head_of(store, "t")
        await write(store, addition(old, chunk("t", "new", append=False), next_fence=2))
        current = await head_of(store, "t")
        assert current.fence == 2
        (outcome,) = await submit(store, addition(current, chunk("t", "old"), fence=1))
        assert outcome.is_refused
        (outcome,) = await submit(store, addition(current, chunk("t", "future"), fence=3))
        assert outcome.is_refused
        await write(store, addition(current, chunk("t", "newer")))
        log = await log_of(store, await head_of(store, "t"))
        assert len(log) == 3

    async def test_an_append_to_no_task_is_refused(self, store: Store) -> None:
        """A number that was never given has no log."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        ghost = msgspec.structs.replace(head, number=head.number + 1000)
        (outcome,) = await submit(store, addition(ghost, chunk("t", "x", append=False)))
        assert outcome.is_refused
        assert await store.read(ghost.number, after=0, limit=10) == []

    async def test_an_id_that_exists_is_refused_and_nothing_of_the_write_is_there(
        self, store: Store
    ) -> None:
        """The first task of an id stays as it is."""
        await write(store, creation("t", keys=[b"one"]))
        twin = creation("t", chunk("t", "twin", append=False), context="other", keys=[b"two"])
        (outcome,) = await submit(store, twin)
        assert outcome.is_refused
        head = await head_of(store, "t")
        assert head.context_id == "c"
        assert len(await log_of(store, head)) == 1
        assert await store.known(HERE, b"two") is None
        assert (await store.page(Query(HERE, 10))).total == 1

    async def test_a_used_key_is_refused_and_nothing_of_the_write_is_there(
        self, store: Store
    ) -> None:
        """A key stands for one thing: the first."""
        await write(store, creation("t", keys=[b"key"]))
        for late in (creation("u", keys=[b"fresh", b"key"]), KeepReply(HERE, b"key", b"{}")):
            (outcome,) = await submit(store, late)
            assert outcome.is_refused
        head = await head_of(store, "t")
        (outcome,) = await submit(store, addition(head, chunk("t", "x"), keys=[b"new", b"key"]))
        assert outcome.is_refused
        assert await store.head(HERE, TaskId("u")) is None
        assert await store.known(HERE, b"fresh") is None
        assert await store.known(HERE, b"new") is None
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        assert (await head_of(store, "t")) == head
        assert (await store.page(Query(HERE, 10))).total == 1

    async def test_an_append_may_bring_keys(self, store: Store) -> None:
        """A further message's key leads to the task it was given to."""
        await write(store, creation("t", keys=[b"one"]))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "x", append=False), keys=[b"two", b"three"]))
        for key in (b"one", b"two", b"three"):
            assert await store.known(HERE, key) == Known(task_id=TaskId("t"))

    async def test_a_reply_is_kept_under_its_key(self, store: Store) -> None:
        """An answer without a task comes back as it was, and makes no task."""
        await write(store, KeepReply(HERE, b"key", b'{"said":"hi"}'))
        assert await store.known(HERE, b"key") == Known(reply=b'{"said":"hi"}')
        assert (await store.page(Query(HERE, 10))).total == 0

    async def test_a_refused_write_harms_no_other_of_its_group(self, store: Store) -> None:
        """Writes of one moment share a fate only with themselves, also in scopes never seen."""
        await write(store, creation("there", keys=[b"used"]))
        there = await head_of(store, "there")
        await write(store, addition(there, chunk("there", "x", append=False)))
        strangers = ELSEWHERE[:2]
        group = [
            creation("a"),
            creation("a1", scope=strangers[0], keys=[b"used"]),
            creation("a2", scope=strangers[0], keys=[b"own"]),
            creation("there", keys=[b"k1"]),
            addition(there, chunk("there", "late")),
            KeepReply(HERE, b"used", b"{}"),
            KeepReply(HERE, b"reply", b"{}"),
            creation("b", keys=[b"k2"]),
            creation("b1", scope=strangers[1]),
        ]
        outcomes = await submit(store, *group)
        assert [outcome.is_refused for outcome in outcomes] == [
            *(False, False, False, True, True, True, False, False, False),
        ]
        assert all(outcome.error is None or outcome.is_refused for outcome in outcomes)
        # A scope made later must not find itself in the room of one made in that group.
        await write(store, creation("c1", scope=ELSEWHERE[2]))
        expected = {
            HERE: {"there", "a", "b"},
            strangers[0]: {"a1", "a2"},
            strangers[1]: {"b1"},
            ELSEWHERE[2]: {"c1"},
        }
        for scope, ids in expected.items():
            found = await store.page(Query(scope, 10))
            assert {head.task_id for head in found.heads} == ids
            assert found.total == len(ids)
            for task_id in ids:
                head = await head_of(store, task_id, scope)
                assert head.scope == scope
                assert len(await log_of(store, head)) == head.standing.last_seq
        assert await store.known(strangers[0], b"own") == Known(task_id=TaskId("a2"))
        assert await store.known(HERE, b"k1") is None
        assert len({outcome.number for outcome in outcomes if outcome.number}) == 5

    async def test_many_writers_at_once_each_get_their_own_log(self, store: Store) -> None:
        """A group of many tasks mixes nothing."""
        ids = [f"t{n}" for n in range(150)]
        created = await submit(store, *(creation(i, chunk(i, i, append=False)) for i in ids))
        assert len({outcome.number for outcome in created}) == len(ids)
        heads = [await head_of(store, task_id) for task_id in ids]
        assert [head.number for head in heads] == [outcome.number for outcome in created]
        more = [addition(head, chunk(head.task_id, "more")) for head in heads]
        assert all(outcome.error is None for outcome in await submit(store, *more))
        for task_id in ids:
            log = await log_of(store, await head_of(store, task_id))
            assert [recorded.event for recorded in log] == [
                opening(task_id),
                chunk(task_id, task_id, append=False),
                chunk(task_id, "more"),
            ]

    # Scopes

    async def test_a_foreign_scope_finds_nothing(self, store: Store) -> None:
        """Neither the task, nor its key, nor its place in a list."""
        await write(store, creation("t", keys=[b"key"]))
        for scope in ELSEWHERE:
            assert await store.head(scope, TaskId("t")) is None
            assert await store.known(scope, b"key") is None
            found = await store.page(Query(scope, 10))
            assert (found.heads, found.total) == ([], 0)

    async def test_ids_and_keys_are_free_in_every_scope(self, store: Store) -> None:
        """The same id and key may exist once per scope, each with its own log."""
        scopes = [HERE, *ELSEWHERE]
        for scope in scopes:
            own = chunk("t", scope.agent + scope.tenant + scope.owner, append=False)
            await write(store, creation("t", own, scope=scope, keys=[b"key"]))
        seen: set[bytes] = set()
        for scope in scopes:
            head = await head_of(store, "t", scope)
            assert head.scope == scope
            seen.add((await log_of(store, head))[1].body)
            assert (await store.page(Query(scope, 10))).total == 1
        assert len(seen) == len(scopes)

    # Reads

    async def test_what_a_principal_stores_is_counted_over_its_agents(self, store: Store) -> None:
        """What others store, of whichever tenant, is not counted."""
        assert await store.stored(HERE.principal) == 0
        await write(store, creation("t"))
        one = await store.stored(HERE.principal)
        assert one >= len(encode(opening("t")))
        await write(store, addition(await head_of(store, "t"), chunk("t", "x" * 1000)))
        both = await store.stored(HERE.principal)
        assert both > one + 1000
        for scope in ELSEWHERE:
            await write(store, creation("t", scope=scope))
        # The task of the other agent is the same principal's.
        assert await store.stored(HERE.principal) == both + one
        for scope in ELSEWHERE[:2]:
            assert await store.stored(scope.principal) == one
        # In whichever tenant one wrote whose credential is for none.
        free = Caller("free", authenticated=True)
        for count, tenant in enumerate(("", "acme", "globex"), 1):
            await write(store, creation("t", scope=Scope.of("agent", tenant, free)))
            assert await store.stored(free.principal) == one * count

    async def test_a_log_is_read_from_any_position_in_any_portion(self, store: Store) -> None:
        """`after` and `limit` cut the log exactly."""
        chunks = [chunk("t", str(n)) for n in range(30)]
        await write(store, creation("t", *chunks))
        number = (await head_of(store, "t")).number
        for after in (0, 1, 15, 30, 31, 32, 5000):
            for limit in (1, 7, 100):
                read = await store.read(number, after=after, limit=limit)
                expected = list(range(after + 1, 32))[:limit]
                assert [recorded.seq for recorded in read] == expected

    async def test_a_log_is_read_without_its_chunks(self, store: Store) -> None:
        """`artifacts=False` leaves out chunks, keeps positions, and counts what it returns."""
        events: list[Event] = []
        for n in range(10):
            events += [chunk("t", str(n)), status("t", TaskState.WORKING)]
        await write(store, creation("t", *events))
        number = (await head_of(store, "t")).number
        read = await store.read(number, after=0, limit=100, artifacts=False)
        assert [recorded.seq for recorded in read] == list(range(1, 22, 2))
        read = await store.read(number, after=3, limit=2, artifacts=False)
        assert [recorded.seq for recorded in read] == [5, 7]

    async def test_the_logs_of_neighbours_do_not_touch(self, store: Store) -> None:
        """Reading past the end of one log never reaches the next."""
        await submit(store, creation("a"), creation("b"), creation("c"))
        for task_id in "abc":
            head = await head_of(store, task_id)
            assert [r.event for r in await log_of(store, head)] == [opening(task_id)]
            assert await store.read(head.number, after=10**6, limit=10) == []

    async def test_a_snapshot_is_whole_or_without_artifacts(self, store: Store) -> None:
        """The last one kept is returned, at its position."""
        artifact = Artifact("a", [Part(text="x"), Part(data={"n": 1})], name="result")
        asked = TaskStatus(TaskState.INPUT_REQUIRED, None, stamp(0))
        task = Task(
            TaskId("t"),
            ContextId("c"),
            asked,
            artifacts=[artifact],
            history=opening("t").history,
        )
        await write(
            store, creation("t", state=TaskState.INPUT_REQUIRED, snapshot=kept(opening("t"), 1))
        )
        head = await head_of(store, "t")
        bare = await store.snapshot(head.number)
        assert bare is not None and (bare.seq, bare.task) == (1, opening("t"))
        await write(store, addition(head, chunk("t", "x"), snapshot=kept(task, 2)))
        whole = await store.snapshot(head.number)
        assert whole is not None and (whole.seq, decode_task(whole.body)) == (2, task)
        light = await store.snapshot(head.number, artifacts=False)
        assert light is not None and light.seq == 2
        assert decode_task(light.body) == Task(task.id, task.context_id, asked, [], task.history)

    async def test_a_write_without_a_snapshot_keeps_the_last_one(self, store: Store) -> None:
        """A task that goes on does not lose its resting point."""
        await write(store, creation("t", snapshot=kept(opening("t"), 1)))
        head = await head_of(store, "t")
        await write(store, addition(head, chunk("t", "x", append=False)))
        reading = await store.snapshot(head.number)
        assert reading is not None and reading.seq == 1

    async def test_a_task_at_rest_is_read_with_its_row(self, store: Store) -> None:
        """Only while its log ends where the snapshot was kept, and only in its scope."""
        assert await store.at_rest(HERE, TaskId("t")) is None
        await write(store, creation("t", snapshot=kept(opening("t"), 1)))
        head = await head_of(store, "t")
        found = await store.at_rest(HERE, TaskId("t"))
        assert found is not None and found[1] is not None
        assert (found[0], found[1].seq, found[1].task) == (head, 1, opening("t"))
        for scope in ELSEWHERE:
            assert await store.at_rest(scope, TaskId("t")) is None
        await write(store, addition(head, chunk("t", "x", append=False)))
        head = await head_of(store, "t")
        assert await store.at_rest(HERE, TaskId("t")) == (head, None)
        await write(store, creation("u"))
        assert await store.at_rest(HERE, TaskId("u")) == (await head_of(store, "u"), None)

    async def test_a_key_is_known_once_its_write_is(self, store: Store) -> None:
        """Whoever asks after `done` is told, however many keys there are."""
        keys = [f"{n}".encode().rjust(16, b"k") for n in range(300)]
        for first in range(0, 300, 50):
            several = keys[first : first + 50]
            await submit(store, *(creation(key.decode(), keys=[key]) for key in several))
            for key in several:
                assert await store.known(HERE, key) == Known(task_id=TaskId(key.decode()))
        assert await store.known(HERE, b"never used".rjust(16)) is None

    async def test_there_is_a_secret(self, store: Store) -> None:
        """Long enough to seal with."""
        assert len(store.secret) >= 16

    # Pages

    async def test_pages_have_the_latest_status_first(self, store: Store) -> None:
        """By status time, then by number, both descending."""
        for task_id, at in (("a", 5), ("b", 9), ("c", 5), ("d", 7), ("e", 5)):
            await write(store, creation(task_id, at=at))
        found = await store.page(Query(HERE, 10))
        assert [head.task_id for head in found.heads] == ["b", "d", "e", "c", "a"]
        mover = await head_of(store, "a")
        await write(store, addition(mover, status("a", TaskState.WORKING), at=8))
        found = await store.page(Query(HERE, 10))
        assert [head.task_id for head in found.heads] == ["b", "a", "d", "e", "c"]

    async def test_a_survey_sees_the_tasks_of_all_owners(self, store: Store) -> None:
        """Latest made first, narrowed by whatever is asked for, page by page."""
        rooms = [HERE, Scope(HERE.agent, "acme", "anna"), Scope("other", "acme", "bert")]
        for number in range(9):
            state = TaskState.COMPLETED if number % 2 else TaskState.WORKING
            await write(store, creation(f"t{number}", scope=rooms[number % 3], state=state))

        async def ids(**asked: Any) -> list[str]:
            return [head.task_id for head in await store.survey(Survey(limit=100, **asked))]

        assert await ids() == [f"t{number}" for number in reversed(range(9))]
        assert await ids(agent="other") == ["t8", "t5", "t2"]
        assert await ids(tenant="acme") == ["t8", "t7", "t5", "t4", "t2", "t1"]
        assert await ids(tenant="acme", owner="anna") == ["t7", "t4", "t1"]
        assert await ids(tenant="acme", state=TaskState.COMPLETED) == ["t7", "t5", "t1"]
        assert await ids(task_id=TaskId("t4")) == ["t4"]
        assert await ids(task_id=TaskId("t4"), tenant="none") == []
        first = await store.survey(Survey(limit=4))
        rest = await store.survey(Survey(limit=100, before=first[-1].number))
        assert [head.task_id for head in [*first, *rest]] == await ids()

    async def test_every_combination_of_filters_gives_its_tasks_and_their_total(
        self, store: Store
    ) -> None:
        """Filters, page sizes and cursors agree with a plain filter over all tasks."""
        await _fill(store, 60)
        everything = [await head_of(store, f"t{n}") for n in range(60)]
        states = (None, TaskState.SUBMITTED, TaskState.COMPLETED, TaskState.REJECTED)
        times = (None, 0, 4, 5, 100)
        for context, state, since in itertools.product(("", "c0", "c1", "none"), states, times):
            expected = [
                head
                for head in everything
                if (not context or head.context_id == context)
                and (state is None or head.standing.state is state)
                and (since is None or head.standing.status_at >= since)
            ]
            expected.sort(key=place_of, reverse=True)
            for limit in (1, 7, 100):
                query = Query(HERE, limit, ContextId(context), state, since)
                assert await walk(store, query) == expected, query

    async def test_totals_follow_tasks_from_state_to_state(self, store: Store) -> None:
        """A total by state counts where tasks stand, not where they stood."""
        await submit(store, *(creation(f"t{n}") for n in range(5)))
        for n in range(3):
            head = await head_of(store, f"t{n}")
            await write(
                store,
                addition(head, status(head.task_id, TaskState.WORKING), state=TaskState.WORKING),
            )
        head = await head_of(store, "t0")
        done = status("t0", TaskState.COMPLETED)
        await write(store, addition(head, done, state=TaskState.COMPLETED))
        totals = {
            state: (await store.page(Query(HERE, 1, state=state))).total for state in TaskState
        }
        assert {state: n for state, n in totals.items() if n} == {
            TaskState.SUBMITTED: 2,
            TaskState.WORKING: 2,
            TaskState.COMPLETED: 1,
        }
        assert (await store.page(Query(HERE, 1))).total == 5

    async def test_no_task_shows_twice_in_a_walk_while_tasks_move(self, store: Store) -> None:
        """A cursor is a strict bound: what moves up is missed, what stays is seen once."""
        await submit(store, *(creation(f"t{n}", at=n) for n in range(20)))
        seen: list[str] = []
        after: tuple[int, int] | None = None
        moved: set[str] = set()
        for step in range(20):
            page = await store.page(Query(HERE, 3, after=after))
            if not page.heads:
                break
            seen += [head.task_id for head in page.heads]
            after = place_of(page.heads[-1])
            # One that was seen and one that was not go to the top, and a new one arrives.
            for mover in {seen[0], f"t{step}"}:
                head = await head_of(store, mover)
                working = status(mover, TaskState.WORKING)
                await write(store, addition(head, working, at=1000 + step))
                moved.add(mover)
            await write(store, creation(f"new{step}", at=2000 + step))
        assert len(seen) == len(set(seen))
        assert {f"t{n}" for n in range(20)} - set(seen) <= moved
        assert not any(task_id.startswith("new") for task_id in seen)

    # Leases

    async def test_a_task_is_held_by_who_wrote_it_last(self, store: Store) -> None:
        """A worker that goes on with a task of the dead holds it from then on."""
        await write(store, creation("t", state=TaskState.INPUT_REQUIRED))
        head = await head_of(store, "t")
        assert head.holder == store.worker
        assert store.is_live(store.worker)
        assert not store.is_live(0)
        later = await self.successor(store)
        assert later.worker != head.holder
        assert not later.is_live(head.holder)
        assert await head_of(later, "t") == head
        await write(later, addition(head, chunk("t", "x"), next_fence=head.fence + 1))
        head = await head_of(later, "t")
        assert (head.holder, head.fence) == (later.worker, 2)

    async def test_what_a_dead_worker_left_unfinished_is_claimed_under_a_higher_fence(
        self, store: Store
    ) -> None:
        """Only that: not what ended, not what waits for its caller, not what is another agent's."""
        for state in TaskState:
            await write(store, creation(state.value, state=state))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, creation("tenants", scope=ELSEWHERE[1]))
        left = store.worker
        later = await self.successor(store)
        claimed = await later.claim("agent", 100)
        ids = {TaskState.SUBMITTED.value, TaskState.WORKING.value, "tenants"}
        assert {head.task_id for head, _ in claimed} == ids
        assert {(head.fence, head.holder) for head, _ in claimed} == {(2, later.worker)}
        assert {held_by for _, held_by in claimed} == {-left}
        for head, _ in claimed:
            assert await later.head(head.scope, head.task_id) == head
        others = [await head_of(later, s.value) for s in TaskState if s.value not in ids]
        others.append(await head_of(later, "foreign", ELSEWHERE[2]))
        assert {(head.fence, head.holder) for head in others} == {(1, left)}

    async def test_a_dead_worker_with_one_task_under_way_is_told_from_one_with_several(
        self, store: Store
    ) -> None:
        """Whichever agents they are of, and in however many portions they are claimed."""
        await write(store, creation("first"))
        await write(store, creation("second"))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, creation("done", state=TaskState.COMPLETED))
        await write(store, creation("waits", state=TaskState.INPUT_REQUIRED))
        crowd = store.worker
        later = await self.successor(store)
        held_by = [await later.claim("agent", 1), await later.claim("agent", 1)]
        held_by.append(await later.claim(ELSEWHERE[2].agent, 1))
        assert [number for ((_, number),) in held_by] == [-crowd] * 3
        for task, scope in (("second", HERE), ("foreign", ELSEWHERE[2])):
            head = await head_of(later, task, scope)
            ended = status(task, TaskState.COMPLETED)
            await write(later, addition(head, ended, state=TaskState.COMPLETED))
        alone = later.worker
        last = await self.successor(later)
        ((_, number),) = await last.claim("agent", 10)
        assert number == alone

    async def test_a_task_is_claimed_once_and_never_from_the_living(self, store: Store) -> None:
        """At most one lease is valid, however often anyone asks."""
        await submit(store, *(creation(f"t{n}") for n in range(5)))
        await store.renew()
        assert await store.claim("agent", 100) == []
        later = await self.successor(store)
        portions = [await later.claim("agent", 2) for _ in range(4)]
        assert [len(portion) for portion in portions] == [2, 2, 1, 0]
        assert len({head.task_id for portion in portions for head, _ in portion}) == 5
        await later.renew()
        assert await later.claim("agent", 100) == []

    async def test_nothing_is_accepted_from_the_worker_of_before(self, store: Store) -> None:
        """Neither its events, nor their keys, nor that it dealt with a note."""
        await write(store, creation("t"))
        before = await head_of(store, "t")
        await write(store, note(before, b"{}"))
        (left,) = await store.notes(before.number)
        later = await self.successor(store)
        ((head, _),) = await later.claim("agent", 10)
        stale = addition(
            before,
            status("t", TaskState.COMPLETED),
            state=TaskState.COMPLETED,
            keys=[b"stale"],
            notes=[left.number],
        )
        for _ in range(2):
            (outcome,) = await submit(store, stale)
            assert outcome.is_refused
        assert await head_of(later, "t") == head
        assert await later.known(HERE, b"stale") is None
        assert await later.notes(head.number) == [left]
        assert len(await log_of(later, head)) == 1
        await write(later, addition(head, chunk("t", "x"), notes=[left.number]))
        assert await later.notes(head.number) == []

    async def test_what_was_let_go_in_good_order_is_nobodys(self, store: Store) -> None:
        """The next worker takes it and sees that nobody died on it."""
        await write(store, creation("t"))
        before = store.worker
        await store.close()
        await store.open()
        assert store.worker != before
        assert (await head_of(store, "t")).holder == 0
        ((head, held_by),) = await store.claim("agent", 10)
        assert (held_by, head.holder, head.fence) == (0, store.worker, 2)

    # Notes

    async def test_notes_wait_for_the_holder_in_order(self, store: Store) -> None:
        """Each until a write of the task deals with it."""
        for task_id in ("t", "u"):
            await write(store, creation(task_id, state=TaskState.WORKING))
        head, other = await head_of(store, "t"), await head_of(store, "u")
        for body in (b"one", b"two", b"three"):
            assert await write(store, note(head, body)) == head.number
        await write(store, note(other, b"theirs"))
        notes = await store.notes(head.number)
        assert [left.body for left in notes] == [b"one", b"two", b"three"]
        assert [left.number for left in notes] == sorted({left.number for left in notes})
        assert await head_of(store, "t") == head
        await write(store, addition(head, chunk("t", "x"), notes=[notes[0].number]))
        assert await store.notes(head.number) == notes[1:]
        assert [left.body for left in await store.notes(other.number)] == [b"theirs"]
        assert await store.notes(other.number + 1000) == []

    async def test_a_note_carries_its_keys(self, store: Store) -> None:
        """The same message is left once; what is refused leaves nothing."""
        await write(store, creation("t", keys=[b"first"]))
        head = await head_of(store, "t")
        await write(store, note(head, b"{}", b"key"))
        assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
        for keys in ([b"key"], [b"first"], [b"fresh", b"key"]):
            (outcome,) = await submit(store, note(head, b"again", *keys))
            assert outcome.is_refused
        assert await store.known(HERE, b"fresh") is None
        assert len(await store.notes(head.number)) == 1
        outcomes = await submit(store, *(note(head, b"{}", b"once") for _ in range(5)))
        assert [outcome.is_refused for outcome in outcomes].count(False) == 1
        assert len(await store.notes(head.number)) == 2

    async def test_nothing_is_left_for_a_task_that_ended_or_is_gone(self, store: Store) -> None:
        """Nobody would read it, and who left it would not know."""
        await write(store, creation("t"))
        head = await head_of(store, "t")
        for state in (state for state in TaskState if state.is_terminal):
            await write(store, creation(state.value, state=state))
            head = await head_of(store, state.value)
            (outcome,) = await submit(store, note(head, b"{}", b"late"))
            assert outcome.is_refused
            assert await store.notes(head.number) == []
        ghost = msgspec.structs.replace(head, number=head.number + 1000)
        (outcome,) = await submit(store, note(ghost, b"{}", b"late"))
        assert outcome.is_refused
        assert await store.known(HERE, b"late") is None

    async def test_a_worker_finds_the_notes_of_what_it_holds(self, store: Store) -> None:
        """Each task once; not those of others, of another agent, nor of tasks that ended."""
        for state in TaskState:
            if not state.is_terminal:
                await write(store, creation(state.value, state=state))
                for body in (b"one", b"two"):
                    await write(store, note(await head_of(store, state.value), body))
        await write(store, creation("quiet"))
        await write(store, creation("foreign", scope=ELSEWHERE[2]))
        await write(store, note(await head_of(store, "foreign", ELSEWHERE[2]), b"{}"))
        noted = [head.task_id for head in await store.noted("agent")]
        assert sorted(noted) == sorted(s.value for s in TaskState if not s.is_terminal)
        working = await head_of(store, TaskState.WORKING.value)
        done = status(working.task_id, TaskState.FAILED)
        await write(store, addition(working, done, state=TaskState.FAILED))
        assert working.task_id not in {head.task_id for head in await store.noted("agent")}
        later = await self.successor(store)
        assert await later.noted("agent") == []

    async def test_a_task_that_waits_is_claimed_when_something_was_left_for_it(
        self, store: Store
    ) -> None:
        """The dead will not read it."""
        waiting = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
        for state in waiting:
            await write(store, creation(state.value, state=state))
            await write(store, creation(f"quiet {state.value}", state=state))
            await write(store, note(await head_of(store, state.value), b"{}"))
        later = await self.successor(store)
        claimed = await later.claim("agent", 10)
        assert {head.task_id for head, _ in claimed} == {state.value for state in waiting}
        assert {head.fence for head, _ in claimed} == {2}
        assert len(await later.noted("agent")) == 2

    # Deadlines

    async def test_a_task_is_overdue_from_its_deadline_until_it_ends(self, store: Store) -> None:
        """Whatever it does, whoever holds it; a task without one never is."""
        await write(store, creation("early", deadline=1000))
        await write(store, creation("late", state=TaskState.INPUT_REQUIRED, deadline=2000))
        await write(store, creation("never"))
        await write(store, creation("ended", state=TaskState.FAILED, deadline=1000))
        await write(store, creation("foreign", scope=ELSEWHERE[2], deadline=1000))

        async def overdue(at: int, of: Store) -> list[str]:
            heads = await of.overdue("agent", at)
            assert heads == [await head_of(of, head.task_id) for head in heads]
            return sorted(head.task_id for head in heads)

        assert await overdue(999, store) == []
        assert await overdue(1000, store) == ["early"]
        assert await overdue(END_OF_TIME, store) == ["early", "late"]
        later = await self.successor(store)
        assert await overdue(2000, later) == ["early", "late"]
        head = await head_of(later, "early")
        failed = status("early", TaskState.FAILED)
        await write(later, addition(head, failed, state=TaskState.FAILED, next_fence=2))
        assert await overdue(END_OF_TIME, later) == ["late"]
        assert await overdue(END_OF_TIME, later) == ["late"]

    # What logs do not show

    async def test_what_is_withheld_is_kept_beside_the_log_until_a_write_forgets_it(
        self, store: Store
    ) -> None:
        """Each with its event or not at all, also for whoever takes the task over."""
        for task_id in ("t", "u"):
            await write(store, creation(task_id, state=TaskState.WORKING))
        head, other = await head_of(store, "t"), await head_of(store, "u")
        assert await store.withheld(head.number) == {}
        said = addition(head, chunk("t", "x", append=False), chunk("t", "y"))
        said = msgspec.structs.replace(said, withheld=[(2, b'{"a":1}'), (3, b"\x00any\xff")])
        await write(store, said)
        (outcome,) = await submit(store, msgspec.structs.replace(said, withheld=[(2, b"lost")]))
        assert outcome.is_refused
        await write(
            store,
            msgspec.structs.replace(
                addition(other, chunk("u", "z", append=False)), withheld=[(2, b"other")]
            ),
        )
        later = await self.successor(store)
        assert await later.withheld(head.number) == {2: b'{"a":1}', 3: b"\x00any\xff"}
        head = await head_of(later, "t")
        last = addition(head, status("t", TaskState.COMPLETED), state=TaskState.COMPLETED)
        last = msgspec.structs.replace(last, next_fence=head.fence + 1, forgets=True)
        await write(later, last)
        assert await later.withheld(head.number) == {}
        assert await later.withheld(other.number) == {2: b"other"}

    # Pushes

    async def test_receivers_are_kept_with_their_task(self, store: Store) -> None:
        """From its first write or later, in the order of their ids, with all that was said."""
        configs = [receiver("c"), receiver("a")]
        number = await write(store, creation("t", chunk("t", "x"), pushes=configs))
        added = await store.put_push(number, receiver("b"), 2, most=3)
        assert added is not None
        assert await store.put_push(number, receiver("d"), 2, most=3) is None
        assert added == Push(added.number, number, HERE, receiver("b"), cursor=2)
        kept_ones = await store.pushes(number)
        assert [push.config for push in kept_ones] == [receiver("a"), receiver("b"), receiver("c")]
        assert [push.cursor for push in kept_ones] == [0, 2, 0]
        assert len({push.number for push in kept_ones}) == 3
        other = await write(store, creation("u"))
        assert await store.pushes(other) == []
        await store.drop_push(number, "a")
        await store.drop_push(number, "unknown")
        assert [push.config.id for push in await store.pushes(number)] == ["b", "c"]

    async def test_a_receiver_of_the_same_id_goes_on_where_the_other_was(
        self, store: Store
    ) -> None:
        """Under a number of its own: what the first still has to say is void."""
        number = await write(store, creation("t", pushes=[receiver("a")]))
        (first,) = await store.pushes(number)
        first = msgspec.structs.replace(first, cursor=1, tries=4, problem="a 500")
        await store.settle(first, letter(first, 1, 5))
        moved = PushConfig("https://example.net/", "a", TaskId("t"))
        second = await store.put_push(number, moved, 9, most=1)
        assert second is not None and second.number > first.number
        assert await store.pushes(number) == [Push(second.number, number, HERE, moved, cursor=1)]
        assert [(dead.push, dead.seq) for dead in await store.dead_letters(10)] == [
            (second.number, 1)
        ]
        assert await _refuses_to_settle(store, first)
        await store.drop_push(number, "a")
        assert await store.dead_letters(10) == []
        assert await _refuses_to_settle(store, second)
        third = await store.put_push(number, moved, 1, most=1)
        assert third is not None and third.number > second.number and third.cursor == 1

    async def test_how_far_a_receiver_is_is_remembered(self, store: Store) -> None:
        """Every field, and for the next worker too."""
        number = await write(store, creation("t", pushes=[receiver("a"), receiver("b")]))
        push = (await store.pushes(number))[0]
        push = msgspec.structs.replace(
            push, cursor=7, tries=3, due_at=99, failing_since=11, problem="a 500"
        )
        await store.settle(push)
        assert (await store.pushes(number))[0] == push
        later = await self.successor(store)
        assert (await later.pushes(number))[0] == push
        claimed = {taken.number: taken for taken in await later.claim_pushes(10)}
        assert claimed[push.number] == push

    async def test_receivers_are_served_by_one_worker_at_a_time(self, store: Store) -> None:
        """The dead one's open receivers are claimed, once; who has them not may not settle."""
        number = await write(store, creation("t", pushes=[receiver(c) for c in "abcd"]))
        done = (await store.pushes(number))[0]
        await store.settle(msgspec.structs.replace(done, is_open=False))
        assert await store.claim_pushes(10) == []
        later = await self.successor(store)
        left = (await later.pushes(number))[1:]
        assert await _refuses_to_settle(later, left[0])
        portions = [await later.claim_pushes(2) for _ in range(3)]
        assert [len(portion) for portion in portions] == [2, 1, 0]
        assert {push.config.id for portion in portions for push in portion} == set("bcd")
        ahead = msgspec.structs.replace(left[0], cursor=5)
        await later.settle(ahead)
        if later is not store:
            assert await _refuses_to_settle(store, left[0], letter(left[0], 1, 5))
        assert (await later.pushes(number))[1] == ahead
        assert await later.dead_letters(10) == []

    async def test_receivers_let_go_in_good_order_are_claimed(self, store: Store) -> None:
        """By whoever comes next."""
        await write(store, creation("t", pushes=[receiver("a")]))
        await store.close()
        await store.open()
        assert len(await store.claim_pushes(10)) == 1

    async def test_what_receivers_never_took_is_listed_latest_first(self, store: Store) -> None:
        """One entry per event and receiver, until the receiver is forgotten."""
        number = await write(store, creation("t", pushes=[receiver("a"), receiver("b")]))
        first, second = await store.pushes(number)
        letters = [
            letter(first, 1, 30),
            letter(second, 1, 10),
            letter(first, 2, 20, "no answer"),
        ]
        for one in letters:
            await store.settle(first if one.push == first.number else second, one)
        expected = [letters[0], letters[2], letters[1]]
        assert await store.dead_letters(10) == expected
        assert await store.dead_letters(2) == expected[:2]
        again = letter(first, 2, 40, "refused")
        await store.settle(first, again)
        assert await store.dead_letters(10) == [again, letters[0], letters[1]]
        await store.drop_push(number, "a")
        assert await store.dead_letters(10) == [letters[1]]

    # Pruning

    async def test_what_belongs_to_a_forgotten_task_goes_with_it(self, store: Store) -> None:
        """Receivers, letters, notes and its deadline; its neighbours keep theirs."""
        numbers = [
            await write(store, creation(task_id, at=1, deadline=5, pushes=[receiver("a", task_id)]))
            for task_id in ("t", "u")
        ]
        for number in numbers:
            (push,) = await store.pushes(number)
            await store.settle(push, letter(push, 1, 1))
        for task_id in ("t", "u"):
            await write(store, note(await head_of(store, task_id), b"{}"))
        head = await head_of(store, "t")
        failed = status("t", TaskState.FAILED)
        await write(store, addition(head, failed, state=TaskState.FAILED, at=1))
        # Someone is still to be told of it.
        assert await store.prune(ended_before=2, keep=0) == 0
        (push,) = await store.pushes(head.number)
        await store.settle(msgspec.structs.replace(push, is_open=False))
        assert await store.prune(ended_before=2, keep=0) == 1
        assert await store.pushes(numbers[0]) == []
        assert await store.notes(numbers[0]) == []
        assert [one.task_id for one in await store.dead_letters(10)] == ["u"]
        assert [head.task_id for head in await store.overdue("agent", 9)] == ["u"]
        assert [head.task_id for head in await store.noted("agent")] == ["u"]
        assert len(await store.pushes(numbers[1])) == len(await store.notes(numbers[1])) == 1
        later = await self.successor(store)
        assert [push.task for push in await later.claim_pushes(10)] == [numbers[1]]

    async def test_old_finished_tasks_are_forgotten(self, store: Store) -> None:
        """By the time of their status: row, log, snapshot and place in lists."""
        for n in range(6):
            task_id = f"t{n}"
            await write(
                store,
                creation(
                    task_id,
                    state=TaskState.COMPLETED,
                    at=n,
                    snapshot=kept(opening(task_id), 1),
                ),
            )
        heads = [await head_of(store, f"t{n}") for n in range(6)]
        assert await store.prune(ended_before=4, keep=100) == 4
        for head in heads[:4]:
            assert await store.head(HERE, head.task_id) is None
            assert await store.read(head.number, after=0, limit=10) == []
            assert await store.snapshot(head.number) is None
        assert await walk(store, Query(HERE, 2)) == [heads[5], heads[4]]
        assert (await store.page(Query(HERE, 1, state=TaskState.COMPLETED))).total == 2
        assert await store.prune(ended_before=4, keep=100) == 0

    async def test_surplus_finished_tasks_are_forgotten(self, store: Store) -> None:
        """The newest stay, over all scopes together."""
        scopes = [HERE, *ELSEWHERE]
        for n in range(450):
            ended = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED)[n % 3]
            await write(store, creation(f"t{n}", scope=scopes[n % 4], state=ended, at=n))
        assert await store.prune(ended_before=0, keep=20) == 430
        left = [head for scope in scopes for head in await walk(store, Query(scope, 50))]
        assert sorted(head.standing.status_at for head in left) == list(range(430, 450))
        assert await store.prune(ended_before=0, keep=20) == 0

    async def test_active_tasks_are_never_forgotten(self, store: Store) -> None:
        """However old and however many: only terminal states end a task's right to be there."""
        for state in TaskState:
            await write(store, creation(state.value, state=state, at=1))
        assert await store.prune(ended_before=END_OF_TIME, keep=0) == 4
        left = {head.standing.state for head in await walk(store, Query(HERE, 3))}
        assert left == {state for state in TaskState if not state.is_terminal}

    async def test_a_key_outlives_its_task_until_the_cut_off(self, store: Store) -> None:
        """A late repetition finds that there was something; in the end keys go too."""
        await write(store, creation("t", state=TaskState.COMPLETED, at=1, keys=[b"task"]))
        await write(store, creation("u", at=1, keys=[b"active"]))
        await write(store, KeepReply(HERE, b"reply", b"{}"))
        assert await store.prune(ended_before=2, keep=0) == 1
        assert await store.known(HERE, b"task") == Known()
        (outcome,) = await submit(store, creation("v", keys=[b"task"]))
        assert outcome.is_refused
        assert await store.known(HERE, b"reply") == Known(reply=b"{}")
        await store.prune(ended_before=END_OF_TIME, keep=0)
        assert await store.known(HERE, b"task") is None
        assert await store.known(HERE, b"reply") is None
        assert await store.known(HERE, b"active") == Known(task_id=TaskId("u"))

    async def test_numbers_are_never_given_again(self, store: Store) -> None:
        """A cursor or a key may still name the number of a forgotten task."""
        numbers: list[int] = []
        for n in range(4):
            numbers.append(await write(store, creation(f"t{n}", state=TaskState.FAILED, at=1)))
            assert await store.prune(ended_before=END_OF_TIME, keep=0) == 1
        assert numbers == sorted(set(numbers))
        assert (await store.page(Query(HERE, 10))).total == 0

    async def test_writes_and_pruning_go_on_side_by_side(self, store: Store) -> None:
        """Whoever writes while tasks are forgotten is neither refused nor lost."""
        ended = [creation(f"old{n}", state=TaskState.FAILED, at=1) for n in range(500)]
        await submit(store, *ended)
        pruning = asyncio.ensure_future(store.prune(ended_before=2, keep=1000))
        outcomes: list[Outcome] = []
        for n in range(50):
            outcomes += await submit(store, creation(f"new{n}", at=5))
        assert await asyncio.wait_for(pruning, WITHIN) == 500
        assert all(outcome.error is None for outcome in outcomes)
        assert len(await walk(store, Query(HERE, 20))) == 50


async def _refuses_to_settle(store: Store, push: Push, letter: DeadLetter | None = None) -> bool:
    try:
        await store.settle(push, letter)
    except StoreConflict:
        return True
    return False


async def _fill(store: Store, count: int) -> None:
    """Create tasks in two contexts, three states and few enough times that many are equal."""
    states = (TaskState.SUBMITTED, TaskState.COMPLETED, TaskState.REJECTED)
    for n in range(count):
        scope = HERE
        await write(
            store,
            creation(f"t{n}", scope=scope, context=f"c{n % 2}", state=states[n % 3], at=n * 7 % 10),
        )
        # Neighbours that no query may see.
        await write(store, creation(f"t{n}", scope=ELSEWHERE[n % 3], context=f"c{n % 2}", at=n))
