"""A task's log: what happened, what is durable, and what a reader at a position gets."""

import asyncio

import msgspec
import pytest
from harness.waiting import within
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.lifecycle import Draft, TaskIsFinished
from dragoman.engine.log import (
    MAX_DRAFT_BYTES,
    MAX_TAIL_BYTES,
    MAX_TAIL_EVENTS,
    Bell,
    LogIsFull,
    LogLimits,
    TaskLog,
)
from dragoman.engine.reading import read_task
from dragoman.engine.running.relaying import record_forwarded
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import InvalidAgentResponse, StoreConflict, StoreRefused
from dragoman.model.artifact import Artifact
from dragoman.model.clock import SystemClock
from dragoman.model.events import (
    ArtifactUpdate,
    AttemptStarted,
    Event,
    Forwarded,
    MessageAdded,
    StatusUpdate,
)
from dragoman.model.identity import ANONYMOUS, ContextId, MessageId, Scope, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.model.record import TaskReading, encode_event
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.shares import WIDE_EVENTS, Shares
from dragoman.stores.memory import MemoryStore
from tests.engine.engines import GatedStore

S = TaskState
HERE = Scope("agent", "", "alice")
ID, CONTEXT = TaskId("t"), ContextId("c")


def said(text: str) -> Message:
    return Message(MessageId(text), Role.USER, [Part(text=text)], CONTEXT, ID)


def first() -> Task:
    return Task(ID, CONTEXT, TaskStatus(S.SUBMITTED), history=[said("first")])


def status(state: TaskState) -> StatusUpdate:
    return StatusUpdate(ID, CONTEXT, TaskStatus(state))


def chunk(text: str, *, append: bool = True) -> ArtifactUpdate:
    return ArtifactUpdate(ID, CONTEXT, Artifact("a", [Part(text=text)]), append)


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


def begun(store: MemoryStore, limits: LogLimits | None = None) -> TaskLog:
    log = made(store, limits or LogLimits(1000, 10**9))
    log.emit(first(), at=1)
    return log


def made(store: MemoryStore, limits: LogLimits) -> TaskLog:
    shares = Shares()
    account = shares.account(HERE.principal)
    ids = HERE, ID, CONTEXT
    return TaskLog(store, Bell(), limits, *ids, shares, account, HERE.agent, (HERE, ID))


async def written(log: TaskLog) -> None:
    await within(log.durable(log.seq))


async def test_events_are_numbered_when_they_happen_and_shown_when_they_are_durable(
    store: GatedStore,
) -> None:
    store.shut()
    log = begun(store)
    assert [log.emit(chunk(str(n), append=n > 0)).seq for n in range(3)] == [2, 3, 4]
    await asyncio.sleep(0)
    assert (log.seq, log.durable_seq, log.recent(0), log.is_idle) == (4, 0, [], False)
    store.lift()
    await written(log)
    assert [recorded.seq for recorded in log.recent(0) or []] == [1, 2, 3, 4]
    assert log.is_idle
    assert [r.body for r in await store.read(log.number, after=0, limit=9)] == [
        r.body for r in log.recent(0) or []
    ]


async def test_what_happens_during_a_write_goes_with_the_next(store: GatedStore) -> None:
    log = begun(store)
    await written(log)
    store.shut()
    log.emit(chunk("1", append=False))
    await asyncio.sleep(0)
    log.emit(chunk("2"))
    log.emit(chunk("3"))
    store.lift()
    await written(log)
    assert log.durable_seq == 4
    assert len(await store.read(log.number, after=0, limit=9)) == 4


