"""What of a conversation may be written to a cassette: nothing that opens a door.

Headers are written only if they are known to be harmless. Members and parameters that carry
secrets by their name lose their value, and a secret that was seen once is hidden wherever else it
stands.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, quote, quote_plus, urlencode

import msgspec

HIDDEN = "<redacted>"
FORM = "application/x-www-form-urlencoded"
# fmt: off
OPEN_HEADERS = frozenset({
    "a2a-extensions", "a2a-version", "accept", "allow", "cache-control", "content-type", "etag",
    "last-event-id", "last-modified", "retry-after", "vary", "x-a2a-extensions",
})
_SECRET_NAMES = frozenset({
    "accesstoken", "apikey", "assertion", "authorization", "bearer", "clientassertion",
    "clientsecret", "code", "codeverifier", "credentials", "devicecode", "idtoken", "password",
    "proxyauthorization", "refreshtoken", "secret", "setcookie", "sig", "signature", "token",
    "usercode", "cookie", "xapikey",
})
# However it begins, what ends like this opens a door: auth_token, awsSecretAccessKey.
_SECRET_ENDINGS = (
    "token", "secret", "password", "passwd", "passphrase", "key", "credential", "credentials",
)
# fmt: on
# What ends like it and opens none: the place in a list, and what anybody may have of a pair.
_OPEN_NAMES = frozenset({"pagetoken", "nextpagetoken", "publickey"})
# Members of these names say what a message is about, not who speaks.
_OPEN_MEMBERS = frozenset({"code", "signature", "sig"})
_SHORTEST = 4
# Of what only ends like a secret, so that the key "blue" does not hide every blue there is.
_SHORTEST_BY_ENDING = 8
_MEMBER = re.compile(r'("(?P<name>[\w.-]{1,64})"\s*:\s*")(?P<value>(?:[^"\\]|\\.)*)')
_USER = re.compile(r"(?<=://)[^/?#\s@\"]*@")


class Redaction:
    """Knows names and values that are not written."""

    def __init__(self, names: Iterable[str] = (), card: Mapping[str, Any] | None = None) -> None:
        self._names = {_plain(name) for name in (*names, *_key_names(card or {}))}
        self._values: set[str] = set()

    def learn(self, value: str) -> None:
        """Remember a secret, also as it looks inside an address and inside JSON."""
        if len(value) >= _SHORTEST and value != HIDDEN:
            quoted = msgspec.json.encode(value).decode()[1:-1]
            self._values |= {value, quote(value, safe=""), quote_plus(value), quoted}

    def see(self, headers: Mapping[str, str]) -> None:
        """Remember the secrets in the headers of a request."""
        for name, value in headers.items():
            if name == "cookie":
                for pair in value.split(";"):
                    self.learn(pair.partition("=")[2].strip().strip('"'))
            elif self.is_secret(name) or any(word in name for word in ("token", "key", "secret")):
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
        if isinstance(value, dict):
            return {
                name: self._hidden(name, item) if self._hides(name, item) else self.value(item)
                for name, item in cast(dict[str, Any], value).items()
            }
        if isinstance(value, list):
            return [self.value(item) for item in cast(list[Any], value)]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Return a text without the secrets that are known, and without what looks like one."""
        for secret in self._longest_first():
            text = text.replace(secret, HIDDEN)
        return _USER.sub(f"{HIDDEN}@", text)

    def loose(self, text: str) -> str:
        """Return text that may be JSON, or a piece of it, without its secrets."""
        return self.text(_MEMBER.sub(self._member, text))

    def raw(self, body: bytes) -> bytes:
        """Return bytes that are no text without the secrets that are known or named in them."""
        # Each byte is one character of this encoding, and back.
        text = _MEMBER.sub(self._member, body.decode("latin-1"))
        hidden = text.encode("latin-1")
        for secret in self._longest_first():
            hidden = hidden.replace(secret.encode(), HIDDEN.encode())
        return hidden

    def is_secret(self, name: str) -> bool:
        """Say whether what has this name is not written."""
        plain = _plain(name)
        return plain in self._names or _is_secret(plain)

    def _hides(self, name: str, item: Any) -> bool:
        plain = _plain(name)
        if plain in self._names:
            return True
        return isinstance(item, str) and _is_secret(plain) and plain not in _OPEN_MEMBERS

    def _hidden(self, name: str, item: Any) -> str:
        plain = _plain(name)
        is_sure = plain in _SECRET_NAMES or plain in self._names
        if isinstance(item, str) and (is_sure or len(item) >= _SHORTEST_BY_ENDING):
            self.learn(item)
        return HIDDEN

    def _member(self, found: re.Match[str]) -> str:
        if not self._hides(found["name"], found["value"]):
            return found[0]
        return found[1] + self._hidden(found["name"], found["value"])

    def _longest_first(self) -> list[str]:
        # One secret may be the beginning of another.
        return sorted(self._values, key=len, reverse=True)

    def _learn_basic(self, credentials: str) -> None:
        try:
            plain = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return
        self.learn(plain)
        self.learn(plain.partition(":")[2])


def _key_names(card: Mapping[str, Any]) -> list[str]:
    """Return what a card calls its API keys, in either generation's words."""
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


def _is_secret(plain: str) -> bool:
    if plain in _SECRET_NAMES:
        return True
    return plain.endswith(_SECRET_ENDINGS) and plain not in _OPEN_NAMES


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def parsed(body: bytes) -> Any:
    """Return a body as JSON, UNSET where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.UNSET
