"""Credentials handed over unreadable to gateways in between: a compact JWE (ECDH-ES,
A256GCM) to a key that is made for one request and forgotten with it.

The client encrypts, the agent that asked decrypts. What a JWE says of itself has to be what the
request says: one made for another request, conversation or agent is no answer. It needs the extra
`jwt`, which is imported where a key is made or used.
"""

import asyncio
import base64
import hashlib
import os
import sys
import time
from datetime import datetime
from importlib import import_module
from typing import Any, cast

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.patterns import late_pattern
from dragoman.model.requests import Handoff

# Characters of a credential, and of a JWE that has one: each may take twelve bytes in JSON.
MAX_CREDENTIAL = 65_536
MAX_TOKEN = 1_100_000
# Seconds that two clocks may differ by, and that a JWE of ours is good for.
LEEWAY = 60.0
GOOD_FOR = 300.0
_ALG, _ENC = "ECDH-ES", "A256GCM"
_POINT = ("kty", "crv", "x", "y")
_OUTSIDE = late_pattern(r"eyJ[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*){4}")
EXTRA = "credentials need the extra: pip install 'dragoman[jwt]'"
_CLEAR = (
    "A credential is sent as a compact JWE (ECDH-ES, A256GCM) to the key of this request. If this "
    "was the credential itself, it may have been seen on its way: use another one"
)
_CLOSED = (
    "The JWE cannot be opened: encrypt to the key of this very request (ECDH-ES, A256GCM), which "
    "takes one answer"
)
_UNREAD = (
    "The JWE has to contain JSON with authId, contextId, iat, exp and credential, the two times in "
    "seconds"
)
_OTHER = "The JWE is for another {what}: make one whose {claim} is that of this request"
_EXPIRED = "The JWE has expired: make another one"
_EARLY = "The JWE is of a time to come: set the clock, and make another one"
_LATE = "The time of this request is over"
_LARGE = f"A credential has 1 to {MAX_CREDENTIAL:,} characters: send the credential alone"


class Unopened(Exception):
    """What came is no credential for this request; the text says what to do."""


class _Claims(msgspec.Struct, frozen=True, rename="camel"):
    """What is inside."""

    auth_id: str
    context_id: str
    iat: float
    exp: float
    credential: str
    agent_id: str | None = None

    def __repr__(self) -> str:
        return "_Claims('***')"


_decode = msgspec.json.Decoder(_Claims).decode


# For the agent that asks


async def load() -> None:
    """Load what keys are made and used with in a thread, once: that takes a while. Raises
    `ConfigError` without the extra."""
    if "joserfc.jwe" not in sys.modules:
        await asyncio.to_thread(_jwe)


def fresh() -> dict[str, Any]:
    """Return a new key as a JWK; raises `ConfigError` without the extra."""
    key = _jwk().ECKey.generate_key("P-256", private=True)
    return cast("dict[str, Any]", key.as_dict(private=True))


def public(key: dict[str, Any], auth_id: str) -> dict[str, Any]:
    """Return what of a key everybody may know."""
    return {name: key[name] for name in _POINT} | {"kid": auth_id, "use": "enc", "alg": _ALG}


def opened(token: Any, key: dict[str, Any], handoff: Handoff, now: float) -> str:
    """Return the credential in a JWE for a request, `now` being in seconds; raises `Unopened`."""
    if not isinstance(token, str) or not token.startswith("eyJ"):
        raise Unopened(_CLEAR)
    if len(token) > MAX_TOKEN:
        raise Unopened(_LARGE)
    if _OUTSIDE.fullmatch(token) is None:
        raise Unopened(_CLEAR)
    try:
        claims = _decode(_decrypted(token, key))
    except msgspec.MsgspecError:
        raise Unopened(_UNREAD) from None
    if claims.auth_id != handoff.auth_id:
        raise Unopened(_OTHER.format(what="request", claim="authId"))
    if claims.context_id != handoff.context_id:
        raise Unopened(_OTHER.format(what="conversation", claim="contextId"))
    if claims.agent_id not in (None, handoff.agent_id):
        raise Unopened(_OTHER.format(what="agent", claim="agentId"))
    if not claims.exp > now - LEEWAY or claims.exp <= claims.iat:
        raise Unopened(_EXPIRED)
    if not claims.iat < now + LEEWAY:
        raise Unopened(_EARLY)
    if now > _seconds(handoff.due):
        raise Unopened(_LATE)
    if not 0 < len(claims.credential) <= MAX_CREDENTIAL:
        raise Unopened(_LARGE)
    return claims.credential


def _decrypted(token: str, key: dict[str, Any]) -> bytes:
    from joserfc.errors import JoseError

    jwe = _jwe()
    try:
        found = jwe.decrypt_compact(token, _jwk().ECKey.import_key(key), registry=_registry())
    except (JoseError, ValueError, TypeError, KeyError, AssertionError):
        # Whatever is wrong with it, and no more than that is told.
        raise Unopened(_CLOSED) from None
    if found.plaintext is None or found.protected.get("enc") != _ENC:
        raise Unopened(_CLOSED)
    return found.plaintext


# For the client that answers


def sealed(handoff: Handoff, credential: str) -> str:
    """Return a credential as the JWE that answers a request; raises `ValueError` where the request
    or the credential is not fit for that, `ConfigError` without the extra."""
    from joserfc.errors import JoseError

    now = time.time()
    due = _seconds(handoff.due)
    if now > due:
        raise ValueError("the time to hand this credential over has passed: have it asked again")
    if not 0 < len(credential) <= MAX_CREDENTIAL:
        raise ValueError(_LARGE)
    if (handoff.alg, handoff.enc) != (_ALG, _ENC) or handoff.key.get("crv") != "P-256":
        raise ValueError("the request has no key that a credential may be encrypted to")
    claims: dict[str, Any] = {
        "authId": handoff.auth_id,
        "contextId": handoff.context_id,
        "iat": int(now),
        # Not rounded down to nothing where the request ends at once.
        "exp": int(min(now + GOOD_FOR, due)) + 1,
        "credential": credential,
    }
    if handoff.agent_id:
        claims["agentId"] = handoff.agent_id
    protected = {"alg": _ALG, "enc": _ENC, "kid": handoff.auth_id}
    point = {name: handoff.key[name] for name in _POINT if name in handoff.key}
    jwe = _jwe()
    try:
        key = _jwk().ECKey.import_key(point)
        return jwe.encrypt_compact(
            protected, msgspec.json.encode(claims), key, registry=_registry()
        )
    except (JoseError, ValueError, TypeError, KeyError):
        raise ValueError("the key of the request is none") from None


# PKCE (RFC 7636)


def verifier() -> str:
    """Return a secret that a code is asked for with, and exchanged with."""
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def challenge(of: str) -> str:
    """Return what of a verifier goes into the address where a person signs in (S256)."""
    digest = hashlib.sha256(of.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _seconds(instant: str) -> float:
    try:
        return datetime.fromisoformat(instant).timestamp()
    except ValueError:
        raise ValueError("the request does not say until when it is open") from None


def _registry() -> Any:
    """Return the two algorithms, and no compression: what is inside has the size that is seen."""
    registry = _jwe().JWERegistry(algorithms=[_ALG, _ENC])
    registry.max_ciphertext_length = MAX_TOKEN
    return registry


def _jwe() -> Any:
    return _loaded("joserfc.jwe")


def _jwk() -> Any:
    return _loaded("joserfc.jwk")


def _loaded(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(EXTRA, remedy="pip install 'dragoman[jwt]'") from None
