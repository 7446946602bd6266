"""Tools: what a model may call, and the providers that execute the calls.

The loop makes each call a durable step, so a provider records nothing. Only a tool that works
through the turn, by loading the caller or another agent, records its work itself; it is marked.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from dragoman.authoring.turn import Turn
from dragoman.errors import ConfigError, is_interruption

logger = logging.getLogger("dragoman.agents")

MAX_DESCRIPTION = 1024
# Seconds that a list of tools is cached, and that reading it may take.
LIST_KEPT = 300.0
LIST_WITHIN = 30.0
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it. Raises `ConfigError` if no model would accept it."""

    name: str
    description: str = ""
    # The JSON Schema of its arguments, an object.
    schema: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    # Whether it records its work through the turn: the loop then makes no step of it.
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

    # The model's id of the call, which its result refers to.
    id: str
    name: str
    arguments: dict[str, Any] = {}
    # The model's text, if it is not a JSON object.
    broken: str = ""


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a call, as the model reads it."""

    content: str
    is_error: bool = False


class Unfinished:
    """A call that needs the caller or further steps before there is a result.

    Calls begin concurrently; unfinished ones continue one after another in the order of the calls,
    because steps are identified by their order."""

    def __init__(self, go_on: Callable[[], "Awaitable[ToolResult | Unfinished]"]) -> None:
        self.go_on = go_on


class ToolProvider(Protocol):
    """Offers tools and executes calls. Raises `LookupError` for an unknown tool; any exception
    becomes a failed result, whose text the model reads."""

    async def list_tools(self) -> Sequence[Tool]:
        """Return its tools at present. The loop caches the list for some minutes."""
        ...

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult | Unfinished:
        """Execute a call. Only tools that record themselves may take steps, ask or call other
        agents through the turn: the first at once, all further ones as `Unfinished`."""
        ...

    async def close(self) -> None:
        """Close connections; the next use opens them again."""
        ...


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool, and the index of its provider."""

    tool: Tool
    provider: int


class Toolbox:
    """The tools of several providers; of two with the same name the first provider's is used.

    A provider whose list cannot be read is left out, and tried again the next time."""

    def __init__(
        self, providers: Sequence[ToolProvider], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.providers = providers
        self._now = now
        self._lists: dict[int, tuple[float, Sequence[Tool]]] = {}
        self._loading: dict[int, asyncio.Task[Sequence[Tool]]] = {}

    async def offered(self) -> list[OfferedTool]:
        """Return all tools, in the order of their providers."""
        lists = await asyncio.gather(*(self._list(n) for n in range(len(self.providers))))
        found: dict[str, OfferedTool] = {}
        for provider, tools in enumerate(lists):
            for tool in tools:
                found.setdefault(tool.name, OfferedTool(tool, provider))
        return list(found.values())

    async def _list(self, provider: int) -> Sequence[Tool]:
        made_at, tools = self._lists.get(provider, (-math.inf, ()))
        if self._now() - made_at < LIST_KEPT:
            return tools
        # Concurrent turns share one request.
        loading = self._loading.get(provider)
        if loading is None:
            loading = asyncio.ensure_future(self._load(provider))
            self._loading[provider] = loading
            loading.add_done_callback(lambda _: self._loading.pop(provider, None))
        return await asyncio.shield(loading)

    async def _load(self, provider: int) -> Sequence[Tool]:
        try:
            async with asyncio.timeout(LIST_WITHIN):
                tools = await self.providers[provider].list_tools()
        except BaseException as error:
            if is_interruption(error):
                raise
            name = type(self.providers[provider]).__name__
            logger.warning(
                "the tools of %s cannot be listed; they are left out", name, exc_info=True
            )
            return ()
        self._lists[provider] = (self._now(), tools)
        return tools

    async def close(self) -> None:
        """Close all providers, even if one of them raises."""
        self._lists.clear()
        for provider in self.providers:
            try:
                await provider.close()
            except BaseException as error:
                if is_interruption(error):
                    raise
                name = type(provider).__name__
                logger.warning("%s could not be closed", name, exc_info=True)


def tool_name(name: str) -> str:
    """Return a valid name of a tool, made from any text."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64] or "tool"
