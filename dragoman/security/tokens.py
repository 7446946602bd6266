"""Static bearer tokens: one in a setting, several in a file, or whatever the author's code knows.

A token is looked up by a hash that nobody outside this process can compute, so that how long it
takes says nothing about how much of a guess was right. A bearer nobody here knows may still be
known to another authenticator.
"""

import hashlib
import inspect
import os
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import Evidence, Pass, bearer_token
from dragoman.security.watched import Watched

SHORTEST = 16
# Seconds for which an answer of the author's function counts.
ASK_AGAIN_AFTER = 5.0

Check = Callable[[str], Caller | Awaitable[Caller | None] | None]

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class _Holder(msgspec.Struct, forbid_unknown_fields=True):
    """A table of the file."""

    token: str
    scopes: list[_Name] = []
    tenant: str | None = None


class BearerTokens:
    """Knows callers by `Authorization: Bearer`."""

    name = "bearer"
    challenge = 'Bearer realm="dragoman"'
    reads = frozenset({b"authorization"})

    def __init__(
        self,
        token: str = "",
        *,
        file: Path | None = None,
        tokens: Mapping[str, Caller] | None = None,
        check: Check | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheme: dict[str, Json] = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
        if not (token or file or tokens or check):
            raise ConfigError(
                "auth: bearer has no tokens; set DRAGOMAN_AUTH_TOKEN, or name a file of them by "
                "DRAGOMAN_AUTH_TOKENS"
            )
        self._now = now
        self._check = check
        self._pepper = os.urandom(16)
        self._fixed: dict[str, Caller] = {}
        if token:
            self._add(self._fixed, token, Caller("default"), "auth_token")
        for text, caller in (tokens or {}).items():
            self._add(self._fixed, text, caller, f"the token of {caller.owner}")
        self._file = (
            Watched(file, self._holders, forbidden=0o077, keeps=True, monotonic=monotonic)
            if file
            else None
        )

    async def start(self) -> None:
        """Read the file; raises `ConfigError` for one that cannot work."""
        if self._file:
            self._file.load()

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def look(self, evidence: Evidence) -> Pass | None:
        """Return the holder of the token; None if nobody here knows it."""
        token = bearer_token(evidence)
        if token is None:
            return None
        ref = self._hash(token)
        if caller := self._known(ref):
            return Pass(caller, self, ref=ref)
        if self._check is None:
            return None
        found = self._check(token)
        caller = await found if inspect.isawaitable(found) else found
        if caller is None:
            return None
        # Its code may think otherwise the next time.
        return Pass(_holder(caller, "the function"), self, until=self._now() + ASK_AGAIN_AFTER)

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the token still has this holder."""
        known = self._known(found.ref) if found.ref else found.caller
        return known is found.caller or known == found.caller

    def _known(self, ref: str) -> Caller | None:
        if caller := self._fixed.get(ref):
            return caller
        holders = self._file.says() if self._file else None
        return holders.get(ref) if holders else None

    def _hash(self, token: str) -> str:
        return hashlib.blake2b(token.encode(), key=self._pepper, digest_size=16).hexdigest()

    def _holders(self, body: bytes) -> dict[str, Caller]:
        """Make sense of the file; what is said about it never quotes it, since it has secrets."""
        assert self._file is not None
        path = self._file.path
        try:
            tables: dict[str, Any] = tomllib.loads(body.decode())
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: is not TOML ({_place(error)})") from None
        found: dict[str, Caller] = {}
        for name, table in tables.items():
            try:
                one = msgspec.convert(table, _Holder)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{path}: [{name}]: {error}") from None
            caller = Caller(name, scopes=frozenset(one.scopes), tenant=one.tenant)
            self._add(found, one.token, caller, f"{path}: [{name}]")
        return found

    def _add(self, found: dict[str, Caller], token: str, caller: Caller, where: str) -> None:
        if len(token) < SHORTEST:
            raise ConfigError(f"{where}: a token needs at least {SHORTEST} characters")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(f"{where}: a token has only visible ASCII characters, and no spaces")
        ref = self._hash(token)
        if ref in found or ref in self._fixed:
            raise ConfigError(f"{where}: two have the same token; give each its own")
        found[ref] = _holder(caller, where)


def _holder(caller: Caller, where: str) -> Caller:
    """Return a caller as one known by a token, which no other kind of credential can name."""
    name = caller.owner.removeprefix("token:")
    if not name:
        raise ConfigError(f"{where}: names no owner")
    return Caller(f"token:{name}", True, caller.scopes, caller.tenant)


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Return where a file is broken, without what stands there."""
    _, found, place = str(error).rpartition("(at ")
    return f"at {place.rstrip(')')}" if found else "see its syntax"
