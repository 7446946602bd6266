"""API keys of registered agents: made, listed and revoked by the owner of the agent.

They are in the gateway's own store, so no other server knows them. A key acts for the principal
that made it, within its scopes, and is no stronger than the credential that made it. Its text is
shown once.
"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

from dragoman.errors import InvalidParams, NoAgentAvailable, PermissionDenied, RateLimited
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import LONGEST_NAME
from dragoman.model.agent_key import AgentKeyRow
from dragoman.model.identity import LOCAL, Caller
from dragoman.security.authentication import NEVER, Pass
from dragoman.security.keys.agent_keys import AgentKeys
from dragoman.security.keys.api_keys import AGENT_PREFIX, hash_of, new_id, new_text
from dragoman.security.keys.issuance import KeyTerms, terms_of
from dragoman.security.keys.key_scopes import SCOPES
from dragoman.stores.interface.gateway import GatewayStore

LONGEST_DAYS = 365
# Valid keys of one agent: each is in the memory of every process.
MOST_KEYS = 100
# The member of a task's metadata that names the agent by whose key it was made.
REQUESTER = "requesterAgentId"
_DAY = 24 * 3600

KeyState = Literal["active", "expired", "revoked", "ended_with_parent"]


def owns(agent: Registered, caller: Caller) -> bool:
    """Tell whether an agent belongs to a caller. Agents of the local user, such as those of this
    process, belong to no caller that has a credential."""
    return caller.principal != LOCAL and agent.owner == caller.principal


class StoredKeys:
    """The keys in a gateway's store, as the authenticator reads them."""

    def __init__(self, store: GatewayStore) -> None:
        self._store = store
        self._key = b""

    def version(self) -> int:
        """Return how often keys have changed."""
        return self._store.agent_keys.version()

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that changed after a version."""
        return self._store.agent_keys.changed(after)

    async def refresh(self) -> None:
        """Have what other processes changed among what is read."""
        await self._store.agent_keys.refresh()

    def secret(self) -> bytes:
        """Return the key of the marks of other credentials."""
        if not self._key:
            self._key = hashlib.sha256(b"agent keys" + self._store.secret).digest()
        return self._key


class AgentKeyring:
    """Makes and revokes the keys of agents."""

    def __init__(
        self,
        store: GatewayStore,
        way: AgentKeys | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`way` authenticates by them; None: callers need no credential, and no key is made."""
        self._store = store
        self._keys = store.agent_keys
        self._way = way
        self._now = now

    async def create(
        self,
        agent: Registered,
        maker: Pass | None,
        label: str,
        *,
        scopes: Sequence[str] = (),
        days: int | None = None,
    ) -> tuple[AgentKeyRow, str]:
        """Make a key; return it and its text, which is not stored."""
        if not 1 <= len(label.strip()) <= LONGEST_NAME:
            raise InvalidParams(f"must have 1 to {LONGEST_NAME} characters", field="name")
        if not SCOPES.issuperset(scopes):
            raise InvalidParams(f"are some of {', '.join(sorted(SCOPES))}", field="scopes")
        if days is not None and not 1 <= days <= LONGEST_DAYS:
            raise InvalidParams(f"must be between 1 and {LONGEST_DAYS}", field="expiresInDays")
        now = self._now()
        until = NEVER if days is None else now + days * _DAY
        terms = terms_of(maker if self._way else None, scopes, until=until, now=now)
        if maker is None or not owns(agent, maker.caller):
            raise PermissionDenied("A key acts for its maker: the agent's owner makes its keys")
        await self._store.prepare()
        text = new_text(id := new_id(), AGENT_PREFIX)
        row = self._row(id, hash_of(text), agent, label.strip(), terms, int(now * 1000))
        stored = await self._keys.put(row, most=MOST_KEYS)
        if stored == "full":
            raise RateLimited(f"The agent has {MOST_KEYS} keys; revoke one first")
        if stored == "no_agent":
            raise NoAgentAvailable("There is no such agent")
        self.look_again()
        return row, text

    def _row(
        self, id: str, hash: bytes, agent: Registered, label: str, terms: KeyTerms, now: int
    ) -> AgentKeyRow:
        assert self._way is not None, "without it there are no terms"
        parent = terms.parent
        return AgentKeyRow(
            id=id,
            hash=hash,
            agent=agent.id,
            label=label,
            tenant=terms.tenant,
            owner=terms.principal.owner,
            scopes=" ".join(sorted(terms.scopes)),
            parent=parent.name,
            parent_ref=parent.ref,
            parent_mark=self._way.keyed(parent.name, parent.mark),
            generation=terms.generation,
            made_at=now,
            expires_at=None if terms.until == NEVER else math.floor(terms.until * 1000),
        )

    async def all(self, agent: Registered) -> Sequence[AgentKeyRow]:
        """Return the keys of an agent, in the order they were made."""
        return await self._keys.of_agent(agent.id)

    async def find(self, agent: Registered, id: str) -> AgentKeyRow:
        """Return a key of an agent; raises `InvalidParams` if it has no such key."""
        for key in await self.all(agent):
            if key.id == id:
                return key
        raise InvalidParams("the agent has no such key", field="keyId")

    async def revoke(self, agent: Registered, id: str) -> AgentKeyRow:
        """Revoke a key of an agent: it and all that were made by it end at once."""
        found = await self.find(agent, id)
        await self._keys.revoke(id, int(self._now() * 1000))
        self.look_again()
        return found

    def state(self, key: AgentKeyRow) -> KeyState:
        """Return the state of a key."""
        if key.revoked_at is not None:
            return "revoked"
        if key.expires_at is not None and key.expires_at <= self._now() * 1000:
            return "expired"
        way = self._way
        stands = way is not None and way.stands(key.parent, key.parent_ref, key.parent_mark)
        return "active" if stands else "ended_with_parent"

    def lineage(self, key: AgentKeyRow) -> tuple[str, ...]:
        """Return the credentials above a key, the nearest first."""
        return (key.parent,) if self._way is None else self._way.lineage(key.parent)

    def look_again(self) -> None:
        """Have this process act on what changed without delay."""
        if self._way is not None:
            self._way.look_again()
