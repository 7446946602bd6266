"""Streams of a task: all of it, from any position, for any number of readers."""

import asyncio
from typing import Any

import msgspec
import pytest
from harness.waiting import eventually, within

from dragoman.engine.gathered_reads import GatheredReads
from dragoman.errors import (
    StoreUnavailable,
    UnsupportedOperation,
)
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState
from dragoman.stores.interface import READ_BYTES
from dragoman.stores.memory import MemoryStore
from dragoman.testing.promises.samples import creation, write
from tests.engine.engines import House, message, state, texts
from tests.engine.stage import Stage, fold

S = TaskState


def bare(task: Task) -> Task:
    return msgspec.structs.replace(task, history=[])


async def tell_story(house: House) -> Task:
    task = await house.send("tell", skill="story")
    task = await house.send("more", task=task.id, skill="story")
    return await house.send("end", task=task.id, skill="story")


@pytest.mark.requirement("T-8", "T-10", "T-15")
async def test_a_stream_is_the_task_and_then_its_events_without_a_gap(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = await house.stream("300", skill="chunks").rest()
    assert stream.opening is not None and stream.opened_at == 1
    assert state(stream.opening) is S.SUBMITTED
    assert stream.seqs == list(range(2, 2 + len(stream.seqs)))
    chunks = [event for event in stream.events if isinstance(event, ArtifactUpdate)]
    assert "".join(str(chunk.artifact.parts[0].text) for chunk in chunks) == "".join(
        f"{n} " for n in range(300)
    )
    assert [chunk.append for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [chunk.last_chunk for chunk in chunks].count(True) == 1 and chunks[-1].last_chunk
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 1
    last = stream.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert fold(stream) == await house.get(stream.opening.id)


@pytest.mark.requirement("T-12", "T-18", "T-17")
async def test_resuming_at_any_position_gives_exactly_the_rest(house: House, stage: Stage) -> None:
    """The first Task is the state as of the position, or chunks would be applied twice."""
    await house.start(stage.agent)
    task = await tell_story(house)
    assert state(task) is S.COMPLETED
    whole = await house.subscribe(task.id, 1).rest()
    head = await house.store.head(house.scope, task.id)
    assert head is not None
    last = head.standing.last_seq
    assert whole.seqs[-1] == last > 40
    for position in range(last + 1):
        stream = await house.subscribe(task.id, position).rest()
        assert stream.opened_at == max(position, 1)
        assert stream.seqs == [seq for seq in whole.seqs if seq > position]
        assert bare(fold(stream)) == bare(task)
    await house.restart()
    for position in (1, last // 2, last):
        stream = await house.subscribe(task.id, position).rest()
        assert bare(fold(stream)) == bare(task)


@pytest.mark.requirement("T-11", "T-12")
async def test_two_subscribers_see_the_same_from_where_they_began(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="held", wait=False)
    early = house.subscribe(task.id)
    assert await early.step()
    for n in range(10):
        await house.send(f"{n}", task=task.id, skill="chunks", wait=False)
    late = house.subscribe(task.id)
    assert await late.step()
    reading = [asyncio.ensure_future(stream.rest()) for stream in (early, late)]
    stage.go_on.set()
    await within(asyncio.gather(*reading))
    assert set(early.seqs) >= set(late.seqs)
    shared = [recorded.body for recorded in early.recorded if recorded.seq > late.opened_at]
    assert [recorded.body for recorded in late.recorded] == shared
    assert early.seqs == sorted(set(early.seqs))
    done = await house.get(task.id)
    assert bare(fold(early)) == bare(fold(late)) == bare(done)


@pytest.mark.requirement("T-11", "T-16")
async def test_a_reader_that_leaves_harms_nobody(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    leaving, staying = house.stream(message("hi", skill="held")), None
    assert await leaving.step() and leaving.opening is not None
    staying = house.subscribe(leaving.opening.id)
    await staying.step()
    reading = asyncio.ensure_future(leaving.step())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await leaving.close()
    stage.go_on.set()
    await staying.rest()
    assert state(fold(staying)) is S.COMPLETED


@pytest.mark.requirement("T-11", "T-15")
async def test_a_reader_that_lags_far_behind_misses_nothing(house: House, stage: Stage) -> None:
    await house.start(stage.agent)
    slow = house.stream("3000", skill="chunks")
    assert await slow.step() and slow.opening is not None
    done = await house.reaches(slow.opening.id, S.COMPLETED)
    await slow.rest()
    assert slow.seqs == list(range(2, 2 + len(slow.seqs)))
    assert fold(slow) == done


@pytest.mark.requirement("T-13")
async def test_a_task_that_ended_is_followed_only_from_a_position(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="echo")
    for position in (None, 5, 99, -1, 1 << 60):
        with pytest.raises(UnsupportedOperation):
            await house.subscribe(task.id, position).rest()
    assert (await house.subscribe(task.id, 2).rest()).seqs == [3, 4]
    at_the_end = await house.subscribe(task.id, 4).rest()
    assert (at_the_end.opening, at_the_end.recorded) == (task, [])


@pytest.mark.requirement("T-12")
@pytest.mark.parametrize("position", [99, -1, 1 << 60, None])
async def test_a_position_the_log_never_had_is_as_good_as_none(
    house: House, stage: Stage, position: int | None
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    stream = house.subscribe(task.id, position)
    assert await stream.step()
    assert (stream.opening, stream.opened_at) == (task, 4)
    await stream.close()


@pytest.mark.requirement("T-9")
async def test_a_stream_of_a_further_message_begins_with_the_task_that_has_it(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    task = await house.send("hi", skill="asks")
    stream = await house.stream("this", task=task.id, skill="asks").rest()
    assert stream.opening is not None
    assert texts(stream.opening) == ["hi", "which?", "this"]
    # Not the question that was just answered: a client stops where input is required.
    assert (state(stream.opening), stream.opening.status.message) == (S.WORKING, None)
    states = [e.status.state for e in stream.events if isinstance(e, StatusUpdate)]
    assert states == [S.COMPLETED]
    assert fold(stream) == await house.get(task.id)


@pytest.mark.requirement("T-14")
async def test_a_send_stream_ends_when_input_is_required_and_a_subscription_does_not(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = await house.stream("hi", skill="asks").rest()
    assert state(fold(stream)) is S.INPUT_REQUIRED
    assert stream.opening is not None
    following = house.subscribe(stream.opening.id)
    assert await following.step()
    reading = asyncio.ensure_future(following.rest())
    await asyncio.sleep(0)
    assert not reading.done()
    await house.send("this", task=stream.opening.id, skill="asks")
    assert state(fold(await within(reading))) is S.COMPLETED


@pytest.mark.requirement("T-14", "T-58")
async def test_a_send_stream_stays_open_while_credentials_are_awaited(
    house: House, stage: Stage
) -> None:
    await house.start(stage.agent)
    stream = house.stream("hi", skill="authorizes")
    await stream.until(
        lambda s: any(
            isinstance(e, StatusUpdate) and e.status.state is S.AUTH_REQUIRED for e in s.events
        )
    )
    reading = asyncio.ensure_future(stream.rest())
    await asyncio.sleep(0)
    assert not reading.done() and stream.opening is not None
    await house.send("ok", task=stream.opening.id, skill="authorizes")
    assert state(fold(await within(reading))) is S.COMPLETED


# Reads of a store that is far away


class FarStore(MemoryStore):
    """A store whose readers ask together; it counts how often, and can be away."""

    is_far = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.is_away = False
        self.arrives = asyncio.Event()
        self.arrives.set()

    async def read_many(self, places: Any, *, limit: int, size: int = READ_BYTES) -> Any:
        # As long as a journey is: others come meanwhile.
        await asyncio.sleep(0)
        self.asked.append(len(places))
        await self.arrives.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().read_many(places, limit=limit, size=size)


async def test_readers_of_one_moment_ask_a_far_store_together() -> None:
    store = FarStore()
    numbers = [await write(store, creation(f"t{n}")) for n in range(50)]
    reads = GatheredReads(store)
    found = await within(asyncio.gather(*(reads.read(number, 0) for number in numbers)))
    assert [[recorded.seq for recorded in events] for events in found] == [[1]] * 50
    assert sum(store.asked) == 50 and len(store.asked) <= 2
    assert await within(reads.read(numbers[0], 1)) == []


async def test_a_reader_that_comes_as_all_reads_end_is_served() -> None:
    store = FarStore()
    number = await write(store, creation("t1"))
    reads = GatheredReads(store)

    async def twice() -> list[Recorded]:
        await reads.read(number, 0)
        return await reads.read(number, 0)

    store.arrives.clear()
    first = asyncio.ensure_future(twice())
    await eventually(lambda: store.asked == [1])
    second = asyncio.ensure_future(reads.read(number, 0))
    await eventually(lambda: store.asked == [1, 1])
    store.arrives.set()
    assert [len(events) for events in await within(asyncio.gather(first, second))] == [1, 1]


async def test_a_reader_that_leaves_or_fails_takes_no_other_along() -> None:
    store = FarStore()
    numbers = [await write(store, creation(f"t{n}")) for n in range(3)]
    reads = GatheredReads(store)
    reading = [asyncio.ensure_future(reads.read(number, 0)) for number in numbers]
    await asyncio.sleep(0)
    reading[1].cancel()
    left, gone, right = await within(asyncio.gather(*reading, return_exceptions=True))
    assert len(left) == len(right) == 1 and isinstance(gone, asyncio.CancelledError)  # type: ignore[arg-type]
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await within(reads.read(numbers[0], 0))
    store.is_away = False
    assert len(await within(reads.read(numbers[0], 0))) == 1
