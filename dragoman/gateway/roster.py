"""The agents in memory and in the file, kept alike while several processes write.

What is said of an agent is in the file before anyone hears of it. How it is seen changes often:
that counts in memory at once and is written soon after, several agents at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw
import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from dragoman.client.origins import origin_of
from dragoman.errors import ConfigError, StoreRefused, StoreUnavailable
from dragoman.gateway.agents import Registered
from dragoman.gateway.registration import Secret, destinations, private_name
from dragoman.gateway.search import Index
from dragoman.stores.sqlite import agent_places
from dragoman.stores.sqlite import agents as rows
from dragoman.stores.sqlite.store import SQLiteStore

logger = logging.getLogger("dragoman")

# Agents whose credential is at hand.
_MOST_AT_HAND = 1024
_decode_body = msgspec.json.Decoder(Registered).decode
Learned = Callable[[Registered, Registered | None], None]


class Roster:
    """All agents: the index is what is found, the file is what is true."""

    def __init__(self, store: SQLiteStore, index: Index, learned: Learned) -> None:
        """`learned` hears of an agent that another process changed, and how it was before."""
        self._store = store
        self._index = index
        self._learned = learned
        # Up to where changes were read, and which one every agent in memory is of.
        self._version = 0
        self._versions: dict[str, int] = {}
        # Agents whose standing is not written yet, and those of whom it is just being written.
        self._unwritten: set[str] = set()
        self._under_way: set[str] = set()
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_rung = False
        self._is_open = False
        self._at_hand: dict[str, tuple[int, Secret]] = {}

    async def open(self) -> None:
        """Load all agents, and listen for what others change."""
        found = await self._store.look(lambda c: rows.changes(c, 0))
        self._index.fill(_decoded(row) for row in found.agents)
        self._versions = {row.id: row.version for row in found.agents}
        self._version = found.version
        self._is_open = True
        self._store.listen(self._ring)

    async def close(self) -> None:
        """Write what is not written yet."""
        self._is_open = False
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        await self.settled()

    # Changes of our own

    async def add(self, agent: Registered, wanted: str, secret: Secret | None) -> Registered:
        """Keep an agent under a name that is free; return it."""
        seals, key = self._store.seals, self._store.secret

        def deed(connection: apsw.Connection) -> tuple[Registered, int]:
            # Who was removed and comes back is the same: what was observed of it stays.
            before = agent_places.gone(connection, agent.owner.text, _origin(agent), agent.url)
            id = before or agent.id
            name = private_name(wanted, id, key) if agent.callers else wanted
            named = replace(agent, id=id, name=rows.free_name(connection, name, id))
            _put_place(connection, named)
            if secret is not None:
                rows.put_credential(connection, seals, _shown(named, secret), _plain(secret))
            return named, rows.put(connection, _row(named))

        named, version = await self._store.change(deed)
        self._keep(named, version)
        return named

    async def edit(
        self,
        id: str,
        edit: Callable[[Registered], Registered],
        now: int,
        secret: Secret | UnsetType | None,
    ) -> Registered | None:
        """Change an agent as it stands in the file; return it, or None if it is gone.

        Its credential goes where the agent goes: it is sealed anew with the places it may go to.
        """
        seals, key = self._store.seals, self._store.secret

        def deed(connection: apsw.Connection) -> tuple[Registered, int] | None:
            row = rows.find(connection, id)
            if row is None:
                return None
            before = _decoded(row)
            after = edit(before)
            if after == before and isinstance(secret, UnsetType):
                return before, row.version
            after = replace(after, updated_at=max(now, before.updated_at + 1))
            if after.callers and after.callers != before.callers:
                # An address that was everybody's is free for others: were it kept, whoever asks
                # for its name would learn that there is one.
                name = private_name(after.name, id, key)
                after = replace(after, name=rows.free_name(connection, name, id))
            if after.url != before.url:
                _put_place(connection, after)
            if isinstance(secret, Secret):
                rows.put_credential(connection, seals, _shown(after, secret), _plain(secret))
            elif secret is None:
                rows.drop_credential(connection, id)
            elif before.credential and destinations(before) != destinations(after):
                found = rows.credential(connection, seals, id)
                if found is not None and found[0] == _shown(before):
                    rows.put_credential(connection, seals, _shown(after), found[1])
            return after, rows.put(connection, _row(after))

        found = await self._store.change(deed)
        if found is None:
            return None
        self._keep(*found)
        return self._index.get(id) or found[0]

    async def remove(self, id: str, now: int) -> None:
        """Forget an agent and its credential."""
        agent = self._index.get(id)

        def deed(connection: apsw.Connection) -> int:
            if agent is not None:
                # Earlier releases did not note where agents were.
                _put_place(connection, agent)
            agent_places.leave(connection, id)
            return rows.remove(connection, id, now)

        version = await self._store.change(deed)
        self._forget(id, version)

    async def credential(self, agent: Registered) -> Secret | None:
        """Return what an agent is shown; None if the file says that it is meant for elsewhere."""
        kept = self._at_hand.get(agent.id)
        if kept is not None and kept[0] == agent.updated_at:
            return kept[1]
        seals = self._store.seals
        found = None
        # Sealed for another place, or with a key that is gone: it is as good as none.
        with suppress(StoreUnavailable):
            found = await self._store.look(lambda c: rows.credential(c, seals, agent.id))
        if found is None or found[0] != _shown(agent):
            logger.error("the credential for %s is not for where it is; set it anew", agent.name)
            return None
        secret = Secret(
            kind=agent.credential, value=found[1].decode(), header=agent.credential_header
        )
        if len(self._at_hand) >= _MOST_AT_HAND:
            self._at_hand.clear()
        self._at_hand[agent.id] = (agent.updated_at, secret)
        return secret

    # How agents are seen

    def stand(self, agent: Registered, *, is_urgent: bool) -> None:
        """Let an agent be seen so; written soon if it matters to others."""
        self._index.put(agent)
        if is_urgent:
            self._unwritten.add(agent.id)
            if self._writing is None and self._is_open:
                self._writing = asyncio.get_running_loop().create_task(self._write())

    async def settled(self) -> None:
        """Return when what was seen is written, as far as the disk takes it."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._unwritten:
            await self._write()

    async def _write(self) -> None:
        try:
            while self._unwritten:
                self._under_way, self._unwritten = self._unwritten, set()
                agents = [self._index.get(id) for id in self._under_way]
                seen = [agent for agent in agents if agent is not None]
                versions = await self._store.change(lambda c, seen=seen: _write_all(c, seen))
                for agent, version in zip(seen, versions, strict=True):
                    self._versions[agent.id] = max(version, self._versions.get(agent.id, 0))
        except StoreRefused as error:
            # What is seen next is written with it.
            logger.error("how agents stand could not be written: %s", error)
        finally:
            self._under_way = set()
            self._writing = None

    # Changes of others

    def _ring(self) -> None:
        if not self._is_open:
            return
        self._is_rung = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._is_rung and self._is_open:
                self._is_rung = False
                version = self._version
                found = await self._store.look(lambda c, version=version: rows.changes(c, version))
                for row in found.agents:
                    if row.version > self._versions.get(row.id, 0):
                        before = self._index.get(row.id)
                        self._keep(_decoded(row), row.version)
                        self._learned(self._index.get(row.id) or _decoded(row), before)
                for id, version in found.removed:
                    self._forget(id, version)
                self._version = found.version
        except Exception:
            # The next ring reads it once more.
            logger.exception("changes of agents could not be read")
        finally:
            self._reading = None

    def _keep(self, agent: Registered, version: int) -> None:
        """Have an agent in memory, unless it is older than what is there."""
        if version < self._versions.get(agent.id, 0):
            return
        self._versions[agent.id] = version
        known = self._index.get(agent.id)
        if known is not None and agent.id in self._unwritten | self._under_way:
            # What we saw ourselves is on its way.
            agent = _seen_as(agent, known)
        self._index.put(agent)

    def _forget(self, id: str, version: int) -> None:
        if version > self._versions.get(id, 0):
            self._versions[id] = version
            self._index.remove(id)
            self._at_hand.pop(id, None)


