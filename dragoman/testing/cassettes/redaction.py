"""Removes secrets from a conversation before it is written to a cassette.

Only headers that are known to be harmless are written. Members and parameters named like secrets
lose their value, and a secret that was seen once is hidden everywhere.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, quote, quote_plus, urlencode

import msgspec

from dragoman.security.secret_names import holds_secret, is_secret, words
from dragoman.security.secret_text import HIDDEN, hidden_members, hidden_text, hidden_value

FORM = "application/x-www-form-urlencoded"
# fmt: off
OPEN_HEADERS = frozenset({
    "a2a-extensions", "a2a-version", "accept", "allow", "cache-control", "content-type", "etag",
    "last-event-id", "last-modified", "retry-after", "vary", "x-a2a-extensions",
})
# fmt: on
# The code that a user types to authorize a device.
_USER_CODE = "usercode"
_SHORTEST = 4
_DEEPEST = 64
# Of a key: otherwise a key "blue" would hide every "blue".
_SHORTEST_KEY = 8


class CassetteRedaction:
    """Knows the names and values of secrets."""

    def __init__(self, names: Iterable[str] = (), card: Mapping[str, Any] | None = None) -> None:
        self._names = {_USER_CODE} | {_plain(name) for name in (*names, *_key_names(card or {}))}
        self._values: set[str] = set()

    def learn(self, value: str) -> None:
        """Remember a secret, also in its URL and JSON forms."""
        if len(value) >= _SHORTEST and value != HIDDEN:
            quoted = msgspec.json.encode(value).decode()[1:-1]
            self._values |= {value, quote(value, safe=""), quote_plus(value), quoted}

    def see(self, headers: Mapping[str, str]) -> None:
        """Remember the secrets in the headers of a request."""
        for name, value in headers.items():
            if name == "cookie":
                for pair in value.split(";"):
                    self.learn(pair.partition("=")[2].strip().strip('"'))
            elif self.is_secret(name):
                scheme, _, credentials = value.partition(" ")
                self.learn(credentials or scheme)
                if scheme.lower() == "basic":
                    self._learn_basic(credentials)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that are written."""
        return {
            name: self.text(value)
            for name, value in headers.items()
            if name in OPEN_HEADERS and _plain(name) not in self._names
        }

    def query(self, query: str) -> str:
        """Return a query without its secrets."""
        pairs = parse_qsl(query, keep_blank_values=True)
        for name, value in pairs:
            if self.is_secret(name):
                self.learn(value)
        return urlencode(
            [(name, HIDDEN if self.is_secret(name) else self.text(value)) for name, value in pairs],
            safe="<>",
        )

    def value(self, value: Any) -> Any:
        """Return JSON without its secrets."""
        return hidden_value(self._read(value, 0), self.loose, is_hidden=self._hides)

    def text(self, text: str) -> str:
        """Return a text without known secrets, and without what looks like one."""
        for secret in self._longest_first():
            text = text.replace(secret, HIDDEN)
        return hidden_text(text)

    def loose(self, text: str) -> str:
        """Return a text that may be a piece of JSON, without its secrets."""
        return self.text(hidden_members(text, self._learned))

    def raw(self, body: bytes) -> bytes:
        """Return bytes without known secrets, and without members named like secrets."""
        # This encoding maps each byte to one character.
        text = hidden_members(body.decode("latin-1"), self._learned)
        hidden = text.encode("latin-1")
        for secret in self._longest_first():
            hidden = hidden.replace(secret.encode(), HIDDEN.encode())
        return hidden

    def is_secret(self, name: str) -> bool:
        """Say whether a header, a parameter or a field of this name is secret."""
        return _plain(name) in self._names or is_secret(name, "parameter")

    def _hides(self, name: str, item: Any) -> bool:
        return _plain(name) in self._names or holds_secret(name, item)

    def _learned(self, name: str, item: Any) -> bool:
        """Say whether a member is secret, and remember its value."""
        hides = self._hides(name, item)
        is_sure = _plain(name) in self._names or words(name)[-1:] != ("key",)
        if hides and isinstance(item, str) and (is_sure or len(item) >= _SHORTEST_KEY):
            self.learn(item)
        return hides

    def _read(self, value: Any, depth: int) -> Any:
        """Return JSON without members that are hidden by name; remember its secrets before any text
        is written that may repeat one."""
        if depth > _DEEPEST:
            return HIDDEN
        if isinstance(value, dict):
            members = cast(dict[str, Any], value)
            return {name: self._read_member(name, one, depth) for name, one in members.items()}
        if isinstance(value, list):
            return [self._read(item, depth + 1) for item in cast(list[Any], value)]
        return value

    def _read_member(self, name: str, item: Any, depth: int) -> Any:
        self._learned(name, item)
        return HIDDEN if _plain(name) in self._names else self._read(item, depth + 1)

    def _longest_first(self) -> list[str]:
        # One secret may be a prefix of another.
        return sorted(self._values, key=len, reverse=True)

    def _learn_basic(self, credentials: str) -> None:
        try:
            plain = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return
        self.learn(plain)
        self.learn(plain.partition(":")[2])


def _key_names(card: Mapping[str, Any]) -> list[str]:
    """Return the names of a card's API keys, in either generation."""
    found: list[str] = []
    schemes = card.get("securitySchemes")
    for scheme in cast(dict[str, Any], schemes).values() if isinstance(schemes, dict) else ():
        if not isinstance(scheme, dict):
            continue
        fields = cast(dict[str, Any], scheme)
        inner = fields.get("apiKeySecurityScheme", fields)
        name = cast(dict[str, Any], inner).get("name") if isinstance(inner, dict) else None
        if isinstance(name, str):
            found.append(name)
    return found


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def parsed(body: bytes) -> Any:
    """Return a body as JSON; UNSET: it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.UNSET
