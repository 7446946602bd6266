"""A recorded conversation: JSON lines, the agent's card first, then one exchange each.

Addresses are written as `{base}`, those of gRPC as `{place}`; the server of a cassette replaces
them by its own address, and by its host and port. Rpcs are written as requests of JSON.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.errors import ConfigError
from dragoman.testing.cassettes.redaction import FORM, HIDDEN, CassetteRedaction, parsed

FORMAT = 1
BASE = "{base}"
PLACE = "{place}"


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body: as JSON, as text, or as bytes; empty if there was none."""

    json: Any = UNSET
    text: str = ""
    raw: bytes = b""

    def encode(self) -> bytes:
        """Return it as bytes."""
        if self.json is not UNSET:
            return msgspec.json.encode(self.json)
        return self.text.encode() or self.raw


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of a stream, with the seconds since its request."""

    at: float
    text: str = ""
    raw: bytes = b""


class RecordedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request."""

    method: str
    path: str
    query: str = ""
    headers: dict[str, str] = {}
    body: Content = Content()


class RecordedAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer; a stream has blocks instead of a body."""

    status: int
    headers: dict[str, str] = {}
    body: Content = Content()
    blocks: list[Block] = []
    # Seconds until its head came.
    after: float = 0.0
    # Whether the connection broke before its end.
    cut: bool = False


class RecordedExchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its answer."""

    number: int
    request: RecordedRequest
    response: RecordedAnswer


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """The path of an interface of the agent on the server of the cassette."""

    path: str
    binding: str
    version: str


class CassetteHead(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The first line of a cassette."""

    cassette: int
    recorded_at: str
    card: dict[str, Any]
    interfaces: list[Interface]


class Cassette(msgspec.Struct, frozen=True):
    """A recorded conversation."""

    head: CassetteHead
    exchanges: list[RecordedExchange]


class CassetteWriter:
    """Writes a cassette exchange by exchange, readable by its owner only."""

    def __init__(self, path: Path, head: CassetteHead) -> None:
        try:
            # Never overwrites: a recording cannot be repeated.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists; name another file with --save") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        self._file = os.fdopen(number, "wb")
        self._write(head)

    def add(self, exchange: RecordedExchange) -> None:
        """Write an exchange."""
        self._write(exchange)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: CassetteHead | RecordedExchange) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def read(path: Path) -> Cassette:
    """Return a cassette; raises `ConfigError` that names the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    exchanges: list[RecordedExchange] = []
    try:
        head = msgspec.json.decode(lines[0] if lines else b"", type=CassetteHead)
        for line in lines[1:]:
            exchanges.append(msgspec.json.decode(line, type=RecordedExchange))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        number = len(exchanges) + 2 if len(lines) > 1 else 1
        raise ConfigError(f"{path.name}, line {number}: this is no cassette: {error}") from None
    if head.cassette != FORMAT:
        raise ConfigError(f"{path.name} is a cassette of format {head.cassette}, not {FORMAT}")
    # Written in the order in which they ended; replayed in the order in which they began.
    return Cassette(head, sorted(exchanges, key=lambda exchange: exchange.number))


def content(body: bytes, kind: str, redaction: CassetteRedaction) -> Content:
    """Return a body as it is recorded."""
    if not body:
        return Content()
    if kind.startswith(FORM):
        # Forms are requests for tokens.
        return Content(text=HIDDEN)
    value = parsed(body)
    if value is not UNSET:
        return Content(json=redaction.value(value))
    try:
        return Content(text=redaction.loose(body.decode()))
    except UnicodeDecodeError:
        return Content(raw=redaction.raw(body))


class Blocks:
    """Splits a stream into its events."""

    def __init__(self, redaction: CassetteRedaction) -> None:
        self._redaction = redaction
        self._held = b""
        self.found: list[Block] = []

    def feed(self, chunk: bytes, at: float) -> None:
        """Add bytes of the stream."""
        self._held += chunk
        while (end := _end(self._held)) >= 0:
            piece, self._held = self._held[:end], self._held[end:]
            self._add(piece, at)

    def finish(self, at: float) -> Sequence[Block]:
        """Return all blocks, including the rest of a broken event."""
        if self._held:
            self._add(self._held, at)
            self._held = b""
        return self.found

    def _add(self, piece: bytes, at: float) -> None:
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            self.found.append(Block(round(at, 3), raw=self._redaction.raw(piece)))
            return
        lines = [self._line(line) for line in text.split("\n")]
        self.found.append(Block(round(at, 3), "\n".join(lines)))

    def _line(self, line: str) -> str:
        name, colon, value = line.partition(":")
        if name != "data":
            return self._redaction.loose(line)
        plain = parsed(value.strip().encode())
        if plain is UNSET:
            return self._redaction.loose(line)
        hidden = self._redaction.value(plain)
        # Without secrets the text stays unchanged, byte for byte.
        if hidden == plain:
            return line
        return f"{name}{colon} {msgspec.json.encode(hidden).decode()}"


def _end(held: bytes) -> int:
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := held.find(mark)) >= 0]
    return min(ends, default=-1)
