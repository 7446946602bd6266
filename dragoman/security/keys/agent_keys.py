"""Authentication by keys of agents, which one gateway makes and stores.

No other server accepts such a key. It acts for the principal that made it, within its scopes, and
is valid as long as every credential above it is: the one that made it, and the one that made that.
Where keys are stored is not known here.
"""

import hmac
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from dragoman.model.agent_key import AgentKeyRow
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import (
    NEVER,
    CredentialRefused,
    Evidence,
    Pass,
    PresentedCredential,
    Recalling,
)
from dragoman.security.keys.api_keys import (
    AGENT_PREFIX,
    NO_HASH,
    KeyPlaces,
    hash_of,
    read_text,
)
from dragoman.security.keys.issuance import MOST_GENERATIONS
from dragoman.security.keys.key_scopes import SCOPES

# The prefix of its name where it made another credential.
CREDENTIAL = "nxk:"
# Seconds after which changes of other processes are read: a revoked key is refused after a second.
LOOK_EVERY = 0.5
# Seconds between two looks for a key that is not known: anyone can bring one.
_REFRESH_EVERY = 0.2


class KeyRows(Protocol):
    """Reads the stored keys of agents."""

    def version(self) -> int:
        """Return how often keys have changed. Called on the event loop, so it is quick."""
        ...

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        """Return the keys that changed after a version."""
        ...

    async def refresh(self) -> None:
        """Have what other processes changed among what is read."""
        ...

    def secret(self) -> bytes:
        """Return the key of the marks of other credentials."""
        ...


class _Entry(msgspec.Struct, frozen=True):
    hash: bytes
    caller: Caller
    until: float
    parent: str
    parent_ref: str
    parent_mark: bytes


class AgentKeys:
    """Authenticates agents by the keys that a gateway made for them."""

    name = "agentKey"
    challenge = 'ApiKey realm="dragoman"'

    def __init__(
        self,
        rows: KeyRows,
        *,
        header: str = "X-API-Key",
        in_bearer: bool = False,
        is_declared: bool = True,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_declared`: the card names the header, because no other scheme does. `in_bearer`: a
        key may also come as a bearer token."""
        self.schemes: dict[str, dict[str, Json]] = {}
        if is_declared:
            scheme: dict[str, Json] = {"location": "header", "name": header}
            self.schemes[self.name] = {"apiKeySecurityScheme": scheme}
        self._places = KeyPlaces(header, in_bearer=in_bearer)
        self.reads = self._places.reads
        self._rows = rows
        self._now = now
        self._monotonic = monotonic
        self._look_at = self._refresh_at = 0.0
        self._version = -1
        self._entries: dict[str, _Entry] = {}
        # The other authenticators, whose credentials made keys.
        self.others: Sequence[Recalling] = ()

    async def start(self) -> None:
        """Read the keys."""
        self.look_again()

    async def stop(self) -> None:
        """Nothing is held."""

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return the principal that the key of an agent acts for, or None without a key; raises
        `CredentialRefused` for a key that is not valid."""
        values = self._places.values(evidence)
        if len(values) != 1 or not values[0].startswith(f"{AGENT_PREFIX}_".encode()):
            return None
        _, id = read_text(text := values[0].decode("latin-1"))
        entry = self._entry(id)
        if entry is None:
            # Another process may just have made it.
            await self._refresh()
            entry = self._entries.get(id)
        is_right = hmac.compare_digest(hash_of(text), entry.hash if entry else NO_HASH)
        if entry is None:
            raise CredentialRefused("a key of no agent here, or one that was revoked", id)
        if not is_right:
            raise CredentialRefused("wrong secret", id)
        if self._now() >= entry.until:
            raise CredentialRefused("expired key", id)
        if not self.stands(entry.parent, entry.parent_ref, entry.parent_mark):
            raise CredentialRefused("ended with its parent", id)
        made_by = self.lineage(entry.parent)
        mark = sha256(entry.hash).hexdigest()
        credential = PresentedCredential(CREDENTIAL + id, "", mark, entry.until, made_by)
        return Pass(entry.caller, self, entry.until, id, credential)

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the key and every credential above it are valid."""
        entry = self._entry(found.ref)
        return (
            entry is not None
            and (entry.caller is found.caller or entry.caller == found.caller)
            and self._now() < entry.until
            and self.stands(entry.parent, entry.parent_ref, entry.parent_mark)
        )

    def stands(self, parent: str, ref: str, mark: bytes) -> bool:
        """Tell whether a credential and every one above it are valid and unchanged."""
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
        """Return the mark of a credential as it is stored: keyed, so that a weak token cannot be
        guessed from it."""
        return hmac.digest(self._rows.secret(), f"{name}\n{mark}".encode(), "sha256")

    def _is_same(self, credential: PresentedCredential, mark: bytes) -> bool:
        if self._now() >= credential.until:
            return False
        return hmac.compare_digest(self.keyed(credential.name, credential.mark), mark)

    def look_again(self) -> None:
        """Read what changed since the last call."""
        self._look_at = self._monotonic() + LOOK_EVERY
        version = self._rows.version()
        if version < self._version:
            # The store was replaced by another one.
            self._entries, self._version = {}, -1
        if version == self._version:
            return
        # The version was read first: what is written meanwhile is read once more, never missed.
        for key in self._rows.changed(self._version):
            if key.revoked_at is None:
                self._entries[key.id] = _entry(key)
            else:
                self._entries.pop(key.id, None)
        self._version = version

    async def _refresh(self) -> None:
        if self._monotonic() >= self._refresh_at:
            self._refresh_at = self._monotonic() + _REFRESH_EVERY
            await self._rows.refresh()
        self.look_again()

    def _entry(self, id: str) -> _Entry | None:
        if self._monotonic() >= self._look_at:
            self.look_again()
        return self._entries.get(id)


def _entry(key: AgentKeyRow) -> _Entry:
    # It grants no scope of skills or operators.
    caller = Caller(
        key.owner,
        authenticated=True,
        tenant=key.tenant,
        agent=key.agent,
        key_scopes=frozenset(key.scopes.split()) & SCOPES,
    )
    until = NEVER if key.expires_at is None else key.expires_at / 1000
    return _Entry(key.hash, caller, until, key.parent, key.parent_ref, key.parent_mark)
