"""Identifiers, and the identity of callers.

Ids made here are UUIDv7: ordered by creation, so that a store appends at the end of its index,
and with 62 random bits, so that they cannot be guessed.
"""

import os
import re
import time
from typing import NewType

import msgspec

from dragoman.model.patterns import late_pattern

TaskId = NewType("TaskId", str)
ContextId = NewType("ContextId", str)
MessageId = NewType("MessageId", str)

MAX_ID_LENGTH = 256
_OURS = late_pattern(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
# Later times have no RFC 3339 form.
_YEAR_10000 = 253_402_300_800_000
# Tells whether a peer may use a text as an id: visible ASCII, at most 256 characters.
is_id = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID_LENGTH}}}\Z").match


# A UUIDv7 by the parts of its time and its random end. Not an f-string, which takes twice as long.
_FORM = "%08x-%04x-7%03x-%s"


class _Source:
    """Time in steps of 1/4096 millisecond that never repeats, and random ends of ids, made by the
    page."""

    def __init__(self) -> None:
        self.last = 0
        self.ends: list[str] = []

    def fill(self) -> list[str]:
        """Return ends for the next ids: the last two groups, with the variant of RFC 9562."""
        noise = os.urandom(4096)
        digits = noise.hex()
        self.ends = [
            f"{'89ab'[noise[n // 2] & 3]}{digits[n + 1 : n + 4]}-{digits[n + 4 : n + 16]}"
            for n in range(0, len(digits), 16)
        ]
        return self.ends

    def forget(self) -> None:
        """Drop random ends after a fork: the child must not use those of its parent."""
        self.ends = []


_source = _Source()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_source.forget)


def new_id() -> str:
    """Return a UUIDv7 that cannot be guessed; ids of one process sort by creation."""
    source = _source
    step = (time.time_ns() << 12) // 1_000_000
    if step <= source.last:
        step = source.last + 1
    source.last = step
    end = (source.ends or source.fill()).pop()
    return _FORM % (step >> 28, step >> 12 & 0xFFFF, step & 0xFFF, end)


def made_at(id: str) -> int | None:
    """Return when an id was made, in milliseconds since the epoch; None: it is not a UUIDv7."""
    if _OURS.match(id) is None:
        return None
    made = int(id[:8] + id[9:13], 16)
    return made if made < _YEAR_10000 else None


class Principal(msgspec.Struct, frozen=True, gc=False):
    """An identity: an owner in a tenant. The same owner in two tenants is two principals."""

    tenant: str = ""
    owner: str = ""

    @property
    def text(self) -> str:
        """Return it as a unique text: `owner`, or `@tenant/owner`."""
        if not self.tenant and not self.owner.startswith("@"):
            return self.owner
        return f"@{self.tenant.replace('%', '%25').replace('/', '%2F')}/{self.owner}"

    @classmethod
    def read(cls, text: str, tenant: str = "") -> "Principal":
        """Return the principal of a text; without a tenant in it, in the given one."""
        if not text.startswith("@"):
            return cls(tenant, text)
        tenant, _, owner = text[1:].partition("/")
        return cls(tenant.replace("%2F", "/").replace("%25", "%"), owner)

    def owners(self) -> tuple[str, str | None]:
        """Return its names as the owner of scopes: in its own tenant and, if its credential names
        no tenant, in tenants that its requests name."""
        own = f"@{self.owner}" if self.owner.startswith("@") else self.owner
        is_unbound = bool(self.owner) and not self.tenant
        return own, _UNBOUND + self.owner if is_unbound else None


# The local user, if callers need no credential.
LOCAL = Principal()
# The account that use counts for: a principal, or the address of unknown callers.
Who = Principal | str


class Caller(msgspec.Struct, frozen=True):
    """The caller of an operation. Identity comes from the transport, never from a payload."""

    owner: str = ""
    authenticated: bool = False
    # The scopes of its credential: they grant skills, and two of them administration.
    scopes: frozenset[str] = frozenset()
    # The one tenant it may act in; None: its credential names none.
    tenant: str | None = None
    # The agent whose key it used, and the scopes of that key: it grants only these, and none of
    # the scopes above. None: it used another kind of credential.
    agent: str = ""
    key_scopes: frozenset[str] | None = None
    # The address it comes from, if callers need no credential; empty: unknown.
    place: str = ""

    @property
    def who(self) -> Who:
        """Return the account of its use: its principal or, of an unknown caller, its address."""
        return self.principal if self.authenticated else self.place

    @property
    def principal(self) -> Principal:
        """Return its principal: the owner of things is always a principal, not an owner name."""
        return Principal(self.tenant or "", self.owner)

    def operates(self, *, is_local: bool) -> bool:
        """Say whether it may operate the server: it is an operator, or the local user of a server
        that only this machine reaches."""
        return OPERATOR in self.scopes or (is_local and self.principal == LOCAL)


# Grants what belongs to the whole server; and what belongs to the caller's tenant.
OPERATOR = "dragoman:operator"
ADMIN = "dragoman:admin"
ANONYMOUS = Caller()
_UNBOUND = "@/"


class Scope(msgspec.Struct, frozen=True):
    """The scope of a task: nothing in one scope is visible from another."""

    agent: str = ""
    tenant: str = ""
    # For a caller whose credential names no tenant, in a tenant that its request names: `@/` and
    # its name, so that it does not reach the tasks of the same owner name in that tenant.
    owner: str = ""

    @classmethod
    def of(cls, agent: str, tenant: str, caller: Caller) -> "Scope":
        """Return the scope of a caller's tasks, in the tenant of a request."""
        owner = caller.owner
        if not owner:
            return cls(agent, tenant, owner)
        if tenant and caller.tenant is None:
            owner = _UNBOUND + owner
        elif owner.startswith("@"):
            owner = f"@{owner}"
        return cls(agent, tenant, owner)

    def caller(self, scopes: frozenset[str] = frozenset()) -> Caller:
        """Return a caller that has this scope."""
        owner, tenant = self.owner, self.tenant or None
        if owner.startswith(_UNBOUND):
            owner, tenant = owner.removeprefix(_UNBOUND), None
        elif owner.startswith("@"):
            owner = owner[1:]
        return Caller(owner, bool(owner), scopes, tenant)

    @property
    def principal(self) -> Principal:
        """Return the principal that owns it."""
        if self.owner.startswith("@"):
            return self.caller().principal
        return Principal(self.tenant, self.owner)
