"""What an author has done around a turn, around each model call and around each call of a tool.

Hooks run in the order of their priority, low first, each given what the one before made of it.
Those around a call run inside its durable step: they run once for a call that is on record, and
what they made of it is what is recorded. An observer's errors are logged and change nothing.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from dragoman.agents.models import ModelRequest, Reply, Said, Usage
from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.errors import TaskFailed, is_interruption
from dragoman.model.identity import Principal
from dragoman.model.money import credits_text, micro_credits
from dragoman.server.turn import Turn
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman.agents")
T = TypeVar("T")


class Outcome(msgspec.Struct, frozen=True):
    """What came of a turn."""

    text: str
    usage: Usage = Usage()
    # Micro-credits, where a hook counts them.
    cost: int = 0
    model_calls: int = 0
    tool_calls: int = 0


class Hook:
    """What may be done. A method that returns None leaves things as they are; one that raises fails
    the turn, or the one call of a tool."""

    priority: int = 100
    # Watches only: what it returns is ignored, what it raises is logged.
    is_observer: bool = False
    # Whether `after_model` leaves the text alone. Otherwise text is held back until it has run:
    # what was streamed cannot be taken back.
    keeps_text: bool = False

    async def before_turn(self, turn: Turn) -> None:
        """A message came."""

    async def after_turn(self, outcome: Outcome, turn: Turn) -> None:
        """There is an answer. Called again if the process ends right then."""

    async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> Sequence[Tool] | None:
        """Return the tools that the model is offered."""

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest | None:
        """Return what the model is asked."""

    async def after_model(self, reply: Reply, turn: Turn) -> Reply | None:
        """Return what the model is taken to have said."""

    async def before_tool(self, call: ToolCall, turn: Turn) -> ToolCall | ToolResult | None:
        """Return the call that is made, or a result, which spares it."""

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult | None:
        """Return what the model is told."""

    async def on_tool_error(
        self, error: Exception, call: ToolCall, turn: Turn
    ) -> ToolResult | None:
        """Return what the model is told of a call that raised; the first result counts."""


class Hooks:
    """All hooks of a loop, in their order."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self._hooks = sorted(hooks, key=lambda hook: hook.priority)
        self.holds_text = any(
            type(hook).after_model is not Hook.after_model
            for hook in self._hooks
            if not (hook.is_observer or hook.keeps_text)
        )

    async def before_turn(self, turn: Turn) -> None:
        """Tell all that a turn begins."""
        await self._chain("before_turn", None, turn)

    async def after_turn(self, outcome: Outcome, turn: Turn) -> None:
        """Tell all that a turn is over."""
        for hook in self._hooks:
            await self._one(hook, "after_turn", outcome, turn)

    async def filter_tools(self, tools: Sequence[Tool], turn: Turn) -> Sequence[Tool]:
        """Return the tools that all let pass."""
        return await self._chain("filter_tools", tools, turn)

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest:
        """Return the request that all made."""
        return await self._chain("before_model", request, turn)

    async def after_model(self, reply: Reply, turn: Turn) -> Reply:
        """Return the reply that all made."""
        made = await self._chain("after_model", reply, turn)
        # A hook that said it leaves the text alone is held to it: the text is out already.
        return made if self.holds_text else msgspec.structs.replace(made, text=reply.text)

    async def before_tool(self, call: ToolCall, turn: Turn) -> ToolCall | ToolResult:
        """Return the call that all made, or the first result instead of it."""
        made: ToolCall | ToolResult = call
        for hook in self._hooks:
            made = await self._one(hook, "before_tool", made, turn) or made
            if isinstance(made, ToolResult):
                break
        return made

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
        """Return the result that all made."""
        return await self._chain("after_tool", result, call, turn)

    async def on_tool_error(self, error: Exception, call: ToolCall, turn: Turn) -> ToolResult:
        """Return what the model is told of an error."""
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
            logs.tell(logger, "%s.%s failed", type(hook).__name__, name, error=error)
            return None
        return None if hook.is_observer else made


