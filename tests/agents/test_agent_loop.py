"""The agent loop: rounds of a model and its tools, as durable steps."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from harness.serving import Site, app_of, serving
from harness.waiting import within

from dragoman import (
    Agent,
    Answer,
    App,
    BearerTokens,
    Caller,
    Client,
    Settings,
    TaskRejected,
    TaskState,
    Turn,
)
from dragoman.agents import model_metrics
from dragoman.agents.hooks import Hook
from dragoman.agents.loop import AgentLoop
from dragoman.agents.memory import ContextMemory
from dragoman.agents.models import ModelFailed, ModelReply, ModelRequest, ReplyChunk
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.config import StoreSettings
from dragoman.errors import ConfigError
from dragoman.model.events import ArtifactUpdate, Delegated
from dragoman.telemetry import tracing


@asynccontextmanager
async def calling(loop: AgentLoop) -> AsyncGenerator[Client]:
    """Serve a loop without a socket."""
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        yield client


async def text_of(loop: AgentLoop, text: str = "hi") -> str:
    """Return what a loop answers, in whatever state."""
    async with calling(loop) as client:
        return said(await within(client.send(text)))


def said(answer: Answer) -> str:
    """Return an answer's state and what it says."""
    assert answer.state is not None
    return f"{answer.state.name.lower()}: {answer.text}"


async def chunks_of(site: Site, text: str) -> list[Any]:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
    events = await site.events("SendStreamingMessage", {"message": message})
    results = [frame.result for frame in events]
    return [result["artifactUpdate"] for result in results if "artifactUpdate" in result]


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


async def test_a_text_ends_the_turn() -> None:
    assert await text_of(AgentLoop(ScriptedModel("Hello there."))) == "completed: Hello there."


