"""How settings that are texts are written: one reader for each format.

A reader returns what a text means, or raises `ValueError`, which says what is allowed. It does not
repeat a secret. The rooms read what is given to them in code with the same functions.
"""

import base64
import binascii
import re
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from dragoman.config.hosts import Network
from dragoman.model.money import MICRO, micro_credits
from dragoman.model.patterns import late_pattern

# The name of a header.
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
SHORTEST_TOKEN = 16
# RFC 7518, 3.2: a key is at least as long as the hash, and the shortest hash has so many bytes.
SHORTEST_JWT_SECRET = 32
JWT_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
    *("HS256", "HS384", "HS512"),
)
# The type of access tokens, RFC 9068.
ACCESS_TOKEN = "at+jwt"
PUSH_SECRET_PREFIX = "whsec_"
_PUSH_SECRET_BYTES = (24, 64)
SEALING_KEY_BYTES = 32
_MOST_SEALING_KEYS = 100
_DATABASES = ("postgres://", "postgresql://")
_BUSES = ("nats://", "tls://", "ws://", "wss://")
_HOST = late_pattern(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(?::([0-9]{1,5}))?")
_SCHEME = late_pattern(r"[A-Za-z][A-Za-z0-9+.-]+")
# The port of a host that is named without one.
_PORT = 8000
_DOMAIN = late_pattern(r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*", re.ASCII)
_RATE = late_pattern(r"([0-9]{1,9})/([0-9]{0,6})(s|m|h|d)\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Rate(msgspec.Struct, frozen=True):
    """So many in a window of seconds."""

    count: int
    seconds: int


class ListenAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def each(read: Callable[[str], object]) -> Callable[[list[str]], None]:
    """Return the reader of a list whose entries have one format."""

    def check(given: list[str]) -> None:
        for entry in given:
            read(entry)

    return check


def unless_empty(read: Callable[[str], object]) -> Callable[[str], None]:
    """Return the reader of a setting that may be left empty."""

    def check(given: str) -> None:
        if given:
            read(given)

    return check


def read_rate(text: str) -> Rate | None:
    """Return a rate such as `100/60s`; None: there is no limit."""
    text = text.strip().lower()
    if not text or text == "off":
        return None
    found = _RATE.match(text)
    if found is None or not int(found[1]) or found[2].strip("0") == "" != found[2]:
        raise ValueError(f"{text} is not a rate; write 100/60s, 5/s, 1000/d or off")
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]])


