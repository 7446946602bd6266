"""A task that ends its process fails alone: what runs beside it is never charged with that."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.config import EngineSettings, Settings
from dragoman.engine.engine import Engine
from dragoman.model.events import AttemptStarted
from dragoman.model.task import Task, TaskState
from tests.engine.engines import House, Street, house_over, sentence

S = TaskState
# Long enough for a busy machine, where a test waits for the end of it to come.
BRIEF = 0.2
# So long that no test sees the end of it.
LONG = 300.0


class Crowd:
    """An agent whose tasks run until they are told to end; it knows which are under way."""

    def __init__(self, name: str = "Crowd") -> None:
        self.agent = Agent(name, "Runs until it is told to end.")
        self.under_way: set[str] = set()
        self.ran: list[str] = []
        self.done: dict[str, asyncio.Event] = {}

        @self.agent.skill
        async def work(text: str, turn: Turn) -> str:
            await turn.say("at work")
            self.under_way.add(text)
            self.ran.append(text)
            try:
                await self.done.setdefault(text, asyncio.Event()).wait()
            finally:
                self.under_way.discard(text)
            return text

        @self.agent.skill
        async def sleeps(text: str, turn: Turn) -> str:
            await turn.sleep(3600)
            return text

        @self.agent.skill
        async def asks(text: str, turn: Turn) -> str:
            await turn.ask("which?")
            self.under_way.add(text)
            await self.done.setdefault(text, asyncio.Event()).wait()
            return text

    def end(self, text: str) -> None:
        self.done.setdefault(text, asyncio.Event()).set()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


async def begun(house: House, crowd: Crowd, *texts: str) -> list[Task]:
    tasks = [await house.send(text, skill="work", wait=False) for text in texts]
    await eventually(lambda: crowd.under_way >= set(texts))
    await eventually(lambda: _is_written(house))
    return tasks


def _is_written(house: House) -> bool:
    return all(log.is_idle for log in house.engine._live._logs.values())


async def dies(house: House, crowd: Crowd, **settings: Any) -> None:
    """Let the process die and come back."""
    await eventually(lambda: _is_written(house))
    await house.die()
    await eventually(lambda: not crowd.under_way)
    crowd.ran.clear()
    await house.start(crowd.agent, **settings)


async def events(house: House, task: Task) -> list[AttemptStarted]:
    head = await house.store.head(house.scope, task.id)
    assert head is not None
    stored = await house.store.read(head.number, after=0, limit=1000)
    return [one.event for one in stored if isinstance(one.event, AttemptStarted)]


# Who is charged


async def test_deaths_beside_others_end_no_task(house: House, crowd: Crowd) -> None:
    settings = {"max_attempts": 1, "suspect_seconds": BRIEF}
    await house.start(crowd.agent, **settings)
    tasks = await begun(house, crowd, "a", "b")
    for _ in range(5):
        await dies(house, crowd, **settings)
        # Neither ends within its time alone, so both go on.
        await eventually(lambda: crowd.under_way == {"a", "b"})
        await eventually(lambda: not house.engine._live.isolation.is_on)
    crowd.end("a")
    crowd.end("b")
    for task in tasks:
        await house.reaches(task.id, S.COMPLETED)


async def test_after_a_second_death_tasks_run_one_at_a_time(house: House, crowd: Crowd) -> None:
    settings = {"suspect_seconds": LONG}
    await house.start(crowd.agent, **settings)
    tasks = await begun(house, crowd, "a", "b", "c")
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == {"a", "b", "c"})
    await dies(house, crowd, **settings)
    for count in (1, 2, 3):
        await eventually(lambda count=count: len(crowd.ran) == count)
        assert len(crowd.under_way) == 1
        crowd.end(*crowd.under_way)
    for task in tasks:
        await house.reaches(task.id, S.COMPLETED)
    assert sorted(crowd.ran) == ["a", "b", "c"]


async def test_only_what_ran_alone_is_charged_and_given_up(house: House, crowd: Crowd) -> None:
    settings = {"suspect_seconds": LONG, "max_attempts": 3}
    await house.start(crowd.agent, **settings)
    tasks = {task.history[0].text: task for task in await begun(house, crowd, "a", "b")}
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == {"a", "b"})
    await dies(house, crowd, **settings)
    deadly = ""
    for _ in range(3):
        # Whichever is alone takes the process along; it goes first from then on.
        await eventually(lambda: len(crowd.under_way) == 1)
        (found,) = crowd.under_way
        assert deadly in ("", found)
        deadly = found
        await dies(house, crowd, **settings)
    failed = await house.reaches(tasks[deadly].id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 3 attempts."
    (other,) = {"a", "b"} - {deadly}
    await eventually(lambda: crowd.under_way == {other})
    crowd.end(other)
    done = await house.reaches(tasks[other].id, S.COMPLETED)
    # It was begun twice, and once alone at last; it only waited at all other deaths.
    assert not any(event.counts for event in await events(house, done))


async def test_tasks_that_take_long_do_not_hide_the_one_that_ends_processes(
    house: House, crowd: Crowd
) -> None:
    """Beside a task that outlives its turn no other is alone: a death in the turn of one tells."""
    settings = {"suspect_seconds": BRIEF}
    texts = [f"long {n}" for n in range(11)]
    await house.start(crowd.agent, **settings)
    *innocent, deadly = await begun(house, crowd, *texts, "deadly")

    async def is_known() -> bool:
        return (await house.get(deadly.id)).status.state is S.FAILED

    deaths = 0
    while not await is_known():
        await dies(house, crowd, **settings)
        deaths += 1
        # Two before anything is known, some until its turn comes, one in it, three that it is
        # charged with: fewer than there are tasks.
        assert deaths <= 10
        await _until(lambda: "deadly" in crowd.under_way, is_known)
    for text in texts:
        crowd.end(text)
    for task in innocent:
        await house.reaches(task.id, S.COMPLETED)


async def _until(begins: Callable[[], bool], is_over: Callable[[], Awaitable[bool]]) -> None:
    async def is_so() -> bool:
        return begins() or await is_over()

    await eventually(is_so)


async def test_a_task_that_is_alone_anyway_is_charged_at_once(house: House, crowd: Crowd) -> None:
    settings = {"suspect_seconds": LONG, "max_attempts": 2}
    await house.start(crowd.agent, **settings)
    (task,) = await begun(house, crowd, "a")
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == {"a"})
    await dies(house, crowd, **settings)
    failed = await house.reaches(task.id, S.FAILED)
    assert sentence(failed) == "The agent did not finish in 2 attempts."


async def test_a_suspect_that_outlives_its_time_is_alone_no_more(
    house: House, crowd: Crowd
) -> None:
    settings = {"suspect_seconds": BRIEF, "max_attempts": 1}
    await house.start(crowd.agent, **settings)
    (task, _) = await begun(house, crowd, "a", "b")
    crowd.end("b")
    suspects = [task]
    for _ in range(2):
        suspects += await begun(house, crowd, "b2")
        await dies(house, crowd, **settings)
    await eventually(lambda: not house.engine._live.isolation.is_on)
    await begun(house, crowd, "new")
    alone = [[one.alone_in != 0 for one in await events(house, task)] for task in suspects]
    # Which one has the first turn depends on whose log is read first.
    assert any(any(turns) for turns in alone) and not any(turns[-1:] == [True] for turns in alone)
    # Beside another it is not charged.
    await dies(house, crowd, **settings)
    await eventually(lambda: "a" in crowd.under_way)
    assert not any(event.counts for event in await events(house, task))


async def test_progress_clears_a_task(house: House, crowd: Crowd) -> None:
    agent, reached = crowd.agent, asyncio.Semaphore(0)
    go_on = asyncio.Event()

    @agent.skill
    async def steps(text: str, turn: Turn) -> str:
        for n in range(turn.attempt):
            await turn.step(f"step {n}", asyncio.sleep, 0)
        crowd.under_way.add(text)
        reached.release()
        try:
            await go_on.wait()
        finally:
            crowd.under_way.discard(text)
        return text

    settings = {"suspect_seconds": LONG}
    await house.start(agent, **settings)
    tasks = [await house.send(text, skill="steps", wait=False) for text in "ab"]
    for _ in range(3):
        for _ in tasks:
            await within(reached.acquire())
        assert crowd.under_way == {"a", "b"}
        await dies(house, crowd, **settings)
    go_on.set()
    for task in tasks:
        await house.reaches(task.id, S.COMPLETED)


async def test_what_sleeps_or_waits_for_its_caller_is_no_suspect(
    house: House, crowd: Crowd
) -> None:
    settings = {"suspect_seconds": LONG, "max_attempts": 1}
    await house.start(crowd.agent, **settings)
    asleep = await house.send("z", skill="sleeps", wait=False)
    waiting = await house.send("w", skill="asks")
    assert waiting.status.state is S.INPUT_REQUIRED
    (task,) = await begun(house, crowd, "a")
    for _ in range(2):
        await dies(house, crowd, **settings)
        await eventually(lambda: crowd.ran == ["a"])
    # Beside one that sleeps it was a suspect first, and then alone.
    await dies(house, crowd, **settings)
    assert (await house.reaches(task.id, S.FAILED)).status.state is S.FAILED
    assert (await house.get(asleep.id)).status.state is S.WORKING
    assert (await house.get(waiting.id)).status.state is S.INPUT_REQUIRED


async def test_a_stop_in_good_order_is_no_death(house: House, crowd: Crowd) -> None:
    settings = {"suspect_seconds": LONG, "max_attempts": 1}
    await house.start(crowd.agent, **settings)
    tasks = await begun(house, crowd, "a", "b")
    for _ in range(4):
        await eventually(lambda: _is_written(house))
        await house.stop()
        await eventually(lambda: not crowd.under_way)
        await house.start(crowd.agent, **settings)
        await eventually(lambda: crowd.under_way == {"a", "b"})
    for task in tasks:
        assert await events(house, task) == []


async def test_one_that_was_alone_before_a_stop_in_good_order_is_not_charged_for_a_later_death(
    house: House, crowd: Crowd
) -> None:
    settings = {"suspect_seconds": LONG, "max_attempts": 1}
    await house.start(crowd.agent, **settings)
    tasks = await begun(house, crowd, "a", "b")
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == {"a", "b"})
    await dies(house, crowd, **settings)
    await eventually(lambda: len(crowd.under_way) == 1)
    await eventually(lambda: _is_written(house))
    await house.stop()
    await eventually(lambda: not crowd.under_way)
    await house.start(crowd.agent, **settings)
    await eventually(lambda: crowd.under_way == {"a", "b"})
    await dies(house, crowd, **settings)
    await eventually(lambda: len(crowd.under_way) == 1)
    for task in tasks:
        assert not any(event.counts for event in await events(house, task))


# Others


async def suspected(house: House, crowd: Crowd, *texts: str, **settings: Any) -> list[Task]:
    """Have tasks be suspects, the first of which runs."""
    await house.start(crowd.agent, **settings)
    tasks = await begun(house, crowd, *texts)
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == set(texts))
    await dies(house, crowd, **settings)
    await eventually(lambda: len(crowd.under_way) == 1)
    return tasks


async def test_new_tasks_wait_while_a_suspect_is_alone_and_then_run(
    house: House, crowd: Crowd
) -> None:
    await suspected(house, crowd, "a", "b", suspect_seconds=LONG)
    new = await house.send("new", skill="work", wait=False)
    assert new.status.state is S.SUBMITTED
    crowd.end("a")
    crowd.end("b")
    await eventually(lambda: crowd.under_way == {"new"})
    crowd.end("new")
    await house.reaches(new.id, S.COMPLETED)


async def test_new_tasks_wait_no_longer_than_a_bound_however_many_are_suspects(
    house: House, crowd: Crowd
) -> None:
    texts = [f"{n}" for n in range(20)]
    await suspected(house, crowd, *texts, suspect_seconds=BRIEF)
    await house.send("new", skill="work", wait=False)
    await eventually(lambda: crowd.under_way == {*texts, "new"})


async def test_a_task_that_waits_can_be_canceled(house: House, crowd: Crowd) -> None:
    tasks = await suspected(house, crowd, "a", "b", suspect_seconds=LONG)
    new = await house.send("new", skill="work", wait=False)
    assert (await house.cancel(new.id)).status.state is S.CANCELED
    for task in tasks:
        assert (await house.cancel(task.id)).status.state is S.CANCELED
    await eventually(lambda: not house.engine._live.isolation.is_on)
    assert "new" not in crowd.ran


async def test_the_agents_of_a_process_wait_for_each_other(tmp_path: Path) -> None:
    crowd, neighbour = Crowd(), Crowd("Neighbour")
    house = house_over("memory", tmp_path)
    await suspected(house, crowd, "a", "b", suspect_seconds=LONG)
    isolation = house.engine._live.isolation
    settings = Settings(engine=EngineSettings(suspect_seconds=LONG))
    other = House(lambda: house.store, keeps_object=True)
    other._store, other._agent = house.store, neighbour.agent
    other._engine = Engine(neighbour.agent, house.store, settings, isolation=isolation)
    await other.send("there", skill="work", wait=False)
    assert not neighbour.under_way
    crowd.end("a")
    crowd.end("b")
    await eventually(lambda: neighbour.under_way == {"there"})
    await other.engine.stop()
    await house.stop()


async def test_another_process_goes_on_while_a_suspect_is_alone_here(street: Street) -> None:
    crowd = Crowd()
    settings = {"suspect_seconds": LONG}
    first, second, third = [await street.open(crowd.agent, **settings) for _ in range(3)]
    await begun(first, crowd, "a", "b")
    await street.kill(first)
    await eventually(lambda: crowd.under_way == {"a", "b"} and len(crowd.ran) == 4)
    holder = second if second.engine.live_tasks else third
    (last,) = {second, third} - {holder}
    await street.kill(holder)
    await eventually(lambda: len(crowd.under_way) == 1)
    fourth = await street.open(crowd.agent, **settings)
    await begun(fourth, crowd, "elsewhere")
    assert last.engine._live.isolation.is_on
    for text in ("a", "b", "elsewhere"):
        crowd.end(text)


async def test_a_crowd_of_one_pass_is_read_before_any_of_it_begins(
    house: House, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was there at one death only does not begin before a suspect is known."""
    settings = {"suspect_seconds": LONG}
    await house.start(crowd.agent, **settings)
    await begun(house, crowd, "old", "older")
    await dies(house, crowd, **settings)
    await eventually(lambda: crowd.under_way == {"old", "older"})
    await begun(house, crowd, "young")
    await eventually(lambda: _is_written(house))
    await house.die()
    await eventually(lambda: not crowd.under_way)
    crowd.ran.clear()
    monkeypatch.setattr(type(house.store), "claim", _reversed(type(house.store).claim))
    await house.start(crowd.agent, **settings)
    await eventually(lambda: len(crowd.under_way) == 1)
    assert crowd.ran[0] != "young"
    crowd.end("old")
    crowd.end("older")
    await eventually(lambda: crowd.under_way == {"young"})


def _reversed(claim: Callable[..., Any]) -> Callable[..., Any]:
    async def youngest_first(self: Any, agent: str, limit: int) -> Any:
        return [*reversed(await claim(self, agent, limit))]

    return youngest_first
