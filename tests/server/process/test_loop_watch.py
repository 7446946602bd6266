"""Code that holds the event loop is named: which skill, which task, which line, for how long."""

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from harness.serving import Site, serving
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.agents.local_tools import LocalTools
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelReply, ModelRequest
from dragoman.agents.tools import ToolCall
from dragoman.server.process import loop_watch
from dragoman.server.process.loop_watch import LoopWatch
from dragoman.telemetry import figures

LIMIT = 0.1
# Longer than the limit and than a look, also on a busy machine.
HELD = 0.6


def block() -> None:
    """Hold the loop, as a request of a plain HTTP client does.

    In slices: time in which the machine stops this process is no time in which it is held.
    """
    for _ in range(60):
        time.sleep(HELD / 60)


def work() -> None:
    """Hold the loop with what lets no other thread run."""
    until = time.thread_time() + HELD
    while time.thread_time() < until:
        re.fullmatch("(a|aa)*b", "a" * 24)


@pytest.fixture
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the watch measure the time that this process works: on a busy machine it often stands
    still, which the watch must not take for the doing of code."""
    watch = partial(LoopWatch, now=time.process_time)
    monkeypatch.setattr("dragoman.server.app.LoopWatch", watch)


def work_in_one_call(length: int) -> float:
    """Hold the loop in C code: the watch cannot even ask the loop meanwhile. Return how long."""
    began = time.thread_time()
    re.fullmatch("(a|aa)*b", "a" * length)
    return time.thread_time() - began


def blocker() -> Agent:
    agent = Agent("Blocker", "Holds the loop.")

    @agent.skill
    async def sleeps(text: str) -> str:
        block()
        return text

    @agent.skill
    async def computes(text: str) -> str:
        work()
        return text

    @agent.skill
    async def in_one_call(text: str) -> str:
        work_in_one_call(int(text))
        return text

    @agent.skill
    async def in_a_step(text: str, turn: Turn) -> str:
        async def blocks() -> str:
            block()
            return text

        return await turn.step("blocks", blocks)

    @agent.skill
    async def in_a_child(text: str) -> str:
        async def blocks() -> str:
            block()
            return text

        return await asyncio.create_task(blocks())

    @agent.skill
    async def chunks(text: str) -> AsyncIterator[str]:
        yield "one"
        block()
        yield "two"

    @agent.skill
    async def waits(text: str) -> str:
        await asyncio.sleep(HELD)
        return text

    @agent.skill
    def in_a_thread(text: str) -> str:
        block()
        return text

    return agent


async def answered(site: Site, skill: str, text: str = "hi") -> str:
    """Have a task of a skill completed, and what was found out about it told; return its id."""
    task = await within(site.send(text, metadata={"skillId": skill}))
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    # The loop's sign of life comes with its next turns.
    for _ in range(20):
        await asyncio.sleep(LIMIT / 10)
    return task["id"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "the event loop" in one.getMessage()]


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about what blocks here: on a busy machine others are slow too."""
    return [line for line in lines(caplog) if "(block)" in line or "(work)" in line]