async def test_a_tool_is_called_and_its_result_goes_back_to_the_model() -> None:
    model = ScriptedModel(
        ToolCall("c1", "add", {"a": 2, "b": "3"}),
        lambda request: f"It is {request.messages[-1].text}.",
    )
    loop = AgentLoop(model, tools=[add], system="Be brief.")
    assert await text_of(loop, "2 + 3?") == "completed: It is 5."
    first, second = model.requests
    assert [m.role for m in first.messages] == ["system", "user"]
    assert [m.role for m in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[-1].call_id == "c1" and first.tools[0].name == "add"


async def test_text_streams_as_chunks_of_one_artifact() -> None:
    loop = AgentLoop(ScriptedModel("one two three"))
    async with serving(loop.agent("Loop", "Thinks.")) as site:
        chunks = await chunks_of(site, "x")
        assert len({chunk["artifact"]["artifactId"] for chunk in chunks}) == 1
        assert len(chunks) >= 3
        assert [chunk.get("append", False) for chunk in chunks][:2] == [False, True]
        texts = [part["text"] for chunk in chunks for part in chunk["artifact"]["parts"]]
        assert "".join(texts) == "one two three"


async def test_what_is_said_before_a_tool_and_after_it_is_one_artifact() -> None:
    model = ScriptedModel(ModelReply("Let me see.", [ToolCall("c", "add", {"a": 1})]), "Two.")
    assert await text_of(AgentLoop(model, tools=[add])) == "completed: Let me see.\n\nTwo."


async def test_tools_run_beside_each_other_but_no_more_than_five() -> None:
    running, most = 0, 0
    five = asyncio.Event()

    async def work(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 5:
            five.set()
        await within(five.wait())
        running -= 1
        return f"done {n}"

    calls = [ToolCall(f"c{n}", "work", {"n": n}) for n in range(7)]
    model = ScriptedModel(calls, lambda r: " ".join(m.text for m in r.messages[-7:]))
    told = await text_of(AgentLoop(model, tools=[work]))
    assert told == "completed: " + " ".join(f"done {n}" for n in range(7))
    assert most == 5


async def test_a_failing_tool_is_told_to_the_model_and_the_turn_goes_on() -> None:
    def broken() -> str:
        raise ValueError("no luck")

    model = ScriptedModel(ToolCall("c", "broken"), lambda r: f"I heard: {r.messages[-1].text}")
    assert (
        await text_of(AgentLoop(model, tools=[broken])) == "completed: I heard: ValueError: no luck"
    )
    assert model.requests[-1].messages[-1].is_error


@pytest.mark.parametrize("together", [True, False])
async def test_three_failures_in_a_row_end_the_turn(together: bool) -> None:
    def broken() -> str:
        raise ValueError("no luck")

    call = ToolCall("c", "broken")
    model = ScriptedModel([call] * 3) if together else ScriptedModel(*[call] * 9)
    told = await text_of(AgentLoop(model, tools=[broken]))
    assert told == "failed: The agent's tools failed 3 times in a row."
    assert len(model.requests) == (1 if together else 3)


async def test_a_success_between_failures_counts_anew() -> None:
    def sometimes(ok: bool) -> str:
        if not ok:
            raise ValueError
        return "fine"

    plan = [False, False, True, False, False]
    calls = [ToolCall("c", "sometimes", {"ok": ok}) for ok in plan]
    assert (
        await text_of(AgentLoop(ScriptedModel(*calls, "end"), tools=[sometimes]))
        == "completed: end"
    )


async def test_a_model_that_never_answers_is_stopped() -> None:
    model = ScriptedModel(*[ToolCall("c", "add", {"a": 1})] * 9)
    told = await text_of(AgentLoop(model, tools=[add], max_rounds=4))
    assert told == "failed: The agent did not come to an answer in 4 rounds."
    assert len(model.requests) == 4


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("c", "nobody"), "There is no tool nobody."),
        (ToolCall("c", "add", broken="{"), "The arguments are not a JSON object."),
        (ToolCall("c", "add", {"a": "x"}), "the argument a"),
        (ToolCall("c", "add", {}), "the argument a is missing"),
        (ToolCall("c", "add", {"a": 1, "z": 1}), "there is no argument z"),
        (ToolCall("c", "slow"), "no result in 2 s"),
        (ToolCall("c", "large"), "[cut: 5000 characters]"),
    ],
)
async def test_a_call_that_makes_no_sense_is_a_failed_result(call: ToolCall, told: str) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    def large() -> str:
        return "x" * 5000

    model = ScriptedModel(call, "ok")
    loop = AgentLoop(model, tools=[add, slow, large], tool_timeout=2, max_result=1000)
    assert await text_of(loop) == "completed: ok"
    assert told in model.requests[1].messages[-1].text


async def test_a_model_that_fails_fails_the_turn_and_its_reason_stays_here() -> None:
    told = await text_of(AgentLoop(ScriptedModel(ModelFailed("key sk-123 is wrong"))))
    assert told == "failed: The model did not answer."


async def test_a_tool_with_the_turn_may_ask_the_caller() -> None:
    async def approve(what: str, turn: Turn) -> str:
        return (await turn.ask(f"May I {what}?")).text

    calls = [ToolCall("c1", "approve", {"what": "go"}), ToolCall("c2", "add", {"a": 1})]
    calls.append(ToolCall("c3", "approve", {"what": "stay"}))
    model = ScriptedModel(calls, lambda r: " ".join(m.text for m in r.messages[-3:]))
    loop = AgentLoop(model, tools=[approve, add])
    async with calling(loop) as client:
        answer = await within(client.send("x"))
        assert said(answer) == "input_required: May I go?"
        answer = await within(client.send("yes", task_id=answer.task_id))
        assert said(answer) == "input_required: May I stay?"
        answer = await within(client.send("no", task_id=answer.task_id))
        assert said(answer) == "completed: yes 2 no"


