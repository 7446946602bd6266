"""`GET /api/v1/join`: an agent without an address of its own connects, and serves from there.

The request is authenticated as any other and then becomes a WebSocket. When the credential that
opened it ends, the tunnel is closed, as streams are.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dragoman.errors import (
    A2AError,
    Overloaded,
    PermissionDenied,
    RateLimited,
    StoreRefused,
)
from dragoman.gateway.joined_agents import JoinedAgents
from dragoman.gateway.sibling_tunnels import PATH as SIBLINGS
from dragoman.http.incidents import incident
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access, Routes
from dragoman.model.identity import Caller, Principal
from dragoman.security.keys.key_scopes import allows_any
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.tunnels.frames import (
    Frame,
    FrameRefused,
    Hello,
    Kind,
    Welcome,
    encode_text,
    read_text,
)
from dragoman.tunnels.tunnel import Tunnel

if TYPE_CHECKING:
    # Loads websockets, which an extra brings.
    from dragoman.tunnels.websocket import WebSocketWire

PATH = "/api/v1/join"
# What a key needs one of; which one depends on whether the agent is known.
_SCOPES = frozenset({"*", "agents:write", "agents:heartbeat"})
# Tunnels that one owner may have open in one process.
MOST_TUNNELS = 64
# Seconds in which an agent has to say who it is.
HELLO_WITHIN = 10.0
_UPGRADE = [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]


class JoinEndpoint:
    """Takes the connections of agents that dial out."""

    def __init__(self, agents: JoinedAgents, store: GatewayStore, streams: OpenStreams) -> None:
        self._agents = agents
        self._store = store
        self._streams = streams
        self._open: dict[Principal, int] = {}

    def add_to(self, routes: Routes) -> None:
        """Take connections."""
        routes.add(PATH, self.answer, Access.CALLER, BY_REQUEST)
        routes.add(f"{SIBLINGS}*", self._lead_sibling, Access.PUBLIC)

    async def _lead_sibling(self, request: HttpRequest) -> None:
        await self._agents.siblings.answer(request, self._streams)

    async def answer(self, request: HttpRequest) -> None:
        """Make a request a tunnel."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        if not allows_any(request.caller, _SCOPES):
            raise PermissionDenied("The key is not for joining", scope="agents:heartbeat")
        switch = request.scope.get("state", {}).get("switch")
        if switch is None:
            await _refuse(request, 426, b"Connect with `dragoman join`: this is a WebSocket.\n")
            return
        try:
            from dragoman.tunnels.websocket import HandshakeFailed, server_wire
        except ImportError:
            text = b"Agents cannot join here: this gateway needs pip install 'dragoman[join]'.\n"
            await _refuse(request, 501, text)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers.items()
            if name.startswith(b"sec-websocket-")
        }
        try:
            wire, head = server_wire(request.path, headers)
        except HandshakeFailed as error:
            await _refuse(request, error.status, f"{error}\n".encode())
            return
        principal = request.caller.principal
        if self._open.get(principal, 0) >= MOST_TUNNELS:
            raise RateLimited(f"{MOST_TUNNELS} tunnels are open; close one first")
        joined = JoinedConnection(self, wire, request.caller)
        joined.reached_at = _reached_at(request)
        # Raises if there are too many.
        self._streams.add(joined, request.pass_)
        if not switch(head, wire):
            self._streams.discard(joined)
            raise Overloaded
        self._open[principal] = self._open.get(principal, 0) + 1
        request.is_answered = True
        request.watched.responded(101)

    async def welcome(self, hello: Hello, joined: "JoinedConnection") -> None:
        """Register the agent at the other end and tell it so; or why not."""
        wire = joined.tunnel.wire
        try:
            agent = await self._agents.join(hello, joined.caller, joined.tunnel, joined.reached_at)
            # From here on the name leads here, so the end of the connection ends that too.
            joined.host = self._agents.host_of(hello, joined.caller)
            workers = [
                str(one.number) for one in await self._store.workers() if one.state == "live"
            ]
            told = Welcome(agent=agent.name, worker=str(self._store.worker), workers=workers)
            wire.send(encode_text(Kind.WELCOME, told))
        except (StoreRefused, Overloaded):
            # Without a reason: it may try again.
            wire.close("")
        except A2AError as error:
            wire.close(error.public)
        except Exception:
            # Always the same words, so that the agent logs them once; the incident is in our log.
            wire.close(f"{incident().public}; the gateway's log has the cause", is_ours=True)
        if joined.host and joined.tunnel.is_lost:
            self._agents.leave(joined.host, joined.tunnel)

    def gone(self, joined: "JoinedConnection") -> None:
        """A connection has ended."""
        self._streams.discard(joined)
        principal = joined.caller.principal
        left = self._open[principal] - 1
        if left:
            self._open[principal] = left
        else:
            del self._open[principal]
        if joined.host:
            self._agents.leave(joined.host, joined.tunnel)


class JoinedConnection:
    """One connection of an agent, from its first word on."""

    def __init__(self, endpoint: JoinEndpoint, wire: "WebSocketWire", caller: Caller) -> None:
        self._endpoint = endpoint
        self.caller = caller
        self.tunnel = Tunnel(wire, self._heard)
        self.tunnel.on_lost = self._lost
        wire.receiver = self.tunnel
        # The name that leads here, once it does, and where the agent found this process.
        self.host = ""
        self.reached_at = ""
        self._welcoming: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._hurry = loop.call_later(HELLO_WITHIN, wire.close, "there was no HELLO in time")

    def _lost(self) -> None:
        self._hurry.cancel()
        self._endpoint.gone(self)

    def _heard(self, frame: Frame) -> None:
        if frame.kind is not Kind.HELLO or self._welcoming is not None:
            raise FrameRefused(f"{frame.kind.name} is not for a gateway, or comes twice")
        hello = read_text(frame.payload, Hello)
        self._hurry.cancel()
        self._welcoming = asyncio.get_running_loop().create_task(
            self._endpoint.welcome(hello, self)
        )

    # An open answer, as it is ended and kept alive from outside

    def stop(self) -> None:
        """End it: the server stops, or the credential that opened it has ended."""
        with contextlib.suppress(RuntimeError):
            self.tunnel.leave()
        self.tunnel.wire.close("")

    def keep_alive(self, quiet_since: float) -> None:
        """The wire does that by itself."""


def _reached_at(request: HttpRequest) -> str:
    """Return the address of this process to which a connection was made."""
    host, port = request.scope["server"] or ("", None)
    named = f"[{host}]" if ":" in host else host
    return f"{request.scope['scheme']}://{named}:{port}" if host and port else ""


async def _refuse(request: HttpRequest, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
    more = _UPGRADE if status == 426 else []
    await request.respond(status, [*headers, *more], text)
