"""Tools of an MCP server: a program of this machine that speaks on stdin and stdout, or an address.

The first use opens the connection, and opens it again after the server ended. A call that was under
way then is not repeated, because it may have been done; a list is simply read again. The official
package `mcp`, which the extra of that name installs, speaks the protocol.
"""

import asyncio
import os
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from dragoman.agents.tools import MAX_DESCRIPTION, Tool, ToolCall, ToolResult, tool_name
from dragoman.authoring.turn import Turn
from dragoman.errors import ConfigError
from dragoman.mcp.connection import (
    McpConnection,
    McpFailed,
    address,
    check_installed,
    client_of,
    is_session_lost,
    mcp_failures,
    program,
)

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
    Only tools that are `allowed` by name are there; None: all of them. A program gets our
    environment without our own variables, and with `env` over it."""

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
        # The name that the server gives itself, once it is connected.
        self.title = ""
        self._connection: McpConnection | None = None
        self._tools: list[mcp_types.Tool] | None = None
        self._tools_until = 0.0
        self._fetching: asyncio.Task[list[mcp_types.Tool]] | None = None

    def __repr__(self) -> str:
        return f"McpTools({self.name!r})"

    @property
    def name(self) -> str:
        """The name of a server that gives itself none."""
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
            for name, tool in _by_model_name(await self.offered()).items()
        ]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        """Call a tool; its result is returned as text."""
        tool = _by_model_name(await self.offered()).get(call.name)
        if tool is None:
            raise LookupError(call.name)
        result = await self.call(tool.name, call.arguments)
        return ToolResult(text_of(result), bool(result.get("isError")))

    async def offered(self) -> "list[mcp_types.Tool]":
        """Return the tools as the server describes them, from a list of the last minutes. All
        concurrent callers wait for one answer."""
        if self._tools is not None and self._now() < self._tools_until:
            return self._tools
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
        return await asyncio.shield(self._fetching)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool by the server's name for it and return the result as MCP has it in JSON.
        Raises `McpFailed`, and `LookupError` for a tool that is not allowed."""
        if self._allowed is not None and name not in self._allowed:
            raise LookupError(name)
        connection = await self._open()
        with mcp_failures(f"the tool {name}"):
            try:
                found = await connection.client.call_tool(name, arguments)
            except Exception as error:
                if not is_session_lost(error):
                    raise
                # The server was restarted and has not done the call.
                await connection.close()
                connection = await self._open()
                found = await connection.client.call_tool(name, arguments)
        return found.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})

    async def close(self) -> None:
        """End the program or the session; the next use begins another."""
        connection, self._connection = self._connection, None
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            self._fetching = None
        self._tools = None
        if connection is not None:
            await connection.close()

    async def _fetch(self) -> "list[mcp_types.Tool]":
        was_open = self._connection
        try:
            found = await self._list()
        except McpFailed:
            if was_open is None or not was_open.is_over:
                raise
            # The server ended meanwhile; reading a list changes nothing, so it is read again.
            found = await self._list()
        if self._allowed is not None:
            found = [tool for tool in found if tool.name in self._allowed]
        self._tools, self._tools_until = found, self._now() + self._fresh_for
        return found

    async def _list(self) -> "list[mcp_types.Tool]":
        connection = await self._open()
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        with mcp_failures("the list of tools"):
            for _ in range(_MOST_PAGES):
                page = await connection.client.list_tools(cursor=cursor, cache_mode="bypass")
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
        raise McpFailed("the list of tools does not end")

    async def _open(self) -> McpConnection:
        """Return a connection that was alive a moment ago."""
        connection, loop = self._connection, asyncio.get_running_loop()
        # One of another loop is gone: that loop has ended.
        if connection is None or connection.is_over or connection.loop is not loop:
            connection = self._connection = McpConnection(self._client, self.timeout)
        await connection.ready()
        if (known := connection.client.server_info) is not None:
            self.title = known.title or known.name
        return connection

    def _client(self, on_end: Callable[[], None]) -> "mcp.Client":
        check_installed()
        if self._words:
            transport = program(self._words, self._env)
        else:
            transport = address(self.server, self._headers, self.timeout)
        return client_of(transport, on_end, self.timeout)


def is_address(server: str) -> bool:
    """Tell whether a server is named by its address."""
    return server.startswith(("http://", "https://"))


def text_of(result: Mapping[str, Any]) -> str:
    """Return a result as text; other content is named."""
    texts = [_text(block) for block in result.get("content", [])]
    if not any(texts) and "structuredContent" in result:
        return msgspec.json.encode(result["structuredContent"]).decode()
    return "\n".join(texts)


def _text(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource":
            found = cast("dict[str, Any]", block.get("resource") or {})
            return str(found["text"]) if "text" in found else f"[{found.get('uri', 'a resource')}]"
        case "resource_link":
            return str(block.get("uri", ""))
        case kind:
            return f"[{kind}: {block.get('mimeType', 'unknown')}]"


def _by_model_name(tools: "Sequence[mcp_types.Tool]") -> "dict[str, mcp_types.Tool]":
    """Return tools by names that models take; of two that become one, the later is numbered."""
    found: dict[str, mcp_types.Tool] = {}
    for tool in tools:
        plain = name = tool_name(tool.name)
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
