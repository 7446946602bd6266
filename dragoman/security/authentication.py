"""Who asks: what a request shows of its sender, and the ways to tell from it who that is.

A way is an `Authenticator`; a `Gatekeeper` has one or several, and any one of them lets a caller
in. Whatever goes wrong inside one keeps the caller out, and every refusal looks the same.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec

from dragoman.errors import ConfigError, Unauthenticated, is_interruption
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman")

NEVER = float("inf")
# Credentials whose verdict is remembered: enough for the callers of a minute, and no more memory
# than a caller with endless tokens may take. One that grants more scopes, or
# longer ones, is looked at each time.
MAX_REMEMBERED = 4096
MAX_REMEMBERED_SCOPES = 64
MAX_REMEMBERED_TEXT = 2048
MAX_CREDENTIAL_BYTES = 16 * 1024
# Why a request is refused in which no way finds anything that is for it.
NO_CREDENTIALS = "no credentials"
UNKNOWN_CREDENTIALS = "unknown credentials"


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """What a request shows of its sender."""

    headers: Sequence[tuple[bytes, bytes]]
    # The certificate (DER) that the sender of the connection proved to own.
    certificate: bytes | None = None
    # The address at the other end of the connection.
    address: str = ""

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, as often as it was sent."""
        return [value for key, value in self.headers if key == name]