async def test_a_cancel_ends_the_tools_that_are_under_way() -> None:
    reached, ended = asyncio.Event(), list[int]()

    async def wait(n: int) -> None:
        if n:
            reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(n)

    model = ScriptedModel([ToolCall(f"c{n}", "wait", {"n": n}) for n in range(2)])
    async with calling(AgentLoop(model, tools=[wait])) as client:
        begun = await within(client.send("x", wait=False))
        await within(reached.wait())
        await within(client.cancel(begun.task_id))
        assert (await within(client.wait(begun.task_id))).state is TaskState.CANCELED
    assert sorted(ended) == [0, 1] and len(model.requests) == 1


async def test_a_tool_may_reject_the_task() -> None:
    def never() -> None:
        raise TaskRejected("Not for you.")

    model = ScriptedModel(ToolCall("c", "never"))
    assert await text_of(AgentLoop(model, tools=[never])) == "rejected: Not for you."


class Extra:
    """A provider with two tools, one of which somebody else has too."""

    def __init__(self) -> None:
        self.lists = 0
        self.is_closed = False

    async def list_tools(self) -> list[Tool]:
        self.lists += 1
        return [Tool(name="add"), Tool(name="extra")]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        return ToolResult(f"extra {call.name}")

    async def close(self) -> None:
        self.is_closed = True


class Gone(Extra):
    async def list_tools(self) -> list[Tool]:
        raise OSError("away")


async def test_the_first_provider_that_knows_a_tool_wins_and_lists_are_kept() -> None:
    extra = Extra()
    calls = [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "extra")]
    model = ScriptedModel(calls, lambda r: " ".join(m.text for m in r.messages[-2:]))
    loop = AgentLoop(model, tools=[add, Gone(), extra])
    async with calling(loop) as client:
        assert said(await within(client.send("x"))) == "completed: 2 extra extra"
        await within(client.send("x"))
        assert extra.lists == 1
        assert not extra.is_closed
    assert extra.is_closed


async def test_a_loop_is_a_skill_beside_others() -> None:
    agent = Agent("Two", "Has two skills.")
    agent.skill(id="chat", default=True)(AgentLoop(ScriptedModel("from the model")).run)
    agent.skill(add)
    async with Client(app=app_of(agent)) as client:
        assert said(await within(client.send("x"))) == "completed: from the model"


async def test_a_turn_that_goes_on_in_another_process_repeats_no_finished_call(
    tmp_path: Path,
) -> None:
    done: list[str] = []
    gate, reached = asyncio.Event(), asyncio.Event()

    async def work(n: int) -> str:
        done.append(f"{n}")
        if n == 3:
            reached.set()
            await gate.wait()
        return f"did {n}"

    two = [ToolCall(f"c{n}", "work", {"n": n}) for n in (1, 2)]

    def last(request: ModelRequest) -> str:
        return " ".join(m.text for m in request.messages if m.role == "tool")

    def model() -> ScriptedModel:
        return ScriptedModel(ModelReply("First.", two), ToolCall("c3", "work", {"n": 3}), last)

    store = {"store": str(tmp_path / "tasks.db")}
    first, second = model(), model()
    async with serving(AgentLoop(first, tools=[work]).agent("Loop", "Thinks."), **store) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        await within(reached.wait())
    gate.set()
    async with serving(AgentLoop(second, tools=[work]).agent("Loop", "Thinks."), **store) as site:
        async with Client(site.url) as client:
            rested = await within(client.wait(task["id"]))
        assert rested.state is TaskState.COMPLETED
        (artifact,) = rested.artifacts
        text = "".join(str(part.text) for part in artifact.parts)
        assert text == "First.\n\ndid 1 did 2 did 3"
    assert done == ["1", "2", "3", "3"]
    assert len(first.requests) == 2 and len(second.requests) == 1


