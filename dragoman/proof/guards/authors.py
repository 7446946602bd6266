"""Guards against code of authors: exceptions of any kind, deadly tasks, a blocked loop."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dragoman.engine.holdings as holdings
import dragoman.server.loop_watch as loop_watch
import dragoman.server.run as run
import dragoman.stores.sqlite.store as sqlite
from dragoman import Agent, App, Settings, Turn
from dragoman.engine import author_code
from dragoman.engine.author_code import AuthorThreads, Run
from dragoman.engine.engine import Engine
from dragoman.engine.isolation import Isolation
from dragoman.engine.worker import Worker
from dragoman.model.identity import ContextId, MessageId, Scope, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import GetTask, SendMessage
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.proof.patches import Patches, Removal, edited
from dragoman.proof.trial import Finding, Guard, Trial
from dragoman.service import Call, TaskReply
from dragoman.stores.interface import Create, Standing
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.telemetry import figures

# Seconds a task may take that ends at once; of a check, and of what is too long for the loop.
_WITHIN = 1.5
# How often a skill holds the loop until the thread that watches has seen it.
_TRIES = 20
_HELD = 0.25
_TOO_LONG = 0.05
# Seconds a suspect has, where nothing waits for the end of them and where something does.
_LONG, _BRIEF = 300.0, 0.05
_DEATHS = 4


class _Custom(BaseException):
    """Past `except Exception`."""


def _message(text: str, skill: str = "") -> SendMessage:
    metadata = {"skill": skill} if skill else {}
    message = Message(MessageId(new_id()), Role.USER, [Part(text=text)], metadata=metadata)
    return SendMessage(message=message, wait=False)


class _House:
    """An agent over a store in memory, whose process can die."""

    def __init__(self, agent: Agent, seconds: float = _LONG) -> None:
        self._agent = agent
        self._store = MemoryStore()
        self._settings = Settings(suspect_seconds=seconds)
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "it was started"
        return self._engine

    async def start(self) -> None:
        await self._store.open()
        self._engine = Engine(self._agent, self._store, self._settings)
        await self.engine.sweep()

    async def die(self) -> None:
        """End without letting anything go, and come back."""
        await self.engine.stop()
        await self.start()

    async def send(self, text: str, skill: str = "") -> TaskId:
        reply = await self.engine.answer(Call(operation=_message(text, skill)))
        assert isinstance(reply, TaskReply)
        return reply.reading.task.id

    async def state(self, task_id: TaskId) -> TaskState:
        reply = await self.engine.answer(Call(operation=GetTask(task_id=task_id)))
        assert isinstance(reply, TaskReply)
        return reply.reading.task.status.state


async def _comes(is_so: Callable[[], Awaitable[bool] | bool]) -> bool:
    """Tell whether something comes to be so in time."""
    until = time.monotonic() + _WITHIN
    while time.monotonic() < until:
        found = is_so()
        if found if isinstance(found, bool) else await found:
            return True
        await asyncio.sleep(0.005)
    return False


async def _fails(skill: Callable[..., Any]) -> Finding:
    """Find out whether a task of a skill fails, as it should."""
    agent = Agent("Author", "Misbehaves.")
    agent.skill(id="misbehaves")(skill)
    house = _House(agent)
    await house.start()
    task = await house.send("go")

    async def has_failed() -> bool:
        return await house.state(task) is TaskState.FAILED

    failed = await _comes(has_failed)
    state = await house.state(task)
    await house.engine.stop()
    return Finding(failed, f"the task is {state.name.lower()}")


# What code raises


async def an_exception_of_any_class(trial: Trial) -> Finding:
    """A skill raises what is no Exception: its task fails."""

    async def raises(text: str) -> str:
        raise _Custom

    return await _fails(raises)


async def a_cancellation_by_the_code_itself(trial: Trial) -> Finding:
    """A skill cancels the task it runs in: its task fails."""

    async def cancels(text: str) -> str:
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        await asyncio.sleep(0)
        return text

    return await _fails(cancels)


async def a_stop_of_iteration_in_a_thread(trial: Trial) -> Finding:
    """A plain function raises StopIteration: its task fails."""

    def stops(text: str) -> str:
        raise StopIteration

    async def check() -> Finding:
        # Without the guard the loop is told of what no future takes.
        asyncio.get_running_loop().set_exception_handler(_unheard)
        return await _fails(stops)

    return await _on_its_own_loop(check)


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The check itself tells."""


