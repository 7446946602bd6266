"""Internal events of a loop: each model call, and the begin and end of each tool call.

Callers see them only if the author offers them and the caller asks for them. They say what was done
and how it ended, never contents.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from dragoman.agents.hooks import Hook
from dragoman.agents.models import ModelReply
from dragoman.agents.tools import ToolCall, ToolResult
from dragoman.authoring.turn import Turn
from dragoman.model.message import Part
from dragoman.model.requests import INTERNAL_EVENT, INTERNAL_REQUESTED


class InternalEvent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One event of a loop."""

    kind: Literal["llm-call", "tool-start", "tool-complete"]
    task_id: str
    context_id: str
    # Of a tool: its name, and the model's id of the call.
    tool: str = ""
    call_id: str = ""
    success: bool = True
    # Of a model call: the tokens it took.
    input_tokens: int = 0
    output_tokens: int = 0


Watcher = Callable[[InternalEvent], Awaitable[None] | None]


class InternalEvents(Hook):
    """Gives each event to `watch`, which may be async; with `to_callers` also to callers whose
    request has `internalEvents: true` in its metadata. What `watch` raises is logged. An event
    may come again if the process ends right then."""

    is_observer = True
    # Last: it sees the results of the other hooks.
    priority = 1000

    def __init__(self, watch: Watcher | None = None, *, to_callers: bool = False) -> None:
        self._watch = watch
        self._to_callers = to_callers

    async def after_model(self, reply: ModelReply, turn: Turn) -> None:
        """Report a model call."""
        event = InternalEvent(
            kind="llm-call",
            task_id=turn.task_id,
            context_id=turn.context,
            input_tokens=reply.usage.input,
            output_tokens=reply.usage.output,
        )
        await self._report(event, turn)

    async def before_tool(self, call: ToolCall, turn: Turn) -> None:
        """Report the begin of a tool call."""
        await self._report(_of_tool("tool-start", call, turn), turn)

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> None:
        """Report the end of a tool call."""
        event = _of_tool("tool-complete", call, turn)
        await self._report(msgspec.structs.replace(event, success=not result.is_error), turn)

    async def _report(self, event: InternalEvent, turn: Turn) -> None:
        if self._to_callers and turn.metadata.get(INTERNAL_REQUESTED) is True:
            await turn.say(Part(data=msgspec.to_builtins(event), media_type=INTERNAL_EVENT))
        if self._watch is not None:
            result = self._watch(event)
            if inspect.isawaitable(result):
                await result


def _of_tool(
    kind: Literal["tool-start", "tool-complete"], call: ToolCall, turn: Turn
) -> InternalEvent:
    return InternalEvent(
        kind=kind, task_id=turn.task_id, context_id=turn.context, tool=call.name, call_id=call.id
    )
