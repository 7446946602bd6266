"""The head of one request: taken in field by field, then held to the rules of `head_rules`."""

from typing import Any
from urllib.parse import unquote

from dragoman.http.head_rules import (
    BAD_LENGTH,
    LARGE_HEAD,
    LONG_URL,
    MAX_LENGTH_DIGITS,
    WATCHED,
    HeadRefused,
    check,
    is_heavy,
    repeated,
)
from dragoman.http.raw_request import RawRequest
from dragoman.http.request import MAX_URL_BYTES

# A length of more digits than this is a large body: one to hang up on rather than to read.
LARGE_DIGITS = 5


class RequestHead:
    """What the parser has told of a head so far; the rest is known once `complete` has passed."""

    __slots__ = ("fields", "headers", "keeps_alive", "method", "url", "version")

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        # Those that say where and how the request ends, by name.
        self.fields: dict[bytes, bytes] = {}
        self.method = b""
        self.version = ""
        self.keeps_alive = False

    def add(self, name: bytes, value: bytes) -> None:
        """Take in a field; raises `HeadRefused` for the second one that may be there once."""
        name = name.lower()
        self.headers.append((name, value))
        if name in WATCHED:
            if name in self.fields:
                raise repeated(name)
            self.fields[name] = value

    def complete(self, parser: Any, raw: RawRequest, known_host: bytes | None) -> None:
        """Refuse a head that is too large, or that two readers could understand differently."""
        if len(self.url) > MAX_URL_BYTES:
            raise HeadRefused(LONG_URL)
        if is_heavy(self.headers, raw.most):
            raise HeadRefused(LARGE_HEAD)
        self.version, self.method = parser.get_http_version(), parser.get_method()
        self.keeps_alive = parser.should_keep_alive()
        raw.check_line(self.method, self.url, self.version)
        self.url = check(self.version, self.method, self.url, self.fields, known_host)

    @property
    def host(self) -> bytes | None:
        """Whom the request is for."""
        return self.fields.get(b"host")

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return b"transfer-encoding" in self.fields

    @property
    def is_large(self) -> bool:
        """Whether the body is a large one, or may be; raises `HeadRefused` for a length that no
        body has."""
        digits = len(self.fields.get(b"content-length", b""))
        if digits > MAX_LENGTH_DIGITS:
            raise HeadRefused(BAD_LENGTH)
        return digits > LARGE_DIGITS or self.is_chunked

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits for our word before it sends the body."""
        return b"expect" in self.fields and self.version == "1.1"

    @property
    def asks_for_websocket(self) -> bool:
        """Whether a WebSocket is asked for, and no other protocol."""
        wish = [value.lower() for name, value in self.headers if name == b"upgrade"]
        return wish == [b"websocket"]

    @property
    def is_plain(self) -> bool:
        """Whether the request may be refused before its body has come, and the connection kept."""
        return (
            self.method == b"POST"
            and self.keeps_alive
            and b"expect" not in self.fields
            and 0 < len(self.fields.get(b"content-length", b"")) <= LARGE_DIGITS
            and not any(name == b"last-event-id" for name, _ in self.headers)
        )

    def scope(self) -> dict[str, Any]:
        """Return what of ASGI's scope the head says."""
        raw, _, query = self.url.partition(b"?")
        path = raw.decode("ascii")
        return {
            "type": "http",
            "http_version": self.version,
            "method": self.method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw,
            "query_string": query,
            "headers": self.headers,
        }
