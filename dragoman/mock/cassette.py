"""A recorded conversation: JSON lines, the agent's card first and then one exchange each.

Addresses are written as `{base}`, which whoever serves the cassette fills with its own.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.errors import ConfigError
from dragoman.mock.redaction import FORM, HIDDEN, Redaction, parsed

FORMAT = 1
BASE = "{base}"


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body: as JSON, as text, or as bytes; nothing where there was none."""

    json: Any = UNSET
    text: str = ""
    raw: bytes = b""

    def encode(self) -> bytes:
        """Return it as it goes over a wire."""
        if self.json is not UNSET:
            return msgspec.json.encode(self.json)
        return self.text.encode() or self.raw


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a stream, seconds after its request came."""

    at: float
    text: str = ""
    raw: bytes = b""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request."""

    method: str
    path: str
    query: str = ""
    headers: dict[str, str] = {}
    body: Content = Content()


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer; a stream has blocks instead of a body."""

    status: int
    headers: dict[str, str] = {}
    body: Content = Content()
    blocks: list[Block] = []
    # Seconds until the head of it came.
    after: float = 0.0
    # Whether the connection broke before its end.
    cut: bool = False


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its answer."""

    number: int
    request: Asked
    response: Answered


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an interface of the agent is found on whoever serves the cassette."""

    path: str
    binding: str
    version: str


class Head(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a cassette begins with."""

    cassette: int
    recorded_at: str
    card: dict[str, Any]
    interfaces: list[Interface]


class Cassette(msgspec.Struct, frozen=True):
    """A recorded conversation."""

    head: Head
    exchanges: list[Exchange]


class Writer:
    """Writes a cassette as it happens, readable by its owner alone."""

    def __init__(self, path: Path, head: Head) -> None:
        try:
            # Never over an earlier one: a recording cannot be made again.
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists; name another file with --save") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        self._file = os.fdopen(number, "wb")
        self._write(head)

    def add(self, exchange: Exchange) -> None:
        """Write an exchange."""
        self._write(exchange)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: Head | Exchange) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def read(path: Path) -> Cassette:
    """Return a cassette; raises ConfigError that names the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    exchanges: list[Exchange] = []
    try:
        head = msgspec.json.decode(lines[0] if lines else b"", type=Head)
        for line in lines[1:]:
            exchanges.append(msgspec.json.decode(line, type=Exchange))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        number = len(exchanges) + 2 if len(lines) > 1 else 1
        raise ConfigError(f"{path.name}, line {number}: this is no cassette: {error}") from None
    if head.cassette != FORMAT:
        raise ConfigError(f"{path.name} is a cassette of format {head.cassette}, not {FORMAT}")
    # Written when they ended; they are played as they began.
    return Cassette(head, sorted(exchanges, key=lambda exchange: exchange.number))


def content(body: bytes, kind: str, redaction: Redaction) -> Content:
    """Return a body as it is written."""
    if not body:
        return Content()
    if kind.startswith(FORM):
        # What is sent as a form is how tokens are asked for.
        return Content(text=HIDDEN)
    value = parsed(body)
    if value is not UNSET:
        return Content(json=redaction.value(value))
    try:
        return Content(text=redaction.loose(body.decode()))
    except UnicodeDecodeError:
        return Content(raw=redaction.raw(body))


class Blocks:
    """Cuts a stream into its events as it comes."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = b""
        self.found: list[Block] = []

    def feed(self, chunk: bytes, at: float) -> None:
        """Take some bytes of the stream."""
        self._held += chunk
        while (end := _end(self._held)) >= 0:
            piece, self._held = self._held[:end], self._held[end:]
            self._add(piece, at)

    def finish(self, at: float) -> Sequence[Block]:
        """Return all there was, the rest of a broken event too."""
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
        # Untouched text stays byte for byte what it was.
        if hidden == plain:
            return line
        return f"{name}{colon} {msgspec.json.encode(hidden).decode()}"


def _end(held: bytes) -> int:
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := held.find(mark)) >= 0]
    return min(ends, default=-1)
