"""Whoever lost a task to another stops, tells its readers, and changes nothing any more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.databases import buried
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.engine import recovery
from dragoman.errors import Overloaded, StoreConflict, StoreUnavailable
from dragoman.model.events import AttemptStarted, StatusUpdate
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import Task, TaskState
from dragoman.stores.interface import Survey, TaskRow
from tests.engine.engines import House, Street, message, result, state

S = TaskState


class Twins:
    """The same agent in every house; each has its own gate, and says which attempt it is."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.go_on = asyncio.Event()

    def agent(self, place: str) -> Agent:
        agent = Agent("Twin", "Is there twice.")
        gate = self.gates[place] = asyncio.Event()

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            self.runs.append(f"{text} {place} {turn.attempt}")
            await gate.wait()
            await turn.say(f"{place} says")
            return f"{text} {place} {turn.attempt}"

        @agent.skill
        async def works(text: str, turn: Turn) -> str:
            self.runs.append(f"{text} {place} {turn.attempt}")
            await gate.wait()
            await turn.say(f"{place} says")
            await self.go_on.wait()
            return f"{text} {place} {turn.attempt}"

        @agent.skill
        async def asks(text: str, turn: Turn) -> str:
            answer = await turn.ask("which?")
            return f"{text}, {answer.text} {place}"

        return agent


@pytest.fixture
def twins() -> Twins:
    return Twins()


@pytest.fixture
async def a(street: Street, twins: Twins) -> House:
    return await street.open(twins.agent("a"))


@pytest.fixture
async def b(street: Street, twins: Twins, a: House) -> House:
    return await street.open(twins.agent("b"))


async def test_the_task_of_a_frozen_worker_is_finished_by_another_and_its_own_end_is_refused(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    task = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: twins.runs == ["hi a 1"])
    await street.freeze(a)
    await eventually(lambda: twins.runs == ["hi a 1", "hi b 2"])
    # The first one wakes and goes on as if nothing had happened.
    log = a.engine._live.get(a.scope, task.id)
    assert log is not None
    twins.gates["a"].set()
    await eventually(lambda: isinstance(log.failure, StoreConflict))
    await eventually(lambda: not a.engine._live._workers)
    twins.gates["b"].set()
    done = await b.reaches(task.id, S.COMPLETED)
    assert result(done) == "hi b 2"
    assert [said.text for said in done.history] == ["hi", "b says"]
    assert await a.get(task.id) == done


