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
import time
from collections.abc import AsyncGenerator, Sequence

from dragoman.egress.tunnels import JOINED, is_joined, joined_name
from dragoman.errors import A2AError, InvalidParams, PermissionDenied, StoreUnavailable
from dragoman.gateway.registry import health
from dragoman.gateway.registry.registered import Registered, TunnelEnd
from dragoman.gateway.registry.registration import MOST_ADDRESSES, Registration
from dragoman.gateway.registry.registry import Registry
from dragoman.gateway.sibling_tunnels import SiblingTunnels
from dragoman.model.identity import Caller, Principal
from dragoman.security.keys.key_scopes import allows
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.tunnels.frames import Hello
from dragoman.tunnels.tunnel import NoStream, Tunnel

logger = logging.getLogger("dragoman")

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_INSTANCE = re.compile(r"[0-9a-f]{8,40}")
VERSION = 1
# Ends of tunnels that the registry knows of one agent, the latest ones.
MOST_ENDS = 64
# Seconds for which an end that led nowhere is not tried again, after which the registry is asked
# again while an agent is waited for, and for which an agent that left may be back.
_DEAD_FOR, _LOOK_AGAIN, _DEPARTED_AFTER = 0.4, 0.1, 5.0


class JoinedAgents:
    """The tunnels of a gateway's process, by the names that lead into them."""

    def __init__(self, store: GatewayStore, heartbeat_interval: float) -> None:
        self.registry: Registry
        self._store = store
        self.siblings = SiblingTunnels(store, self._open_own, self._has)
        # Tunnels that lead to other processes of the gateway, which have one of the agent; what is
        # being dialled, and until when an end is known to lead nowhere.
        self._by_siblings: dict[str, list[Tunnel]] = {}
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._dead_ends: dict[TunnelEnd, float] = {}
        # Of agents, by the ending of their names.
        self._ids: dict[str, str] = {}
        # By the host: removes an end from the registry, unless its tunnel is soon back.
        self._departures: dict[str, asyncio.Task[None]] = {}
        # Seconds between two signs of life that are recorded of an agent that is connected.
        self._beat_every = heartbeat_interval / 3
        self.tunnels: dict[str, list[Tunnel]] = {}
        # Of those that are waited for: at most the addresses that are registered.
        self._arrivals: dict[str, asyncio.Event] = {}
        # By the ending of its names: what is waited with, and how many do.
        self._registering: dict[str, tuple[asyncio.Lock, int]] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}
        # By the ending of hosts: reads the card of those that joined a moment ago.
        self._reading_cards: dict[str, asyncio.Task[None]] = {}

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
                    await self._arrived(host)
        except TimeoutError:
            return False
        return True

    def _open(self, host: str, protocol: asyncio.Protocol) -> bool:
        return self._open_own(host, protocol) or _open(self._by_siblings.get(host, ()), protocol)

    def _open_own(self, host: str, protocol: asyncio.Protocol) -> bool:
        """Open a stream in a tunnel that ends here."""
        return _open(self.tunnels.get(host, ()), protocol)

    def _has(self, host: str) -> bool:
        return bool(self.tunnels.get(host))

    async def _arrived(self, host: str) -> None:
        """Wait until a tunnel of an agent is there, by another process if one has it."""
        arrival = self._arrivals.setdefault(host, asyncio.Event())
        if host not in self._dialling and (ends := self._ends(host)):
            task = asyncio.get_running_loop().create_task(self._dial(host, ends))
            self._dialling[host] = task
            task.add_done_callback(lambda _: self._dialling.pop(host, None))
        # The registry may name another end meanwhile.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await arrival.wait()

    def _ends(self, host: str) -> list[TunnelEnd]:
        """Return where tunnels of an agent end in other processes, as far as is known."""
        now, own = time.monotonic(), self._store.worker
        for end in [end for end, until in self._dead_ends.items() if until <= now]:
            del self._dead_ends[end]
        agent = self._agent_at(host)
        ends = () if agent is None else agent.tunnels
        return [
            end
            for end in ends
            if end.host == host and end.worker != own and end not in self._dead_ends
        ]

    async def _dial(self, host: str, ends: Sequence[TunnelEnd]) -> None:
        for end in reversed(ends):
            tunnel = await self.siblings.dial(end, lambda lost: self._sibling_lost(host, lost))
            if tunnel is not None:
                self._by_siblings.setdefault(host, []).append(tunnel)
                self._tell_arrival(host)
                return
            self._dead_ends[end] = time.monotonic() + _DEAD_FOR

    def _sibling_lost(self, host: str, tunnel: Tunnel) -> None:
        left = [one for one in self._by_siblings.get(host, ()) if one is not tunnel]
        if left:
            self._by_siblings[host] = left
        else:
            self._by_siblings.pop(host, None)

    def _tell_arrival(self, host: str) -> None:
        if (arrival := self._arrivals.pop(host, None)) is not None:
            arrival.set()

    async def join(
        self, hello: Hello, caller: Caller, tunnel: Tunnel, reached_at: str = ""
    ) -> Registered:
        """Lead a name into a tunnel, and register the agent behind it, or know it again; raises
        `A2AError` for one that may not join. `reached_at`: where the agent found this process."""
        _check(hello)
        place = _place(hello.name, caller.principal)
        host = f"{hello.instance}{place}"
        self.tunnels.setdefault(host, []).append(tunnel)
        self._tell_arrival(host)
        if (departure := self._departures.pop(host, None)) is not None:
            departure.cancel()
        try:
            async with self._alone(place):
                agent = await self._registered(caller, place, f"http://{host}/")
                await self._beat(place)
                await self._tell_siblings(place, TunnelEnd(host, self._store.worker, reached_at))
        except BaseException:
            self.leave(host, tunnel)
            raise
        if host not in self._beating:
            loop = asyncio.get_running_loop()
            self._beating[host] = loop.create_task(self._keep_beating(place))
        if place not in self._reading_cards:
            loop = asyncio.get_running_loop()
            self._reading_cards[place] = loop.create_task(self._read_card(place))
        return agent

    async def _read_card(self, place: str) -> None:
        """Read the card of an agent that has joined: it may be another program than before. Once
        more when a card may be read again, for those that join meanwhile."""
        self.registry.health.look(self._at(place))
        await asyncio.sleep(health.LOOK_EVERY / 1000)
        del self._reading_cards[place]
        self.registry.health.look(self._at(place))

    async def _tell_siblings(self, place: str, end: TunnelEnd) -> None:
        """Have the registry say that a tunnel of an agent ends here."""
        ids = [agent.id for agent in self._at(place) if end not in agent.tunnels]
        if not (end.url and ids):
            return
        live = {one.number for one in await self._store.workers() if one.state == "live"}

        def change(known: list[TunnelEnd]) -> list[TunnelEnd]:
            others = [one for one in known if one.worker in live]
            kept = [one for one in others if (one.host, one.worker) != (end.host, end.worker)]
            return [*kept, end][-MOST_ENDS:]

        for id in ids:
            await self.registry.set_tunnels(id, change)

    async def _depart(self, host: str) -> None:
        """Have the registry say that no tunnel of an agent ends here any more."""
        await asyncio.sleep(_DEPARTED_AFTER)
        worker = self._store.worker

        def change(known: list[TunnelEnd]) -> list[TunnelEnd]:
            return [one for one in known if (one.host, one.worker) != (host, worker)]

        for agent in self._at(joined_name(f"//{host}")):
            # An end that stays where the store does not answer is found to lead nowhere.
            with contextlib.suppress(A2AError, StoreUnavailable):
                await self.registry.set_tunnels(agent.id, change)
        # Until here an agent that is back, and the end of this process, can stop it.
        del self._departures[host]

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
        known = [agent for agent in self._at(place) if agent.owner == caller.principal]
        if not known:
            self._check_replaced(caller.principal, place)
            if not allows(caller, "agents:write"):
                raise PermissionDenied(
                    "The key is for an agent that is registered; to register one it needs "
                    "agents:write",
                    scope="agents:write",
                )
            said = Registration(url=url)
            return await self.registry.register(said, caller.principal, name=place.split(".")[1])
        allowed = [agent for agent in known if allows(caller, "agents:heartbeat", agent.id)]
        if not allowed:
            raise PermissionDenied("The key is of another agent, or not for this")
        for agent in known:
            if url not in (agent.url, *agent.replicas):
                await self.registry.add_replica(agent.id, url, self.is_absent, MOST_ADDRESSES)
        # A new version that took the place of another is both; its own entry gets no tasks.
        return min(allowed, key=lambda agent: agent.is_paused)

    def _check_replaced(self, owner: Principal, place: str) -> None:
        """Refuse an old version: it would be registered as yet another agent."""
        for agent in self.registry.all():
            if agent.owner == owner and place in agent.replaced:
                raise PermissionDenied(
                    f"a new version is in its place as {agent.name}; join under another name"
                )

    def _at(self, place: str) -> list[Registered]:
        """Return the agents whose processes join under a name: one, or two if it is a new version
        that took the place of another."""
        return [agent for agent in self.registry.all() if joined_name(agent.url) == place]

    def _agent_at(self, host: str) -> Registered | None:
        """Return the agent that a name leads to."""
        place = joined_name(f"//{host}")
        agent = self.registry.get(self._ids.get(place, ""))
        if agent is None or joined_name(agent.url) != place:
            agent = next(iter(self._at(place)), None)
            if agent is not None:
                self._ids[place] = agent.id
        return agent

    def is_absent(self, url: str) -> bool:
        """Tell whether an address leads into a tunnel that is not there, and that no other process
        of the gateway has."""
        host = _host(url)
        if not is_joined(host) or host in self.tunnels or host in self._by_siblings:
            return False
        return not self._ends(host)

    def leave(self, host: str, tunnel: Tunnel) -> None:
        """A tunnel is gone."""
        left = [one for one in self.tunnels.get(host, ()) if one is not tunnel]
        if left:
            self.tunnels[host] = left
            return
        if self.tunnels.pop(host, None) is None:
            return
        self.siblings.gone(host)
        beating = self._beating.pop(host, None)
        if beating is not None:
            beating.cancel()
            self._departures[host] = asyncio.get_running_loop().create_task(self._depart(host))

    async def _keep_beating(self, place: str) -> None:
        """Record that an agent is there: other processes of the gateway have no tunnel of it and
        would find it gone."""
        while True:
            await asyncio.sleep(self._beat_every)
            try:
                await self._beat(place)
            except A2AError as error:
                # It was removed, or the store does not answer; either is found out elsewhere.
                logger.debug("a joined agent's sign of life was not recorded: %s", error)

    async def _beat(self, place: str) -> None:
        for agent in self._at(place):
            await self.registry.heartbeat(agent.id, "online", owner=agent.owner)

    async def close(self) -> None:
        """Stop recording signs of life, and close connections to other processes."""
        tasks = (self._beating, self._dialling, self._departures, self._reading_cards)
        running = [task for some in tasks for task in some.values()]
        self._beating.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for tunnel in [one for some in self._by_siblings.values() for one in some]:
            tunnel.wire.close("")
        await self.siblings.close()

    def host_of(self, hello: Hello, caller: Caller) -> str:
        """Return the name that leads into the tunnels of an agent."""
        return f"{hello.instance}{_place(hello.name, caller.principal)}"


def _open(tunnels: Sequence[Tunnel], protocol: asyncio.Protocol) -> bool:
    """Open a stream in the tunnel that has the fewest; tell whether one takes it."""
    for tunnel in sorted(tunnels, key=len):
        with contextlib.suppress(NoStream):
            tunnel.open(protocol)
            return True
    return False


def _host(url: str) -> str:
    return url.partition("://")[2].rstrip("/")


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
