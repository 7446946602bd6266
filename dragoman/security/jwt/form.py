"""The form of a JSON Web Token: three parts of strict base64url, two of them JSON objects.

A token has one spelling or is refused: padding, stray bits, members that are there twice and
headers that change what a signature means are read differently by different readers. Nothing here
tells whether a token is genuine.
"""

import json
from typing import Any, NoReturn, cast

import msgspec

from dragoman.config.formats import ACCESS_TOKEN
from dragoman.errors import ParseFailed
from dragoman.security import base64url
from dragoman.security.authentication import CredentialRefused
from dragoman.security.json_values import check_levels

Object = dict[str, Any]

# The types of tokens that are made to be shown to a server like this one.
_PLAIN_TYPES = frozenset({"", "jwt", ACCESS_TOKEN})
# Header members that change what is signed or say that it is not all: none is understood here.
_EXTENSIONS = ("crit", "b64", "enc", "zip")


class ParsedToken(msgspec.Struct, frozen=True):
    """A token taken apart, and believed in nothing."""

    algorithm: str
    # Empty: the header names no key.
    kid: str
    claims: Object
    signed: bytes
    signature: bytes


def is_shaped(text: str) -> bool:
    """Tell whether a text is meant to be a token of this kind."""
    return "." in text


def read_token(text: str, token_type: str = "") -> ParsedToken:
    """Return the parts of a token; raises `CredentialRefused`.

    With a token type its header must have it; without one, it must have none that says that the
    token is for something else.
    """
    parts = text.split(".")
    if len(parts) == 5:
        raise CredentialRefused("the token is encrypted")
    if len(parts) != 3:
        raise CredentialRefused("the token has not 3 parts")
    header = _object(parts[0], "the header")
    claims = _object(parts[1], "the payload")
    subject = claimed_subject(claims)
    for name in _EXTENSIONS:
        if name in header:
            raise CredentialRefused(f"the header has {name!r}", subject)
    if "cty" in header:
        raise CredentialRefused("there is a token in the token", subject)
    _check_type(header.get("typ", ""), token_type, subject)
    algorithm, kid = header.get("alg"), header.get("kid", "")
    if not isinstance(algorithm, str) or not isinstance(kid, str):
        raise CredentialRefused("the algorithm or the name of the key is no text", subject)
    signature = _decoded(parts[2], "the signature")
    return ParsedToken(algorithm, kid, claims, f"{parts[0]}.{parts[1]}".encode(), signature)


def claimed_subject(claims: Object) -> str:
    """Return whom a token claims to be about, in a form that is fit for a log."""
    subject = claims.get("sub")
    if not isinstance(subject, str):
        return ""
    cut = subject[:128]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def _check_type(found: object, wanted: str, subject: str) -> None:
    if not isinstance(found, str):
        raise CredentialRefused("the type of the token is no text", subject)
    kind = found.lower().removeprefix("application/")
    if kind != wanted if wanted else kind not in _PLAIN_TYPES:
        raise CredentialRefused("the token is of another type", subject)


def _object(part: str, what: str) -> Object:
    try:
        content = _decoded(part, what)
        check_levels(content)
        value = _DECODER.decode(content.decode())
    except (ValueError, ParseFailed):
        raise CredentialRefused(f"{what} is not JSON that everybody reads alike") from None
    if not isinstance(value, dict):
        raise CredentialRefused(f"{what} is no object")
    return cast(Object, value)


def _once_each(pairs: list[tuple[str, Any]]) -> Object:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _decoded(part: str, what: str) -> bytes:
    try:
        content = base64url.decode(part)
    except ValueError:
        raise CredentialRefused(f"{what} is not base64url") from None
    # The last character has bits that mean nothing, and what they are must mean nothing either.
    if base64url.encode(content) != part:
        raise CredentialRefused(f"{what} is not base64url in its one spelling")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=_no_constant)