def _write_all(connection: apsw.Connection, agents: list[Registered]) -> list[int]:
    return [
        rows.put_standing(connection, one.id, one.status, one.last_seen_at, one.beat_at)
        for one in agents
    ]


def _put_place(connection: apsw.Connection, agent: Registered) -> None:
    agent_places.put(connection, agent.owner.text, _origin(agent), agent.id, agent.url)


def _origin(agent: Registered) -> str:
    try:
        return origin_of(agent.url)
    except ConfigError:
        # An address of another binding, which a card named.
        return agent.url


def _seen_as(agent: Registered, known: Registered) -> Registered:
    return replace(
        agent, status=known.status, last_seen_at=known.last_seen_at, beat_at=known.beat_at
    )


def _decoded(row: rows.AgentRow) -> Registered:
    agent = _decode_body(row.body)
    standing: dict[str, Any] = {
        "name": row.name,
        "status": row.status,
        "last_seen_at": row.last_seen_at,
        "beat_at": row.beat_at,
    }
    return replace(agent, **standing)


def _row(agent: Registered) -> rows.AgentRow:
    body = msgspec.json.encode(agent)
    return rows.AgentRow(
        agent.id, agent.name, body, agent.status, agent.last_seen_at, agent.beat_at, 0
    )


def _shown(agent: Registered, secret: Secret | None = None) -> rows.Shown:
    kind = secret.kind if secret else agent.credential
    header = secret.header if secret else agent.credential_header
    return rows.Shown(agent.id, kind, header, destinations(agent))


def _plain(secret: Secret) -> bytes:
    return secret.value.encode()
