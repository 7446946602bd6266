"""All agents of a gateway in memory, kept equal to the store while several processes write.

What an owner says of an agent is durable before any reader sees it. Health changes often: it counts
in memory at once and is written soon after, several agents at a time. Every change is told to
listeners; this module knows none of them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dragoman.client.credentials.origins import origin_of
from dragoman.errors import ConfigError, NoAgentAvailable, StoreRefused, StoreUnavailable
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import Secret, destinations, private_name
from dragoman.gateway.registry.search import SearchIndex
from dragoman.model.clock import Clock
from dragoman.model.identity import LOCAL, Principal
from dragoman.security.audit.log import Audit
from dragoman.stores.interface import Duty, Rung
from dragoman.stores.interface.agents import (
    AgentAddress,
    AgentCredential,
    AgentHealthRow,
    AgentRow,
    CircuitRow,
    CredentialLabel,
)
from dragoman.stores.interface.gateway import GatewayStore

logger = logging.getLogger("dragoman")

UNKNOWN = "There is no such agent"
# Credentials held in memory.
_MOST_CREDENTIALS = 1024
# Another process changed the agent between a read and its write: both are made again, so often.
_TRIES = 100
# Seconds until what the store did not take or tell is tried again.
_AGAIN_AFTER = 1.0
_decode_body = msgspec.json.Decoder(Registered).decode


class AgentCache:
    """All agents: memory answers, the store is the truth."""

    def __init__(self, store: GatewayStore, clock: Clock, audit: Audit) -> None:
        self.index = SearchIndex()
        # Returns an agent by its id or its name.
        self.get: Callable[[str], Registered | None] = self.index.get
        self._store = store
        self._rows = store.agents
        self._clock = clock
        self._audit = audit
        self._listeners: list[Callable[[Registered], None]] = []
        self._elsewhere: list[Callable[[Registered, Registered | None], None]] = []
        # The version up to which changes were read, and the version of every agent in memory.
        self._version = 0
        self._versions: dict[str, int] = {}
        # Agents whose health is not written yet, and those whose health is being written.
        self._unwritten: set[str] = set()
        self._under_way: set[str] = set()
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_rung = False
        self._is_open = False
        # Circuits to tell other processes of, the latest of each.
        self._circuits: dict[tuple[str, str, str | None], CircuitRow] = {}
        self._sharing: asyncio.Task[None] | None = None
        self._circuit_listeners: list[Callable[[Registered, CircuitRow], None]] = []
        # By agent, with the time of the change that they belong to.
        self._credentials: dict[str, tuple[int, Secret]] = {}

    def listen(self, changed: Callable[[Registered], None]) -> None:
        """Have a function called with every agent that changes, here or in another process."""
        self._listeners.append(changed)

    def listen_elsewhere(self, changed: Callable[[Registered, Registered | None], None]) -> None:
        """Have a function called with every agent that another process changes, and with what it
        was before."""
        self._elsewhere.append(changed)

    def listen_circuits(self, changed: Callable[[Registered, CircuitRow], None]) -> None:
        """Have a function called with every circuit that another process opens or closes."""
        self._circuit_listeners.append(changed)

    def all(self) -> Sequence[Registered]:
        """Return all agents, by name."""
        return list(self.index)

    async def open(self) -> None:
        """Load all agents, and follow what other processes change."""
        await self._store.prepare()
        found = await self._rows.changes(0)
        self.index.fill(_decoded(row) for row in found.agents)
        self._versions = {row.id: row.version for row in found.agents}
        self._version = found.version
        self._is_open = True
        self._adopt_circuits(found.circuits)
        self._store.listen(self._ring)

    async def close(self) -> None:
        """Write what is not written yet."""
        self._is_open = False
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._sharing is not None:
            await asyncio.gather(self._sharing, return_exceptions=True)
        await self.settled()

    # Changes by owners

    async def add(self, agent: Registered, wanted: str, secret: Secret | None) -> Registered:
        """Store an agent under a free name; return it."""
        address = _address(agent)
        for _ in range(_TRIES):
            # An agent that was removed and comes back keeps its id: what was observed of it stays.
            # Another process may bring it back at the same moment; then this one gets an id of its
            # own.
            id = await self._rows.former(address) or agent.id
            name = self._private_name(wanted, id) if agent.callers else wanted
            named = replace(agent, id=id, name=name)
            credential = UNSET if secret is None else _credential(named, secret)
            stored = await self._rows.put(_row(named), address=address, credential=credential)
            if stored is not None:
                return self._changed(stored, "agent.register", agent.owner)
        raise StoreUnavailable("other processes keep changing the agent")

    async def edit(
        self,
        id: str,
        edit: Callable[[Registered], Registered],
        *,
        secret: Secret | UnsetType | None = UNSET,
        act: str = "",
        who: Principal = LOCAL,
    ) -> Registered:
        """Change an agent as it is stored, again if another process changed it meanwhile; return
        it. Raises `NoAgentAvailable` if it is gone. `act` names the change in the audit log.

        Its credential is sealed anew with the places that it may go to."""
        for _ in range(_TRIES):
            row = await self._rows.find(id)
            if row is None:
                raise NoAgentAvailable(UNKNOWN)
            before = _decoded(row)
            after = edit(before)
            if after == before and isinstance(secret, UnsetType):
                return self._changed(row, act, who)
            now = max(self._clock.now(), before.updated_at + 1)
            after = replace(after, updated_at=now)
            if after.callers and after.callers != before.callers:
                # Its public name becomes free for others: a caller who is refused that name would
                # learn that the agent exists.
                after = replace(after, name=self._private_name(after.name, id))
            stored = await self._rows.put(
                _row(after, row.version),
                address=_address(after) if after.url != before.url else None,
                credential=await self._moved_credential(before, after, secret),
            )
            if stored is not None:
                return self._changed(stored, act, who)
        raise StoreUnavailable("other processes keep changing the agent")

    async def _moved_credential(
        self, before: Registered, after: Registered, secret: Secret | UnsetType | None
    ) -> AgentCredential | UnsetType | None:
        """Return what becomes of the credential of an agent that changes; unset: nothing."""
        if isinstance(secret, Secret):
            return _credential(after, secret)
        if secret is None:
            return None
        if before.credential and destinations(before) != destinations(after):
            found = await self._rows.credential(before.id)
            if found is not None and found.label == _label(before):
                return AgentCredential(_label(after), found.secret)
        return UNSET

    async def remove(self, agent: Registered, who: Principal) -> None:
        """Remove an agent and its credential."""
        # With its address: earlier releases did not record where agents were.
        version = await self._rows.remove(agent.id, self._clock.now(), _address(agent))
        self._forget(agent.id, version)
        self._record("agent.remove", agent, who)

    async def credential(self, agent: Registered) -> Secret | None:
        """Return the credential for an agent; None if the stored one is for another address."""
        known = self._credentials.get(agent.id)
        if known is not None and known[0] == agent.updated_at:
            return known[1]
        found = None
        # One that is sealed for another address, or with a key that is gone, is as good as none.
        with suppress(StoreUnavailable):
            found = await self._rows.credential(agent.id)
        if found is None or found.label != _label(agent):
            logger.error("the credential for %s is not for its address; set it anew", agent.name)
            return None
        secret = Secret(
            kind=agent.credential, value=found.secret.decode(), header=agent.credential_header
        )
        if len(self._credentials) >= _MOST_CREDENTIALS:
            self._credentials.clear()
        self._credentials[agent.id] = (agent.updated_at, secret)
        return secret

    def _private_name(self, name: str, id: str) -> str:
        return private_name(name, id, self._store.secret)

    def _changed(self, row: AgentRow, act: str, who: Principal) -> Registered:
        """Show what was stored; return the agent, with what was observed of it meanwhile."""
        stored = _decoded(row)
        self._show(stored, row.version)
        agent = self.index.get(row.id) or stored
        if act:
            self._record(act, agent, who)
        self._tell(agent)
        return agent

    def _record(self, act: str, agent: Registered, who: Principal) -> None:
        card = f"card {agent.card_digest[:16]}" if agent.card_digest else "no card"
        self._audit.record(
            act,
            outcome="held" if agent.pending is not None else "done",
            who=who.text,
            object=f"{agent.id} {agent.name}",
            reason=agent.pending_reason or card,
        )

    def _tell(self, agent: Registered) -> None:
        for changed in self._listeners:
            changed(agent)

    # Health

    def set_health(self, agent: Registered, *, is_urgent: bool) -> bool:
        """Show the health of an agent; return whether its status is another. A new status is
        written soon, and so is what is urgent."""
        before = self.index.get(agent.id)
        if before is None or before == agent:
            return False
        is_news = before.status != agent.status
        self.index.put(agent)
        if is_urgent or is_news:
            self._unwritten.add(agent.id)
            self._write_soon()
        if is_news:
            self._tell(agent)
        return is_news

    async def has_duty(self) -> bool:
        """Return whether it is this process that checks the agents."""
        return await self._store.lead(Duty.WATCH_AGENTS)

    async def settled(self) -> None:
        """Return when the health of all agents is written, as far as the disk takes it."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._unwritten:
            await self._write()

    def _write_soon(self) -> None:
        if self._writing is None and self._unwritten and self._is_open:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._unwritten:
                self._under_way, self._unwritten = self._unwritten, set()
                agents = [self.index.get(id) for id in self._under_way]
                rows = [_health(agent) for agent in agents if agent is not None]
                versions = await self._rows.put_health(rows)
                for row, version in zip(rows, versions, strict=True):
                    self._versions[row.id] = max(version, self._versions.get(row.id, 0))
        except StoreRefused as error:
            # Later, then: there may be no other news of them for long, and other processes believe
            # what is stored.
            logger.error("the status of agents could not be written: %s", error)
            self._unwritten |= self._under_way
            asyncio.get_running_loop().call_later(_AGAIN_AFTER, self._write_soon)
        finally:
            self._under_way = set()
            self._writing = None

    # Circuits

    def share_circuit(self, row: CircuitRow) -> None:
        """Tell other processes of a circuit that opened or closed here."""
        self._circuits[row[:3]] = row
        if self._sharing is None and self._is_open:
            self._sharing = asyncio.get_running_loop().create_task(self._share())

    async def _share(self) -> None:
        try:
            while self._circuits:
                rows, self._circuits = list(self._circuits.values()), {}
                await self._rows.put_circuits(rows)
        except StoreRefused as error:
            # Each process finds out by itself.
            logger.warning("circuits could not be shared: %s", error)
        finally:
            self._sharing = None

    def _adopt_circuits(self, rows: Sequence[CircuitRow]) -> None:
        for row in rows:
            agent = self.index.get(row.agent)
            if agent is not None:
                for changed in self._circuit_listeners:
                    changed(agent, row)

    # Changes by other processes

    def _ring(self, rung: Rung | None) -> None:
        if not self._is_open or (rung is not None and not rung.agents):
            return
        self._is_rung = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._is_rung and self._is_open:
                self._is_rung = False
                found = await self._rows.changes(self._version)
                for row in found.agents:
                    if row.version > self._versions.get(row.id, 0):
                        self._learn(row)
                for id, version in found.removed:
                    self._forget(id, version)
                self._adopt_circuits(found.circuits)
                self._version = found.version
        except Exception:
            # No other wake-up comes for what is not read now.
            logger.exception("changes of agents could not be read; trying again")
            asyncio.get_running_loop().call_later(_AGAIN_AFTER, self._ring, None)
        finally:
            self._reading = None

    def _learn(self, row: AgentRow) -> None:
        before, agent = self.index.get(row.id), _decoded(row)
        self._show(agent, row.version)
        agent = self.index.get(row.id) or agent
        for changed in self._elsewhere:
            changed(agent, before)
        self._tell(agent)

    def _show(self, agent: Registered, version: int) -> None:
        """Have an agent in memory, unless it is older than what is there."""
        if version < self._versions.get(agent.id, 0):
            return
        self._versions[agent.id] = version
        known = self.index.get(agent.id)
        if known is not None and agent.id in self._unwritten | self._under_way:
            # This process observed something later, which is not written yet.
            agent = replace(
                agent, status=known.status, last_seen_at=known.last_seen_at, beat_at=known.beat_at
            )
        self.index.put(agent)

    def _forget(self, id: str, version: int) -> None:
        if version > self._versions.get(id, 0):
            self._versions[id] = version
            self.index.remove(id)
            self._credentials.pop(id, None)


def _address(agent: Registered) -> AgentAddress:
    try:
        origin = origin_of(agent.url)
    except ConfigError:
        # An address of another binding, which a card named.
        origin = agent.url
    return AgentAddress(agent.owner.text, origin, agent.url)


def _decoded(row: AgentRow) -> Registered:
    health: dict[str, Any] = {
        "name": row.name,
        "status": row.status,
        "last_seen_at": row.last_seen_at,
        "beat_at": row.beat_at,
    }
    return replace(_decode_body(row.body), **health)


def _row(agent: Registered, version: int = 0) -> AgentRow:
    body = msgspec.json.encode(agent)
    health = _health(agent)
    return AgentRow(agent.id, agent.name, body, *health[1:], version=version)


def _health(agent: Registered) -> AgentHealthRow:
    return AgentHealthRow(agent.id, agent.status, agent.last_seen_at, agent.beat_at)


def _label(agent: Registered) -> CredentialLabel:
    return CredentialLabel(agent.id, agent.credential, agent.credential_header, destinations(agent))


def _credential(agent: Registered, secret: Secret) -> AgentCredential:
    label = CredentialLabel(agent.id, secret.kind, secret.header, destinations(agent))
    return AgentCredential(label, secret.value.encode())
