"""An agent without a port: it dials out to a gateway, and answers what comes back by that way.

One connection leads to one process of the gateway. The gateway says which processes it has, and
the agent connects until it has met each of them. A connection that is lost is made anew; tasks go
on meanwhile, and what they did is read when the gateway asks again.
"""

import asyncio
import hashlib
import logging
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.egress.forward_proxy import proxy_of
from dragoman.egress.targets import Anywhere, NotCanonical, read_target
from dragoman.errors import ConfigError, PermissionDenied, Unauthenticated
from dragoman.stores.interface import Store
from dragoman.tunnels.frames import (
    Frame,
    FrameRefused,
    Hello,
    Kind,
    Welcome,
    encode_text,
    read_text,
)
from dragoman.tunnels.tunnel import Accept, Tunnel
from dragoman.tunnels.websocket import HandshakeFailed, WebSocketWire, client_wire

logger = logging.getLogger("dragoman")

PATH = "/api/v1/join"
# Seconds for a connection and for the gateway's word.
_CONNECT_WITHIN, _WELCOME_WITHIN = 5.0, 15.0
# Seconds between two tries: at first, while the gateway may have been restarted, and at most.
_SHORTEST_PAUSE, _SHORT_PAUSE, _LONGEST_PAUSE = 0.05, 0.25, 5.0
_RESTARTED_WITHIN = 30.0
# Seconds after which a connection that is lost had been one.
_LASTING = 1.0
# Seconds after which the gateway is asked again which processes it has.
_LOOK_AGAIN = 30.0
# Connections that led to a process we had met, before we stop looking for another.
_MOST_SPARE = 12
# Processes of a gateway that we connect to, however many it says it has.
_MOST_TUNNELS = 64


class NotJoined(Exception):
    """There is no connection to the gateway; the text says why."""


class AgentRefused(PermissionDenied):
    """The gateway refuses the agent under its name"""


