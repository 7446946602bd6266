"""Several engines on one file: whoever a caller asks, the answer is the same."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Message, Turn
from dragoman.engine import notes, recovery
from dragoman.errors import Overloaded, TaskNotCancelable, UnsupportedOperation
from dragoman.model.events import ArtifactUpdate, MessageAdded, StatusUpdate
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import Task, TaskState
from dragoman.stores.interface import LeaveNote, TaskRow
from tests.engine.engines import FullDisk, House, Street, message, result, state, texts

S = TaskState


class Players:
    """The same agent in every house; it says where its code runs."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []
        self.go_on = asyncio.Event()
        self.cancelled: list[str] = []

    def agent(self, place: str) -> Agent:
        agent = Agent("Player", "Plays.")

        @agent.skill
        async def held(text: str, turn: Turn) -> str:
            self.runs.append((place, text))
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.append(place)
                raise
            return f"{text} in {place}"

        @agent.skill
        async def asks(text: str, turn: Turn) -> str:
            self.runs.append((place, text))
            answer = await turn.ask("which?")
            return f"{text}, {answer.text} in {place}"

        @agent.skill
        async def counts(text: str) -> AsyncIterator[str]:
            self.runs.append((place, text))
            for n in range(int(text)):
                if n == 5:
                    await self.go_on.wait()
                yield f"{n} "

        @agent.skill
        async def replies(text: str, turn: Turn) -> Message:
            await self.go_on.wait()
            return turn.reply(f"{text} from {place}")

        @agent.skill
        async def adds(number: int, turn: Turn) -> str:
            self.runs.append((place, str(number)))
            await self.go_on.wait()
            return str(number)

        return agent


@pytest.fixture
def players() -> Players:
    return Players()


@pytest.fixture
async def a(street: Street, players: Players) -> House:
    return await street.open(players.agent("a"))


@pytest.fixture
async def b(street: Street, players: Players, a: House) -> House:
    return await street.open(players.agent("b"))


# Reading


async def test_what_is_durable_in_one_is_seen_in_the_other(a: House, b: House) -> None:
    for n in range(5):
        task = await a.send(f"{n}", skill="counts")
        assert await b.get(task.id) == task
    assert await b.count() == await a.count() == 5


