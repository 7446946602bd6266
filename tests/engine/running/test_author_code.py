"""Whatever an author's code raises ends its task alone."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.serving import message, serving
from harness.waiting import within

from dragoman import Agent, TaskFailed, Turn
from dragoman.engine.running.author_code import CodeExited, guard_tasks
from tests.engine.running.raising import KINDS, SENTENCE, leaving


class _Nasty:
    """Skills that raise something, each in another place."""

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self.agent = Agent("Nasty", "Raises.")
        skill = self.agent.skill

        @skill
        async def coroutine(text: str) -> str:
            raise make()

        @skill
        async def later(text: str, turn: Turn) -> str:
            await turn.say("at work")
            await asyncio.sleep(0.001)
            raise make()

        @skill
        def thread(text: str) -> str:
            raise make()

        @skill
        async def chunks(text: str) -> AsyncGenerator[str]:
            yield "one"
            raise make()

        @skill
        def plain_chunks(text: str) -> Iterator[str]:
            yield "one"
            raise make()

        @skill
        async def step(text: str, turn: Turn) -> str:
            async def fails() -> str:
                raise make()

            return await turn.step("fails", fails)

        @skill
        async def plain_step(text: str, turn: Turn) -> str:
            def fails() -> str:
                raise make()

            return await turn.step("fails", fails)

        @skill
        def step_of_thread(text: str, turn: Any) -> str:
            async def fails() -> str:
                raise make()

            return turn.step("fails", fails)

        @skill
        async def task_group(text: str) -> str:
            async def fails() -> None:
                raise make()

            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(fails())
            return text

        @skill
        async def child(text: str) -> str:
            async def fails() -> str:
                await asyncio.sleep(0)
                raise make()

            return await asyncio.create_task(fails())

        @skill
        async def gathered(text: str) -> str:
            async def fails() -> str:
                raise make()

            return (await asyncio.gather(fails(), asyncio.sleep(0)))[0]

        @skill
        async def timed(text: str) -> str:
            async def fails() -> str:
                raise make()

            return await asyncio.wait_for(fails(), 60)

        @skill
        async def manager(text: str) -> str:
            with leaving(make()):
                return text

        @skill
        async def closing(text: str) -> AsyncGenerator[str]:
            try:
                yield "one"
            finally:
                raise make()

        @skill
        async def executor(text: str) -> str:
            def fails() -> str:
                raise make()

            return await asyncio.get_running_loop().run_in_executor(self.agent.threads, fails)


PLACES = list(_Nasty(KINDS["BaseException"]).agent.skills)


@pytest.mark.requirement("T-6")
@pytest.mark.parametrize("kind", KINDS)
async def test_anything_raised_anywhere_ends_its_task_alone(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    nasty = _Nasty(KINDS[kind])

    @nasty.agent.skill
    async def echo(text: str) -> str:
        return text

    async with serving(nasty.agent) as site:
        # A child of a task group that is cancelled is no failure of the group.
        ignored = ("task_group",) if kind == "CancelledError" else ()
        for place in (one for one in PLACES if one not in ignored):
            task = await within(site.send("hi", metadata={"skillId": place}))
            said = task["status"]["message"]["parts"][0]["text"]
            assert task["status"]["state"] == "TASK_STATE_FAILED", (place, task)
            assert said.startswith(SENTENCE), (place, said)
            incident = said.removeprefix(SENTENCE).rstrip(".")
            assert any(incident in record.getMessage() for record in caplog.records), place
        assert (await site.send("hi", metadata={"skillId": "echo"}))["status"][
            "state"
        ] == "TASK_STATE_COMPLETED"
        (engine,) = site.app.site.engines.values()
        assert engine.live_tasks == 0


@pytest.mark.parametrize("kind", ["BaseException", "GeneratorExit", "KeyboardInterrupt", "group"])
async def test_a_stream_ends_with_its_task_whatever_is_raised(kind: str) -> None:
    async with serving(_Nasty(KINDS[kind]).agent) as site:
        for place in ("later", "chunks", "child"):
            params = {"message": message("hi", metadata={"skillId": place})}
            events = await site.events("SendStreamingMessage", params)
            last = events[-1].result["statusUpdate"]["status"]
            assert last["state"] == "TASK_STATE_FAILED", (place, events)


# Cancellations


async def test_code_that_cancels_its_own_task_fails() -> None:
    agent = Agent("Self", "Cancels itself.")

    @agent.skill
    async def itself(text: str) -> str:
        running_one = asyncio.current_task()
        assert running_one is not None
        running_one.cancel()
        await asyncio.sleep(60)
        return text

    @agent.skill
    async def by_a_child(text: str) -> str:
        running_one = asyncio.current_task()
        assert running_one is not None
        asyncio.get_running_loop().call_soon(running_one.cancel)
        await asyncio.sleep(60)
        return text

    async with serving(agent) as site:
        for skill in agent.skills:
            task = await within(site.send("hi", metadata={"skillId": skill}))
            assert task["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.parametrize("by", ["the code of another task", "code outside of any task"])
async def test_a_task_that_other_code_cancels_fails(by: str) -> None:
    agent, begun = Agent("Victim", "Is cancelled."), asyncio.Event()
    runs: list[asyncio.Task[Any]] = []

    @agent.skill
    async def waits(text: str, turn: Turn) -> str:
        await turn.say("at work")
        running_one = asyncio.current_task()
        assert running_one is not None
        runs.append(running_one)
        begun.set()
        await asyncio.Event().wait()
        return text

    @agent.skill
    async def cancels(text: str) -> str:
        runs[0].cancel()
        return text

    async with serving(agent) as site:
        more = {"metadata": {"skillId": "waits"}, "configuration": {"returnImmediately": True}}
        task = await site.send("hi", **more)
        await within(begun.wait())
        if by == "the code of another task":
            assert (await site.send("hi", metadata={"skillId": "cancels"}))["status"][
                "state"
            ] == "TASK_STATE_COMPLETED"
        else:
            runs[0].cancel()
        status = (await site.rested(task["id"]))["status"]
        assert status["state"] == "TASK_STATE_FAILED"
        assert status["message"]["parts"][0]["text"].startswith(SENTENCE)
        (engine,) = site.app.site.engines.values()
        assert engine.live_tasks == 0


@pytest.mark.parametrize("answer", ["passes it on", "groups it"])
async def test_our_own_cancellation_is_still_one(answer: str) -> None:
    agent, begun = Agent("Slow", "Waits."), asyncio.Event()

    @agent.skill
    async def waits(text: str, turn: Turn) -> str:
        await turn.say("waiting")
        begun.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
        except asyncio.CancelledError as error:
            if answer == "groups it":
                raise BaseExceptionGroup("cancelled", [error]) from None
            raise
        return text

    async with serving(agent) as site:
        task = await site.send("hi", configuration={"returnImmediately": True})
        await within(begun.wait())
        canceled = await site.call("CancelTask", {"id": task["id"]})
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_task_is_left_to_the_next_process_where_the_loop_cancels_everything(
    tmp_path: Path,
) -> None:
    """A server that never tells us to stop cancels all tasks when it ends: no failure of code."""
    agent, begun = Agent("Long", "Takes its time."), asyncio.Event()
    outcome = asyncio.Event()

    @agent.skill
    async def works(text: str, turn: Turn) -> str:
        await turn.say("at work")
        begun.set()
        await outcome.wait()
        return text

    store = str(tmp_path / "tasks.db")
    async with serving(agent, store=store) as site:
        task = await site.send("hi", configuration={"returnImmediately": True})
        await within(begun.wait())
        (engine,) = site.app.site.engines.values()
        (worker,) = engine._live._workers.values()
        assert worker._run is not None
        worker._run.cancel()
        await asyncio.wait([worker._run])
        assert (await site.task(task["id"]))["status"]["state"] == "TASK_STATE_WORKING"
    outcome.set()
    async with serving(agent, store=store) as site:
        assert ((await site.rested(task["id"]))["status"])["state"] == "TASK_STATE_COMPLETED"


# Children that nobody waits for


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
async def test_a_child_that_wants_to_end_the_process_ends_the_task_though_not_awaited(
    kind: str,
) -> None:
    agent = Agent("Parent", "Has a child.")
    children: list[asyncio.Task[None]] = []

    @agent.skill
    async def works(text: str) -> str:
        async def fails() -> None:
            raise KINDS[kind]()

        children.append(asyncio.create_task(fails()))
        await asyncio.sleep(60)
        return text

    async with serving(agent) as site:
        task = await within(site.send("hi"))
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        assert task["status"]["message"]["parts"][0]["text"].startswith(SENTENCE)
    assert isinstance(children[0].exception(), CodeExited)


async def test_a_child_looks_like_the_coroutine_it_is() -> None:
    agent, seen = Agent("Parent", "Has a child."), []

    @agent.skill
    async def works(text: str) -> str:
        async def child() -> str:
            await asyncio.sleep(0)
            return text

        task = asyncio.create_task(child(), name="mine")
        cancelled = asyncio.create_task(child())
        cancelled.cancel()
        seen.append((task.get_name(), task.get_coro().__name__, "child" in repr(task)))
        await asyncio.wait([cancelled])
        seen.append(cancelled.cancelled())
        return await task

    async with serving(agent) as site:
        task = await site.send("hi")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert seen == [("mine", "child", True), True]


async def test_a_factory_of_tasks_that_was_there_goes_on_making_them() -> None:
    made: list[Any] = []

    def factory(loop: Any, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **more)

    async def nothing() -> None:
        pass

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(factory)
    try:
        guard_tasks(loop)
        guard_tasks(loop)
        await asyncio.create_task(nothing())
        assert len(made) == 1
    finally:
        loop.set_task_factory(before)


# What a task ends with in the author's words


@pytest.mark.parametrize("text", ["half \ud800 a character", "x" * 20_000_000, object()])
async def test_a_sentence_that_cannot_be_said_ends_the_task_all_the_same(text: Any) -> None:
    agent = Agent("Odd", "Fails oddly.")

    @agent.skill
    async def fails(_: str) -> str:
        raise TaskFailed(text)

    async with serving(agent) as site:
        task = await within(site.send("hi"))
        assert task["status"]["state"] == "TASK_STATE_FAILED"


# Steps


async def test_a_step_that_raised_a_cancellation_raises_it_again_in_the_next_process(
    tmp_path: Path,
) -> None:
    """One that was cancelled from around it is waited for; nothing cancels this one again."""
    agent, go_on = Agent("Steps", "Takes steps."), asyncio.Event()
    reached = asyncio.Semaphore(0)

    @agent.skill
    async def works(text: str, turn: Turn) -> str:
        async def fails() -> None:
            raise asyncio.CancelledError

        with contextlib.suppress(asyncio.CancelledError):
            await turn.step("fails", fails)
        await turn.step("goes on", asyncio.sleep, 0)
        reached.release()
        await go_on.wait()
        return text

    store = str(tmp_path / "tasks.db")
    async with serving(agent, store=store) as site:
        task = await site.send("hi", configuration={"returnImmediately": True})
        await within(reached.acquire())
    async with serving(agent, store=store) as site:
        await within(reached.acquire())
        go_on.set()
        assert ((await site.rested(task["id"]))["status"])["state"] == "TASK_STATE_COMPLETED"
