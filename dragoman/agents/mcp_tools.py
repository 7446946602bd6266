"""Tools of an MCP server: a program of this machine that speaks on stdin and stdout, or an address.

The connection is opened by the first use and again after the server ended. A call that was under
way then is not repeated, because nobody knows whether it was done; a list is simply asked for
again. Speaks through the official package `mcp`, which the extra of that name installs.
"""

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from dragoman.agents import mcp_line
from dragoman.agents.mcp_line import Line, McpFailed, explained, is_forgotten
from dragoman.agents.tools import MAX_DESCRIPTION, Tool, ToolCall, ToolResult, humanized
from dragoman.errors import ConfigError
from dragoman.server.turn import Turn

if TYPE_CHECKING:
    # An extra, and heavy: loaded with the first connection.
    import mcp
    import mcp_types

TIMEOUT = 30.0
FRESH_FOR = 300.0
# Pages of a list; more are a server that goes round in a circle.
_MOST_PAGES = 100
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class McpTools:
    """The tools of one MCP server, as a provider.

    `server` is a command line, split as a shell would and run without one, or an http(s) address.
    Of its tools only those that are `allowed` by name are there; None: all of them. A program gets
    our environment without what is ours in it, and `env` over it."""

    def __init__(
        self,
        server: str,
        *,
        allowed: Collection[str] | None = None,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        fresh_for: float = FRESH_FOR,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self.timeout = timeout
        self._allowed = None if allowed is None else frozenset(allowed)
        self._headers = dict(headers or {})
        self._env = dict(env or {})
        self._fresh_for = fresh_for
        self._now = now
        self._words = [] if is_address(server) else _split(server)
        if is_address(server):
            _check_address(server, has_secret=bool(headers))
        # What the server calls itself, once it was asked.
        self.title = ""
        self._line: Line | None = None
        self._known: list[mcp_types.Tool] | None = None
        self._known_until = 0.0
        self._fetching: asyncio.Task[list[mcp_types.Tool]] | None = None

    def __repr__(self) -> str:
        return f"McpTools({self.name!r})"

    @property
    def name(self) -> str:
        """What the server is called where it does not say so itself."""
        if self._words:
            return os.path.basename(self._words[0])
        return urlsplit(self.server).hostname or "mcp"

    async def list_tools(self) -> Sequence[Tool]:
        """Return the tools, under names that any model takes."""
        return [
            Tool(
                name=name,
                description=(tool.description or tool.title or "")[:MAX_DESCRIPTION],
                schema=tool.input_schema,
            )
            for name, tool in _named(await self.offered()).items()
        ]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        """Call a tool; what it returns is told as text."""
        tool = _named(await self.offered()).get(call.name)
        if tool is None:
            raise LookupError(call.name)
        result = await self.call(tool.name, call.arguments)
        return ToolResult(text_of(result), bool(result.get("isError")))

    async def offered(self) -> "list[mcp_types.Tool]":
        """Return the tools as the server describes them, from a list of the last minutes. All who
        ask at the same time wait for one answer."""
        if self._known is not None and self._now() < self._known_until:
            return self._known
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
        return await asyncio.shield(self._fetching)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool by the server's name for it and return the result as MCP has it in JSON.
        Raises `McpFailed`, and `LookupError` for a tool that is not allowed."""
        if self._allowed is not None and name not in self._allowed:
            raise LookupError(name)
        line = await self._open()
        with explained(f"the tool {name}"):
            try:
                found = await line.client.call_tool(name, arguments)
            except Exception as error:
                if not is_forgotten(error):
                    raise
                # The server began again and has not looked at the call.
                await line.close()
                line = await self._open()
                found = await line.client.call_tool(name, arguments)
        return found.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})

    async def close(self) -> None:
        """End the program or the session; the next use begins another."""
        line, self._line = self._line, None
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            self._fetching = None
        self._known = None
        if line is not None:
            await line.close()

    async def _fetch(self) -> "list[mcp_types.Tool]":
        was_open = self._line
        try:
            found = await self._list()
        except McpFailed:
            if was_open is None or not was_open.is_over:
                raise
            # The server ended meanwhile; asking for a list changes nothing, so we ask again.
            found = await self._list()
        if self._allowed is not None:
            found = [tool for tool in found if tool.name in self._allowed]
        self._known, self._known_until = found, self._now() + self._fresh_for
        return found

    async def _list(self) -> "list[mcp_types.Tool]":
        line = await self._open()
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        with explained("the list of tools"):
            for _ in range(_MOST_PAGES):
                page = await line.client.list_tools(cursor=cursor, cache_mode="bypass")
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
        raise McpFailed("the list of tools does not end")

    async def _open(self) -> Line:
        """Return a connection that was alive a moment ago."""
        line = self._line
        if line is not None and (line.is_over or line.loop is not asyncio.get_running_loop()):
            # Whoever served us before may have had another loop, which is gone with all it held.
            line = None
        if line is None:
            line = self._line = Line(self._client, self.timeout)
        await line.ready()
        if (known := line.client.server_info) is not None:
            self.title = known.title or known.name
        return line

    def _client(self, on_end: Callable[[], None]) -> "mcp.Client":
        mcp_line.check_installed()
        if self._words:
            transport = mcp_line.program(self._words, self._env)
        else:
            transport = mcp_line.address(self.server, self._headers, self.timeout)
        return mcp_line.client_of(transport, on_end, self.timeout)


def is_address(server: str) -> bool:
    """Tell whether a server is named by its address."""
    return server.startswith(("http://", "https://"))


def text_of(result: Mapping[str, Any]) -> str:
    """Return what a result says, as text: content that is none is named."""
    said = [_text(block) for block in result.get("content", [])]
    if not any(said) and "structuredContent" in result:
        return msgspec.json.encode(result["structuredContent"]).decode()
    return "\n".join(said)


def _text(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource":
            held = cast("dict[str, Any]", block.get("resource") or {})
            return str(held["text"]) if "text" in held else f"[{held.get('uri', 'a resource')}]"
        case "resource_link":
            return str(block.get("uri", ""))
        case kind:
            return f"[{kind}: {block.get('mimeType', 'unknown')}]"


def _named(tools: "Sequence[mcp_types.Tool]") -> "dict[str, mcp_types.Tool]":
    """Return tools by names that models take; of two that become one, the later is numbered."""
    found: dict[str, mcp_types.Tool] = {}
    for tool in tools:
        plain = name = humanized(tool.name)
        number = 1
        while name in found:
            number += 1
            name = f"{plain[:60]}_{number}"
        found[name] = tool
    return found


def _split(server: str) -> list[str]:
    try:
        words = shlex.split(server)
    except ValueError as error:
        raise ConfigError(f"MCP server {server!r}: {error}") from None
    if not words:
        raise ConfigError("an MCP server is a command line or an address; this one is empty")
    return words


def _check_address(server: str, *, has_secret: bool) -> None:
    parts = urlsplit(server)
    if not parts.hostname:
        raise ConfigError(f"MCP server {server!r}: the address has no host")
    if parts.username or parts.password:
        raise ConfigError("MCP server: no credentials in its address; give them as headers")
    if has_secret and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ConfigError(
            f"MCP server {server}: headers may hold secrets, and others could read them on the "
            "way; use https"
        )
