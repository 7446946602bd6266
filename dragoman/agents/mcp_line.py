"""One connection to an MCP server: a program on stdin and stdout, or an address.

It is held by a task of its own, which opens and closes it, and knows when the server ended. What
went wrong is told as `McpFailed`, whatever the package `mcp` calls it.
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

# Of this server, and of the command that calls agents.
_OURS = (PREFIX, "A2ACLI_")
_MISSING = "MCP needs the package mcp: pip install 'dragoman[mcp]'"
# How servers say that they do not know a session, and so have done nothing.
_FORGOTTEN = ("Session terminated", "Session not found")


class McpFailed(Exception):
    """An MCP server could not be reached, did not answer in time, or refused."""


class Line:
    """One connection, held by a task of its own: what it opens has to be closed by the same."""

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
            # Whatever it was: who waits is told, and the next use tries again.
            self._fail(reason(error))
        finally:
            self._ending.set()

    def _fail(self, reason: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(McpFailed(f"the MCP server cannot be used: {reason}"))
            # Nobody may be waiting any more.
            self._opened.exception()


class _Watched:
    """A transport that tells when the server ended, also while nobody asks it anything."""

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
    """What a server says; reports its end."""

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
        raise ConfigError(_MISSING)


def program(words: Sequence[str], env: Mapping[str, str]) -> AbstractAsyncContextManager[Any]:
    """Return the way to a program that is started for it. It knows our environment without what is
    ours in it: secrets are there, which a tool could be made to tell."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    known = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    command, *arguments = words
    parameters = StdioServerParameters(command=command, args=arguments, env={**known, **env})
    return stdio_client(parameters, errlog=sys.stderr)


@contextlib.asynccontextmanager
async def address(url: str, headers: Mapping[str, str], timeout: float) -> AsyncGenerator[Any]:
    """Give the way to an address (streamable HTTP)."""
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
def explained(what: str) -> Generator[None]:
    """Tell what went wrong as `McpFailed`."""
    try:
        yield
    except McpFailed:
        raise
    except Exception as error:
        raise McpFailed(f"{what}: {reason(error)}") from error


def is_forgotten(error: Exception) -> bool:
    """Tell whether a server refused a call because it does not know our session any more."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.message in _FORGOTTEN


def reason(error: BaseException) -> str:
    """Return why a server could not be used, in a few words."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if isinstance(error, BaseExceptionGroup):
        # Around what one task met.
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
