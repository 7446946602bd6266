"""Code of an author that is asked something: arguments, skills, authenticators, loops."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from harness.serving import app_of, client, hosting, message, serving
from harness.waiting import WAIT, within

from dragoman import Agent, Settings, Turn
from dragoman.agents.adapters.wrapping import Threads
from dragoman.agents.hooks import Hook
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelReply, ModelRequest, ReplyChunk
from dragoman.agents.tools import ToolCall
from dragoman.config import StoreSettings
from dragoman.model.card import AgentSkill
from dragoman.model.identity import Caller
from dragoman.security.authentication import Evidence, Pass
from dragoman.server.app import App
from tests.engine.running.raising import KINDS, SENTENCE, Custom


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
        status = (await site.rested(task["id"]))["status"]
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

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        raise self._make()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_authenticator_that_raises_lets_nobody_in(kind: str) -> None:
    agent = Agent("Guarded", "Is guarded.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    settings = Settings(stores=StoreSettings(location="memory:"))
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
    app = app_of(agent, store=str(tmp_path / "tasks.db"))
    async with app.running():
        pass
    assert not list(tmp_path.glob("*.worker-*")), "the store was not left in good order"


# Loops with models


class Calls:
    """A model that calls one tool."""

    name = "calls"

    async def complete(self, request: ModelRequest) -> ModelReply:
        return ModelReply("", tool_calls=[ToolCall("1", "breaks", {})])

    async def stream(self, request: ModelRequest) -> AsyncIterator[ReplyChunk]:
        yield ReplyChunk(tool_calls=[])


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
        async def complete(self, request: ModelRequest) -> ModelReply:
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
        async def complete(self, request: ModelRequest) -> ModelReply:
            return ModelReply("well")

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
