"""One connection to an MCP server: a program on stdin and stdout, or an address.

A task of its own opens and closes it, and notices when the server ends. Every failure is raised as
`McpFailed`, whatever the package `mcp` raises.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from dragoman.config import PREFIX
from dragoman.errors import ConfigError

if TYPE_CHECKING:
    # An extra, and heavy: loaded with the first connection.
    import mcp

# Prefixes of variables of this server, and of the command that calls agents.
_OURS = (PREFIX, "A2ACLI_")
_MISSING = "MCP needs the package mcp: pip install 'dragoman[mcp]'"
# How servers refuse a session that they do not know, and so have done nothing.
_FORGOTTEN = ("Session terminated", "Session not found")


class McpFailed(Exception):
    """An MCP server could not be reached, did not answer in time, or refused."""


class McpConnection:
    """One connection, in a task of its own: the task that opens it has to close it."""

    def __init__(self, make: "Callable[[Callable[[], None]], mcp.Client]", timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = make(self._end)
        self._timeout = timeout
        self._ending = asyncio.Event()
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._holding = self.loop.create_task(self._hold())

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes from the server."""
        return self._ending.is_set() or self._holding.done()

    async def ready(self) -> None:
        """Wait until the server has greeted. Raises `McpFailed`."""
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        self._end()
        if not self._opened.done():
            self._holding.cancel()
        await asyncio.wait([self._holding])

    def _end(self) -> None:
        self._ending.set()

    async def _hold(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout):
                    await stack.enter_async_context(self.client)
                self._opened.set_result(None)
                await self._ending.wait()
        except asyncio.CancelledError:
            self._fail("the connection was closed")
            raise
        except Exception as error:
            # Whatever it was: the callers that wait get it, and the next use tries again.
            self._fail(reason(error))
        finally:
            self._ending.set()

    def _fail(self, reason: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(McpFailed(f"the MCP server cannot be used: {reason}"))
            # Read once, because no caller may wait for it any more.
            self._opened.exception()


class _Watched:
    """A transport that reports when the server ends, also while no call is under way."""

    def __init__(
        self, transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._on_end = on_end

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _Reader(read, self._on_end), write

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._transport.__aexit__(*failure)


class _Reader:
    """The messages of a server; reports its end."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_Reader":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> "_Reader":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._stream.__aexit__(*failure)


def client_of(
    transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None], timeout: float
) -> "mcp.Client":
    """Return a client that is not connected yet."""
    import mcp

    from dragoman import __version__

    return mcp.Client(
        _Watched(transport, on_end),
        read_timeout_seconds=timeout,
        client_info=mcp.Implementation(name="dragoman", version=__version__),
        cache=None,
    )


def check_installed() -> None:
    """Raise `ConfigError` that says what to install."""
    if find_spec("mcp") is None:
        raise ConfigError(_MISSING, remedy="pip install 'dragoman[mcp]'")


def program(words: Sequence[str], env: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
    """Return the transport to a program, which it starts. The program gets our environment without
    our own variables: they hold secrets, which a tool could be made to reveal."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    known = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    command, *arguments = words
    parameters = StdioServerParameters(command=command, args=arguments, env={**known, **env})
    return stdio_client(parameters, errlog=sys.stderr)


@contextlib.asynccontextmanager
async def address(url: str, headers: Mapping[str, str], timeout: float) -> AsyncGenerator[Any]:
    """Give the transport to an address (streamable HTTP)."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    # One stream may be open for longer than any call takes.
    limits = httpx2.Timeout(timeout, read=max(timeout, 300.0))
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=limits) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


@contextlib.contextmanager
def mcp_failures(what: str) -> Generator[None]:
    """Raise every failure as `McpFailed`."""
    try:
        yield
    except McpFailed:
        raise
    except Exception as error:
        raise McpFailed(f"{what}: {reason(error)}") from error


def is_session_lost(error: Exception) -> bool:
    """Tell whether a server refused a call because it no longer knows our session."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.message in _FORGOTTEN


def reason(error: BaseException) -> str:
    """Return why a server could not be used, in a few words."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if isinstance(error, BaseExceptionGroup):
        # Around the failure of one task.
        group = cast("BaseExceptionGroup[BaseException]", error)
        return reason(group.exceptions[0])
    if isinstance(error, MCPError):
        if error.code == REQUEST_TIMEOUT:
            return "no answer in time"
        if error.code == CONNECTION_CLOSED:
            return "the server ended before it answered"
        return error.message
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, FileNotFoundError):
        return "there is no such program"
    return str(error) or type(error).__name__
