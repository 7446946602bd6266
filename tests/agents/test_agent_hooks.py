"""Hooks around model calls and calls of tools, and the ones that are shipped."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from harness.serving import app_of
from harness.waiting import within

from dragoman import Client, TaskFailed, Turn
from dragoman.agents.hooks import Cost, Hook, Logging, RateLimit, Redaction, TurnOutcome
from dragoman.agents.loop import AgentLoop
from dragoman.agents.models import ModelReply, ModelRequest, TokenUsage
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import Tool, ToolCall, ToolResult


async def told(loop: AgentLoop, *texts: str) -> list[str]:
    """Return what a loop says to each text."""
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        return [(await within(client.send(text))).text for text in texts or ("hi",)]


def add(a: int) -> int:
    """Adds one."""
    return a + 1


def look() -> str:
    """Looks somebody up."""
    return "Write to ann@example.com."


def calling(name: str, **arguments: Any) -> ScriptedModel:
    """Return a model that calls one tool and says what came of it."""
    return ScriptedModel(ToolCall("c", name, arguments), lambda request: request.messages[-1].text)


class Every(Hook):
    """Notes whatever it is called for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_turn(self, turn: Turn) -> None:
        self.seen.append("before_turn")

    async def after_turn(self, outcome: TurnOutcome, turn: Turn) -> None:
        self.seen.append(f"after_turn {outcome.model_calls} {outcome.tool_calls}")

    async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> None:
        self.seen.append(f"filter_tools {len(tools)}")

    async def before_model(self, request: ModelRequest, turn: Turn) -> None:
        self.seen.append("before_model")

    async def after_model(self, reply: ModelReply, turn: Turn) -> None:
        self.seen.append("after_model")

    async def before_tool(self, call: ToolCall, turn: Turn) -> None:
        self.seen.append(f"before_tool {call.name}")

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> None:
        self.seen.append(f"after_tool {result.is_error}")

    async def on_tool_error(self, error: Exception, call: ToolCall, turn: Turn) -> None:
        self.seen.append(f"on_tool_error {error}")


async def test_every_hook_is_called_in_its_place() -> None:
    hook = Every()
    await told(AgentLoop(calling("add", a="x"), tools=[add], hooks=[hook]))
    (error,) = [seen for seen in hook.seen if seen.startswith("on_tool_error")]
    asked = ["filter_tools 1", "before_model", "after_model"]
    called = ["before_tool add", error, "after_tool True"]
    assert hook.seen == ["before_turn", *asked, *called, *asked, "after_turn 2 1"]


async def test_a_hook_may_take_tools_away_and_then_they_cannot_be_called() -> None:
    class Without(Hook):
        async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> list[Tool]:
            return [tool for tool in tools if tool.name != "add"]

    model = calling("add", a=1)
    (text,) = await told(AgentLoop(model, tools=[add, look], hooks=[Without()]))
    assert text == "There is no tool add."
    assert [tool.name for tool in model.requests[0].tools] == ["look"]


async def test_a_hook_may_answer_for_a_tool_change_its_arguments_or_explain_its_error() -> None:
    class Between(Hook):
        async def before_tool(self, call: ToolCall, turn: Turn) -> ToolCall | ToolResult | None:
            if call.name == "look":
                return ToolResult("from the cache")
            return ToolCall(call.id, call.name, {"a": call.arguments["a"] * 10})

        async def on_tool_error(self, error: Exception, call: ToolCall, turn: Turn) -> ToolResult:
            return ToolResult("Ask for a number.", is_error=True)

    for model, expected in (
        (calling("look"), "from the cache"),
        (calling("add", a=4), "41"),
        (calling("add", a="x"), "Ask for a number."),
    ):
        assert await told(AgentLoop(model, tools=[add, look], hooks=[Between()])) == [expected]


async def test_a_call_that_a_hook_refuses_is_told_to_the_model_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(Hook):
        async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
            raise PermissionError("not this one")

    caplog.set_level(logging.INFO, "dragoman.agents")
    (text,) = await told(AgentLoop(calling("look"), tools=[add, look], hooks=[Strict()]))
    assert text == "PermissionError: not this one"
    assert "a hook refused the tool look: PermissionError" in caplog.text
    assert "not this one" not in caplog.text, "it may be about a caller"


