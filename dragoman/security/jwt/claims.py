"""What a token must say to be for us and for now, and whom it speaks of.

All of it is read before the signature is looked at and means nothing until that holds. A claim
that is there must make sense: one that does not refuses the token, needed or not.
"""

import hashlib
import math
from typing import Any, cast
from urllib.parse import quote

import msgspec

from dragoman.config.formats import read_claim, read_token_type
from dragoman.errors import ConfigError
from dragoman.model.identity import Caller, is_id
from dragoman.security import base64url
from dragoman.security.authentication import CredentialRefused
from dragoman.security.jwt.form import Object, claimed_subject

LONGEST_ISSUER = 512
LONGEST_NAME = 256
MOST_ENTRIES = 256
# The end of the year 9999: a later one is a mistake or an attempt at "for ever".
LAST_SECOND = 253_402_300_799
# Claims that only tokens for other purposes have: who logged in and how, and what happened.
_OTHER_PURPOSES = ("nonce", "at_hash", "c_hash", "s_hash", "events")
# What Keycloak calls such tokens in a claim.
_OTHER_TYPES = frozenset({"ID", "Refresh", "Offline", "Logout"})
# Characters that stay as they are in the name of an owner. Neither "#" nor "%" is among them, so
# no two pairs of issuer and subject have the same name.
_READABLE = "!$&'()*+,-./:;=?@[]_|~"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asks of tokens."""

    issuer: str
    audience: frozenset[str]
    # The clients that tokens may have been given to; empty: any.
    parties: frozenset[str] = frozenset()
    leeway: float = 60.0
    owner_claim: str = "sub"
    # Empty: tokens name no tenant.
    tenant_claim: str = ""
    token_type: str = ""

    def check(self) -> None:
        """Raise `ConfigError` for what no token could fulfil, or every one would."""
        if not self.issuer or len(self.issuer) > LONGEST_ISSUER:
            raise ConfigError(
                "jwt: needs the issuer, as it stands in the claim `iss` of tokens: --jwt-issuer",
                remedy="--jwt-issuer <url>",
            )
        if not self.audience or not all(self.audience):
            raise ConfigError(
                "jwt: needs an audience, the claim `aud` of tokens that are for this server: "
                "--jwt-audience",
                remedy="--jwt-audience <audience>",
            )
        if not 0 <= self.leeway <= 600:
            raise ConfigError("jwt: the leeway must be between 0 and 600 seconds")
        try:
            read_token_type(self.token_type)
            read_claim(self.owner_claim)
        except ValueError as error:
            raise ConfigError(f"jwt: {error}") from None


class TokenClaims(msgspec.Struct, frozen=True):
    """What a token says, once its signature holds."""

    caller: Caller
    # Seconds since the epoch, the leeway included; and without it, as the token says.
    until: float
    expires_at: float
    # What the issuer calls this token; empty: nothing.
    id: str


def read_claims(
    claims: Object, expected: Expected, now: float, certificate: bytes | None
) -> TokenClaims:
    """Return what a token says; raises `CredentialRefused`."""
    try:
        _check_purpose(claims, expected)
        _check_addressee(claims, expected)
        until = _check_times(claims, expected.leeway, now)
        _check_binding(claims, certificate)
        expires_at = until - expected.leeway
        return TokenClaims(_caller(claims, expected), until, expires_at, _id(claims))
    except CredentialRefused as refused:
        raise CredentialRefused(refused.reason, claimed_subject(claims)) from None


def owner_of(issuer: str, name: str) -> str:
    """Return the one owner that a name of an issuer stands for."""
    return f"jwt:{quote(issuer, safe=_READABLE)}#{quote(name, safe=_READABLE)}"


def _check_purpose(claims: Object, expected: Expected) -> None:
    if expected.token_type:
        return
    for name in _OTHER_PURPOSES:
        if name in claims:
            raise CredentialRefused(f"the claim {name} is of a token for another purpose")
    kind = claims.get("typ")
    if isinstance(kind, str) and kind in _OTHER_TYPES:
        raise CredentialRefused("the claim typ is of a token for another purpose")


def _check_addressee(claims: Object, expected: Expected) -> None:
    # Compared as they are: a look-alike, a slash more or a letter in another case is another one.
    if claims.get("iss") != expected.issuer:
        raise CredentialRefused("the issuer is another")
    audience = claims.get("aud")
    named: list[Any] = cast("list[Any]", audience) if isinstance(audience, list) else [audience]
    if len(named) > MOST_ENTRIES or not all(isinstance(name, str) for name in named):
        raise CredentialRefused("the audience is missing or no list of texts")
    if expected.audience.isdisjoint(named):
        raise CredentialRefused("the audience is another")
    party = claims.get("azp", claims.get("client_id"))
    if party is not None and not isinstance(party, str):
        raise CredentialRefused("the client is no text")
    if expected.parties and party not in expected.parties:
        raise CredentialRefused("the token was given to a client that is not accepted")


def _check_times(claims: Object, leeway: float, now: float) -> float:
    until = _seconds(claims, "exp")
    if until is None:
        raise CredentialRefused("the token has no end")
    if now >= until + leeway:
        raise CredentialRefused("the token has expired")
    begins = _seconds(claims, "nbf")
    if begins is not None and begins > now + leeway:
        raise CredentialRefused("the token is not yet valid")
    issued = _seconds(claims, "iat")
    if issued is not None and issued > now + leeway:
        raise CredentialRefused("the token was issued in the future")
    return until + leeway


def _seconds(claims: Object, name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    # To Python, and only to Python, a truth value is a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CredentialRefused(f"{name} is no number")
    if not 0 <= value <= LAST_SECOND or not math.isfinite(value):
        raise CredentialRefused(f"{name} is no time")
    return float(value)


def _check_binding(claims: Object, certificate: bytes | None) -> None:
    """Refuse a token that is bound to a key which its bearer did not prove to have (RFC 8705)."""
    if "cnf" not in claims:
        return
    confirmation = claims["cnf"]
    if not isinstance(confirmation, dict):
        raise CredentialRefused("cnf is no object")
    # A token bound in another way cannot be checked here.
    if set(cast(Object, confirmation)) != {"x5t#S256"}:
        raise CredentialRefused("the token is bound to a key that cannot be checked here")
    if certificate is None:
        raise CredentialRefused("the token is bound to a certificate, and none was shown")
    digest = hashlib.sha256(certificate).digest()
    if cast(Object, confirmation)["x5t#S256"] != base64url.encode(digest):
        raise CredentialRefused("the token is bound to another certificate")


def _caller(claims: Object, expected: Expected) -> Caller:
    name = _name(claims, expected.owner_claim)
    tenant = None
    if expected.tenant_claim:
        # One without would be let into every tenant.
        tenant = _name(claims, expected.tenant_claim)
        if not is_id(tenant):
            raise CredentialRefused(f"{expected.tenant_claim} is no name of a tenant")
    return Caller(
        owner=owner_of(expected.issuer, name),
        authenticated=True,
        scopes=frozenset([*_scopes(claims, "scope"), *_scopes(claims, "scp")]),
        tenant=tenant,
    )


def _id(claims: Object) -> str:
    """Return the token's own name; one that makes no sense is none, as nothing depends on it."""
    value = claims.get("jti")
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable():
        return ""
    return value


def _name(claims: Object, claim: str) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise CredentialRefused(f"{claim} is missing, too long or no text")
    # Half a character is not printable either, and has no bytes to be named by.
    if not value.isprintable():
        raise CredentialRefused(f"{claim} has characters that cannot be seen")
    return value


def _scopes(claims: Object, claim: str) -> list[str]:
    value = claims.get(claim, "")
    entries: Any = value.split() if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(e, str) for e in cast(Any, entries)):
        raise CredentialRefused(f"{claim} is neither a text nor a list of texts")
    found = cast("list[str]", entries)
    if len(found) > MOST_ENTRIES:
        raise CredentialRefused(f"{claim} has more than {MOST_ENTRIES} entries")
    return found
