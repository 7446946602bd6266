"""Where connections of gRPC arrive: those that begin as HTTP/2 does. What serves them is loaded
with the first, for it takes tens of milliseconds and megabytes.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    # With the first connection.
    from dragoman.http.grpc.penalties import Penalties

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class TakenConnection(Protocol):
    """A connection that turned out to speak HTTP/2."""

    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        ...


class RpcOrigin(msgspec.Struct, frozen=True):
    """Where the rpcs of a connection come from."""

    client: tuple[str, int] | None
    # Where the caller connected to.
    server: tuple[str, int | None] | None
    scheme: str
    # The caller's certificate; None: it showed none.
    certificate: bytes | None


class ServedConnection(asyncio.Protocol, ABC):
    """A connection whose rpcs are answered."""

    @property
    @abstractmethod
    def open_rpcs(self) -> int:
        """How many are under way."""

    @abstractmethod
    def end(self) -> None:
        """Take no more rpcs, and close once those that are open have ended."""

    @abstractmethod
    def close(self) -> None:
        """Close, once what was written is sent."""


class RpcServer(Protocol):
    """What answers rpcs."""

    def serve(
        self,
        connection: TakenConnection,
        origin: RpcOrigin,
        on_lost: Callable[[], None],
        on_fault: Callable[[int], None],
    ) -> ServedConnection:
        """Return what takes the connection, behind its preface; `on_fault` hears with which code
        its caller was sent away."""
        ...

    def stop(self) -> None:
        """Tell clients that watch the health of the server that it takes no more rpcs."""
        ...


class GrpcConnection:
    """One connection, from its preface on."""

    def __init__(self) -> None:
        # None: what serves it is not loaded yet, or it was never served.
        self.served: ServedConnection | None = None
        self.is_lost = asyncio.Event()

    @property
    def open_rpcs(self) -> int:
        """How many rpcs are under way."""
        return 0 if self.served is None else self.served.open_rpcs


class GrpcFront:
    """All connections of gRPC of a process."""

    def __init__(self, load: Callable[[], Awaitable[RpcServer]]) -> None:
        self._load = load
        # How many there may be, lest they take the place of all others.
        self.most = 1_000
        self._loading: asyncio.Task[RpcServer] | None = None
        self._is_stopping = False
        self._open: set[GrpcConnection] = set()
        # Held, lest they are collected before they have ended.
        self._tasks: set[asyncio.Task[None]] = set()

    @cached_property
    def _penalties(self) -> "Penalties":
        from dragoman.http.grpc.penalties import Penalties

        return Penalties(time.monotonic)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, connection: TakenConnection, origin: RpcOrigin, data: bytes) -> GrpcConnection:
        """Take a connection; `data` is what has come, its preface first."""
        taken = GrpcConnection()
        transport = connection.transport
        if len(self._open) >= self.most or self._is_stopping:
            transport.abort()
        if transport.is_closing():
            return taken
        self._open.add(taken)
        wait = self._penalties.wait(origin.client[0]) if origin.client is not None else 0.0
        if (
            self._loading is not None
            and self._loading.done()
            and not self._loading.exception()
            and not wait
        ):
            self._serve(self._loading.result(), taken, connection, origin, data)
            return taken
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(
            self._serve_later(taken, connection, origin, data, wait)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return taken

    async def stop(self, grace: float) -> None:
        """End all rpcs and connections; those that are being answered have some time."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        if self._loading is not None and self._loading.done() and not self._loading.exception():
            self._loading.result().stop()
        ending = [one for one in self._open if one.served is not None]
        for one in ending:
            assert one.served is not None
            one.served.end()
        if ending:
            waits = [asyncio.ensure_future(one.is_lost.wait()) for one in ending]
            _, late = await asyncio.wait(waits, timeout=max(grace, 0.01))
            for wait in late:
                wait.cancel()
        for one in list(self._open):
            if one.served is not None:
                one.served.close()

    async def _serve_later(
        self,
        taken: GrpcConnection,
        connection: TakenConnection,
        origin: RpcOrigin,
        data: bytes,
        wait: float,
    ) -> None:
        """Serve a connection once what serves it is loaded, and its address has waited."""
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = asyncio.ensure_future(self._load())
        try:
            server = await asyncio.shield(self._loading)
            await asyncio.sleep(wait)
        except BaseException:
            self._open.discard(taken)
            connection.transport.abort()
            raise
        if connection.transport.is_closing():
            self._open.discard(taken)
            return
        self._serve(server, taken, connection, origin, data)
        connection.transport.resume_reading()

    def _serve(
        self,
        server: RpcServer,
        taken: GrpcConnection,
        connection: TakenConnection,
        origin: RpcOrigin,
        data: bytes,
    ) -> None:
        def lost() -> None:
            self._open.discard(taken)
            taken.is_lost.set()

        def fault(code: int) -> None:
            if origin.client is not None:
                self._penalties.add(origin.client[0], code)

        taken.served = server.serve(connection, origin, lost, fault)
        connection.transport.set_protocol(taken.served)
        if len(data) > len(PREFACE):
            taken.served.data_received(data[len(PREFACE) :])
