"""Agents that dialled out to this gateway: their tunnels, and how they are registered.

A joined agent is registered by a name that leads into its tunnels, and is from then on an agent as
any other: its card is fetched and pinned, its tasks are delivered, its owner is whose credential
opened the tunnel. The name contains the owner, so that no other can take its place.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncGenerator

from dragoman.egress.tunnels import JOINED, is_joined
from dragoman.errors import A2AError, InvalidParams, PermissionDenied
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import MOST_ADDRESSES, Registration
from dragoman.gateway.registry.registry import Registry
from dragoman.model.identity import Caller, Principal
from dragoman.security.keys.key_scopes import allows
from dragoman.tunnels.frames import Hello
from dragoman.tunnels.tunnel import NoStream, Tunnel

logger = logging.getLogger("dragoman")

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_INSTANCE = re.compile(r"[0-9a-f]{8,40}")
VERSION = 1


class JoinedAgents:
    """The tunnels of a gateway's process, by the names that lead into them."""

    def __init__(self, heartbeat_interval: float) -> None:
        self.registry: Registry
        # Seconds between two signs of life that are recorded of an agent that is connected.
        self._beat_every = heartbeat_interval / 3
        self.tunnels: dict[str, list[Tunnel]] = {}
        # Of those that are waited for: at most the addresses that are registered.
        self._arrivals: dict[str, asyncio.Event] = {}
        # By the ending of its names: what is waited with, and how many do.
        self._registering: dict[str, tuple[asyncio.Lock, int]] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.tunnels.values()))

    async def connect(self, host: str, protocol: asyncio.Protocol, within: float) -> bool:
        """Give a protocol a connection to an agent, by the tunnel that has the fewest; return
        False if none is there in time."""
        if self._open(host, protocol):
            return True
        try:
            async with asyncio.timeout(within):
                while not self._open(host, protocol):
                    await self._arrivals.setdefault(host, asyncio.Event()).wait()
        except TimeoutError:
            return False
        return True

    def _open(self, host: str, protocol: asyncio.Protocol) -> bool:
        for tunnel in sorted(self.tunnels.get(host, ()), key=len):
            with contextlib.suppress(NoStream):
                tunnel.open(protocol)
                return True
        return False

    async def join(self, hello: Hello, caller: Caller, tunnel: Tunnel) -> Registered:
        """Lead a name into a tunnel, and register the agent behind it, or know it again; raises
        `A2AError` for one that may not join."""
        _check(hello)
        place = _place(hello.name, caller.principal)
        host = f"{hello.instance}{place}"
        self.tunnels.setdefault(host, []).append(tunnel)
        if (arrival := self._arrivals.pop(host, None)) is not None:
            arrival.set()
        try:
            async with self._alone(place):
                agent = await self._registered(caller, place, f"http://{host}/")
                agent = await self.registry.heartbeat(agent.id, "online", owner=agent.owner)
        except BaseException:
            self.leave(host, tunnel)
            raise
        if host not in self._beating:
            loop = asyncio.get_running_loop()
            self._beating[host] = loop.create_task(self._beat(agent.id, agent.owner))
        return agent

    @contextlib.asynccontextmanager
    async def _alone(self, place: str) -> AsyncGenerator[None]:
        """Register one process of an agent at a time: several may come at once. Callers choose
        names, so nothing is left of one that nothing waits for."""
        lock, waiting = self._registering.get(place, (asyncio.Lock(), 0))
        self._registering[place] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._registering[place]
            if waiting > 1:
                self._registering[place] = lock, waiting - 1
            else:
                del self._registering[place]

    async def _registered(self, caller: Caller, place: str, url: str) -> Registered:
        known = self._known(caller.principal, place)
        if known is None:
            if not allows(caller, "agents:write"):
                raise PermissionDenied(
                    "The key is for an agent that is registered; to register one it needs "
                    "agents:write",
                    scope="agents:write",
                )
            return await self.registry.register(Registration(url=url), caller.principal)
        if not allows(caller, "agents:heartbeat", known.id):
            raise PermissionDenied("The key is of another agent, or not for this")
        if url in (known.url, *known.replicas):
            return known
        return await self.registry.add_replica(known.id, url, self.is_absent, MOST_ADDRESSES)

    def _known(self, owner: Principal, place: str) -> Registered | None:
        """Return the agent of an owner that joined under a name before."""
        for agent in self.registry.all():
            if agent.owner == owner and agent.url.partition("://")[2].rstrip("/").endswith(place):
                return agent
        return None

    def is_absent(self, url: str) -> bool:
        """Tell whether an address leads into a tunnel that is not there."""
        host = url.partition("://")[2].rstrip("/")
        return is_joined(host) and not self.tunnels.get(host)

    def leave(self, host: str, tunnel: Tunnel) -> None:
        """A tunnel is gone."""
        left = [one for one in self.tunnels.get(host, ()) if one is not tunnel]
        if left:
            self.tunnels[host] = left
            return
        self.tunnels.pop(host, None)
        beating = self._beating.pop(host, None)
        if beating is not None:
            beating.cancel()

    async def _beat(self, id: str, owner: Principal) -> None:
        """Record that an agent is there: other processes of the gateway have no tunnel of it and
        would find it gone."""
        while True:
            await asyncio.sleep(self._beat_every)
            try:
                await self.registry.heartbeat(id, "online", owner=owner)
            except A2AError as error:
                # It was removed, or the store does not answer; either is found out elsewhere.
                logger.debug("a joined agent's sign of life was not recorded: %s", error)

    async def close(self) -> None:
        """Stop recording signs of life."""
        beating = list(self._beating.values())
        self._beating.clear()
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)

    def host_of(self, hello: Hello, caller: Caller) -> str:
        """Return the name that leads into the tunnels of an agent."""
        return f"{hello.instance}{_place(hello.name, caller.principal)}"


def _check(hello: Hello) -> None:
    if hello.version != VERSION:
        raise InvalidParams(f"this gateway speaks version {VERSION}", field="version")
    if not _NAME.fullmatch(hello.name):
        raise InvalidParams("has lower case letters, digits and hyphens", field="name")
    if not _INSTANCE.fullmatch(hello.instance):
        raise InvalidParams("has 8 to 40 hexadecimal digits", field="instance")


def _place(name: str, owner: Principal) -> str:
    """Return the ending of the hosts of one agent."""
    whose = hashlib.blake2b(owner.text.encode(), digest_size=6, person=b"joined owner").hexdigest()
    return f".{name}.{whose}{JOINED}"