def read_network(text: str) -> Network:
    """Return a network, or the one of a single address."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}; write 10.0.0.5 or 10.0.0.0/24") from None


def read_origin(text: str) -> str:
    """Return an origin of pages in a browser, or `*`."""
    origin = text.lower()
    parts = urlsplit(origin)
    is_bare = parts.scheme in ("http", "https") and parts.netloc and not parts.path
    if origin != "*" and not (is_bare and not parts.query and not parts.fragment):
        raise ValueError(f"{text} is no origin; write https://app.example.com, or *")
    return origin


def read_web_address(text: str) -> str:
    """Return an absolute address of the web."""
    parts = urlsplit(text)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as https://agents.example.com")
    return text


def read_header(text: str) -> str:
    """Return the name of a header."""
    if not HEADER.fullmatch(text):
        raise ValueError(f"{text!r} is no header; write one such as X-Client-Cert")
    return text


def read_key_header(text: str) -> str:
    """Return the name of a header that carries keys."""
    if text.lower() == "authorization":
        raise ValueError("Authorization is for tokens; write X-API-Key")
    return read_header(text)


def read_token(text: str) -> str:
    """Return a bearer token."""
    if len(text) < SHORTEST_TOKEN:
        raise ValueError(
            f"a token needs at least {SHORTEST_TOKEN} characters; make one: openssl rand -hex 32"
        )
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a token has only visible ASCII characters, and no spaces")
    return text


def read_jwt_secret(text: str) -> bytes:
    """Return a secret that is shared with an issuer of tokens."""
    secret = text.encode()
    check_jwt_secret(secret)
    return secret


def check_jwt_secret(secret: bytes) -> None:
    """Refuse a secret that could be guessed."""
    if len(secret) < SHORTEST_JWT_SECRET:
        raise ValueError(
            f"the shared secret must have at least {SHORTEST_JWT_SECRET} bytes; make one with: "
            "openssl rand -base64 48"
        )


def read_push_secret(text: str) -> bytes:
    """Return a secret that posts are signed with."""
    encoded = text.strip().removeprefix(PUSH_SECRET_PREFIX)
    shortest, longest = _PUSH_SECRET_BYTES
    try:
        # Some write it without the padding.
        secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"must be {PUSH_SECRET_PREFIX} and base64") from None
    if not shortest <= len(secret) <= longest:
        raise ValueError(f"must have {shortest} to {longest} bytes")
    return secret


def read_sealing_keys(words: Sequence[str]) -> list[bytes]:
    """Return the keys that words stand for; a word may be lines of a key file."""
    found = [_sealing_key(word) for word in " ".join(words).split()]
    if len(found) > _MOST_SEALING_KEYS:
        raise ValueError(f"has {len(found)} keys; drop those that nothing needs")
    return found


def _sealing_key(word: str) -> bytes:
    bare = word.rstrip("=")
    padded = bare + "=" * (-len(bare) % 4)
    try:
        key = base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != SEALING_KEY_BYTES:
        # Which word it was is not said: it may be a secret all the same.
        raise ValueError(f"a key is {SEALING_KEY_BYTES} bytes in base64: openssl rand -base64 32")
    return key


def is_database(text: str) -> bool:
    """Tell whether a store is a database, and not a file."""
    return text.startswith(_DATABASES)


def read_store(text: str) -> str:
    """Return where tasks are stored: a file, a database, or nothing but memory."""
    scheme, colon, _ = text.partition("://")
    if is_database(text):
        return read_database(text)
    if colon and _SCHEME.fullmatch(scheme) and scheme != "sqlite":
        raise ValueError(
            f"{scheme}:// is no store; write postgresql://user@host/name, or the path of a SQLite "
            "file"
        )
    return text


def read_database(text: str) -> str:
    """Return the address of a database, which may name several hosts."""
    if not is_database(text):
        raise ValueError("write postgresql://user@host/name")
    places, _, path = re.sub(r"[?#].*", "", text.partition("://")[2]).partition("/")
    hosts = places.rpartition("@")[2].split(",")
    found = [_HOST.fullmatch(host) for host in hosts]
    if "@" in path or not all(one and int(one[2] or 0) <= 65535 for one in found):
        raise ValueError(
            "write postgresql://user@host:5432/name; in a password / is %2F, @ is %40 and : is %3A"
        )
    return text


def read_bus(text: str) -> str:
    """Return the address of what carries wake-ups."""
    if not text.startswith(_BUSES):
        raise ValueError("write nats://host:4222, or nothing for PostgreSQL's own")
    return text


def read_share(text: str) -> int:
    """Return a share of a price in millionths."""
    share = micro_credits(text)
    if share > MICRO:
        raise ValueError("must be a share of the price, from 0 to 1")
    return share


def read_listen_address(text: str) -> ListenAddress:
    """Return host and port of `host:port`, `[::1]:port`, a host, or a port of this machine."""
    host, colon, port = text.rpartition(":")
    if not colon and text.isdecimal():
        host, port = "", text
    elif not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = text, str(_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text} is not an address; write 127.0.0.1:8000")
    return ListenAddress(host.strip("[]") or "127.0.0.1", int(port))


def read_domain(text: str) -> str:
    """Return the name of a domain, of which hosts are made by a name before it."""
    if not _DOMAIN.fullmatch(text):
        raise ValueError(f"{text} is not a domain; write agents.example.com")
    return text.lower()


def read_listen_addresses(given: Sequence[str]) -> list[ListenAddress]:
    """Return the addresses to listen on, of which there is at least one."""
    if not given:
        raise ValueError("names no address; write 127.0.0.1:8000")
    return [read_listen_address(text) for text in given]


def read_choices(given: Sequence[str], known: Collection[str], alone: str = "") -> list[str]:
    """Return the known names that are given, in their own order; all of them if none is given.

    `alone` is a name for none of them, which goes with no other.
    """
    names = {name.lower() for name in given}
    if alone and names == {alone}:
        return []
    for name in sorted(names - {*known}):
        if name == alone:
            raise ValueError(f"{name} goes with no other; leave one of them out")
        choice = [alone, *known] if alone else [*known]
        raise ValueError(
            f"{name} is not served{did_you_mean(name, choice)}; choose from {', '.join(choice)}"
        )
    return [name for name in known if not names or name in names]


def read_algorithm(text: str) -> str:
    """Return the name of an algorithm that tokens are signed with."""
    if text not in JWT_ALGORITHMS:
        raise ValueError(f"{text!r} is no algorithm; choose among {', '.join(JWT_ALGORITHMS)}")
    return text


def read_token_type(text: str) -> str:
    """Return the type that tokens must have; empty: any of the usual ones."""
    if text not in ("", ACCESS_TOKEN):
        raise ValueError(f"the type of tokens must be {ACCESS_TOKEN!r} or empty")
    return text


def read_claim(text: str) -> str:
    """Return the claim that names an owner."""
    if not text:
        raise ValueError("must name the claim that names the owner, usually `sub`")
    return text


def did_you_mean(word: str, known: Collection[str], prefix: str = "") -> str:
    """Return the known word that is nearest to another, as part of a sentence; empty: none is."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""