@pytest.mark.parametrize("skill", ["sleeps", "computes", "in_a_step", "in_a_child", "chunks"])
async def test_a_skill_that_holds_the_loop_is_named(
    skill: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    if skill == "computes":
        request.getfixturevalue("processor_time")
    before = figures.loop_blocked.value("blocker", skill)
    seconds = figures.loop_blocked_seconds.value("blocker", skill)
    async with serving(blocker(), loop_blocked_after=LIMIT) as site:
        task = await answered(site, skill)
        await eventually(lambda: named(caplog))
    (line,) = named(caplog)
    assert line.startswith(f"skill {skill} of agent blocker, task {task}, in {__file__}:")
    assert "(work)" in line if skill == "computes" else "(block)" in line
    (held,) = re.findall(r"held the event loop for ([0-9.]+) s", line)
    assert HELD - 2 * LIMIT < float(held) < HELD + 5
    assert figures.loop_blocked.value("blocker", skill) == before + 1
    assert figures.loop_blocked_seconds.value("blocker", skill) >= seconds + HELD - 2 * LIMIT


@pytest.mark.usefixtures("processor_time")
async def test_a_skill_that_holds_the_loop_in_one_call_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = figures.loop_blocked.value("blocker", "in_one_call")
    length = next(n for n in range(24, 60) if work_in_one_call(n) > HELD)
    # A call that gets less than half a processor looks like a frozen process; here it has a whole
    # one, however busy the machine is.
    monkeypatch.setattr(loop_watch, "_work_of", lambda _: time.monotonic)
    async with serving(blocker(), loop_blocked_after=HELD / 2) as site:
        await answered(site, "in_one_call", str(length))
        await eventually(lambda: figures.loop_blocked.value("blocker", "in_one_call") > before)
    assert any("skill in_one_call" in one and "(work_in_one_call)" in one for one in lines(caplog))
    assert figures.loop_blocked.value("blocker", "in_one_call") > before


@pytest.mark.parametrize("skill", ["waits", "in_a_thread"])
async def test_a_skill_that_lets_others_run_is_not(
    skill: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(blocker(), loop_blocked_after=HELD / 2) as site:
        await answered(site, skill)
    assert not [line for line in named(caplog) if skill in line]


async def test_a_tool_that_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Calls:
        name = "calls"

        async def complete(self, request: ModelRequest) -> ModelReply:
            if request.messages[-1].role == "tool":
                return ModelReply("done")
            return ModelReply("", tool_calls=[ToolCall("1", "blocks", {})])

    async def blocks() -> str:
        """Blocks."""
        block()
        return "done"

    loop = AgentLoop(Calls(), tools=[LocalTools(blocks)], streaming=False)  # type: ignore[arg-type]
    async with serving(loop.agent("Loop", "Thinks."), loop_blocked_after=LIMIT) as site:
        await answered(site, "answer")
        await eventually(lambda: named(caplog))
    (line,) = named(caplog)
    assert line.startswith("skill answer of agent loop, task ") and "(block)" in line


async def test_a_skill_is_named_once_a_minute_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = figures.loop_blocked.value("blocker", "sleeps")

    def times() -> float:
        return figures.loop_blocked.value("blocker", "sleeps") - before

    async with serving(blocker(), loop_blocked_after=LIMIT) as site:
        await answered(site, "sleeps")
        await eventually(lambda: times() == 1)
        await answered(site, "sleeps")
        await eventually(lambda: times() == 2)
        await answered(site, "in_a_step")
        await eventually(lambda: len(named(caplog)) == 2)
    assert [line.split()[1] for line in named(caplog)] == ["sleeps", "in_a_step"]
    assert times() == 2


async def test_a_callback_that_holds_the_loop_is_named_by_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(blocker(), loop_blocked_after=LIMIT):
        asyncio.get_running_loop().call_soon(block)
        await eventually(lambda: named(caplog))
    (line,) = named(caplog)
    assert line.startswith(__file__) and "(block)" in line


async def test_nothing_is_watched_where_the_setting_says_so() -> None:
    # Servers of other tests in this process may have theirs.
    before = _watchers()
    async with serving(blocker(), loop_blocked_after=0):
        assert not _watchers() - before
    async with serving(blocker()):
        assert len(_watchers() - before) == 1
    assert not _watchers() - before


def _watchers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "dragoman-watch"}


# By a clock of our own


class Hands:
    """A clock that is set by hand, and a watch that is looked at by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watch = LoopWatch(asyncio.get_running_loop(), 1.0, lambda: self.now)

    def look(self, later: float) -> None:
        """Look from another thread while this one, the loop's, stands here."""
        self.now += later
        with contextlib.ExitStack() as stack:
            thread = threading.Thread(target=self.watch.look)
            stack.callback(thread.join)
            thread.start()


async def test_what_goes_on_and_on_is_told_before_it_ends_and_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    hands = Hands()
    hands.look(0.25)
    await asyncio.sleep(0)
    for _ in range(int(loop_watch.TELL_AFTER * 4)):
        # The loop does not turn meanwhile: nothing here is awaited.
        hands.look(0.25)
    assert not lines(caplog)
    for _ in range(int(loop_watch.TELL_EVERY * 4)):
        hands.look(0.25)
    assert len(lines(caplog)) == 1
    for _ in range(int(loop_watch.TELL_EVERY * 4)):
        hands.look(0.25)
    assert len(lines(caplog)) == 2
    assert all("has held the event loop for" in line for line in lines(caplog))


async def test_a_process_that_stood_still_as_a_whole_has_held_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hands = Hands()
    hands.look(0.25)
    hands.look(600.0)
    await asyncio.sleep(0)
    hands.look(0.25)
    await asyncio.sleep(0)
    assert not lines(caplog)


async def test_a_loop_that_turns_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    for _ in range(50):
        hands.look(0.25)
        await asyncio.sleep(0)
    assert not lines(caplog)