class Halting:
    """A model that says something and then is stuck, until it is let go; then it says the rest."""

    def __init__(self, first: str, reached: asyncio.Event, rest: str | None = None) -> None:
        self.first, self.reached, self.rest = first, reached, rest

    async def complete(self, request: ModelRequest) -> ModelReply:
        raise AssertionError("it streams")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ReplyChunk]:
        if self.first:
            yield ReplyChunk(self.first)
        if self.rest is None:
            self.reached.set()
            await asyncio.Event().wait()
        yield ReplyChunk(self.rest or "")


@pytest.mark.parametrize("again", ["All of ", ""])
async def test_what_a_call_that_died_had_said_is_replaced_by_its_repetition(
    again: str, tmp_path: Path
) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "tasks.db")))
    reached = asyncio.Event()
    app = App(AgentLoop(Halting("Half of ", reached)).agent("L", "T."), settings=settings)
    async with app.running(), Client(app=app) as client:
        # The stream shows only what is on disk, so the first attempt left something there.
        stream = client.stream("x")
        async for event in stream:
            if isinstance(event, ArtifactUpdate):
                break
        await within(reached.wait())
        task_id = stream.task_id
        await stream.aclose()
    rest = "it." if again else ""
    app = App(AgentLoop(Halting(again, reached, rest)).agent("L", "T."), settings=settings)
    async with app.running(), Client(app=app) as client:
        answer = await within(client.wait(task_id))
        assert answer.state is TaskState.COMPLETED
        assert answer.text == again + rest


async def test_a_loop_is_traced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer()
    monkeypatch.setattr(tracing, "tracer", tracer)
    monkeypatch.setattr(tracing, "on", True)
    before = model_metrics.tokens.value("output")
    model = ScriptedModel(ToolCall("c1", "add", {"a": "x"}), "two words")
    await text_of(AgentLoop(model, tools=[add]))
    assert model_metrics.tokens.value("output") == before + 3
    loops = [
        "loop.start",
        "loop.iteration",
        "llm.call",
        "tool.execute",
        "loop.iteration",
        "llm.call",
    ]
    assert [name for name in tracer.names if name.split(".")[0] in ("loop", "llm", "tool")] == loops
    facts = tracer.attributes["tool.execute"]
    assert facts == {"agent.tool.name": "add", "agent.tool.call_id": "c1"}
    assert tracer.failed == ["tool.execute ValueError"]
    assert tracer.open == 0