async def test_no_task_of_a_living_worker_is_taken_over(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    running = await a.send("hi", skill="work", wait=False)
    waiting = await a.send("hi", skill="asks")
    for _ in range(4):
        await street.advance(10)
        await street.look_after(a, b)
    assert twins.runs == ["hi a 1"]
    for task in (running, waiting):
        head = await head_of(b, task)
        assert (head.holder, head.fence) == (a.store.worker, 1)


async def head_of(house: House, task: Task) -> TaskRow:
    head = await house.store.head(Scope("twin", "", ""), task.id)
    assert head is not None
    return head


async def test_readers_in_a_house_that_lost_a_task_see_how_it_goes_on(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    """Its own log would never grow again; once it knows, they read what the other writes."""
    task = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: twins.runs)
    reader = a.subscribe(task.id, 1)
    await reader.step()
    await street.freeze(a)
    twins.gates["b"].set()
    await b.reaches(task.id, S.COMPLETED)
    await street.wake(a)
    await reader.rest()
    last = reader.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    assert reader.seqs == (await b.subscribe(task.id, 1).rest()).seqs
    await eventually(lambda: a.engine._live.get(a.scope, task.id) is None)


async def test_callers_that_wait_in_a_house_that_lost_a_task_get_what_the_other_makes_of_it(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    said = message("hi", skill="work")
    waiting = asyncio.ensure_future(a.send(said))
    await eventually(lambda: twins.runs)
    await street.freeze(a)
    await street.wake(a)
    again = asyncio.ensure_future(a.send(said))
    twins.gates["b"].set()
    assert result(await within(waiting)) == "hi b 2"
    assert result(await within(again)) == "hi b 2"


async def test_code_that_waits_for_an_answer_that_was_given_elsewhere_is_let_go(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    task = await a.send("hi", skill="asks")
    reader = a.subscribe(task.id)
    await reader.step()
    await street.freeze(a)
    # The holder's lease has ended, so whoever is asked goes on with it.
    done = await b.send("this", task=task.id)
    assert result(done) == "hi, this b"
    await street.wake(a)
    await reader.rest()
    last = reader.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED
    await eventually(lambda: not a.engine._live._workers)


async def test_what_nobody_took_meanwhile_goes_on_where_it_was(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    """If the one that was frozen keeps its number; otherwise it lets go of all that it had."""
    task = await a.send("hi", skill="asks")
    running = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: twins.runs)
    number = a.store.worker
    reader = a.subscribe(task.id)
    await reader.step()
    await street.freeze(a)
    await street.wake(a)
    is_same = a.store.worker == number
    assert (a.engine._live.running(a.scope, task.id) is not None) is is_same
    assert a.engine._live.running(a.scope, running.id) is None
    done = await b.send("this", task=task.id)
    assert result(done) == f"hi, this {'a' if is_same else 'b'}"
    await reader.rest()
    last = reader.events[-1]
    assert isinstance(last, StatusUpdate) and last.status.state is S.COMPLETED


async def test_what_was_written_while_its_row_was_read_is_not_given_up(
    street: Street, a: House, b: House, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is older than the write, which made the task ours under our present number."""
    task = await a.send("hi", skill="works", wait=False)
    await eventually(lambda: twins.runs)
    head = a.store.head

    async def read_late(scope: Scope, task_id: TaskId) -> TaskRow | None:
        found = await head(scope, task_id)
        twins.gates["a"].set()
        await eventually(_has(a, task, "a says"))
        return found

    monkeypatch.setattr(a.store, "head", read_late)
    street.houses.remove(b)
    await street.freeze(a)
    # The other finds it dead, and takes nothing over yet.
    await b.store.renew()
    await street.wake(a)
    monkeypatch.setattr(a.store, "head", head)
    assert a.store.lapses == 1
    street.houses.append(b)
    await street.look_after(a)
    twins.go_on.set()
    assert result(await a.reaches(task.id, S.COMPLETED)) == "hi a 1"
    assert twins.runs == ["hi a 1"]


def _has(house: House, task: Task, text: str) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        row = await house.store.survey(Survey(task_id=task.id, limit=1))
        found = await house.store.read(row[0].number, after=0, limit=100)
        return any(text in str(recorded.event) for recorded in found)

    return has


async def test_tasks_that_could_not_be_looked_at_after_a_lapse_are_looked_at_again(
    street: Street, a: House, b: House, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await a.send("hi", skill="asks")
    head = a.store.head

    async def unable(*_: Any) -> None:
        raise StoreUnavailable("the database is away")

    await street.freeze(a)
    done = await b.send("this", task=task.id)
    assert result(done) == "hi, this b"
    monkeypatch.setattr(a.store, "head", unable)
    with pytest.raises(StoreUnavailable):
        await street.wake(a)
    assert a.engine._live._workers
    monkeypatch.setattr(a.store, "head", head)
    await street.look_after(a)
    await eventually(lambda: not a.engine._live._workers)


async def test_a_message_and_a_take_over_at_the_same_moment_start_the_code_once(
    street: Street, a: House, b: House, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [await a.send(f"{n}", skill="work", wait=False) for n in range(4)]
    await eventually(lambda: len(twins.runs) == 4)
    street.houses.remove(a)
    dead = a.store.worker
    await a.die()
    await buried(b.store, dead)
    claim = b.store.claim
    sent: list[asyncio.Future[Any]] = []

    async def claimed(agent: str, limit: int) -> Any:
        found = await claim(agent, limit)
        # They are ours in the store, and none of them is started yet.
        sent.extend(
            asyncio.ensure_future(b.send("more", task=head.task_id, wait=False))
            for head, _ in reversed(found)
        )
        return found

    monkeypatch.setattr(b.store, "claim", claimed)
    await within(b.engine.sweep())
    await within(asyncio.gather(*sent))
    await eventually(lambda: len(twins.runs) == 8)
    twins.gates["b"].set()
    for task in tasks:
        await b.reaches(task.id, S.COMPLETED)
    began = [run.split()[0] for run in twins.runs[4:] if not run.startswith("more")]
    assert sorted(began) == ["0", "1", "2", "3"]


async def test_tasks_of_one_that_died_do_not_wait_for_each_others_logs(
    street: Street, a: House, b: House, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each read is a way to another machine and back; one file is read one by one."""
    for n in range(4):
        await a.send(str(n), skill="work", wait=False)
    await eventually(lambda: len(twins.runs) == 4)
    street.houses.remove(a)
    dead = a.store.worker
    await a.die()
    await buried(b.store, dead)
    read, reading, most = b.store.read, 0, 0

    async def counted(*about: Any, **more: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            return await read(*about, **more)
        finally:
            reading -= 1

    monkeypatch.setattr(b.store, "read", counted)
    await within(b.engine.sweep())
    await eventually(lambda: len(twins.runs) == 8)
    assert (most > 1) == b.store.is_far


@pytest.mark.parametrize("how", ["a message", "a cancel"])
async def test_a_call_that_is_overtaken_by_our_own_take_over_leaves_no_orphan(
    street: Street,
    a: House,
    b: House,
    twins: Twins,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """The claim raised the fence under the call's feet; whoever claimed has to go on."""
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    task = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: twins.runs)
    street.houses.remove(a)
    dead = a.store.worker
    await a.die()
    await buried(b.store, dead)
    call = b.send("more", task=task.id, wait=False) if how == "a message" else b.cancel(task.id)
    outcome, _ = await asyncio.gather(call, b.engine.sweep(), return_exceptions=True)
    twins.gates["b"].set()
    await eventually(lambda: _is_over(b, task))
    ended = await b.get(task.id)
    if isinstance(outcome, Overloaded):
        assert state(ended) is S.COMPLETED
    else:
        assert state(ended) is (S.COMPLETED if how == "a message" else S.CANCELED), outcome


async def test_a_take_over_that_finds_an_end_which_was_refused_is_tried_again(
    street: Street, a: House, b: House, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is that of a cancel, whose fence our own claim raised. The cancel's own retry comes
    while the take-over is under way, and waits for the same start."""
    monkeypatch.setattr(recovery, "RETRY_AFTER", 0.0)
    task = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: twins.runs)
    street.houses.remove(a)
    dead = a.store.worker
    await a.die()
    await buried(b.store, dead)
    read, worker_of = recovery.read_replay, b.engine._recovery.worker_of
    canceling, taking, retrying = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def in_turn(*about: Any) -> Any:
        if not canceling.is_set():
            canceling.set()
            await taking.wait()
        elif not taking.is_set():
            taking.set()
            await retrying.wait()
        return await read(*about)

    async def retry(head: TaskRow) -> Any:
        retrying.set()
        return await worker_of(head)

    monkeypatch.setattr(recovery, "read_replay", in_turn)
    monkeypatch.setattr(b.engine._recovery, "worker_of", retry)
    cancel = asyncio.ensure_future(b.cancel(task.id))
    await within(canceling.wait())
    await within(b.engine.sweep())
    with pytest.raises(Overloaded):
        await within(cancel)
    twins.gates["b"].set()
    assert result(await b.reaches(task.id, S.COMPLETED)) == "hi b 2"


async def _is_over(house: House, task: Task) -> bool:
    return state(await house.get(task.id)).is_terminal


async def test_each_take_over_raises_the_fence_and_is_an_attempt(
    street: Street, a: House, b: House, twins: Twins
) -> None:
    task = await a.send("hi", skill="work", wait=False)
    await eventually(lambda: len(twins.runs) == 1)
    await street.freeze(a)
    await eventually(lambda: len(twins.runs) == 2)
    await street.wake(a)
    await street.freeze(b)
    await eventually(lambda: len(twins.runs) == 3)
    assert twins.runs == ["hi a 1", "hi b 2", "hi a 3"]
    found = await head_of(a, task)
    assert (found.fence, found.holder) == (3, a.store.worker)
    stored = await a.store.read(found.number, after=0, limit=100)
    started = [r.event for r in stored if isinstance(r.event, AttemptStarted)]
    # After a second death it runs alone, which is on record too.
    assert [(one.attempt, one.alone_in) for one in started] == [(2, 0), (3, 0), (3, a.store.worker)]
    twins.gates["a"].set()
    twins.gates["b"].set()
    await street.wake(b)
    done = await a.reaches(task.id, S.COMPLETED)
    assert result(done) == "hi a 3"
