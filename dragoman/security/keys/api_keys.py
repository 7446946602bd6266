"""API keys: how they look, the authenticator that knows them, and what a key file may say.

The file has hashes only; `security/keys/key_file.py` changes it, and servers see a change within a
second. Without the file every key is refused; while it cannot be understood, what it said holds.
"""

import hmac
import logging
import re
import secrets
import shlex
import time
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.config import refusal
from dragoman.config.formats import read_key_header
from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import (
    NEVER,
    CredentialRefused,
    Evidence,
    Pass,
    PresentedCredential,
    bearer_token,
)
from dragoman.security.watched_files import WatchedFile

logger = logging.getLogger("dragoman")

# A prefix and a checksum, so that scanners for leaked keys recognise one.
PREFIX = "dgm"
# Of keys of agents, which are in the store of the gateway that made them and in no file.
AGENT_PREFIX = "nxk"
# What a key that is in a file is called where something was made by it.
CREDENTIAL = "key:"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 10
_SECRET_BYTES = 32
_SECRET_LENGTH = 43
_SUM_LENGTH = 6
_KEY = re.compile(
    rf"({PREFIX}|{AGENT_PREFIX})_([0-9a-z]{{{_ID_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}}"
    rf"_[0-9A-Za-z]{{{_SUM_LENGTH}}}",
    re.ASCII,
)
# What an unknown id is compared with, so that it takes as long as a known one.
NO_HASH = bytes(32)

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Instant = Annotated[datetime, Meta(tz=True)]


