"""Identifiers: what they look like, who makes them, and whom a call speaks for.

Ids made here are UUIDv7: ordered by creation, so that a store appends at the end of its index,
and with 62 random bits, so that nobody guesses one.
"""

import os
import re
import time
from typing import NewType

import msgspec

TaskId = NewType("TaskId", str)
ContextId = NewType("ContextId", str)
MessageId = NewType("MessageId", str)

MAX_ID_LENGTH = 256
_OURS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
# Beyond it there are no times that can be written.
_YEAR_10000 = 253_402_300_800_000
_VISIBLE_ASCII = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID_LENGTH}}}\Z")


def is_id(text: str) -> bool:
    """Tell whether a peer may use this text as an id: visible ASCII, at most 256 characters."""
    return _VISIBLE_ASCII.match(text) is not None


class _Source:
    """Time in steps of 1/4096 millisecond that never repeats, and noise fetched a page at once."""

    def __init__(self) -> None:
        self._last = 0
        self._noise = b""
        self._used = 0

    def step(self) -> int:
        self._last = max(self._last + 1, (time.time_ns() << 12) // 1_000_000)
        return self._last

    def noise(self) -> bytes:
        if self._used == len(self._noise):
            self._noise, self._used = os.urandom(4096), 0
        self._used += 8
        return self._noise[self._used - 8 : self._used]

    def forget(self) -> None:
        """A forked child must not draw the noise its parent will draw."""
        self._noise, self._used = b"", 0


_source = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_source.forget)


def new_id() -> str:
    """Return a UUIDv7 that no one can guess; ids of one process sort by their making."""
    step = f"{_source.step():015x}"
    noise = _source.noise()
    digits = noise.hex()
    return f"{step[:8]}-{step[8:12]}-7{step[12:]}-{'89ab'[noise[0] & 3]}{digits[1:4]}-{digits[4:]}"


def made_at(id: str) -> int | None:
    """Return when an id of ours was made, in milliseconds since the epoch; None: not by us."""
    if _OURS.match(id) is None:
        return None
    made = int(id[:8] + id[9:13], 16)
    return made if made < _YEAR_10000 else None


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Who somebody is: an owner in a tenant. Two owners of one name in two tenants are two."""

    tenant: str = ""
    owner: str = ""

    @property
    def text(self) -> str:
        """Return it as one text, which no other principal has: `owner`, or `@tenant/owner`."""
        if not self.tenant and not self.owner.startswith("@"):
            return self.owner
        return f"@{self.tenant.replace('%', '%25').replace('/', '%2F')}/{self.owner}"

    @classmethod
    def read(cls, text: str, tenant: str = "") -> "Principal":
        """Return the principal of a text; one that names no tenant is in the given one."""
        if not text.startswith("@"):
            return cls(tenant, text)
        tenant, _, owner = text[1:].partition("/")
        return cls(tenant.replace("%2F", "/").replace("%25", "%"), owner)

    def owners(self) -> tuple[str, str | None]:
        """Return what it is called as the owner of scopes: in its own tenant and, where its
        credential is for none, in those that it named."""
        own = f"@{self.owner}" if self.owner.startswith("@") else self.owner
        is_unbound = bool(self.owner) and not self.tenant
        return own, _UNBOUND + self.owner if is_unbound else None


# The local user, where no caller is asked for a credential.
LOCAL = Principal()
# Whom use counts for: a principal, or an address of callers who are not known.
Who = Principal | str


class Caller(msgspec.Struct, frozen=True):
    """Whom a call speaks for. Identity comes from the transport, never from a payload."""

    owner: str = ""
    authenticated: bool = False
    # What its credential grants: they open skills, and two of them our own doors.
    scopes: frozenset[str] = frozenset()
    # The one tenant it may act in; None: its credential names none.
    tenant: str | None = None
    # The agent by whose key it came, and what that key is for: it grants nothing of the scopes
    # above, and opens no more than it names. None: it came by a credential of another kind.
    agent: str = ""
    key_scopes: frozenset[str] | None = None
    # The address it comes from, where callers are not asked who they are; empty: not known.
    place: str = ""

    @property
    def who(self) -> Who:
        """Return whom its use counts for: its principal or, of an unknown caller, its address."""
        return self.principal if self.authenticated else self.place

    @property
    def principal(self) -> Principal:
        """Return who that is: what things belong to, never to the owner alone."""
        return Principal(self.tenant or "", self.owner)


# Opens what belongs to the server as a whole; and what belongs to the caller's own tenant.
OPERATOR = "dragoman:operator"
ADMIN = "dragoman:admin"
ANONYMOUS = Caller()
_UNBOUND = "@/"


class Scope(msgspec.Struct, frozen=True):
    """The room a task lives in: nothing in one scope is visible from another."""

    agent: str = ""
    tenant: str = ""
    # Of a caller whose credential is for no tenant, in one that it named: `@/` and its name, so
    # that a name alone does not lead to what belongs to the owner of that name in the tenant.
    owner: str = ""

    @classmethod
    def of(cls, agent: str, tenant: str, caller: Caller) -> "Scope":
        """Return where a caller's tasks are, in the tenant that a request is for."""
        owner = caller.owner
        if not owner:
            return cls(agent, tenant, owner)
        if tenant and caller.tenant is None:
            owner = _UNBOUND + owner
        elif owner.startswith("@"):
            owner = f"@{owner}"
        return cls(agent, tenant, owner)

    def caller(self, scopes: frozenset[str] = frozenset()) -> Caller:
        """Return whose it is, as a caller that leads here."""
        owner, tenant = self.owner, self.tenant or None
        if owner.startswith(_UNBOUND):
            owner, tenant = owner.removeprefix(_UNBOUND), None
        elif owner.startswith("@"):
            owner = owner[1:]
        return Caller(owner, bool(owner), scopes, tenant)

    @property
    def principal(self) -> Principal:
        """Return whose it is."""
        if self.owner.startswith("@"):
            return self.caller().principal
        return Principal(self.tenant, self.owner)
