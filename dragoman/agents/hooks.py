"""Hooks around a turn, around each model call and around each tool call.

Hooks run in the order of their priority, low first; each gets the result of the one before. Hooks
around a call run inside its durable step: once for a recorded call, and their result is what is
recorded. Errors of an observer are logged and change nothing.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from dragoman.agents.models import ModelMessage, ModelReply, ModelRequest, TokenUsage
from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.authoring.turn import Turn
from dragoman.errors import TaskFailed, is_interruption
from dragoman.model.identity import Principal
from dragoman.model.money import credits_text, micro_credits
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman.agents")
T = TypeVar("T")


class TurnOutcome(msgspec.Struct, frozen=True):
    """The result of a turn."""

    text: str
    usage: TokenUsage = TokenUsage()
    # Micro-credits, where a hook counts them.
    cost: int = 0
    model_calls: int = 0
    tool_calls: int = 0


class Hook:
    """Base of all hooks. A method that returns None changes nothing; one that raises fails the
    turn, or the one tool call."""

    priority: int = 100
    # Observes only: its results are ignored, its errors are logged.
    is_observer: bool = False
    # Whether `after_model` never changes the text. Otherwise text is held back until it has run:
    # streamed text cannot be taken back.
    keeps_text: bool = False

    async def before_turn(self, turn: Turn) -> None:
        """Called when a message came."""

    async def after_turn(self, outcome: TurnOutcome, turn: Turn) -> None:
        """Called when there is an answer, and again if the process ends right then."""

    async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> Sequence[Tool] | None:
        """Return the tools that the model is offered."""

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest | None:
        """Return the request that the model gets."""

    async def after_model(self, reply: ModelReply, turn: Turn) -> ModelReply | None:
        """Return the reply that the loop uses."""

    async def before_tool(self, call: ToolCall, turn: Turn) -> ToolCall | ToolResult | None:
        """Return the call to make, or a result instead of making it."""

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult | None:
        """Return the result that the model gets."""

    async def on_tool_error(
        self, error: Exception, call: ToolCall, turn: Turn
    ) -> ToolResult | None:
        """Return the result that the model gets for a call that raised; the first one counts."""


class LoopHooks:
    """All hooks of a loop, in their order."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = sorted(hooks, key=lambda hook: hook.priority)
        self.holds_text = any(
            type(hook).after_model is not Hook.after_model
            for hook in self._hooks
            if not (hook.is_observer or hook.keeps_text)
        )

    async def before_turn(self, turn: Turn) -> None:
        """Run all hooks before a turn."""
        await self._chain("before_turn", None, turn)

    async def after_turn(self, outcome: TurnOutcome, turn: Turn) -> None:
        """Run all hooks after a turn."""
        for hook in self._hooks:
            await self._one(hook, "after_turn", outcome, turn)

    async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> Sequence[Tool]:
        """Return the tools that pass all filters."""
        return await self._chain("filter_tools", tools, turn)

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest:
        """Return the request after all hooks."""
        return await self._chain("before_model", request, turn)

    async def after_model(self, reply: ModelReply, turn: Turn) -> ModelReply:
        """Return the reply after all hooks."""
        made = await self._chain("after_model", reply, turn)
        # A hook with `keeps_text` cannot change the text: it was streamed already.
        return made if self.holds_text else msgspec.structs.replace(made, text=reply.text)

    async def before_tool(self, call: ToolCall, turn: Turn) -> ToolCall | ToolResult:
        """Return the call after all hooks, or the first result instead of it."""
        made: ToolCall | ToolResult = call
        for hook in self._hooks:
            made = await self._one(hook, "before_tool", made, turn) or made
            if isinstance(made, ToolResult):
                break
        return made

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
        """Return the result after all hooks."""
        return await self._chain("after_tool", result, call, turn)

    async def on_tool_error(self, error: Exception, call: ToolCall, turn: Turn) -> ToolResult:
        """Return the result that stands for an error."""
        found: ToolResult | None = None
        for hook in self._hooks:
            made = await self._one(hook, "on_tool_error", error, call, turn)
            found = found or made
        return found or ToolResult(f"{type(error).__name__}: {error}", is_error=True)

    async def _chain(self, name: str, value: T, *more: Any) -> T:
        for hook in self._hooks:
            arguments = more if value is None else (value, *more)
            made: T | None = await self._one(hook, name, *arguments)
            if made is not None:
                value = made
        return value

    async def _one(self, hook: Hook, name: str, *arguments: Any) -> Any:
        try:
            made = await getattr(hook, name)(*arguments)
        except BaseException as error:
            if not hook.is_observer or is_interruption(error):
                raise
            logs.log_error(logger, "%s.%s failed", type(hook).__name__, name, error=error)
            return None
        return None if hook.is_observer else made