class CredentialRefused(Exception):
    """A credential that does not hold. The reason is for the operator's log, never the caller."""

    def __init__(self, reason: str, subject: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        # Whom the credential claims to be, as far as that could be read; not believed.
        self.subject = subject


class PresentedCredential(msgspec.Struct, frozen=True):
    """What a caller was let in by, so that it is known again later and in other processes.

    Nothing in it is a secret, but `mark` may come of one that can be guessed: keep it keyed.
    """

    # `key:ID`, `token:NAME`, `jwt:ISSUER#ID`, `cert:FINGERPRINT`; `nxk:ID` for keys of agents.
    name: str
    # What its way finds it by besides the name.
    ref: str = ""
    # Another one as soon as its secret or its rights are others.
    mark: str = ""
    # When it ends, in seconds since the epoch: no clock is forgiven here.
    until: float = NEVER
    # What it was made by, and what that was made by: the nearest first.
    ancestors: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Credential({self.name!r}, mark='***')"


class Pass(msgspec.Struct, frozen=True):
    """A caller, and for how long it may be taken for one."""

    caller: Caller
    by: "Authenticator"
    # Seconds since the epoch.
    until: float = NEVER
    # What the authenticator knows its credential by: the id of a key, the state of a key set.
    ref: str = ""
    # None: it cannot be known again, so nothing may be made by it that outlives the request.
    credential: PresentedCredential | None = None


class Authenticator(Protocol):
    """One way to tell who asks, and how the card describes it."""

    name: str
    # The schemes of the card that describe it, by name and in the shape of 1.0:
    # `{"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}`.
    schemes: dict[str, dict[str, Json]]
    # What `WWW-Authenticate` asks for; empty: there is nothing a header could bring.
    challenge: str
    # The headers it goes by, in lower case, and no others: its verdict is remembered by them.
    reads: frozenset[bytes]

    async def start(self) -> None:
        """Make ready; raises `ConfigError` for settings that cannot work."""
        ...

    async def stop(self) -> None:
        """Let go of files and connections."""
        ...

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return the caller, or None if the evidence is of another kind; raises
        `CredentialRefused` for a credential that does not hold."""
        ...

    def still_holds(self, found: Pass) -> bool:
        """Tell whether a pass given before would be given again: not revoked, its key not
        retired. Asked for every request and now and then for open streams, so it is quick."""
        ...


class Recalling(Protocol):
    """A way that knows a credential again by its name; authenticators of ours do, others may."""

    def recall(self, name: str, ref: str) -> Sequence[PresentedCredential]:
        """Return the credentials of a name that hold now, as they are now; none: they hold no
        more, or are of another way. Asked as often as `still_holds`."""
        ...


def recalling(ways: Sequence[Authenticator]) -> list[Recalling]:
    """Return the ways that know a credential again."""
    return [cast(Recalling, one) for one in ways if hasattr(one, "recall")]


class Gatekeeper:
    """Lets callers in whom any of several authenticators knows."""

    def __init__(
        self, authenticators: Sequence[Authenticator], now: Callable[[], float] = time.time
    ) -> None:
        self.authenticators = list(authenticators)
        self._now = now
        self._remembered: dict[bytes, Pass] = {}
        # Credentials are looked up by a hash that only this process can compute.
        self._pepper = os.urandom(16)
        self._reads = frozenset(name for one in self.authenticators for name in one.reads)
        challenges = [one.challenge for one in self.authenticators if one.challenge]
        self.challenge = ", ".join(dict.fromkeys(challenges)) or "Bearer"

    async def start(self) -> None:
        """Make every way ready; `stop` undoes also what came to be of it before one failed."""
        for one in self.authenticators:
            try:
                await one.start()
            except Exception:
                raise
            except BaseException as error:
                if is_interruption(error):
                    raise
                kind = type(error).__name__
                raise ConfigError(f"{one.name}: it raised {kind} when it was started") from error

    async def stop(self) -> None:
        """Let go of everything."""
        self._remembered.clear()
        for one in self.authenticators:
            try:
                await one.stop()
            except BaseException as error:
                if is_interruption(error):
                    raise
                # The others hold files and connections too.
                logs.log_error(logger, "%s could not be stopped", one.name, error=error)

    async def admit(self, evidence: Evidence) -> Pass:
        """Return who asks; raises `Denied`, also for whatever goes wrong on the way."""
        if (known := self.remembered(evidence)) is not None:
            return known
        found = await self._ask(evidence)
        if not _is_small(found.caller.scopes):
            return found
        if len(self._remembered) >= MAX_REMEMBERED:
            # The oldest: it is looked at again, which is all that happens to it.
            del self._remembered[next(iter(self._remembered))]
        self._remembered[self._key(evidence)] = found
        return found

    def remembered(self, evidence: Evidence) -> Pass | None:
        """Return who asks, if that is known already and still holds."""
        key = self._key(evidence)
        found = self._remembered.get(key)
        if found is None or self.holds(found):
            return found
        del self._remembered[key]
        return None

    def is_tried(self, evidence: Evidence) -> bool:
        """Tell whether a request shows anything that could let it in."""
        return evidence.certificate is not None or any(
            name in self._reads for name, _ in evidence.headers
        )

    def holds(self, found: Pass) -> bool:
        """Tell whether a pass is still good."""
        try:
            return self._now() < found.until and found.by.still_holds(found)
        except BaseException as error:
            if is_interruption(error):
                raise
            message = "%s could not be asked; its callers are kept out"
            logs.log_error(logger, message, found.by.name, error=error)
            return False

    async def _ask(self, evidence: Evidence) -> Pass:
        reason, subject = NO_CREDENTIALS, ""
        for one in self.authenticators:
            try:
                found = await one.authenticate(evidence)
            except CredentialRefused as error:
                # The first to refuse: a way that reads the same header may only say that it is
                # not its own.
                if reason == NO_CREDENTIALS:
                    reason, subject = f"{one.name}: {error.reason}", error.subject
                continue
            except MemoryError:
                # That says nothing about who asks.
                raise
            except BaseException as error:
                if is_interruption(error):
                    raise
                # Whatever it was: who cannot be told apart is not let in.
                logs.log_error(logger, "%s failed; its callers are kept out", one.name, error=error)
                reason = f"{one.name}: it failed"
                continue
            if found is not None and self.holds(found):
                return found
        if reason == NO_CREDENTIALS and self.is_tried(evidence):
            reason = UNKNOWN_CREDENTIALS
        raise Denied(reason, subject)

    def _key(self, evidence: Evidence) -> bytes:
        digest = hashlib.blake2b(evidence.certificate or b"", key=self._pepper, digest_size=16)
        for name, value in evidence.headers:
            if name in self._reads:
                digest.update(b"%d %b %d %b" % (len(name), name, len(value), value))
        digest.update(evidence.address.encode())
        return digest.digest()


class Denied(Unauthenticated):
    """Authentication is required"""

    def __init__(self, reason: str, subject: str = "") -> None:
        super().__init__()
        self.reason = reason
        self.subject = subject


def _is_small(scopes: frozenset[str]) -> bool:
    return len(scopes) <= MAX_REMEMBERED_SCOPES and sum(map(len, scopes)) <= MAX_REMEMBERED_TEXT


def bearer_token(evidence: Evidence) -> str | None:
    """Return the token of `Authorization: Bearer`; None if there is no such header.

    Raises `CredentialRefused` for one that is not read the same way by everybody.
    """
    values = evidence.values(b"authorization")
    if not values:
        return None
    if len(values) > 1:
        raise CredentialRefused("two Authorization headers")
    if len(values[0]) > MAX_CREDENTIAL_BYTES:
        raise CredentialRefused("the token is too long")
    scheme, _, token = values[0].decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialRefused("not a bearer token")
    return token
