"""What goes on inside a loop, as events for whoever watches it: each model call, and each call of a
tool as it begins and ends.

Callers of the agent see none of them unless the author offers them and the caller asks. They say
that something was done and how it went, never what was said.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from dragoman.agents.hooks import Hook
from dragoman.agents.models import Reply
from dragoman.agents.tools import ToolCall, ToolResult
from dragoman.model.message import Part
from dragoman.server.turn import Turn

# In a request's metadata: its caller wants to see the events of its task.
ASKED = "internalEvents"
INTERNAL_EVENT = "application/vnd.dragoman.internal-event+json"


class InternalEvent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One thing that a loop did."""

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


Watch = Callable[[InternalEvent], Awaitable[None] | None]


class InternalEvents(Hook):
    """Gives each event to `watch`, which may be async; with `to_callers` also to callers whose
    request has `internalEvents: true` in its metadata. What `watch` raises is logged. An event
    may come again if the process ends right then."""

    is_observer = True
    # After the others: it sees what they made.
    priority = 1000

    def __init__(self, watch: Watch | None = None, *, to_callers: bool = False) -> None:
        self._watch = watch
        self._to_callers = to_callers

    async def after_model(self, reply: Reply, turn: Turn) -> None:
        """Tell of a model call."""
        event = InternalEvent(
            kind="llm-call",
            task_id=turn.task_id,
            context_id=turn.context,
            input_tokens=reply.usage.input,
            output_tokens=reply.usage.output,
        )
        await self._tell(event, turn)

    async def before_tool(self, call: ToolCall, turn: Turn) -> None:
        """Tell that a tool is called."""
        await self._tell(_of_tool("tool-start", call, turn), turn)

    async def after_tool(self, result: ToolResult, call: ToolCall, turn: Turn) -> None:
        """Tell what came of it."""
        event = _of_tool("tool-complete", call, turn)
        await self._tell(msgspec.structs.replace(event, success=not result.is_error), turn)

    async def _tell(self, event: InternalEvent, turn: Turn) -> None:
        if self._to_callers and turn.metadata.get(ASKED) is True:
            await turn.say(Part(data=msgspec.to_builtins(event), media_type=INTERNAL_EVENT))
        if self._watch is not None:
            told = self._watch(event)
            if inspect.isawaitable(told):
                await told


def _of_tool(
    kind: Literal["tool-start", "tool-complete"], call: ToolCall, turn: Turn
) -> InternalEvent:
    return InternalEvent(
        kind=kind, task_id=turn.task_id, context_id=turn.context, tool=call.name, call_id=call.id
    )
