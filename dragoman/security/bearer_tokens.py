"""Static bearer tokens: one in a setting, several in a file, or whatever the author's code knows.

A token is looked up by a hash that only this process can compute, so that how long it
takes says nothing about how much of a guess was right. An unknown bearer token may still be
known to another authenticator.
"""

import asyncio
import hashlib
import inspect
import logging
import os
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.config.formats import read_token
from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import (
    MAX_REMEMBERED,
    Evidence,
    Pass,
    PresentedCredential,
    bearer_token,
)
from dragoman.security.watched_files import WatchedFile

logger = logging.getLogger("dragoman")

# Seconds for which an answer of the author's function counts. A caller still there after half of
# them has it asked again meanwhile, so that open streams go on.
COUNTS_FOR = 5.0

Check = Callable[[str], Caller | Awaitable[Caller | None] | None]

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class _Holder(msgspec.Struct, forbid_unknown_fields=True):
    """A table of the file."""

    token: str
    scopes: list[_Name] = []
    tenant: str | None = None

    def __repr__(self) -> str:
        return f"_Holder(token='***', scopes={self.scopes!r}, tenant={self.tenant!r})"


class _StoredToken(msgspec.Struct, frozen=True):
    """A token that a setting or a file has, without its text."""

    caller: Caller
    credential: PresentedCredential


class _FunctionVerdict(msgspec.Struct):
    """What the author's function said of a token."""

    token: str
    caller: Caller
    at: float
    is_asked_again: bool = False

    def __repr__(self) -> str:
        return f"_Asked(token='***', caller={self.caller!r}, at={self.at})"


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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schemes: dict[str, dict[str, Json]] = {
            self.name: {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
        }
        if not (token or file or tokens or check):
            raise ConfigError(
                "auth: bearer has no tokens; set DRAGOMAN_AUTH_TOKEN, or name a file of them by "
                "DRAGOMAN_AUTH_TOKENS",
                remedy="DRAGOMAN_AUTH_TOKEN=<token>",
            )
        self._monotonic = monotonic
        self._check = check
        self._verdicts: dict[str, _FunctionVerdict] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._pepper = os.urandom(16)
        self._fixed: dict[str, _StoredToken] = {}
        if token:
            self._add(self._fixed, token, Caller("default"), "auth_token")
        for text, caller in (tokens or {}).items():
            self._add(self._fixed, text, caller, f"the token of {caller.owner}")
        self._file = (
            WatchedFile(file, self._holders, forbidden=0o077, keeps=True, monotonic=monotonic)
            if file
            else None
        )

    async def start(self) -> None:
        """Read the file; raises `ConfigError` for one that cannot work."""
        if self._file:
            self._file.load()

    async def stop(self) -> None:
        """Forget what the function said, and ask it no more."""
        self._verdicts.clear()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return the holder of the token; None if it is unknown."""
        token = bearer_token(evidence)
        if token is None:
            return None
        ref = self._hash(token)
        if known := self._stored_token(ref):
            return Pass(known.caller, self, ref=ref, credential=known.credential)
        # What a function knows cannot be asked about later without the token.
        caller = await self._ask(token, ref)
        return Pass(caller, self, ref=ref) if caller else None

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the token still has this holder."""
        known = self._stored_token(found.ref)
        caller = self._recent_verdict(found.ref) if known is None else known.caller
        return caller is found.caller or caller == found.caller

    def recall(self, name: str, ref: str) -> list[PresentedCredential]:
        """Return the tokens of a holder that a setting or the file has now."""
        holders = self._file.says() if self._file else None
        known = [*self._fixed.values(), *(holders or {}).values()]
        return [one.credential for one in known if one.credential.name == name]

    def _stored_token(self, ref: str) -> _StoredToken | None:
        if known := self._fixed.get(ref):
            return known
        holders = self._file.says() if self._file else None
        return holders.get(ref) if holders else None

    async def _ask(self, token: str, ref: str) -> Caller | None:
        """Ask the function who holds a token, and remember it for a while."""
        if self._check is None:
            return None
        try:
            found = self._check(token)
            caller = await found if inspect.isawaitable(found) else found
        except BaseException:
            self._verdicts.pop(ref, None)
            raise
        # What it said before counts until it has answered.
        self._verdicts.pop(ref, None)
        if caller is None:
            return None
        caller = _holder(caller, "the function")
        if len(self._verdicts) >= MAX_REMEMBERED:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[ref] = _FunctionVerdict(token, caller, self._monotonic())
        return caller

    def _recent_verdict(self, ref: str) -> Caller | None:
        """Return what the function said lately."""
        verdict = self._verdicts.get(ref)
        if verdict is None:
            return None
        age = self._monotonic() - verdict.at
        if age >= COUNTS_FOR:
            del self._verdicts[ref]
            return None
        if age >= COUNTS_FOR / 2 and not verdict.is_asked_again:
            verdict.is_asked_again = True
            task = asyncio.create_task(self._ask_again(verdict, ref))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return verdict.caller

    async def _ask_again(self, verdict: _FunctionVerdict, ref: str) -> None:
        try:
            await self._ask(verdict.token, ref)
        except Exception:
            logger.exception("the function that knows tokens failed; their holders are kept out")

    def _hash(self, token: str) -> str:
        return hashlib.blake2b(token.encode(), key=self._pepper, digest_size=16).hexdigest()

    def _holders(self, body: bytes) -> dict[str, _StoredToken]:
        """Make sense of the file; what is said about it never quotes it, since it has secrets."""
        assert self._file is not None
        path = self._file.path
        try:
            tables: dict[str, Any] = tomllib.loads(body.decode())
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: is not TOML ({_place(error)})") from None
        found: dict[str, _StoredToken] = {}
        for name, table in tables.items():
            try:
                one = msgspec.convert(table, _Holder)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{path}: [{name}]: {error}") from None
            caller = Caller(name, scopes=frozenset(one.scopes), tenant=one.tenant)
            self._add(found, one.token, caller, f"{path}: [{name}]")
        return found

    def _add(self, found: dict[str, _StoredToken], token: str, caller: Caller, where: str) -> None:
        try:
            read_token(token)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        ref = self._hash(token)
        if ref in found or ref in self._fixed:
            raise ConfigError(f"{where}: two have the same token; give each its own")
        caller = _holder(caller, where)
        rights = repr((token, sorted(caller.scopes), caller.tenant))
        mark = hashlib.sha256(rights.encode()).hexdigest()
        found[ref] = _StoredToken(caller, PresentedCredential(caller.owner, mark=mark))


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
