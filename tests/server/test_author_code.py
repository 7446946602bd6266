"""Whatever an author's code raises ends its task, and nothing else: every class of exception, in
every place that runs the code."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from serving import WAIT, Site, client, hosting, message, run, running, serving, within

from dragoman import Agent, Settings, TaskFailed, Turn
from dragoman.agents.adapters.wrapping import Threads
from dragoman.agents.hooks import Hook
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import Chunk, ModelRequest, Reply
from dragoman.agents.tools import ToolCall
from dragoman.engine.author_code import CodeExited, guard_tasks
from dragoman.model.card import AgentSkill
from dragoman.model.identity import Caller
from dragoman.security.authentication import Evidence, Pass
from dragoman.server.app import App

SENTENCE = "The agent failed. Incident "


class Custom(BaseException):
    """What frameworks raise to get past `except Exception`."""


class Unspeakable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise Custom("no text")

    __repr__ = __str__


def nested(depth: int) -> BaseException:
    """Return a group that is too deep to be shown."""
    error: BaseException = Custom("inside")
    for _ in range(depth):
        error = BaseExceptionGroup("a group", [error])
    return error


KINDS: dict[str, Callable[[], BaseException]] = {
    "BaseException": lambda: Custom("of its own"),
    "GeneratorExit": GeneratorExit,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": lambda: RecursionError("too deep"),
    "MemoryError": MemoryError,
    "group": lambda: BaseExceptionGroup("several", [Custom("a"), ValueError("b")]),
    "mixed group": lambda: BaseExceptionGroup(
        "several", [asyncio.CancelledError(), BaseExceptionGroup("more", [SystemExit(1)])]
    ),
    "group of cancellations": lambda: BaseExceptionGroup("several", [asyncio.CancelledError()]),
    "group without end": lambda: nested(2000),
    "unspeakable": Unspeakable,
}


@contextlib.contextmanager
def leaving(error: BaseException) -> Iterator[None]:
    try:
        yield
    finally:
        raise error


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
            task = await within(_sent(site, place))
            said = task["status"]["message"]["parts"][0]["text"]
            assert task["status"]["state"] == "TASK_STATE_FAILED", (place, task)
            assert said.startswith(SENTENCE), (place, said)
            incident = said.removeprefix(SENTENCE).rstrip(".")
            assert any(incident in record.getMessage() for record in caplog.records), place
        assert (await _sent(site, "echo"))["status"]["state"] == "TASK_STATE_COMPLETED"
        (engine,) = site.app._engines.values()
        assert engine.live_tasks == 0


async def _ended(site: Site, id: str) -> Any:
    """Wait for the end of a task; return its status."""
    for _ in range(int(WAIT / 0.01)):
        status = (await site.task(id))["status"]
        if status["state"] not in ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"):
            return status
        await asyncio.sleep(0.01)
    raise AssertionError("it never ended")


async def _sent(site: Site, skill: str) -> Any:
    return await site.send("hi", metadata={"skillId": skill})


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
            task = await within(_sent(site, skill))
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
            assert (await _sent(site, "cancels"))["status"]["state"] == "TASK_STATE_COMPLETED"
        else:
            runs[0].cancel()
        status = await _ended(site, task["id"])
        assert status["state"] == "TASK_STATE_FAILED"
        assert status["message"]["parts"][0]["text"].startswith(SENTENCE)
        (engine,) = site.app._engines.values()
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
        (engine,) = site.app._engines.values()
        (worker,) = engine._holdings._workers.values()
        assert worker._run is not None
        worker._run.cancel()
        await asyncio.wait([worker._run])
        assert (await site.task(task["id"]))["status"]["state"] == "TASK_STATE_WORKING"
    outcome.set()
    async with serving(agent, store=store) as site:
        assert (await _ended(site, task["id"]))["state"] == "TASK_STATE_COMPLETED"


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
        assert (await _ended(site, task["id"]))["state"] == "TASK_STATE_COMPLETED"


# Code that is asked something


class Picky:
    """The type of an argument that checks itself."""

    error: BaseException = Custom("no")

    @classmethod
    def model_validate(cls, value: Any) -> "Picky":
        raise cls.error

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object"}


@pytest.mark.parametrize("kind", ["BaseException", "KeyboardInterrupt", "CancelledError"])
async def test_arguments_that_raise_are_an_internal_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Picky, "error", KINDS[kind]())
    agent = Agent("Picky", "Checks.")

    @agent.skill
    async def takes(value: Picky) -> str:
        return "taken"

    async with serving(agent) as site:
        error = await within(site.refusal("SendMessage", {"message": message("hi")}))
        assert error["code"] == -32603


async def test_a_task_whose_arguments_cannot_be_read_any_more_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, begun = Agent("Same", "Waits."), Agent("Same", "Checks."), asyncio.Event()

    @first.skill(id="work")
    async def waits(value: str, turn: Turn) -> str:
        await turn.say("at work")
        begun.set()
        await asyncio.sleep(60)
        return value

    @second.skill(id="work")
    async def takes(value: Picky) -> str:
        return "taken"

    monkeypatch.setattr(Picky, "error", KINDS["KeyboardInterrupt"]())
    store = str(tmp_path / "tasks.db")
    async with serving(first, store=store) as site:
        task = await site.send("hi", configuration={"returnImmediately": True})
        await within(begun.wait())
    async with serving(second, store=store) as site:
        status = await _ended(site, task["id"])
        assert status["message"]["parts"][0]["text"].startswith(SENTENCE)


@pytest.mark.parametrize("kind", ["BaseException", "SystemExit", "CancelledError"])
async def test_extended_skills_that_raise_are_an_internal_error(kind: str) -> None:
    def skills(caller: Caller) -> Sequence[AgentSkill]:
        raise KINDS[kind]()

    agent = Agent("Extended", "Has more.", extended_skills=skills)

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async with serving(agent, extended_card_public=True) as site:
        error = await within(site.refusal("GetExtendedAgentCard", headers={"A2A-Version": "1.0"}))
        assert error["code"] == -32603
        old = await within(site.http.get("/agent/authenticatedExtendedCard"))
        assert old.status_code == 500


class Broken:
    """Raises when it is asked who somebody is."""

    name = "broken"
    schemes: ClassVar[dict[str, Any]] = {}
    challenge = "Bearer"
    reads = frozenset({b"authorization"})

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        raise self._make()

    def still_holds(self, found: Pass) -> bool:
        raise self._make()

    async def look(self, evidence: Evidence) -> Pass | None:
        raise self._make()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_authenticator_that_raises_lets_nobody_in(kind: str) -> None:
    agent = Agent("Guarded", "Is guarded.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    settings = Settings(store="memory:")
    app = App(agent, settings=settings, authenticators=[Broken(KINDS[kind])])
    async with hosting(app) as url, client(url) as http:
        shown = {"authorization": "Bearer x"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        answer = await within(http.post("/", json=body, headers=shown))
        # A lack of memory says nothing of who asks.
        assert answer.status_code == (503 if kind == "MemoryError" else 401)
        assert (await http.get("/healthz")).status_code == 200


async def test_what_an_agent_opened_is_closed_by_whatever_raises_and_the_store_too(
    tmp_path: Path,
) -> None:
    agent = Agent("Closer", "Closes.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async def close() -> None:
        raise KeyboardInterrupt

    agent.closing.append(close)
    app = App(agent, settings=Settings(store=str(tmp_path / "tasks.db")))
    async with app.running():
        pass
    assert not list(tmp_path.glob("*.worker-*")), "the store was not left in good order"


# Loops with models


class Calls:
    """A model that calls one tool."""

    name = "calls"

    async def complete(self, request: ModelRequest) -> Reply:
        return Reply("", tool_calls=[ToolCall("1", "breaks", {})])

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield Chunk(tool_calls=[])


@pytest.mark.parametrize("place", ["async tool", "plain tool", "hook", "model"])
@pytest.mark.parametrize("kind", ["BaseException", "SystemExit", "GeneratorExit", "StopIteration"])
async def test_what_a_loop_runs_ends_its_task_with_whatever_it_raises(
    kind: str, place: str
) -> None:
    make = KINDS[kind]

    async def breaks() -> str:
        raise make()

    def plain() -> str:
        raise make()

    plain.__name__ = "breaks"

    class Bad(Hook):
        async def before_tool(self, call: ToolCall, turn: Turn) -> None:
            raise make()

    class Dead(Calls):
        async def complete(self, request: ModelRequest) -> Reply:
            raise make()

    loop = AgentLoop(
        Dead() if place == "model" else Calls(),  # type: ignore[arg-type]
        tools=[plain if place == "plain tool" else breaks],
        hooks=[Bad()] if place == "hook" else [],
        streaming=False,
        max_failures=1,
    )
    async with serving(loop.agent("Loop", "Thinks.")) as site:
        task = await within(site.send("hi"))
        assert task["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_observer_that_raises_changes_nothing(kind: str) -> None:
    class Watcher(Hook):
        is_observer = True

        async def before_turn(self, turn: Turn) -> None:
            raise KINDS[kind]()

    class Says(Calls):
        async def complete(self, request: ModelRequest) -> Reply:
            return Reply("well")

    loop = AgentLoop(Says(), hooks=[Watcher()], streaming=False)  # type: ignore[arg-type]
    async with serving(loop.agent("Loop", "Thinks.")) as site:
        task = await within(site.send("hi"))
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thread_of_an_adapter_tells_whatever_its_framework_raised(kind: str) -> None:
    threads = Threads(1)

    def fails() -> None:
        raise KINDS[kind]()

    for _ in range(2):
        # The second one gets the place of the first.
        try:
            async with asyncio.timeout(WAIT):
                await threads.run(fails)
        except BaseException as error:
            assert not isinstance(error, TimeoutError)
        else:
            raise AssertionError("it raised nothing")


# A server of its own

NASTY = """
import asyncio
from dragoman import Agent