class ApiKeyRecord(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """A key as the file has it. Who reads it can neither use the key nor guess it."""

    id: Annotated[str, Meta(pattern=rf"\A[0-9a-z]{{{_ID_LENGTH}}}\Z")]
    owner: _Name
    # SHA-256 of the key's text. A slow hash would only help a secret that can be guessed; this
    # one is 256 random bits, and a slow one would let strangers keep our processors busy.
    hash: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    scopes: list[_Name] = []
    # The only tenant it may act in; None: any.
    tenant: str | None = None
    created_at: _Instant
    expires_at: _Instant | None = None
    revoked_at: _Instant | None = None
    # The id of the key that was made to replace it.
    followed_by: str = ""
    # Of a key of an agent, as 0.5 wrote them into this file: the agent's id, what the key is
    # called, and whom it spoke for. No server takes such a key.
    agent: str = ""
    label: str = ""
    acts_for: str = ""

    def state(self, now: float) -> str:
        """Return how it is: `active`, `expired`, `revoked`, or `refused` for one of an agent."""
        if self.revoked_at is not None:
            return "revoked"
        if now >= self.until:
            return "expired"
        return "refused" if self.agent else "active"

    @property
    def until(self) -> float:
        """Return when it ends, in seconds since the epoch."""
        return NEVER if self.expires_at is None else self.expires_at.timestamp()

    @property
    def caller(self) -> Caller:
        """Return whom it stands for."""
        return Caller(f"key:{self.owner}", True, frozenset(self.scopes), self.tenant)


class KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """All that a file says."""

    keys: list[ApiKeyRecord] = []
    version: Annotated[int, Meta(ge=1, le=1)] = 1


def new_id() -> str:
    """Return a name for a key; it is no secret."""
    return "".join(secrets.choice(_ID_DIGITS) for _ in range(_ID_LENGTH))


def new_text(id: str, prefix: str = PREFIX) -> str:
    """Return the text of a key, which only its holder keeps."""
    number = int.from_bytes(secrets.token_bytes(_SECRET_BYTES))
    body = f"{prefix}_{id}_{_in_digits(number, _SECRET_LENGTH)}"
    return f"{body}_{checksum(body)}"


def checksum(body: str) -> str:
    """Return the end of a key, by which a text that only looks like one is told from a key."""
    return _in_digits(zlib.crc32(body.encode()), _SUM_LENGTH)


def _in_digits(number: int, length: int) -> str:
    found = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found


def hash_of(text: str) -> bytes:
    """Return what the file has of a key."""
    return sha256(text.encode()).digest()


def read_text(text: str) -> tuple[str, str]:
    """Return prefix and id of what may be a key; raises `CredentialRefused` for what cannot."""
    shape = _KEY.fullmatch(text)
    if shape is None:
        raise CredentialRefused("not shaped like a key")
    return shape[1], shape[2]


def decode_keys(path: Path, body: bytes) -> list[ApiKeyRecord]:
    """Return what a key file says; raises `ConfigError` for one that makes no sense."""
    try:
        keys = msgspec.json.decode(body, type=KeyFile).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no key file ({error}); restore it from a copy") from None
    if len({key.id for key in keys}) < len(keys):
        raise ConfigError(f"{path}: has two keys with one id; restore it from a copy")
    return keys


class _Entry(msgspec.Struct, frozen=True):
    hash: bytes
    caller: Caller
    until: float
    is_revoked: bool
    is_of_agent: bool

    def credential(self, id: str) -> PresentedCredential:
        """Return it as what something may be made by."""
        rights = repr((self.caller.owner, sorted(self.caller.scopes), self.caller.tenant))
        mark = sha256(self.hash + rights.encode()).hexdigest()
        return PresentedCredential(CREDENTIAL + id, mark=mark, until=self.until)


class KeyPlaces:
    """The headers of a request that may have a key."""

    def __init__(self, header: str, *, in_bearer: bool) -> None:
        self._header = header.lower().encode()
        self._in_bearer = in_bearer
        self.reads = frozenset({self._header, b"authorization"} if in_bearer else {self._header})

    def values(self, evidence: Evidence) -> Sequence[bytes]:
        """Return the keys that a request shows. A bearer token that does not look like one is
        another credential."""
        found = evidence.values(self._header)
        if found or not self._in_bearer:
            return found
        token = bearer_token(evidence)
        is_key = token is not None and token.startswith((f"{PREFIX}_", f"{AGENT_PREFIX}_"))
        return [token.encode()] if token and is_key else []


class ApiKeys:
    """Knows callers by the keys of a file."""

    name = "apiKey"
    challenge = 'ApiKey realm="dragoman"'

    def __init__(
        self,
        file: Path,
        *,
        header: str = "X-API-Key",
        in_bearer: bool = False,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`in_bearer`: a key may also come as a bearer token, as chat programs send theirs."""
        try:
            read_key_header(header)
        except ValueError as error:
            raise refusal("api_key_header", header, str(error)) from None
        self.schemes: dict[str, dict[str, Json]] = {
            self.name: {"apiKeySecurityScheme": {"location": "header", "name": header}}
        }
        self._places = KeyPlaces(header, in_bearer=in_bearer)
        self.reads = self._places.reads
        self._now = now
        self._file = WatchedFile(file, self._entries, keeps=True, monotonic=monotonic)

    async def start(self) -> None:
        """Read the file; raises `ConfigError` for one that cannot work."""
        if not self._file.path.exists():
            raise ConfigError(
                f"{self._file.path}: there are no keys; make one: "
                f"dragoman keys create --owner <name> --keys {shlex.quote(str(self._file.path))}"
            )
        refused = [id for id, one in self._file.load().items() if one.is_of_agent]
        if refused:
            logger.warning(
                "%s: %d keys of agents, made by an earlier release, are refused (%s): "
                "their owners make new ones at the gateway (POST /api/v1/agents/ID/api-keys); "
                "dragoman keys revoke ends these for good",
                self._file.path,
                len(refused),
                ", ".join(refused[:5]),
            )

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return the owner of the key; raises `CredentialRefused` for one that does not hold."""
        values = self._places.values(evidence)
        if not values:
            return None
        if len(values) > 1:
            raise CredentialRefused("two keys")
        prefix, id = read_text(text := values[0].decode("latin-1"))
        if prefix == AGENT_PREFIX:
            raise CredentialRefused("the key of an agent, which only its own gateway takes", id)
        entries = self._file.says()
        if entries is None:
            raise CredentialRefused("the key file cannot be used", id)
        entry = entries.get(id)
        is_right = hmac.compare_digest(hash_of(text), entry.hash if entry else NO_HASH)
        if entry is None:
            raise CredentialRefused("unknown key", id)
        if not is_right:
            raise CredentialRefused("wrong secret", id)
        if entry.is_revoked:
            raise CredentialRefused("revoked key", id)
        if self._now() >= entry.until:
            raise CredentialRefused("expired key", id)
        if entry.is_of_agent:
            raise CredentialRefused("the key of an agent, in a file of keys", id)
        ref = f"{id} {entry.hash.hex()}"
        return Pass(entry.caller, self, entry.until, ref, entry.credential(id))

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the key is there, with what it was given, and neither revoked nor over."""
        entries = self._file.says()
        id, _, hash = found.ref.partition(" ")
        entry = entries.get(id) if entries else None
        return (
            entry is not None
            and entry.hash.hex() == hash
            and self._is_good(entry)
            and (entry.caller is found.caller or entry.caller == found.caller)
        )

    def recall(self, name: str, ref: str) -> list[PresentedCredential]:
        """Return a key of the file as it is now, by what it is called as a credential."""
        entries = self._file.says() if name.startswith(CREDENTIAL) else None
        id = name.removeprefix(CREDENTIAL)
        entry = entries.get(id) if entries else None
        return [entry.credential(id)] if entry is not None and self._is_good(entry) else []

    def _is_good(self, entry: _Entry) -> bool:
        return not (entry.is_revoked or entry.is_of_agent) and self._now() < entry.until

    def _entries(self, body: bytes) -> dict[str, _Entry]:
        return {
            key.id: _Entry(
                bytes.fromhex(key.hash),
                key.caller,
                key.until,
                bool(key.revoked_at),
                bool(key.agent),
            )
            for key in decode_keys(self._file.path, body)
        }