async def test_a_held_log_writes_nothing_until_it_is_released(store: GatedStore) -> None:
    log = made(store, LogLimits(100, 10**6))
    log.is_held = True
    log.emit(first(), at=1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert await store.head(HERE, ID) is None
    log.release()
    await written(log)
    assert await store.head(HERE, ID) is not None


async def test_an_event_that_may_not_happen_leaves_no_trace(store: GatedStore) -> None:
    log = begun(store)
    with pytest.raises(InvalidAgentResponse):
        log.emit(chunk("x"))
    log.emit(status(S.COMPLETED), at=2)
    with pytest.raises(TaskIsFinished):
        log.emit(status(S.FAILED))
    await written(log)
    assert (log.seq, len(await store.read(log.number, after=0, limit=9))) == (2, 2)


@pytest.mark.parametrize("limits", [LogLimits(5, 10**9), LogLimits(1000, 700)])
async def test_a_full_log_has_room_for_its_end(store: GatedStore, limits: LogLimits) -> None:
    log = begun(store, limits)
    log.emit(chunk("x", append=False))
    with pytest.raises(LogIsFull):
        for _ in range(10):
            log.emit(chunk("x"))
    before = log.seq
    assert before < 10
    log.emit(status(S.FAILED), at=2)
    await written(log)
    assert log.durable_seq == before + 1 <= limits.events


async def test_a_resting_point_is_waited_for(store: GatedStore) -> None:
    log = begun(store)
    resting = log.rest()
    await written(log)
    assert not resting.done()
    log.emit(status(S.INPUT_REQUIRED), at=2)
    reading = await within(resting)
    assert reading is not None
    assert (reading.seq, reading.task.status.state) == (2, S.INPUT_REQUIRED)
    kept = await store.snapshot(log.number)
    assert kept is not None and kept.body == reading.body


async def test_a_wait_ends_only_at_a_resting_point_that_has_its_event(store: GatedStore) -> None:
    log = begun(store)
    await written(log)
    store.shut()
    log.emit(status(S.INPUT_REQUIRED), at=2)
    await asyncio.sleep(0)
    answer = log.emit(MessageAdded(said("answer")))
    log.emit(status(S.WORKING), at=3)
    early, late = log.rest(), log.rest(answer.seq)
    store.lift()
    reading = await within(early)
    assert reading is not None and reading.seq == 2
    assert not late.done()
    log.emit(status(S.COMPLETED), at=4)
    reading = await within(late)
    assert reading is not None and reading.task.status.state is S.COMPLETED


async def test_a_snapshot_is_kept_only_where_the_task_rests(store: GatedStore) -> None:
    log = begun(store)
    log.emit(status(S.WORKING), at=2)
    await written(log)
    assert await store.snapshot(log.number) is None
    log.emit(status(S.COMPLETED), at=3)
    await written(log)
    assert await store.snapshot(log.number) is not None


async def test_a_key_goes_with_the_write_of_its_event(store: GatedStore) -> None:
    log = begun(store)
    log.use_key(b"one")
    await written(log)
    log.emit(MessageAdded(said("more")))
    log.use_key(b"two")
    assert await store.known(HERE, b"two") is None
    await written(log)
    for key in (b"one", b"two"):
        known = await store.known(HERE, key)
        assert known is not None and known.task_id == ID


async def test_a_log_that_lost_its_race_says_so_to_everyone(store: GatedStore) -> None:
    log = begun(store)
    await written(log)
    head = await store.head(HERE, ID)
    assert head is not None
    winner = TaskLog.resumed(store, Bell(), LogLimits(100, 10**6), head, await read(store))
    winner.take_over()
    winner.emit(AttemptStarted(2))
    await written(winner)
    assert (winner.fence, winner.durable_seq) == (2, 2)
    resting = log.rest()
    log.emit(status(S.COMPLETED), at=5)
    with pytest.raises(StoreConflict):
        await written(log)
    with pytest.raises(StoreConflict):
        await within(resting)
    with pytest.raises(StoreConflict):
        log.emit(status(S.FAILED))
    with pytest.raises(StoreConflict):
        await log.rest()
    after = await store.head(HERE, ID)
    assert after is not None and (after.standing.last_seq, after.fence) == (2, 2)
    winner.emit(status(S.CANCELED), at=6)
    await written(winner)


async def read(store: MemoryStore, upto: int | None = None) -> TaskReading:
    head = await store.head(HERE, ID)
    assert head is not None
    found = await read_task(store, head.number, upto=upto)
    assert found is not None
    return found


async def test_a_log_that_was_given_up_wakes_who_waits(store: GatedStore) -> None:
    log = begun(store)
    store.shut()
    waiting = asyncio.ensure_future(log.durable(1))
    resting = log.rest()
    await asyncio.sleep(0)
    log.fail(StoreRefused("the server is stopping"))
    with pytest.raises(StoreRefused):
        await within(waiting)
    with pytest.raises(StoreRefused):
        await within(resting)


async def test_a_worker_far_ahead_of_the_disk_is_asked_to_wait(store: GatedStore) -> None:
    store.shut()
    log = begun(store)
    log.emit(chunk("x", append=False))
    for _ in range(WIDE_EVENTS):
        log.emit(chunk("x"))
    assert log.is_full
    store.lift()
    await written(log)
    assert not log.is_full


@pytest.mark.parametrize("size", [10, 5_000])
async def test_a_log_keeps_little_at_hand_and_the_store_keeps_it_all(
    store: GatedStore, size: int
) -> None:
    log = begun(store)
    log.emit(chunk("x", append=False))
    for _ in range(400):
        log.emit(chunk("x" * size))
        await written(log)
    tail = log.recent(log.durable_seq - 1) or []
    assert [recorded.seq for recorded in tail] == [log.durable_seq]
    assert log.recent(log.durable_seq) == []
    assert log.recent(1) is None
    assert len(log._tail) <= MAX_TAIL_EVENTS
    assert sum(len(recorded.body) for recorded in log._tail) <= MAX_TAIL_BYTES
    assert len(await store.read(log.number, after=0, limit=1000)) == 402
    first_at_hand = log._tail[0].seq
    for after in range(first_at_hand - 1, log.durable_seq + 1):
        expected = list(range(after + 1, log.durable_seq + 1))
        assert [recorded.seq for recorded in log.recent(after) or []] == expected


async def test_a_large_task_is_only_in_the_store(store: GatedStore) -> None:
    log = begun(store)
    log.emit(chunk("x", append=False))
    while log._size <= MAX_DRAFT_BYTES:
        log.emit(chunk("x" * 20_000))
    assert log.draft is not None and log.draft.is_light
    resting = log.rest()
    log.emit(status(S.COMPLETED), at=2)
    assert await within(resting) is None
    assert await store.snapshot(log.number) is None
    reading = await read(store)
    assert len(reading.task.artifacts[0].parts) == log.seq - 2  # type: ignore[attr-defined]


async def test_only_an_event_that_nobody_saw_is_amended(store: GatedStore) -> None:
    log = begun(store)
    recorded = log.emit(chunk("x", append=False))
    final = ArtifactUpdate(ID, CONTEXT, Artifact("a", [Part(text="x")]), False, True)
    assert log.amend_last(recorded, final)
    await written(log)
    assert [r.event for r in log.recent(1) or []] == [final]
    last = log.emit(chunk("y"))
    log.emit(chunk("z"))
    assert not log.amend_last(last, final)
    await written(log)
    assert not log.amend_last(last, final)


async def test_what_is_amended_counts_by_its_own_size(store: GatedStore) -> None:
    log = begun(store)
    before = log._size - log._taken_bytes
    recorded = log.emit(chunk("x", append=False))
    longer = ArtifactUpdate(ID, CONTEXT, Artifact("a", [Part(text="x" * 100)]), False, True)
    assert log.amend_last(recorded, longer)
    assert log._size - log._taken_bytes - before == len(encode_event(longer))


async def test_what_an_agent_calls_a_task_is_never_amended_away(store: GatedStore) -> None:
    async def keep(message: Message) -> Message:
        return message

    async def run(worker: Worker) -> None:
        """Nothing."""

    store.shut()
    log = begun(store)
    operation = SendMessage(message=said("first"))
    worker = Worker(log, Replay([operation]), Plan(run), ANONYMOUS, SystemClock(), keep)
    place = Forwarded("agent", "http://agent")
    record_forwarded(worker, place)
    record_forwarded(
        worker, place := msgspec.structs.replace(place, task_id="theirs", is_delivered=True)
    )
    record_forwarded(worker, msgspec.structs.replace(place, task_id="", is_answered=True))
    store.lift()
    await written(log)
    found = [r.event for r in log.recent(0) or [] if isinstance(r.event, Forwarded)]
    assert [one.task_id for one in found] == ["theirs", ""], "the first was no news any more"


async def test_a_ring_wakes_everyone_who_listens_once() -> None:
    bell = Bell()
    here = [bell.listen(ID) for _ in range(3)]
    elsewhere = bell.listen(TaskId("u"))
    here[0].cancel()
    bell.ring(ID)
    assert [future.done() for future in here] == [True] * 3
    assert not elsewhere.done()
    later = bell.listen(ID)
    assert not later.done()
    bell.leave(ID, here[0])
    assert bell._waiting[ID] == {later}, "one that was woken has left already"
    bell.leave(ID, later)
    bell.leave(TaskId("u"), elsewhere)
    assert bell._waiting == {}


EVENTS = st.one_of(
    st.sampled_from([S.WORKING, S.INPUT_REQUIRED, S.AUTH_REQUIRED]).map(status),
    st.builds(chunk, st.text(max_size=3), append=st.booleans()),
    st.text(min_size=1, max_size=3).map(lambda text: MessageAdded(said(text))),
    st.integers(2, 4).map(AttemptStarted),
)


@given(st.lists(st.lists(EVENTS, max_size=5), max_size=8), st.booleans())
def test_a_task_read_at_any_position_is_the_fold_up_to_there(
    slices: list[list[Event]], ends: bool
) -> None:
    """Wherever snapshots were kept on the way."""

    async def scenario() -> None:
        store = MemoryStore()
        log = begun(store)
        happened: list[Event] = [first()]
        for events in [*slices, [status(S.COMPLETED)] if ends else []]:
            for event in events:
                try:
                    log.emit(event)
                except InvalidAgentResponse:
                    continue
                happened.append(event)
            await written(log)
        folded = Draft(first())
        for position, event in enumerate(happened, 1):
            if position > 1:
                folded.apply(event)
            reading = await read(store, position)
            assert reading.task == folded.task()  # type: ignore[attr-defined]
            assert reading.seq == position  # type: ignore[attr-defined]
        reading = await read(store)
        assert reading.task == folded.task()  # type: ignore[attr-defined]

    asyncio.run(scenario())