async def an_exit_of_a_child(trial: Trial) -> Finding:
    """A task that a skill started exits: the loop goes on, and the task fails."""

    async def exits(text: str) -> str:
        async def child() -> None:
            raise SystemExit(3)

        await asyncio.create_task(child())
        return text

    async def check() -> Finding:
        author_code.guard_tasks(asyncio.get_running_loop())
        return await _fails(exits)

    return await _on_its_own_loop(check)


async def an_exit_of_a_callback(trial: Trial) -> Finding:
    """A callback exits, and stops the loop: what is served goes on."""

    def exits() -> None:
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(exits)
        await asyncio.sleep(0.01)
        loop.stop()
        await asyncio.sleep(0.01)

    def serve() -> Finding:
        with asyncio.Runner() as runner:
            try:
                run.run_through(runner.get_loop(), main())
            except BaseException as error:
                return Finding(False, f"it ended with {type(error).__name__}")
        return Finding(True, "it went on")

    return await asyncio.to_thread(serve)


async def _on_its_own_loop(check: Callable[[], Coroutine[Any, Any, Finding]]) -> Finding:
    """Make a check that may end its loop."""

    def made() -> Finding:
        try:
            with asyncio.Runner() as runner:
                return runner.run(check())
        except BaseException as error:
            return Finding(False, f"the loop ended with {type(error).__name__}")

    return await asyncio.to_thread(made)


# Deadly tasks


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

        self.house = _House(agent, seconds)
        self.tasks: list[TaskId] = []

    async def begin(self, *texts: str) -> bool:
        await self.house.start()
        self.tasks = [await self.house.send(text) for text in texts]
        return await self.are_under_way(*texts)

    async def are_under_way(self, *texts: str) -> bool:
        return await _comes(lambda: self.under_way == set(texts))

    async def die(self) -> None:
        await self.house.engine.stop()
        await self.are_under_way()
        await self.house.start()


async def deaths_beside_others(trial: Trial) -> Finding:
    """Two tasks are under way at every death: neither is given up."""
    crowd = _Crowd(_BRIEF)
    await crowd.begin("a", "b")
    for _ in range(_DEATHS):
        await crowd.die()
        await crowd.are_under_way("a", "b")
    states = [await crowd.house.state(task) for task in crowd.tasks]
    await crowd.house.engine.stop()
    failed = states.count(TaskState.FAILED)
    return Finding(not failed, f"{failed} of {len(states)} failed")


async def suspects_one_at_a_time(trial: Trial) -> Finding:
    """After two deaths the tasks of both do not run beside each other."""
    crowd = _Crowd(_LONG)
    await crowd.begin("a", "b")
    await crowd.die()
    await crowd.are_under_way("a", "b")
    await crowd.die()
    await _comes(lambda: bool(crowd.under_way))
    await asyncio.sleep(0.1)
    count = len(crowd.under_way)
    await crowd.house.engine.stop()
    return Finding(count == 1, f"{count} under way")


async def others_after_suspects(trial: Trial) -> Finding:
    """A new task begins although the suspects before it do not end."""
    crowd = _Crowd(_BRIEF)
    await crowd.begin("a", "b")
    await crowd.die()
    await crowd.are_under_way("a", "b")
    await crowd.die()
    await crowd.house.send("new")
    has_begun = await crowd.are_under_way("a", "b", "new")
    await crowd.house.engine.stop()
    return Finding(has_begun, "it begins" if has_begun else "it waits on")


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
    standing = Standing(TaskState.WORKING, now, 1)
    return Create(Scope(agent), task_id, ContextId("c"), [], [Recorded(1, task)], standing, None)


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


# A blocked loop


@asynccontextmanager
async def _blocking() -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Serve a skill that blocks; the value has it do so."""
    agent = Agent("Blocking", "Holds the loop.")

    @agent.skill
    async def blocks(text: str) -> str:  # pyright: ignore[reportUnusedFunction]  # the agent has it
        time.sleep(_HELD)  # noqa: ASYNC251  # which is what is to be noticed
        return text

    settings = Settings(store="memory:", loop_blocked_after=_TOO_LONG)
    engine_of: dict[str, Engine] = {}

    class Site(App):
        def _engine(self, opened: Any, code: Any) -> Engine:
            engine_of["it"] = super()._engine(opened, code)
            return engine_of["it"]

    async def block() -> None:
        await engine_of["it"].answer(Call(operation=_message("go")))
        await asyncio.sleep(_HELD)

    async with Site(agent, settings=settings).running():
        yield block


async def a_skill_that_blocks(trial: Trial) -> Finding:
    """A skill that holds the loop is counted under its name."""
    before = figures.loop_blocked.value("blocking", "blocks")
    async with _blocking() as block:
        await block()
    count = figures.loop_blocked.value("blocking", "blocks") - before
    return Finding(count > 0, f"counted {count:.0f} times")


async def lines_about_one_skill(trial: Trial) -> Finding:
    """A skill that holds the loop twice within a minute is named once."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    loop_watch.logger.addHandler(handler)

    def count() -> int:
        # On a busy machine others may be slow as well.
        return sum(line.startswith("skill blocks of") for line in lines)

    try:
        async with _blocking() as block:
            # The thread that watches may not have had a processor meanwhile.
            for _ in range(_TRIES):
                await block()
                if count():
                    break
            await block()
    finally:
        loop_watch.logger.removeHandler(handler)
    return Finding(count() == 1, f"{count()} lines")