class Joining:
    """Keeps an agent connected to a gateway."""

    def __init__(
        self,
        gateway: str,
        name: str,
        headers: Mapping[str, str],
        on_joined: Callable[[Welcome], None],
    ) -> None:
        """`headers` carry the credential. `on_joined` is called with the first welcome. The
        environment of the process may name a proxy."""
        try:
            self._target = read_target(gateway.rstrip("/") + PATH)
        except NotCanonical as error:
            raise ConfigError(
                f"the gateway is a URL such as https://gateway.example.com: {error}"
            ) from None
        try:
            self._proxy = proxy_of(os.environ, self._target)
        except NotCanonical as error:
            raise ConfigError(f"the proxy of the environment is of no use: {error}") from None
        self._name = name
        self._headers = dict(headers)
        self._on_joined = on_joined
        # To wherever the user says: it is their machine that dials.
        self._http = Egress(policy=Anywhere(), connect_timeout=_CONNECT_WITHIN)
        self._instance = ""
        self._accept: Accept
        # By the process of the gateway; and all processes it says it has.
        self._tunnels: dict[str, Tunnel] = {}
        self._workers: set[str] = set()
        self._has_joined = False
        self._lost = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        # Why the gateway does not let us in, if it never did.
        self.refusal: Exception | None = None

    async def start(self, store: Store, accept: Accept, end: Callable[[], None]) -> None:
        """Begin to connect. `accept` makes what answers a connection of the gateway's; `end` is
        called if the gateway refuses the agent."""
        await store.prepare()
        # Processes that share a store have the same tasks, so either may be asked about one.
        self._instance = hashlib.blake2b(
            store.secret, digest_size=8, person=b"joined instance"
        ).hexdigest()
        self._accept = accept
        self._keeping = asyncio.get_running_loop().create_task(self._keep(end))

    def leave(self) -> None:
        """Take no new connections of the gateway's; those that are open go on."""
        if self._keeping is not None:
            self._keeping.cancel()
        for tunnel in self._tunnels.values():
            tunnel.leave()

    async def close(self) -> None:
        """Close everything."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        for tunnel in list(self._tunnels.values()):
            tunnel.wire.close("")
        await self._http.close()

    async def _keep(self, end: Callable[[], None]) -> None:
        """Be connected to every process of the gateway, until cancelled or refused."""
        loop = asyncio.get_running_loop()
        pause, spare, absent_since = _SHORTEST_PAUSE, 0, loop.time()
        told, joined_at = "", 0.0
        while True:
            if self._lost.is_set() and loop.time() - joined_at < _LASTING:
                # Like one that could not be made, or a gateway could have us do nothing else.
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, _SHORT_PAUSE)
            self._lost.clear()
            try:
                is_new = await self._connect()
            except NotJoined as error:
                if str(error) != told:
                    # Once for each cause: it is tried several times a second.
                    told = str(error)
                    logger.warning("%s; trying again", error)
                await asyncio.sleep(pause * (0.5 + random.random()))
                is_short = loop.time() - absent_since < _RESTARTED_WITHIN
                pause = min(2 * pause, _SHORT_PAUSE if is_short else _LONGEST_PAUSE)
                continue
            except (PermissionDenied, Unauthenticated) as error:
                if not self._has_joined:
                    self.refusal = error
                    end()
                    return
                logger.error("the gateway refuses the agent (%s); trying again", error)
                await asyncio.sleep(_LONGEST_PAUSE)
                continue
            told, joined_at, pause = "", loop.time(), min(pause, _SHORT_PAUSE)
            spare = 0 if is_new else spare + 1
            has_room = len(self._tunnels) < _MOST_TUNNELS
            if has_room and self._workers - self._tunnels.keys() and spare < _MOST_SPARE:
                # The next connection may lead to one that we have not met.
                continue
            spare = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._lost.wait()
            absent_since = loop.time()
            pause = _SHORTEST_PAUSE if absent_since - joined_at >= _LASTING else pause

    async def _connect(self) -> bool:
        """Connect once; return whether to a process of the gateway that we had not met."""
        scheme = "wss" if self._target.scheme == "https" else "ws"
        url = f"{scheme}{self._target.url.removeprefix(self._target.scheme)}"
        wire = client_wire(url, self._headers)
        place = self._target.origin
        try:
            await self._http.connect(self._target.url, lambda: wire, self._proxy)
            async with asyncio.timeout(_WELCOME_WITHIN):
                await wire.opened()
                connection = _GatewayConnection(wire, self._accept, self._gone)
                wire.send(encode_text(Kind.HELLO, Hello(self._name, self._instance)))
                welcome = await connection.welcomed
        except EgressError as error:
            raise NotJoined(f"{place} cannot be reached ({error.reason})") from None
        except TimeoutError:
            wire.close("")
            raise NotJoined(f"{place} does not answer in time") from None
        except HandshakeFailed as error:
            raise _failure(place, error, is_signed=bool(self._headers)) from None
        except BaseException:
            wire.close("")
            raise
        return self._welcomed(connection, welcome)

    def _welcomed(self, connection: "_GatewayConnection", welcome: Welcome) -> bool:
        self._workers = {*welcome.workers, welcome.worker}
        is_new = welcome.worker not in self._tunnels
        if is_new:
            connection.worker = welcome.worker
            self._tunnels[welcome.worker] = connection.tunnel
        else:
            connection.tunnel.wire.close("")
        if not self._has_joined:
            self._has_joined = True
            self._on_joined(welcome)
        return is_new

    def _gone(self, connection: "_GatewayConnection") -> None:
        if self._tunnels.get(connection.worker) is connection.tunnel:
            del self._tunnels[connection.worker]
            self._lost.set()


class _GatewayConnection:
    """One connection to a process of the gateway."""

    def __init__(
        self,
        wire: WebSocketWire,
        accept: Accept,
        gone: Callable[["_GatewayConnection"], None],
    ) -> None:
        self._wire = wire
        self._gone = gone
        self.tunnel = Tunnel(wire, self._heard, accept=accept, extra=wire.extra)
        self.tunnel.on_lost = self._lost
        self.welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.worker = ""
        wire.receiver = self.tunnel

    def _lost(self) -> None:
        if not self.welcomed.done():
            wire = self._wire
            failed = HandshakeFailed(500, wire.failure) if wire.failure else None
            self.welcomed.set_exception(failed or HandshakeFailed(0, wire.refusal))
        self._gone(self)

    def _heard(self, frame: Frame) -> None:
        if frame.kind is not Kind.WELCOME or self.welcomed.done():
            raise FrameRefused(f"{frame.kind.name} is not for an agent, or comes twice")
        self.welcomed.set_result(read_text(frame.payload, Welcome))


def credential_headers(*, key: str, token: str) -> dict[str, str]:
    """Return the headers that carry a credential: an API key, or a token."""
    if key:
        return {"X-API-Key": key}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _failure(place: str, error: HandshakeFailed, *, is_signed: bool) -> Exception:
    """Return what a refusal means: some will not end by trying again."""
    text = str(error).strip().partition("\n")[0]
    match error.status:
        case 401 if is_signed:
            return Unauthenticated(
                f"{place} does not know this credential, or it has ended: set A2ACLI_API_KEY"
            )
        case 401:
            return Unauthenticated(f"{place} wants a credential: set A2ACLI_API_KEY")
        case 403:
            return PermissionDenied(f"{place} does not let this credential join: {text}")
        case 404 | 405 | 426:
            return PermissionDenied(f"{place} is no gateway that agents can join")
        case 501:
            return PermissionDenied(text)
        case 0 if text:
            # Said when the agent had named itself.
            return AgentRefused(f"{place} refuses the agent: {text}")
        case 500 if text:
            return NotJoined(f"{place} failed: {text}")
        case _:
            return NotJoined(f"{place} answers {error.status or 'nothing'}")
