"""Tools: what a model may ask to have done, and who does it.

A provider offers tools and executes calls of them. The loop makes each call a durable step, so a
provider does plain work and records nothing; only a tool that works through the turn, by asking the
caller or another agent, records what it does itself and says so.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from dragoman.errors import ConfigError, is_interruption
from dragoman.server.turn import Turn

logger = logging.getLogger("dragoman.agents")

MAX_DESCRIPTION = 1024
# Seconds that a provider's list is used for, and that it may take to come.
LIST_KEPT = 300.0
LIST_WITHIN = 30.0
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told about a tool. Raises `ConfigError` if no model would take it."""

    name: str
    description: str = ""
    # The JSON Schema of its arguments, an object.
    schema: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    # Whether it records what it does through the turn: the loop then makes no step of it.
    records_itself: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"the tool {self.name!r}: a name has 1 to 64 letters, digits, _ and -; rename it"
            )
        if len(self.description) > MAX_DESCRIPTION:
            raise ConfigError(
                f"the tool {self.name}: its description has {len(self.description)} characters; "
                f"shorten it to {MAX_DESCRIPTION}"
            )


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool that a model asks for."""

    # The model's id for it, which its result goes back under.
    id: str
    name: str
    arguments: dict[str, Any] = {}
    # What the model wrote instead, where that is no JSON object.
    broken: str = ""


class ToolResult(msgspec.Struct, frozen=True):
    """What came of a call, as the model reads it."""

    content: str
    is_error: bool = False


class Unfinished:
    """A call that needs the caller or further steps before there is a result.

    Calls begin beside each other; what is left of them is done one after the other in the order of
    the calls, because steps are found by their order."""

    def __init__(self, go_on: Callable[[], "Awaitable[ToolResult | Unfinished]"]) -> None:
        self.go_on = go_on


class ToolProvider(Protocol):
    """Whoever has tools. One that is asked for a tool it does not have raises `LookupError`; any
    exception becomes a failed result, whose text the model reads."""

    async def list_tools(self) -> Sequence[Tool]:
        """Return the tools it has at present. The loop keeps the list for some minutes."""
        ...

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult | Unfinished:
        """Do what a call asks. Only tools that record themselves may take steps, ask or call other
        agents by the turn: one of that at once, and what follows as `Unfinished`."""
        ...

    async def close(self) -> None:
        """Let go of what is open; the next use opens it again."""
        ...


class Offered(msgspec.Struct, frozen=True):
    """A tool, and which of the providers has it."""

    tool: Tool
    provider: int


class Toolbox:
    """The tools of several providers: of two with one name, the first provider's is used.

    A provider whose list cannot be had is left out and asked again the next time."""

    def __init__(
        self, providers: Sequence[ToolProvider], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.providers = providers
        self._now = now
        self._lists: dict[int, tuple[float, Sequence[Tool]]] = {}
        self._asking: dict[int, asyncio.Task[Sequence[Tool]]] = {}

    async def offered(self) -> list[Offered]:
        """Return all tools, in the order of their providers."""
        lists = await asyncio.gather(*(self._list(n) for n in range(len(self.providers))))
        found: dict[str, Offered] = {}
        for provider, tools in enumerate(lists):
            for tool in tools:
                found.setdefault(tool.name, Offered(tool, provider))
        return list(found.values())

    async def _list(self, provider: int) -> Sequence[Tool]:
        made_at, tools = self._lists.get(provider, (-math.inf, ()))
        if self._now() - made_at < LIST_KEPT:
            return tools
        # Turns that ask at the same time wait for one answer.
        asking = self._asking.get(provider)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(provider))
            self._asking[provider] = asking
            asking.add_done_callback(lambda _: self._asking.pop(provider, None))
        return await asyncio.shield(asking)

    async def _ask(self, provider: int) -> Sequence[Tool]:
        try:
            async with asyncio.timeout(LIST_WITHIN):
                tools = await self.providers[provider].list_tools()
        except BaseException as error:
            if is_interruption(error):
                raise
            name = type(self.providers[provider]).__name__
            logger.warning("%s has no list of tools; they are left out", name, exc_info=True)
            return ()
        self._lists[provider] = (self._now(), tools)
        return tools

    async def close(self) -> None:
        """Close all providers, whatever one of them raises."""
        self._lists.clear()
        for provider in self.providers:
            try:
                await provider.close()
            except BaseException as error:
                if is_interruption(error):
                    raise
                name = type(provider).__name__
                logger.warning("%s could not be closed", name, exc_info=True)


def humanized(name: str) -> str:
    """Return a name that tools may have, made from any text."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64] or "tool"
