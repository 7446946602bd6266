"""HTTP/2 connections, piped byte for byte to the gRPC server of this process.

That server listens on a socket in a folder that only this user may enter. The end of each pipe is
bound to a name of its own there, by which an rpc finds the caller's address and certificate again.
Neither side is read faster than the other takes.
"""

import asyncio
import contextlib
import itertools
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dragoman.http.grpc.header_blocks import HeaderBlocks

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LISTENER = "server"


class PipedConnection(Protocol):
    """A connection of a caller, as far as its pipe needs it."""

    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        ...


class PipeOrigin(NamedTuple):
    """Where the rpcs of a pipe come from."""

    client: tuple[str, int] | None
    # Where the caller connected to.
    server: tuple[str, int | None] | None
    scheme: str
    # The caller's certificate; None: it showed none.
    certificate: bytes | None


class InnerServer(Protocol):
    """What answers the rpcs of all pipes."""

    async def stop(self, grace: float) -> None:
        """Take no more rpcs; end those that are open after so many seconds."""
        ...


# Begins to serve on a socket of that path.
StartInner = Callable[["Pipes", str], Awaitable[InnerServer]]


class Pipes:
    """All pipes of a process. The server behind them is started with the first."""

    def __init__(self, start: StartInner) -> None:
        self._start = start
        # How many there may be: each takes three descriptors.
        self.most = 1_000
        self._folder: Path | None = None
        self._starting: asyncio.Task[InnerServer] | None = None
        self._numbers = itertools.count(1)
        self._is_stopping = False
        # By the name that the end of each is bound to.
        self._open: dict[str, Pipe] = {}
        # Held, lest they are collected before they have ended.
        self._connecting: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, connection: PipedConnection, origin: PipeOrigin, data: bytes) -> "Pipe":
        """Pipe a connection from here on; `data` is what has come."""
        pipe = Pipe(connection, origin, data)
        transport = connection.transport
        if len(self._open) + len(self._connecting) >= self.most:
            transport.abort()
        if transport.is_closing():
            return pipe
        # Until there is another end.
        transport.pause_reading()
        transport.set_protocol(pipe)
        task = asyncio.get_running_loop().create_task(self._connect(pipe))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return pipe

    def find(self, peer: str) -> "Pipe | None":
        """Return the pipe that an rpc came by, as gRPC names its peer."""
        return self._open.get(peer.removeprefix("unix:"))

    async def stop(self, grace: float) -> None:
        """End all rpcs and pipes; those that are being answered have some time."""
        self._is_stopping = True
        if self._starting is not None:
            with contextlib.suppress(Exception):
                await (await self._starting).stop(grace)
        for pipe in list(self._open.values()):
            pipe.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _connect(self, pipe: "Pipe") -> None:
        name = ""
        try:
            folder = await self._serving()
            name = str(folder / str(next(self._numbers)))
            self._open[name] = pipe
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                end.setblocking(False)
                end.bind(name)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(end, str(folder / _LISTENER))
                await loop.create_unix_connection(
                    lambda: _InnerEnd(pipe, lambda: self._forget(name)), sock=end
                )
            except BaseException:
                end.close()
                raise
        except BaseException as error:
            self._forget(name)
            pipe.close()
            if not isinstance(error, OSError):
                raise

    async def _serving(self) -> Path:
        """Return the folder of the sockets, once the server listens in it."""
        if self._is_stopping:
            raise ConnectionError("the server stops")
        if self._folder is None:
            # Only this user may enter it.
            self._folder = Path(tempfile.mkdtemp(prefix="dragoman-grpc-"))
        if self._starting is None:
            start = self._start(self, str(self._folder / _LISTENER))
            self._starting = asyncio.ensure_future(start)
        try:
            await asyncio.shield(self._starting)
        except Exception:
            # The next connection tries again.
            self._starting = None
            raise
        return self._folder

    def _forget(self, name: str) -> None:
        if name:
            self._open.pop(name, None)
            with contextlib.suppress(OSError):
                Path(name).unlink()


class Pipe(asyncio.Protocol):
    """The caller's end of one pipe."""

    def __init__(self, connection: PipedConnection, origin: PipeOrigin, data: bytes) -> None:
        self.origin = origin
        # Rpcs that are being answered.
        self.open_rpcs = 0
        self._connection = connection
        self.outer = connection.transport
        self.inner: asyncio.Transport | None = None
        self._unsent = b""
        self._headers = HeaderBlocks(len(PREFACE))
        self._take(data)

    def connect(self, inner: asyncio.Transport) -> None:
        """The other end is there."""
        self.inner = inner
        if self.outer.is_closing():
            inner.close()
            return
        inner.write(self._unsent)
        self._unsent = b""
        self.outer.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def _take(self, data: bytes) -> None:
        if not self._headers.takes(data):
            # Not in due form: who sends this does not read.
            self.outer.abort()
        elif self.inner is None:
            self._unsent += data
        else:
            self.inner.write(data)

    def pause_writing(self) -> None:
        if self.inner is not None and not self.inner.is_closing():
            self.inner.pause_reading()

    def resume_writing(self) -> None:
        if self.inner is not None and not self.inner.is_closing():
            self.inner.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.inner is not None:
            self.inner.close()
        self._connection.connection_lost(exc)

    def close(self) -> None:
        """Close both ends, once what was written is sent."""
        self.outer.close()
        if self.inner is not None:
            self.inner.close()


class _InnerEnd(asyncio.Protocol):
    """The server's end of one pipe."""

    def __init__(self, pipe: Pipe, forget: Callable[[], None]) -> None:
        self._pipe = pipe
        self._forget = forget

    def connection_made(self, transport: Any) -> None:
        self._pipe.connect(transport)

    def data_received(self, data: bytes) -> None:
        # The server goes on writing for a moment after the caller has left.
        if not self._pipe.outer.is_closing():
            self._pipe.outer.write(data)

    def pause_writing(self) -> None:
        if not self._pipe.outer.is_closing():
            self._pipe.outer.pause_reading()

    def resume_writing(self) -> None:
        if not self._pipe.outer.is_closing():
            self._pipe.outer.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._pipe.outer.close()