class RateLimit(Hook):
    """So many model calls of one principal in so many seconds; one more fails the turn. Counted in
    this process alone."""

    priority = 10

    def __init__(
        self, calls: int, *, per: float = 60.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._per = per
        self._now = now
        self._made: dict[Principal, deque[float]] = {}

    async def before_model(self, request: ModelRequest, turn: Turn) -> None:
        """Count a call."""
        now = self._now()
        for principal, made in list(self._made.items()):
            while made and made[0] <= now - self._per:
                made.popleft()
            if not made:
                del self._made[principal]
        made = self._made.setdefault(turn.caller.principal, deque())
        if len(made) >= self._calls:
            wait = math.ceil(made[0] + self._per - now)
            raise TaskFailed(f"Too many model calls. Try again in {wait} s.")
        made.append(now)


class Logging(Hook):
    """Writes a line for each call: names, sizes and tokens, never what was said."""

    is_observer = True

    async def after_model(self, reply: Reply, turn: Turn) -> None:
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

    async def after_turn(self, outcome: Outcome, turn: Turn) -> None:
        """Log the end."""
        logger.info(
            "task %s: answered after %d model calls and %d tool calls, %s credits",
            turn.task_id,
            outcome.model_calls,
            outcome.tool_calls,
            credits_text(outcome.cost),
        )


# Addresses of mail, numbers of cards, keys of well-known shapes.
PRIVATE = (
    r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    r"\b\d(?:[ -]?\d){12,18}\b",
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
)


class Redaction(Hook):
    """Replaces what matches a pattern: in what the model reads, in what it says and in what tools
    return. What the caller wrote stays in the task's history as it is, and tools are called with
    what the model said."""

    # First on the way in, and its results are what the others see.
    priority = 0

    def __init__(self, patterns: Sequence[str] = PRIVATE, *, by: str = "[redacted]") -> None:
        self._pattern = re.compile("|".join(f"(?:{one})" for one in patterns))
        self._by = by

    def _clean(self, text: str) -> str:
        return self._pattern.sub(lambda _: self._by, text)

    def _cleaned(self, value: Any) -> Any:
        """Return a value of JSON with every text in it cleaned."""
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, list):
            return [self._cleaned(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self._clean(name): self._cleaned(item) for name, item in members.items()}
        return value

    def _said(self, said: Said) -> Said:
        calls = [
            msgspec.structs.replace(
                call, arguments=self._cleaned(call.arguments), broken=self._clean(call.broken)
            )
            for call in said.tool_calls
        ]
        return msgspec.structs.replace(said, text=self._clean(said.text), tool_calls=calls)

    async def before_model(self, request: ModelRequest, turn: Turn) -> ModelRequest:
        """Clean what the model reads, but for what the author wrote."""
        messages = [
            said if said.role == "system" else self._said(said) for said in request.messages
        ]
        return msgspec.structs.replace(request, messages=messages)

    async def after_model(self, reply: Reply, turn: Turn) -> Reply:
        """Clean what the model says."""
        return msgspec.structs.replace(reply, text=self._clean(reply.text))

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> ToolResult:
        """Clean what a tool returned."""
        return msgspec.structs.replace(result, content=self._clean(result.content))


class Cost(Hook):
    """Counts credits: prices are for a million tokens, read and written. A turn that has spent its
    limit makes no further model call and fails."""

    priority = 20
    keeps_text = True

    def __init__(self, *, input: str, output: str, limit: str = "") -> None:
        self._input = micro_credits(input)
        self._output = micro_credits(output)
        self._limit = micro_credits(limit) if limit else None

    async def before_model(self, request: ModelRequest, turn: Turn) -> None:
        """Refuse what nobody would pay."""
        if self._limit is not None and request.spent >= self._limit:
            raise TaskFailed(f"The turn has spent its {credits_text(self._limit)} credits.")

    async def after_model(self, reply: Reply, turn: Turn) -> Reply:
        """Say what a call cost, rounded up to the micro-credit."""
        usage = reply.usage
        price = usage.input * self._input + usage.output * self._output
        return msgspec.structs.replace(reply, cost=-(-price // 1_000_000))