class Tracer:
    """Notes the spans that are made of it, and nests none of them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.attributes: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self.open = 0

    def begin(self, name: str, kind: str, parent: Any, attributes: Any) -> Any:
        self.names.append(name)
        self.attributes[name] = dict(attributes)
        self.open += 1
        span = MagicMock()
        span.trace = tracing.fresh()
        span.fail = lambda kind: self.failed.append(f"{name} {kind}")
        span.end = self._end
        return span

    def _end(self) -> None:
        self.open -= 1


async def test_memory_is_of_one_context_and_off_by_default() -> None:
    def heard(request: ModelRequest) -> str:
        return " | ".join(m.text for m in request.messages)

    for memory, expected in ((ContextMemory(), "one | one | two"), (None, "two")):
        loop = AgentLoop(ScriptedModel(heard), memory=memory)
        async with calling(loop) as client:
            first = await within(client.send("one"))
            again = await within(client.send("two", context_id=first.context_id))
            assert said(again) == f"completed: {expected}"
            assert said(await within(client.send("three"))) == "completed: three"


async def test_nobody_remembers_what_another_owner_said_in_the_same_context() -> None:
    def heard(request: ModelRequest) -> str:
        return " | ".join(m.text for m in request.messages)

    tokens = {f"{name}-token-0123456789": Caller(name, True) for name in ("alice", "bob")}
    agent = AgentLoop(ScriptedModel(heard), memory=ContextMemory()).agent("Loop", "Thinks.")
    keeper = BearerTokens(tokens=tokens)
    app = App(
        agent, settings=Settings(stores=StoreSettings(location="memory:")), authenticators=[keeper]
    )
    told: list[str] = []
    async with app.running():
        for token, text in (
            *zip(tokens, ("one", "two"), strict=True),
            (next(iter(tokens)), "three"),
        ):
            async with Client(app=app, bearer=token) as client:
                answer = await within(client.send(text, context_id="shared-context"))
                told.append(answer.text)
    assert told == ["one", "two", "one | one | three"]


async def test_memory_is_no_longer_than_it_may_be() -> None:
    def heard(request: ModelRequest) -> str:
        return "".join(m.text for m in request.messages if m.role == "user")

    memory = ContextMemory(exchanges=2, characters=100)
    async with calling(AgentLoop(ScriptedModel(heard), memory=memory)) as client:
        answer = await within(client.send("a"))
        for text, expected in (
            ("b", "ab"),
            ("c", "abc"),
            ("d", "bcd"),
            ("x" * 60, "cd" + "x" * 60),
        ):
            answer = await within(client.send(text, context_id=answer.context_id))
            assert said(answer) == f"completed: {expected}"
        # The last exchange alone is longer than all that is remembered.
        answer = await within(client.send("e", context_id=answer.context_id))
        assert said(answer) == "completed: e"


async def test_a_message_to_a_task_under_way_finds_what_was_said_in_it_before() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        entered.set()
        await within(go_on.wait())
        return "done"

    def heard(request: ModelRequest) -> str:
        return " | ".join(m.text for m in request.messages if m.role in ("user", "assistant"))

    model = ScriptedModel(ToolCall("c", "wait"), "Yes.")
    async with calling(AgentLoop(model, tools=[wait], memory=ContextMemory())) as client:
        first = await within(client.send("first", wait=False))
        await within(entered.wait())
        await within(client.send("second", task_id=first.task_id, wait=False))
        await within(client.send("third", task_id=first.task_id, wait=False))
        go_on.set()
        await within(client.wait(first.task_id))
    asked = [heard(request) for request in model.requests if request.messages[-1].role == "user"]
    assert asked == ["first", "first | Yes. | second", "first | second | Yes.\n\nYes. | third"]


async def test_clients_of_a_loop_s_agent_are_those_that_tasks_are_taken_back_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client("http://127.0.0.1:9")
    canceled = asyncio.Queue[str]()
    monkeypatch.setattr(client, "cancel", canceled.put)
    agent = AgentLoop(ScriptedModel("x")).agent("Loop", "Thinks.", clients=[client])
    agent.delegation.withdraw([Delegated(0, 0, client.reference, client.reference, "t")])
    assert await within(canceled.get()) == "t"
    await agent.delegation.close()
    await client.close()


def test_what_makes_no_sense_is_refused_when_the_loop_is_made() -> None:
    model = ScriptedModel("x")
    for tools in (["text"], [add, add]):
        with pytest.raises(ConfigError):
            AgentLoop(model, tools=tools)  # type: ignore[list-item]
    with pytest.raises(ConfigError):
        AgentLoop(model, max_rounds=0)


class Watching(Hook):
    """Notes in which order it is called, and changes what passes."""

    def __init__(self, name: str, seen: list[str], priority: int) -> None:
        self.name, self.seen, self.priority = name, seen, priority

    async def before_turn(self, turn: Turn) -> None:
        self.seen.append(f"{self.name} turn")

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
        return ToolResult(f"{result.content}{self.name}")


async def test_hooks_run_by_priority_each_on_what_the_one_before_made() -> None:
    seen: list[str] = []
    model = ScriptedModel(ToolCall("c", "add", {"a": 1}), lambda r: r.messages[-1].text)
    hooks = [Watching("b", seen, 2), Watching("a", seen, 1)]
    assert await text_of(AgentLoop(model, tools=[add], hooks=hooks)) == "completed: 2ab"
    assert seen == ["a turn", "b turn"]