class RateLimit(Hook):
    """Limits the model calls of one principal in a period; a further call fails the turn. Counted
    per process."""

    priority = 10

    def __init__(
        self, calls: int, *, per: float = 60.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._per = per
        self._now = now
        self._call_times: dict[Principal, deque[float]] = {}

    async def before_model(self, request: ModelRequest, turn: Turn) -> None:
        """Count a call."""
        now = self._now()
        for principal, made in list(self._call_times.items()):
            while made and made[0] <= now - self._per:
                made.popleft()
            if not made:
                del self._call_times[principal]
        made = self._call_times.setdefault(turn.caller.principal, deque())
        if len(made) >= self._calls:
            wait = math.ceil(made[0] + self._per - now)
            raise TaskFailed(f"Too many model calls. Try again in {wait} s.")
        made.append(now)


class Logging(Hook):
    """Logs a line for each call: names, sizes and tokens, never contents."""

    is_observer = True

    async def after_model(self, reply: ModelReply, turn: Turn) -> None:
        """Log a model call."""
        logger.info(
            "task %s: the model read %d tokens, wrote %d and wants %d tools",
            turn.task_id,
            reply.usage.input,
            reply.usage.output,
            len(reply.tool_calls),
        )

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> None:
        """Log a call of a tool."""
        outcome = "failed" if result.is_error else "done"
        size = len(result.content)
        logger.info("task %s: tool %s %s, %d characters", turn.task_id, call.name, outcome, size)

    async def after_turn(self, outcome: TurnOutcome, turn: Turn) -> None:
        """Log the end."""
        logger.info(
            "task %s: answered after %d model calls and %d tool calls, %s credits",
            turn.task_id,
            outcome.model_calls,
            outcome.tool_calls,
            credits_text(outcome.cost),
        )


# Mail addresses, card numbers, keys of well-known formats.
PRIVATE = (
    r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    r"\b\d(?:[ -]?\d){12,18}\b",
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
)


class Redaction(Hook):
    """Replaces what matches a pattern, in the model's input, in its replies and in tool results.
    The task's history keeps the caller's text, and tools get the model's arguments unchanged."""

    # First: the other hooks see its results.
    priority = 0

    def __init__(self, patterns: Sequence[str] = PRIVATE, *, by: str = "[redacted]") -> None:
        self._pattern = re.compile("|".join(f"(?:{one})" for one in patterns))
        self._by = by

    def _clean(self, text: str) -> str:
        return self._pattern.sub(lambda _: self._by, text)

    def _cleaned(self, value: Any) -> Any:
        """Return a JSON value with every text in it redacted."""
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, list):
            return [self._cleaned(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self._clean(name): self._cleaned(item) for name, item in members.items()}
        return value

    def _redacted(self, message: ModelMessage) -> ModelMessage:
        calls = [
            msgspec.structs.replace(
                call, arguments=self._cleaned(call.arguments), broken=self._clean(call.broken)
            )
            for call in message.tool_calls
        ]
        return msgspec.structs.replace(message, text=self._clean(message.text), tool_calls=calls)

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest:
        """Redact the model's input, except the author's system prompt."""
        messages = [
            one if one.role == "system" else self._redacted(one) for one in request.messages
        ]
        return msgspec.structs.replace(request, messages=messages)

    async def after_model(self, reply: ModelReply, turn: Turn) -> ModelReply:
        """Redact the reply."""
        return msgspec.structs.replace(reply, text=self._clean(reply.text))

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
        """Redact a tool result."""
        return msgspec.structs.replace(result, content=self._clean(result.content))


class Cost(Hook):
    """Counts credits; prices are per million input and output tokens. A turn that has spent its
    limit fails before the next model call."""

    priority = 20
    keeps_text = True

    def __init__(self, *, input: str, output: str, limit: str = "") -> None:
        self._input = micro_credits(input)
        self._output = micro_credits(output)
        self._limit = micro_credits(limit) if limit else None

    async def before_model(self, request: ModelRequest, turn: Turn) -> None:
        """Fail the turn if its limit is spent."""
        if self._limit is not None and request.spent >= self._limit:
            raise TaskFailed(f"The turn has spent its {credits_text(self._limit)} credits.")

    async def after_model(self, reply: ModelReply, turn: Turn) -> ModelReply:
        """Set the cost of a call, rounded up to the micro-credit."""
        usage = reply.usage
        price = usage.input * self._input + usage.output * self._output
        return msgspec.structs.replace(reply, cost=-(-price // 1_000_000))