async def test_an_observer_changes_nothing_and_its_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Watcher(Hook):
        is_observer = True

        async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest:
            raise RuntimeError("the watcher broke")

        async def after_model(self, reply: ModelReply, turn: Turn) -> ModelReply:
            return ModelReply("something else")

    assert await told(AgentLoop(ScriptedModel("as said"), hooks=[Watcher()])) == ["as said"]
    assert "the watcher broke" in caplog.text


async def test_a_hook_that_is_no_observer_fails_the_turn_with_its_sentence() -> None:
    class Strict(Hook):
        async def before_model(self, request: ModelRequest, turn: Turn) -> None:
            raise TaskFailed("Not today.")

    assert await told(AgentLoop(ScriptedModel("x"), hooks=[Strict()])) == ["Not today."]


async def test_text_is_held_back_until_the_hooks_have_seen_all_of_it() -> None:
    loop = AgentLoop(ScriptedModel("Write to ann@ex", "x"), hooks=[Redaction([r"ann@\w+"])])
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        pieces = [piece async for piece in client.stream_text("hi")]
    assert pieces == ["Write to [redacted]"]


async def test_redaction_covers_what_the_model_reads_says_and_gets_from_tools() -> None:
    given: list[Any] = []

    def look(where: dict[str, Any]) -> str:
        given.append(where)
        return "Write to ann@example.com."

    where = {"to": ["bob@example.com", 5]}
    model = ScriptedModel(ToolCall("c", "look", {"where": where}), "Mail bob@example.com or call.")
    loop = AgentLoop(model, tools=[look], hooks=[Redaction()], system="I am me@example.com.")
    (text,) = await told(loop, "card 4111 1111 1111 1111, key sk-abcdefghijklmnop0123")
    assert text == "Mail [redacted] or call."
    system, user, asked, result = model.requests[1].messages
    assert asked.tool_calls[0].arguments == {"where": {"to": ["[redacted]", 5]}}
    assert given == [where], "tools are called with what the model said"
    assert user.text == "card [redacted], key [redacted]"
    assert result.text == "Write to [redacted]."
    assert system.text == "I am me@example.com."


async def test_a_rate_limit_counts_the_calls_of_an_owner_within_its_time() -> None:
    now = 0.0
    limit = RateLimit(2, per=10, now=lambda: now)
    loop = AgentLoop(ScriptedModel("ok"), hooks=[limit])
    assert await told(loop, "a", "b", "c") == [
        "ok",
        "ok",
        "Too many model calls. Try again in 10 s.",
    ]
    now = 10.0
    assert await told(loop, "d") == ["ok"]


async def test_cost_is_counted_in_micro_credits_and_may_have_a_limit() -> None:
    outcomes: list[TurnOutcome] = []

    class Bill(Hook):
        async def after_turn(self, outcome: TurnOutcome, turn: Turn) -> None:
            outcomes.append(outcome)

    first = ModelReply(tool_calls=[ToolCall("c", "add", {"a": 1})], usage=TokenUsage(1000, 10))
    last = ModelReply("done", usage=TokenUsage(1, 0))
    # 2.5 and 10 credits for a million tokens: 2500 + 100, and 2.5 rounded up.
    free = Cost(input="2.5", output="10")
    loop = AgentLoop(ScriptedModel(first, last), tools=[add], hooks=[free, Bill()])
    assert await told(loop) == ["done"]
    assert outcomes[0].cost == 2603 and outcomes[0].usage == TokenUsage(1001, 10)
    tight = Cost(input="2.5", output="10", limit="0.0026")
    loop = AgentLoop(ScriptedModel(first, last), tools=[add], hooks=[tight])
    assert await told(loop) == ["The turn has spent its 0.0026 credits."]


async def test_the_log_has_names_and_sizes_but_nothing_that_was_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dragoman.agents")
    await told(AgentLoop(calling("look"), tools=[look], hooks=[Logging()]), "my secret")
    assert "tool look done, 25 characters" in caplog.text
    assert "answered after 2 model calls and 1 tool calls" in caplog.text
    assert "secret" not in caplog.text and "ann@" not in caplog.text


async def test_cost_does_not_hold_text_back() -> None:
    loop = AgentLoop(ScriptedModel("one two"), hooks=[Cost(input="1", output="1"), Logging()])
    app = app_of(loop.agent("Loop", "Thinks."))
    async with Client(app=app) as client:
        pieces = [piece async for piece in client.stream_text("hi")]
    assert [piece for piece in pieces if piece] == ["one ", "two"]