# Removals


def _nothing(*given: Any) -> None:
    """What a guard did is not done."""


def _border(patches: Patches) -> None:
    """Let pass what is no Exception, as a border of that class does."""

    def make(passes: Callable[[Any, BaseException], bool]) -> Any:
        def passes_more(self: Any, error: BaseException) -> bool:
            return not isinstance(error, Exception) or passes(self, error)

        return passes_more

    patches.put(Worker, "_passes", make)

    def broke(self: Any, task: Any) -> None:
        if not task.cancelled():
            task.exception()

    patches.put(Worker, "_ended", lambda _: broke)


def _own_cancel(patches: Patches) -> None:
    def cancel(self: Any, msg: Any = None) -> bool:
        self.interrupt()
        return True

    patches.put(Run, "cancel", lambda _: cancel)


def _stop_iteration(patches: Patches) -> None:
    def submit(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return ThreadPoolExecutor.submit(self, fn, *args, **kwargs)

    patches.put(AuthorThreads, "submit", lambda _: submit)


def _children(patches: Patches) -> None:
    patches.put(author_code, "guard_tasks", lambda _: _nothing)


def _loop_end(patches: Patches) -> None:
    def until_complete(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
        loop.run_until_complete(main)

    patches.put(run, "run_through", lambda _: until_complete)


def _charge(patches: Patches) -> None:
    def always(held_by: int) -> bool:
        return True

    patches.put(holdings, "died_alone", lambda _: always)


def _isolation(patches: Patches) -> None:
    patches.put(Isolation, "suspect", lambda _: _nothing)


def _suspect_time(patches: Patches) -> None:
    def make(until: Any) -> Any:
        async def for_ever(self: Any, is_so: Any, seconds: float) -> bool:
            return await until(self, is_so, _LONG)

        return for_ever

    patches.put(Isolation, "_until", make)


def _crowds(patches: Patches) -> None:
    def make(queries: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
        changed = edited(queries()["crowds"], "'crowd:*'", "'none'")
        return lambda: queries() | {"crowds": changed}

    patches.put(sqlite, "queries", make)


def _loop_watch(patches: Patches) -> None:
    patches.put(loop_watch.LoopWatch, "look", lambda _: _nothing)


def _loop_lines(patches: Patches) -> None:
    patches.put(loop_watch, "TELL_EVERY", lambda _: 0.0)


GUARDS: tuple[Guard, ...] = (
    Guard("border", "D3", "only an Exception ends its task", an_exception_of_any_class, True),
    Guard(
        "own-cancel",
        "D3",
        "a cancellation by code passes for ours",
        a_cancellation_by_the_code_itself,
        True,
    ),
    Guard(
        "stop-iteration",
        "D3",
        "threads hand on StopIteration",
        a_stop_of_iteration_in_a_thread,
        True,
    ),
    Guard("children", "D3", "tasks of authors may exit", an_exit_of_a_child, True),
    Guard("loop-end", "D3", "the loop ends with an exit", an_exit_of_a_callback, True),
    Guard("charge", "X4", "every death is charged to all", deaths_beside_others, True),
    Guard("suspects", "X4", "suspects run beside each other", suspects_one_at_a_time, True),
    Guard("suspect-time", "D3", "others wait for suspects", others_after_suspects, True),
    Guard("crowds", "X4", "a claim forgets who was there", crowds_claimed_in_portions, True),
    Guard("loop-watch", "B2", "nothing watches the loop", a_skill_that_blocks, True),
    Guard("loop-lines", "B2", "each block is a line of log", lines_about_one_skill, True),
)
REMOVALS: dict[str, Removal] = {
    "border": _border,
    "own-cancel": _own_cancel,
    "stop-iteration": _stop_iteration,
    "children": _children,
    "loop-end": _loop_end,
    "charge": _charge,
    "suspects": _isolation,
    "suspect-time": _suspect_time,
    "crowds": _crowds,
    "loop-watch": _loop_watch,
    "loop-lines": _loop_lines,
}
