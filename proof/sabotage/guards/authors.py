"""Guards against code of authors: exceptions of any kind, a blocked loop."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import dragoman.server.process.loop_watch as loop_watch
import dragoman.server.process.run as run
from dragoman import Agent, App, Settings
from dragoman.config import ServerSettings, StoreSettings
from dragoman.engine.running import author_code
from dragoman.engine.running.author_code import AuthorRun, AuthorThreads
from dragoman.engine.running.worker import Worker
from dragoman.model.task import TaskState
from dragoman.service import Call
from dragoman.telemetry import figures
from proof.sabotage.guards.process import Process, comes, message
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

# How often a skill holds the loop until the thread that watches has seen it.
_TRIES = 20
# Seconds that it does, and that are too long.
_HELD = 0.25
_TOO_LONG = 0.05


class _Custom(BaseException):
    """Past `except Exception`."""


async def _fails(skill: Callable[..., Any]) -> Finding:
    """Find out whether a task of a skill fails, as it should."""
    agent = Agent("Author", "Misbehaves.")
    agent.skill(id="misbehaves")(skill)
    process = Process(agent)
    await process.start()
    task = await process.send("go")

    async def has_failed() -> bool:
        return await process.state(task) is TaskState.FAILED

    failed = await comes(has_failed)
    state = await process.state(task)
    await process.engine.stop()
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


# A blocked loop


@asynccontextmanager
async def _blocking() -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Serve a skill that blocks; the value has it do so."""
    agent = Agent("Blocking", "Holds the loop.")

    @agent.skill
    async def blocks(text: str) -> str:  # pyright: ignore[reportUnusedFunction]  # the agent has it
        time.sleep(_HELD)  # noqa: ASYNC251  # which is what is to be noticed
        return text

    settings = Settings(
        stores=StoreSettings(location="memory:"),
        server=ServerSettings(loop_blocked_after=_TOO_LONG),
    )
    app = App(agent, settings=settings)

    async def block() -> None:
        await app.site.engines[agent.name].answer(Call(operation=message("go")))
        await asyncio.sleep(_HELD)

    async with app.running():
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
    # Of its own: a command that runs proofs keeps the product's logger silent meanwhile.
    logger = logging.Logger("lines")
    logger.addHandler(handler)
    patches = Patches()
    patches.put(loop_watch, "logger", lambda _: logger)

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
        patches.take_back()
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

    patches.put(AuthorRun, "cancel", lambda _: cancel)


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
    Guard("loop-watch", "B2", "nothing watches the loop", a_skill_that_blocks, True),
    Guard("loop-lines", "B2", "each block is a line of log", lines_about_one_skill, True),
)
REMOVALS: dict[str, Removal] = {
    "border": _border,
    "own-cancel": _own_cancel,
    "stop-iteration": _stop_iteration,
    "children": _children,
    "loop-end": _loop_end,
    "loop-watch": _loop_watch,
    "loop-lines": _loop_lines,
}
