"""Keys of agents: the way in for the agents of one gateway, by keys that its own store has.

No other server knows such a key. It acts for the principal that made it, opens what its scopes
name, and holds for as long as every credential above it does: the one it was made by, and what
that was made by. Where the keys are kept is not known here.
"""

import hmac
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.api_keys import AGENT_PREFIX, NO_HASH, hash_of, read_text
from dragoman.security.authentication import (
    NEVER,
    Credential,
    Evidence,
    Pass,
    Recalling,
    Refused,
)
from dragoman.security.issuance import MOST_GENERATIONS
from dragoman.security.key_scopes import SCOPES

# What such a key is called where something was made by it.
CREDENTIAL = "nxk:"
# Seconds between two looks for what other processes changed: a revoked key opens nothing after
# a second.
LOOK_EVERY = 0.5


class KeptKey(Protocol):
    """A key as it is kept: hashes only. Instants are milliseconds since the epoch."""

    @property
    def id(self) -> str: ...
    @property
    def hash(self) -> bytes: ...
    @property
    def agent(self) -> str: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def owner(self) -> str: ...
    @property
    def scopes(self) -> str: ...
    @property
    def parent(self) -> str: ...
    @property
    def parent_ref(self) -> str: ...
    @property
    def parent_mark(self) -> bytes: ...
    @property
    def expires_at(self) -> int | None: ...
    @property
    def revoked_at(self) -> int | None: ...


class Source(Protocol):
    """Where the keys of agents are kept."""

    def version(self) -> int:
        """Return how often they have changed. Asked on the loop, so it is quick."""
        ...

    def changed(self, after: int) -> Sequence[KeptKey]:
        """Return those that changed after a version."""
        ...

    def secret(self) -> bytes:
        """Return what marks of other credentials are keyed with."""
        ...


class _Entry(msgspec.Struct, frozen=True):
    hash: bytes
    caller: Caller
    until: float
    parent: str
    parent_ref: str
    parent_mark: bytes


class AgentKeys:
    """Knows agents by the keys that a gateway made for them."""

    name = "agentKey"
    challenge = 'ApiKey realm="dragoman"'

    def __init__(
        self,
        source: Source,
        *,
        header: str = "X-API-Key",
        is_declared: bool = True,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_declared`: the card is to tell of it, as nothing else there does of the header."""
        self.schemes: dict[str, dict[str, Json]] = {}
        if is_declared:
            scheme: dict[str, Json] = {"location": "header", "name": header}
            self.schemes[self.name] = {"apiKeySecurityScheme": scheme}
        self._header = header.lower().encode()
        self.reads = frozenset({self._header})
        self._source = source
        self._now = now
        self._monotonic = monotonic
        self._look_at = 0.0
        self._version = -1
        self._entries: dict[str, _Entry] = {}
        # The other ways in, by whose credentials keys were made.
        self.others: Sequence[Recalling] = ()

    async def start(self) -> None:
        """Read the keys."""
        self.look_again()

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def look(self, evidence: Evidence) -> Pass | None:
        """Return whom the key of an agent acts for; None if none is shown; raises `Refused` for
        one that does not hold."""
        values = evidence.values(self._header)
        if len(values) != 1 or not values[0].startswith(f"{AGENT_PREFIX}_".encode()):
            return None
        _, id = read_text(text := values[0].decode("latin-1"))
        entry = self._entry(id)
        if entry is None:
            # It may have been made by another process, this very moment.
            self.look_again()
            entry = self._entries.get(id)
        is_right = hmac.compare_digest(hash_of(text), entry.hash if entry else NO_HASH)
        if entry is None:
            raise Refused("a key of no agent here, or one that was revoked", id)
        if not is_right:
            raise Refused("wrong secret", id)
        if self._now() >= entry.until:
            raise Refused("expired key", id)
        if not self.stands(entry.parent, entry.parent_ref, entry.parent_mark):
            raise Refused("ended with its parent", id)
        made_by = self.lineage(entry.parent)
        mark = sha256(entry.hash).hexdigest()
        credential = Credential(CREDENTIAL + id, "", mark, entry.until, made_by)
        return Pass(entry.caller, self, entry.until, id, credential)

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the key is there, and all that it was made by."""
        entry = self._entry(found.ref)
        return (
            entry is not None
            and (entry.caller is found.caller or entry.caller == found.caller)
            and self._now() < entry.until
            and self.stands(entry.parent, entry.parent_ref, entry.parent_mark)
        )

    def stands(self, parent: str, ref: str, mark: bytes) -> bool:
        """Tell whether a credential, and all that it was made by, still is what it was."""
        for _ in range(MOST_GENERATIONS + 1):
            if not parent.startswith(CREDENTIAL):
                found = [each for one in self.others for each in one.recall(parent, ref)]
                return any(self._is_same(each, mark) for each in found)
            entry = self._entry(parent.removeprefix(CREDENTIAL))
            if entry is None or self._now() >= entry.until:
                return False
            if not hmac.compare_digest(self.keyed(parent, sha256(entry.hash).hexdigest()), mark):
                return False
            parent, ref, mark = entry.parent, entry.parent_ref, entry.parent_mark
        return False

    def lineage(self, parent: str) -> tuple[str, ...]:
        """Return the credentials above a key, the nearest first, given the nearest."""
        found = [parent]
        while found[-1].startswith(CREDENTIAL) and len(found) <= MOST_GENERATIONS:
            entry = self._entries.get(found[-1].removeprefix(CREDENTIAL))
            if entry is None:
                break
            found.append(entry.parent)
        return tuple(found)

    def keyed(self, name: str, mark: str) -> bytes:
        """Return the mark of a credential as it is kept: a token somebody chose must not be
        guessed from it."""
        return hmac.digest(self._source.secret(), f"{name}\n{mark}".encode(), "sha256")

    def _is_same(self, credential: Credential, mark: bytes) -> bool:
        if self._now() >= credential.until:
            return False
        return hmac.compare_digest(self.keyed(credential.name, credential.mark), mark)

    def look_again(self) -> None:
        """Read what was changed since the last look."""
        self._look_at = self._monotonic() + LOOK_EVERY
        version = self._source.version()
        if version < self._version:
            # Another file is there.
            self._entries, self._version = {}, -1
        if version == self._version:
            return
        # What is written meanwhile is read once more, and never missed.
        for key in self._source.changed(self._version):
            if key.revoked_at is None:
                self._entries[key.id] = _entry(key)
            else:
                self._entries.pop(key.id, None)
        self._version = version

    def _entry(self, id: str) -> _Entry | None:
        if self._monotonic() >= self._look_at:
            self.look_again()
        return self._entries.get(id)


def _entry(key: KeptKey) -> _Entry:
    # It grants none of the scopes that skills and operators' doors ask for.
    caller = Caller(
        key.owner,
        authenticated=True,
        tenant=key.tenant,
        agent=key.agent,
        key_scopes=frozenset(key.scopes.split()) & SCOPES,
    )
    until = NEVER if key.expires_at is None else key.expires_at / 1000
    return _Entry(key.hash, caller, until, key.parent, key.parent_ref, key.parent_mark)
