"""How a process of a gateway reaches an agent that is connected to another one.

The registry says which processes have a tunnel of an agent. One that has none dials such a process,
at the address where the agent reached it, and is given a tunnel whose streams lead on into the
agent's. To everything else it is a tunnel as any other. Both processes know the secret of their
store, and no other caller is let in.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.engine.store_clock import StoreClock
from dragoman.errors import Overloaded
from dragoman.gateway.registry.registered import TunnelEnd
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.tunnels.frames import Frame, FrameRefused
from dragoman.tunnels.tunnel import Tunnel

if TYPE_CHECKING:
    # Loads websockets, which an extra brings.
    from dragoman.tunnels.websocket import WebSocketWire

logger = logging.getLogger("dragoman")

PATH = "/api/v1/join/"
PROOF_HEADER = "x-dragoman-process"
# Seconds for a connection, and those within which a proof is shown.
CONNECT_WITHIN = 3.0
TOLERANCE = 300
_PORTS = range(1, 65_536)
# Opens a stream into a tunnel that ends in this process; tells whether there is one.
OpenHere = Callable[[str, asyncio.Protocol], bool]


class SiblingTunnels:
    """The tunnels between this process of a gateway and others."""

    def __init__(
        self, store: GatewayStore, open_here: OpenHere, has: Callable[[str], bool]
    ) -> None:
        """`has` tells whether a tunnel of an agent ends here."""
        self._store = store
        self._clock = StoreClock(store)
        self._open_here = open_here
        self._has = has
        # Only to addresses that our own processes wrote into the store.
        self._http = Egress(ports=_PORTS, connect_timeout=CONNECT_WITHIN)
        self._led: set[_LedConnection] = set()

    async def close(self) -> None:
        """Close connections to other processes."""
        await self._http.close()

    # To another process

    async def dial(self, end: TunnelEnd, lost: Callable[[Tunnel], None]) -> Tunnel | None:
        """Return a tunnel that leads to an agent by another process; None: it has none, or does
        not answer. `lost` is called when it is gone."""
        from dragoman.tunnels.websocket import HandshakeFailed, client_wire

        url = f"{end.url}{PATH}{end.host}"
        headers = {PROOF_HEADER: self._proof(end.host, end.worker, self._now())}
        wire = client_wire(f"ws{url.removeprefix('http')}", headers)
        self._http.allow(end.url.partition("://")[2])
        try:
            await self._http.connect(url, lambda: wire)
            async with asyncio.timeout(CONNECT_WITHIN):
                await wire.opened()
        except (EgressError, HandshakeFailed, TimeoutError) as error:
            logger.debug("no way to %s by %s: %s", end.host, end.url, error)
            wire.close("")
            return None
        except BaseException:
            wire.close("")
            raise
        # Streams are opened at this end alone.
        wire.receiver = tunnel = Tunnel(wire, _refuse)
        tunnel.on_lost = lambda: lost(tunnel)
        return tunnel

    def _now(self) -> int:
        return int(self._clock.seconds())

    def _proof(self, host: str, worker: int, at: int) -> str:
        text = f"tunnel {host} {worker} {at}".encode()
        return f"{at}.{hmac.new(self._store.secret, text, hashlib.sha256).hexdigest()}"

    # From another process

    async def answer(self, request: HttpRequest, streams: OpenStreams) -> None:
        """Lead a process that shares our store into the tunnel of an agent; to any other there is
        nothing here."""
        host = request.path.removeprefix(PATH)
        switch = request.scope.get("state", {}).get("switch")
        if switch is None or not (self._is_genuine(request, host) and self._has(host)):
            await request.respond(404, [(b"content-length", b"0")], b"")
            return
        from dragoman.tunnels.websocket import server_wire

        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers.items()
            if name.startswith(b"sec-websocket-")
        }
        wire, head = server_wire(request.path, headers)
        led = _LedConnection(wire, lambda: _Relay(host, self._open_here), self._forget(streams))
        led.host = host
        # Raises if there are too many.
        streams.add(led, None)
        if not switch(head, wire):
            streams.discard(led)
            raise Overloaded
        self._led.add(led)
        request.is_answered = True
        request.watched.responded(101)

    def _is_genuine(self, request: HttpRequest, host: str) -> bool:
        shown = request.header(PROOF_HEADER.encode()) or ""
        at = shown.partition(".")[0]
        is_number = at.isascii() and at.isdecimal() and len(at) <= 18
        if not is_number or abs(self._now() - int(at)) > TOLERANCE:
            return False
        expected = self._proof(host, self._store.worker, int(at))
        return hmac.compare_digest(shown.encode(), expected.encode())

    def _forget(self, streams: OpenStreams) -> "Callable[[_LedConnection], None]":
        def forget(led: _LedConnection) -> None:
            streams.discard(led)
            self._led.discard(led)

        return forget

    def gone(self, host: str) -> None:
        """The last tunnel of an agent that ended here is gone: others look elsewhere."""
        for led in [one for one in self._led if one.host == host]:
            led.stop()


class _LedConnection:
    """Our end of a connection of another process, whose streams we lead on."""

    host = ""

    def __init__(
        self,
        wire: "WebSocketWire",
        accept: Callable[[], asyncio.Protocol],
        forget: Callable[["_LedConnection"], None],
    ) -> None:
        wire.receiver = self.tunnel = Tunnel(wire, _refuse, accept=accept)
        self.tunnel.on_lost = lambda: forget(self)

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(RuntimeError):
            self.tunnel.leave()
        self.tunnel.wire.close("")

    def keep_alive(self, quiet_since: float) -> None:
        """The wire does that by itself."""


def _refuse(frame: Frame) -> None:
    raise FrameRefused(f"{frame.kind.name} is not for a process of the gateway")


class _Relay(asyncio.Protocol):
    """One of two streams that are led into each other. Neither is read faster than the other
    takes."""

    def __init__(self, host: str = "", open_here: OpenHere | None = None) -> None:
        """With a host: the stream that another process opened, which opens the other one."""
        self._host = host
        self._open_here = open_here
        self._transport: asyncio.Transport | None = None
        self._other: _Relay | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._open_here is None:
            return
        self._other = other = _Relay()
        other._other = self
        if not self._open_here(self._host, other):
            self._transport.abort()

    @property
    def _there(self) -> asyncio.Transport | None:
        there = None if self._other is None else self._other._transport
        return None if there is None or there.is_closing() else there

    def data_received(self, data: bytes) -> None:
        if (there := self._there) is not None:
            there.write(data)

    def pause_writing(self) -> None:
        if (there := self._there) is not None:
            there.pause_reading()

    def resume_writing(self) -> None:
        if (there := self._there) is not None:
            there.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        there: Any = self._there
        if there is not None:
            there.close() if exc is None else there.abort()
