"""Guards against tasks that end their processes: who is charged, and who runs alone when."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dragoman.engine.recovery as recovery
import dragoman.engine.running.isolation as isolation
import dragoman.stores.sqlite.store as sqlite
from dragoman import Agent, Turn
from dragoman.engine.running.isolation import Isolation
from dragoman.engine.running.worker import Worker
from dragoman.model.identity import ContextId, Scope, TaskId, new_id
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.stores.interface import Create, TaskPosition
from dragoman.stores.sqlite import SQLiteStore
from proof.sabotage.guards.process import LONG, Process, comes
from proof.sabotage.patches import Patches, Removal, edited
from proof.sabotage.trial import Finding, Guard, Trial

# Seconds a suspect has where something waits for the end of them.
_BRIEF = 0.05
_DEATHS = 4


class _Crowd:
    """Tasks that run until their process dies."""

    def __init__(self, seconds: float) -> None:
        agent = Agent("Crowd", "Runs on and on.")
        self.under_way: set[str] = set()

        @agent.skill
        async def work(text: str, turn: Turn) -> str:  # pyright: ignore[reportUnusedFunction]  # the agent has it
            await turn.say("at work")
            self.under_way.add(text)
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                self.under_way.discard(text)

        self.process = Process(agent, seconds)
        self.tasks: list[TaskId] = []

    async def begin(self, *texts: str) -> bool:
        await self.process.start()
        self.tasks = [await self.process.send(text) for text in texts]
        return await self.are_under_way(*texts)

    async def are_under_way(self, *texts: str) -> bool:
        return await comes(lambda: self.under_way == set(texts))

    async def die(self) -> None:
        await self.process.engine.stop()
        await self.are_under_way()
        await self.process.start()


async def deaths_beside_others(trial: Trial) -> Finding:
    """Two tasks are under way at every death: neither is given up."""
    crowd = _Crowd(_BRIEF)
    await crowd.begin("a", "b")
    for _ in range(_DEATHS):
        await crowd.die()
        await crowd.are_under_way("a", "b")
    states = [await crowd.process.state(task) for task in crowd.tasks]
    await crowd.process.engine.stop()
    failed = states.count(TaskState.FAILED)
    return Finding(not failed, f"{failed} of {len(states)} failed")


async def suspects_one_at_a_time(trial: Trial) -> Finding:
    """After two deaths the tasks of both do not run beside each other."""
    crowd = _Crowd(LONG)
    await crowd.begin("a", "b")
    await crowd.die()
    await crowd.are_under_way("a", "b")
    await crowd.die()
    await comes(lambda: bool(crowd.under_way))
    await asyncio.sleep(0.1)
    count = len(crowd.under_way)
    await crowd.process.engine.stop()
    return Finding(count == 1, f"{count} under way")


async def others_after_suspects(trial: Trial) -> Finding:
    """A new task begins although the suspects before it do not end."""
    crowd = _Crowd(_BRIEF)
    await crowd.begin("a", "b")
    await crowd.die()
    await crowd.are_under_way("a", "b")
    await crowd.die()
    await crowd.process.send("new")
    has_begun = await crowd.are_under_way("a", "b", "new")
    await crowd.process.engine.stop()
    return Finding(has_begun, "it begins" if has_begun else "it waits on")


class _Rounds:
    """Suspects that outlive their turns, in one process after the other. Time passes whenever it is
    looked at, so that turns end, and stands still in the last turn that a process is to give."""

    def __init__(self, count: int) -> None:
        agent = Agent("Rounds", "Runs on and on.")
        self._count = count
        self._begun = 0
        self._are_begun = asyncio.Event()

        @agent.skill
        async def work(text: str) -> str:  # pyright: ignore[reportUnusedFunction]  # the agent has it
            self._begun += 1
            if self._begun == count:
                self._are_begun.set()
            return await asyncio.get_running_loop().create_future()

        self._process = Process(agent, now=self._look)
        self._time = 0.0
        self._turns: list[TaskId] = []
        self._last = 0
        self._is_last = asyncio.Event()

    def _look(self) -> float:
        if len(self._turns) != self._last:
            self._time += LONG / 2
        return self._time

    def _noted(self, mark_turn: Any) -> Any:
        async def note(worker: Worker, *, is_on: bool, is_alone: bool = False) -> None:
            if is_on:
                self._turns.append(worker.log.task_id)
            await mark_turn(worker, is_on=is_on, is_alone=is_alone)
            if is_on and len(self._turns) == self._last:
                self._is_last.set()

        return note

    @asynccontextmanager
    async def suspected(self) -> AsyncGenerator[None]:
        """Begin the tasks, and have one process die; they are suspects after the next."""
        patches = Patches()
        patches.put(Worker, "mark_turn", self._noted)
        try:
            await self._process.start()
            for _ in range(self._count):
                await self._process.send("go")
            await self._are_begun.wait()
            self._begun = 0
            self._are_begun.clear()
            await self._process.die()
            await self._are_begun.wait()
            yield
        finally:
            patches.take_back()
            await self._process.engine.stop()

    async def turns(self, count: int) -> list[TaskId]:
        """Let the process die, and the next one give so many turns; return who had them."""
        self._turns, self._last = [], count
        self._is_last.clear()
        await self._process.die()
        await self._is_last.wait()
        return self._turns


async def death_in_a_turn(trial: Trial) -> Finding:
    """A process dies in the turn of a suspect beside others: it is first in the next process."""
    rounds = _Rounds(3)
    async with rounds.suspected():
        _, caught = await rounds.turns(2)
        (first,) = await rounds.turns(1)
    return Finding(first == caught, f"{'it' if first == caught else 'another'} is first")


async def turns_in_rounds(trial: Trial) -> Finding:
    """Processes die before all suspects had a turn: the others have theirs first in the next."""
    rounds = _Rounds(3)
    async with rounds.suspected():
        had = [*await rounds.turns(2), *await rounds.turns(2)]
    return Finding(len(set(had)) == 3, f"{len(set(had))} of 3 in {len(had)} turns")


async def crowds_claimed_in_portions(trial: Trial) -> Finding:
    """Of what one worker left, none passes for the only one, however it is claimed."""
    now = int(time.time() * 1000)
    path = Path(trial.folder) / "crowd.db"
    first = SQLiteStore(path)
    await first.open()
    for agent in ("one", "other"):
        await _write(first, _creation(agent, now))
    await _die(first)
    later = SQLiteStore(path)
    await later.open()
    claimed = [await later.claim(agent, 10) for agent in ("one", "other")]
    await later.close()
    alone = sum(held_by > 0 for ((_, held_by),) in claimed)
    return Finding(not alone, f"{alone} of {len(claimed)} taken for the only one")


def _creation(agent: str, now: int) -> Create:
    task_id = TaskId(new_id())
    status = TaskStatus(TaskState.WORKING, None, "2026-01-01T00:00:00.000Z")
    task = Task(task_id, ContextId("c"), status)
    standing = TaskPosition(TaskState.WORKING, now, 1)
    return Create(
        Scope(agent), task_id, ContextId("c"), [], [Recorded.of_event(1, task)], standing, None
    )


async def _write(store: SQLiteStore, write: Create) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store.submit(write, lambda error, number: done.set_result(None))
    await done


async def _die(store: SQLiteStore) -> None:
    """Close a store as the end of its process does: nothing is let go of."""
    patches = Patches()
    patches.put(sqlite.Workers, "leave", lambda _: _nothing)
    try:
        await store.close()
    finally:
        patches.take_back()


# Removals


def _nothing(*given: Any) -> None:
    """What a guard did is not done."""


def _charge(patches: Patches) -> None:
    def always(held_by: int) -> bool:
        return True

    patches.put(recovery, "died_alone", lambda _: always)


def _isolation(patches: Patches) -> None:
    patches.put(Isolation, "suspect", lambda _: _nothing)


def _suspect_time(patches: Patches) -> None:
    def make(until: Any) -> Any:
        async def for_ever(self: Any, is_so: Any, seconds: float) -> bool:
            return await until(self, is_so, LONG)

        return for_ever

    patches.put(Isolation, "_until", make)


def _order_without(patches: Patches, *, turns: bool = True, caught: bool = True) -> None:
    def order(worker: Worker) -> tuple[int, int, int]:
        replay = worker.replay
        had = replay.turns if turns else 0
        return -replay.tries, had - 2 * replay.times_caught * caught, -replay.deaths

    patches.put(isolation, "_order", lambda _: order)


def _caught(patches: Patches) -> None:
    _order_without(patches, caught=False)


def _rounds(patches: Patches) -> None:
    _order_without(patches, turns=False)


def _crowds(patches: Patches) -> None:
    def make(queries: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
        changed = edited(queries()["crowds"], "'crowd:*'", "'none'")
        return lambda: queries() | {"crowds": changed}

    patches.put(sqlite, "queries", make)


GUARDS: tuple[Guard, ...] = (
    Guard("charge", "X4", "every death is charged to all", deaths_beside_others, True),
    Guard("suspects", "X4", "suspects run beside each other", suspects_one_at_a_time, True),
    Guard("caught", "X4", "a death in a turn tells nothing", death_in_a_turn, True),
    Guard("rounds", "X4", "the same suspects are always first", turns_in_rounds, True),
    Guard("suspect-time", "D3", "others wait for suspects", others_after_suspects, True),
    Guard("crowds", "X4", "a claim forgets who was there", crowds_claimed_in_portions, True),
)
REMOVALS: dict[str, Removal] = {
    "charge": _charge,
    "suspects": _isolation,
    "caught": _caught,
    "rounds": _rounds,
    "suspect-time": _suspect_time,
    "crowds": _crowds,
}