async def test_a_subscriber_elsewhere_sees_the_same_events(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("12", skill="counts", wait=False)
    await eventually(lambda: players.runs)
    readers = [house.subscribe(task.id, 1) for house in (a, b)]
    for reader in readers:
        await reader.until(lambda s: sum(isinstance(e, ArtifactUpdate) for e in s.events) >= 5)
    players.go_on.set()
    seen = [await reader.rest() for reader in readers]
    assert seen[0].seqs == seen[1].seqs == sorted(set(seen[0].seqs))
    assert seen[0].events == seen[1].events
    assert [place for place, _ in players.runs] == ["a"]


async def test_a_reader_goes_on_elsewhere_exactly_where_it_was(
    a: House, b: House, players: Players
) -> None:
    players.go_on.set()
    task = await a.send("12", skill="counts")
    whole = await a.subscribe(task.id, 0).rest()
    for cursor in range(1, whole.seqs[-1]):
        rest = await b.subscribe(task.id, cursor).rest()
        assert rest.seqs == [seq for seq in whole.seqs if seq > cursor]


async def test_what_is_written_reaches_readers_elsewhere_within_moments(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("hi", skill="held", wait=False)
    worker = a.engine._live.running(a.scope, task.id)
    assert worker is not None

    async def is_read_soon() -> bool:
        reader = b.subscribe(task.id)
        await reader.step()
        waiting = asyncio.ensure_future(reader.step())
        worker.status(S.WORKING, [message("goes on").parts[0]])
        await worker.log.durable(worker.log.seq)
        began = time.monotonic()
        assert await within(waiting)
        await reader.close()
        return time.monotonic() - began < 0.25

    # As soon as the machine lets it: one that is busy has its moments.
    await eventually(is_read_soon)


async def test_what_no_ring_told_of_is_seen_at_the_next_look(
    street: Street, a: House, b: House, players: Players
) -> None:
    """A ring may be lost: then it is one query for all that is followed, not one for each."""
    street.deafen(b)
    tasks = [await a.send(f"{n}", skill="held", wait=False) for n in range(3)]
    await eventually(lambda: len(players.runs) == 3)
    readers = [b.subscribe(task.id, 1) for task in tasks]
    for reader in readers:
        await reader.step()
    ends = [asyncio.ensure_future(reader.rest()) for reader in readers]
    await eventually(lambda: len(b.engine._live.bell.places()) == 3)
    players.go_on.set()
    for task in tasks:
        await a.reaches(task.id, S.COMPLETED)
    await within(b.engine.look())
    for reader in await within(asyncio.gather(*ends)):
        last = reader.events[-1]
        assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert not b.engine._live.bell.places() and not b.engine._live.bell._ids


async def test_a_look_reads_nothing_where_nothing_of_others_is_followed(
    a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await a.send("hi", skill="held", wait=False)
    reader = a.subscribe(task.id, 1)
    await reader.step()

    async def asked(*_: Any) -> Any:
        raise AssertionError("nothing is to be asked")

    monkeypatch.setattr(a.store, "last_seqs", asked)
    await a.engine.look()
    await reader.close()


# Messages


async def test_a_message_to_a_task_elsewhere_is_worked_on_there(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("one", skill="held", wait=False)
    await eventually(lambda: players.runs)
    sent = [asyncio.ensure_future(b.send(text, task=task.id)) for text in ("two", "three")]
    await eventually(lambda: _history(a, task, 3))
    players.go_on.set()
    done = await within(asyncio.gather(*sent))
    assert [state(reply) for reply in done] == [S.COMPLETED] * 2
    assert sorted(texts(done[0])[1:]) == ["three", "two"]
    assert {place for place, _ in players.runs} == {"a"}
    assert sorted(text for _, text in players.runs) == ["one", "three", "two"]
    assert (await b.get(task.id)) == done[0]


async def _history(house: House, task: Task, count: int) -> bool:
    return len((await house.get(task.id)).history) >= count


async def test_an_answer_given_elsewhere_reaches_the_code_that_asked(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("hi", skill="asks")
    assert state(task) is S.INPUT_REQUIRED
    done = await b.send("this", task=task.id)
    assert state(done) is S.COMPLETED
    assert result(done) == "hi, this in a"
    assert texts(done) == ["hi", "which?", "this"]
    assert players.runs == [("a", "hi")]
    assert not await a.has_notes()


async def test_a_stream_of_a_message_to_a_task_elsewhere_shows_what_comes_of_it(
    a: House, b: House
) -> None:
    task = await a.send("hi", skill="asks")
    stream = await b.stream("this", task=task.id).rest()
    assert stream.opening is not None and stream.opening.id == task.id
    assert state(stream.opening) is S.WORKING
    states = [e.status.state for e in stream.events if isinstance(e, StatusUpdate)]
    assert states == [S.COMPLETED]
    whole = await a.subscribe(task.id, 0).rest()
    assert texts(stream.opening) == ["hi", "which?", "this"]
    assert stream.seqs == [seq for seq in whole.seqs if seq > stream.opened_at]


async def test_a_message_that_is_acknowledged_elsewhere_is_worked_on_before_the_task_ends(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("one", skill="held", wait=False)
    await eventually(lambda: players.runs)
    assert state(await b.send("two", task=task.id, wait=False)) is S.WORKING
    players.go_on.set()
    await eventually(lambda: _is(b, task, S.COMPLETED))
    assert texts(await b.get(task.id)) == ["one", "two"]


async def _is(house: House, task: Task, wanted: TaskState) -> bool:
    return state(await house.get(task.id)) is wanted


async def test_a_message_that_fits_no_argument_is_taken_in_all_the_same(
    a: House, b: House, players: Players
) -> None:
    """Its sender was told so; what to make of it is the code's affair."""
    task = await a.send("7", skill="adds", wait=False)
    await eventually(lambda: players.runs)
    await b.send("not a number", task=task.id, wait=False)
    await eventually(lambda: _history(b, task, 2))
    players.go_on.set()
    await eventually(lambda: _is_over(b, task))


async def _is_over(house: House, task: Task) -> bool:
    return state(await house.get(task.id)).is_terminal


async def test_a_message_to_a_task_that_ends_meanwhile_is_refused_and_leaves_nothing(
    a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await a.send("one", skill="held", wait=False)
    write = notes.write

    async def late(store: Any, what: Any) -> None:
        assert isinstance(what, LeaveNote)
        players.go_on.set()
        await a.reaches(task.id, S.COMPLETED)
        await write(store, what)

    said = message("two", task=task.id)
    with monkeypatch.context() as patched:
        patched.setattr(notes, "write", late)
        with pytest.raises(Overloaded):
            await b.send(said)
    with pytest.raises(UnsupportedOperation):
        await b.send(said)
    assert texts(await b.get(task.id)) == ["one"]
    assert not await b.has_notes()


async def swept(street: Street, doing: asyncio.Future[Any]) -> Any:
    """Return what comes of something while every house looks after its tasks."""

    async def is_done() -> bool:
        await street.look_after(*street.houses)
        return doing.done()

    await eventually(is_done)
    return await doing


# The same message


@pytest.mark.requirement("T-32")
async def test_a_hundred_of_the_same_message_over_two_engines_make_one_task(
    a: House, b: House, players: Players
) -> None:
    players.go_on.set()
    said = message("hi", skill="held")
    replies = await within(asyncio.gather(*(((a, b)[n % 2]).send(said) for n in range(100))))
    assert len({reply.id for reply in replies}) == 1
    assert all(reply == replies[0] for reply in replies)
    assert len(players.runs) == 1
    assert await a.count() == 1


async def test_the_same_message_gets_one_direct_reply_from_two_engines(
    a: House, b: House, players: Players
) -> None:
    said = message("hi", skill="replies")
    sending = [asyncio.ensure_future(((a, b)[n % 2]).send(said)) for n in range(10)]
    await eventually(lambda: b.engine._live._workers and a.engine._live._workers)
    players.go_on.set()
    replies = await within(asyncio.gather(*sending))
    assert all(reply == replies[0] for reply in replies)
    assert await a.send(said) == await b.send(said) == replies[0]
    assert await a.count() == 0


async def test_the_same_message_elsewhere_joins_the_running_task(
    a: House, b: House, players: Players
) -> None:
    said = message("hi", skill="held")
    first = asyncio.ensure_future(a.send(said))
    await eventually(lambda: players.runs)
    second = asyncio.ensure_future(b.send(said))
    stream = b.stream(said)
    await stream.step()
    assert stream.opening is not None
    players.go_on.set()
    done = await within(asyncio.gather(first, second))
    assert done[0] == done[1]
    assert (await stream.rest()).events[-1].status.state is S.COMPLETED  # type: ignore[union-attr]
    assert players.runs == [("a", "hi")]


async def test_the_same_answer_given_in_both_counts_once(
    street: Street, a: House, b: House, players: Players
) -> None:
    task = await a.send("hi", skill="asks")
    said = message("this", task=task.id)
    sending = asyncio.gather(
        *(((a, b)[n % 2]).send(said) for n in range(20)), return_exceptions=True
    )
    replies = await swept(street, sending)
    again = [await house.send(said) for house in (a, b)]
    assert {state(task) for task in again} == {S.COMPLETED}
    odd = [r for r in replies if isinstance(r, BaseException) and not isinstance(r, Overloaded)]
    assert odd == []
    stored = await a.store.read(await a.first_number(), after=0, limit=1000)
    assert sum(isinstance(recorded.event, MessageAdded) for recorded in stored) == 1
    assert texts(again[0]) == ["hi", "which?", "this"]


async def test_code_begins_only_when_its_task_is_ours_for_certain(
    a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that are given one message the loser's code never runs."""
    known = b.store.known

    async def blind(*_: Any) -> None:
        monkeypatch.setattr(b.store, "known", known)

    said = message("hi", skill="held")
    first = await a.send(said, wait=False)
    await eventually(lambda: players.runs)
    monkeypatch.setattr(b.store, "known", blind)
    second = await b.send(said, wait=False)
    assert second.id == first.id
    assert players.runs == [("a", "hi")]
    assert not b.engine._live._workers and not b.engine._live._logs


@pytest.mark.parametrize("blinded", [False, True])
async def test_many_messages_that_name_one_new_task_in_both_make_one(
    street: Street,
    a: House,
    b: House,
    players: Players,
    monkeypatch: pytest.MonkeyPatch,
    blinded: bool,
) -> None:
    said = [message(f"{n}", task="chosen", skill="held") for n in range(6)]
    if blinded:
        # What one creates is committed after the other looked for it.
        head = b.store.head

        async def before(*about: Any) -> None:
            monkeypatch.setattr(b.store, "head", head)
            await a.send(said[0], wait=False, names_task=True)

        monkeypatch.setattr(b.store, "head", before)
        said_in_b = said[1:]
    else:
        said_in_b = said[3:]
    sending = asyncio.gather(
        *(b.send(one, wait=False, names_task=True) for one in said_in_b),
        *(a.send(one, wait=False, names_task=True) for one in said if one not in said_in_b),
    )
    answers = await swept(street, sending)
    assert {answer.id for answer in answers} == {"chosen"}
    assert len(players.runs) == 1
    players.go_on.set()
    await a.reaches("chosen", S.COMPLETED)
    assert await a.count() == await b.count() == 1
    stored = await a.store.read(await a.first_number(), after=0, limit=1000)
    assert sum(isinstance(recorded.event, MessageAdded) for recorded in stored) == 5


# Cancelling


async def test_a_task_elsewhere_is_canceled_before_any_lease_ends(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("hi", skill="held", wait=False)
    await eventually(lambda: players.runs)
    began = time.monotonic()
    canceled = await b.cancel(task.id)
    # Leases are of half a minute.
    assert time.monotonic() - began < 15.0
    assert state(canceled) is S.CANCELED
    assert players.cancelled == ["a"]
    assert await a.get(task.id) == canceled
    with pytest.raises(TaskNotCancelable):
        await b.cancel(task.id)


async def test_a_task_that_waits_elsewhere_is_canceled(a: House, b: House) -> None:
    task = await a.send("hi", skill="asks")
    assert state(await b.cancel(task.id)) is S.CANCELED
    assert state(await a.get(task.id)) is S.CANCELED


async def test_cancelling_in_both_at_once_gives_both_the_task(
    a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find it running; one that comes when it is canceled already is refused."""
    task = await a.send("hi", skill="held", wait=False)
    await eventually(lambda: players.runs)
    found = asyncio.Barrier(2)

    def meet(house: House) -> None:
        read = house.store.head

        async def meeting(scope: Scope, task_id: TaskId) -> TaskRow | None:
            monkeypatch.setattr(house.store, "head", read)
            head = await read(scope, task_id)
            await found.wait()
            return head

        monkeypatch.setattr(house.store, "head", meeting)

    for house in (a, b):
        meet(house)
    canceled = await within(asyncio.gather(a.cancel(task.id), b.cancel(task.id)))
    assert canceled[0] == canceled[1]
    assert state(canceled[0]) is S.CANCELED


# Notes and faults


@pytest.mark.parametrize("how", ["a message", "a cancel"])
async def test_what_was_left_for_one_that_died_is_done_by_the_next(
    street: Street, a: House, b: House, players: Players, how: str
) -> None:
    task = await a.send("hi", skill="asks")
    # Its last moments: it hears of nothing any more.
    a.engine._live.is_stopped = True
    deed = b.send("this", task=task.id) if how == "a message" else b.cancel(task.id)
    doing = asyncio.ensure_future(deed)
    await eventually(b.has_notes)
    await street.kill(a)
    done = await within(doing)
    assert state(done) is (S.COMPLETED if how == "a message" else S.CANCELED)
    if how == "a message":
        assert result(done) == "hi, this in b"
        assert texts(done) == ["hi", "which?", "this"]
    assert await b.store.noted("player") == []


async def test_what_was_left_for_a_running_task_survives_its_process(
    street: Street, a: House, b: House, players: Players
) -> None:
    task = await a.send("one", skill="held", wait=False)
    a.engine._live.is_stopped = True
    sending = asyncio.ensure_future(b.send("two", task=task.id, wait=False))
    await eventually(b.has_notes)
    await street.kill(a)
    await sending
    players.go_on.set()
    await b.reaches(task.id, S.COMPLETED)
    assert players.runs[-2:] == [("b", "one"), ("b", "two")]
    assert texts(await b.get(task.id)) == ["one", "two"]


@pytest.mark.parametrize("how", ["a message", "a cancel"])
async def test_what_could_not_be_written_when_it_was_read_is_read_again(
    street: Street, a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    task = await a.send("hi", skill="asks")
    disk = FullDisk(monkeypatch, a.store, times=1)
    deed = b.send("this", task=task.id) if how == "a message" else b.cancel(task.id)
    doing = asyncio.ensure_future(deed)
    await eventually(lambda: disk.refused == 1)
    done = await swept(street, doing)
    assert state(done) is (S.COMPLETED if how == "a message" else S.CANCELED)
    assert not await a.has_notes()


async def test_a_full_disk_is_said_so_in_company_too(
    a: House, b: House, players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await a.send("hi", skill="asks")
    with monkeypatch.context() as patched:
        FullDisk(patched, b.store)
        for said in (message("new", skill="held"), message("this", task=task.id)):
            with pytest.raises(Overloaded, match="no space left"):
                await b.send(said)
        with pytest.raises(Overloaded, match="no space left"):
            await b.cancel(task.id)
    assert not b.engine._live._workers and not b.engine._live._arriving
    assert state(await b.send("this", task=task.id)) is S.COMPLETED


async def test_a_note_is_taken_once_however_often_it_is_looked_for(
    a: House, b: House, players: Players
) -> None:
    task = await a.send("one", skill="held", wait=False)
    sending = asyncio.ensure_future(b.send("two", task=task.id, wait=False))

    async def is_taken() -> bool:
        # Again and again, also while what was made of it is being written.
        await asyncio.gather(*(a.engine._notes.take() for _ in range(5)))
        return sending.done()

    await eventually(is_taken)
    players.go_on.set()
    await a.reaches(task.id, S.COMPLETED)
    assert texts(await a.get(task.id)) == ["one", "two"]
    assert [text for _, text in players.runs] == ["one", "two"]


# Coming and going


async def test_tasks_of_one_that_left_in_good_order_go_on_elsewhere(
    street: Street, a: House, b: House, players: Players
) -> None:
    tasks = [await a.send(f"{n}", skill="held", wait=False) for n in range(3)]
    await eventually(lambda: len(players.runs) == 3)
    street.houses.remove(a)
    await a.stop()
    assert await b.engine.sweep() == 3
    players.go_on.set()
    for task in tasks:
        done = await b.reaches(task.id, S.COMPLETED)
        assert result(done).endswith("in b")
    stored = await b.store.read(await b.first_number(), after=0, limit=100)
    assert all(b'"attempt' not in recorded.body for recorded in stored)


async def test_a_reader_elsewhere_stays_over_the_death_of_the_holder(
    street: Street, a: House, b: House, players: Players
) -> None:
    task = await a.send("12", skill="counts", wait=False)
    reader = b.subscribe(task.id, 1)
    await reader.until(lambda s: sum(isinstance(e, ArtifactUpdate) for e in s.events) >= 5)
    await street.kill(a)
    players.go_on.set()
    await reader.rest()
    assert reader.seqs == sorted(set(reader.seqs))
    whole = await b.subscribe(task.id, 1).rest()
    assert reader.events == whole.events