agent = Agent("Nasty", "Wants to end the server.")

@agent.skill
async def callback(text: str) -> str:
    def fails():
        raise KeyboardInterrupt
    asyncio.get_running_loop().call_soon(fails)
    asyncio.get_running_loop().call_later(0.01, fails)
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def done_callback(text: str) -> str:
    def fails(_):
        raise SystemExit(0)
    task = asyncio.create_task(asyncio.sleep(0))
    task.add_done_callback(fails)
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def stops(text: str) -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def left_generator(text: str) -> str:
    async def chunks():
        try:
            yield 1
            yield 2
        finally:
            raise KeyboardInterrupt
    async for _ in chunks():
        break
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def default_thread(text: str) -> str:
    return await asyncio.to_thread(next, iter([]))

@agent.skill
async def child(text: str) -> str:
    async def fails():
        raise KeyboardInterrupt
    return await asyncio.create_task(fails())

@agent.skill
async def itself(text: str) -> str:
    raise KeyboardInterrupt
"""


async def test_only_a_signal_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "nasty.py").write_text(NASTY)
    failing = ("left_generator", "default_thread", "child", "itself")
    with running("serve", "nasty.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        async with client(child.ready()) as http:
            site = Site(child.url, http)
            for skill in (
                "callback",
                "done_callback",
                "stops",
                "left_generator",
                "default_thread",
                "child",
                "itself",
                "callback",
            ):
                task = await within(_sent(site, skill))
                wanted = f"TASK_STATE_{'FAILED' if skill in failing else 'COMPLETED'}"
                assert task["status"]["state"] == wanted, (skill, child.log)
            assert (await http.get("/readyz")).status_code == 200
        assert child.process.poll() is None
        assert child.end() == 0


def test_a_file_that_exits_while_it_is_loaded_is_told_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    ended = run("serve", "exits.py", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert ended.returncode != 0
    assert "it raised SystemExit while it was loaded" in ended.stderr
