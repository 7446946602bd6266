"""Headers as HPACK has them (RFC 7541): those of callers are read with their table, ours are
written without one, lest their length tells what others were answered.

A block that is too large is read to its end all the same, for the next ones build on it, but
nothing of it is kept. One that grows without end, by naming what is in the table, is not.
"""

import re
from collections import deque

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from dragoman.http.grpc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from dragoman.http.request import MAX_HEADER_BYTES, MAX_HEADERS, Headers

# The largest block that is read at all.
MOST_BYTES = 2 * MAX_HEADER_BYTES
# What a block may grow to by naming fields of the table, and how many fields it may have: with more
# it is a bomb, and the connection ends.
_MOST_READ = 2 * MOST_BYTES
_MOST_FIELDS = 10 * MAX_HEADERS
_STATIC: Headers = [*HeaderTable.STATIC_TABLE]
_TABLE_BYTES = 4_096
# What HPACK adds to the length of each field of the table.
_ENTRY_BYTES = 32
_LONGEST_NUMBER = 28
# Blocks that are remembered, and how long each may be.
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 16, 2_048
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
# What a request says before its headers, and what of it is needed.
_OF_REQUESTS = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED = _OF_REQUESTS - {b":authority"}
# Headers of HTTP/1.1 that are about its connection.
_OF_CONNECTIONS = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_BAD_IN_VALUE = re.compile(rb"[\0\r\n]")


class HeaderBlock:
    """The headers of a block. Requests that begin alike share it: it is not to be changed."""

    __slots__ = ("headers", "is_too_large", "meaning")

    def __init__(self, headers: Headers, *, is_too_large: bool) -> None:
        self.headers = headers
        # Whether there are too many, and some are missing here.
        self.is_too_large = is_too_large
        # What their first reader made of them.
        self.meaning: object = None


class HeaderReader:
    """Reads the header blocks of one connection."""

    def __init__(self) -> None:
        # The newest field first; the length of all, and what it may be.
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._most = _TABLE_BYTES
        # Blocks that were read since the table last changed, and that do not change it.
        self._known: dict[bytes, HeaderBlock] = {}
        # Whether the block that is read changed the table, or what it may hold.
        self._has_changed = False

    def read(self, block: bytes) -> HeaderBlock:
        """Return what a block says; raises `ConnectionFault`."""
        found = self._known.get(block)
        if found is not None:
            return found
        self._has_changed = False
        try:
            found = self._decode(block)
        except (HPACKError, IndexError):
            raise ConnectionFault(COMPRESSION_ERROR) from None
        if self._has_changed:
            self._known.clear()
        elif len(self._known) < _MOST_REMEMBERED and len(block) <= _LONGEST_REMEMBERED:
            self._known[block] = found
        return found

    def _decode(self, block: bytes) -> HeaderBlock:
        headers: Headers = []
        at, end, size, count = 0, len(block), 0, 0
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = _number(block, at, 0x7F)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                self._most, at = _number(block, at, 0x1F)
                if self._most > _TABLE_BYTES or headers:
                    raise ConnectionFault(COMPRESSION_ERROR)
                self._has_changed = True
                self._shrink()
                continue
            else:
                index, at = _number(block, at, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                field = name, value
                if first & 0x40:
                    self._add(field)
            size += len(field[0]) + len(field[1])
            count += 1
            if size > _MOST_READ or count > _MOST_FIELDS:
                raise ConnectionFault(ENHANCE_YOUR_CALM)
            if size <= MAX_HEADER_BYTES and len(headers) <= MAX_HEADERS:
                headers.append(field)
        is_too_large = size > MAX_HEADER_BYTES or len(headers) > MAX_HEADERS
        return HeaderBlock(headers, is_too_large=is_too_large)

    def _field(self, index: int) -> tuple[bytes, bytes]:
        if index > len(_STATIC):
            return self._table[index - len(_STATIC) - 1]
        if not index:
            raise ConnectionFault(COMPRESSION_ERROR)
        return _STATIC[index - 1]

    def _add(self, field: tuple[bytes, bytes]) -> None:
        self._has_changed = True
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._most:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return a number whose beginning is under a mask, and where it ends."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > _LONGEST_NUMBER:
            raise ConnectionFault(COMPRESSION_ERROR)


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a text, and where it ends."""
    is_packed = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise ConnectionFault(COMPRESSION_ERROR)
    text = block[at:end]
    return (decode_huffman(text) if is_packed else text), end


def are_well_formed(block: HeaderBlock) -> bool:
    """Tell whether the headers of a request are such as HTTP/2 allows."""
    found: set[bytes] = set()
    is_plain = False
    for name, value in block.headers:
        if _NAME.match(name) is None or _BAD_IN_VALUE.search(value) is not None:
            return False
        if name[0] != 0x3A:
            is_plain = True
            if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
                return False
        elif is_plain or name in found or name not in _OF_REQUESTS:
            # Those with a colon come first, and each once.
            return False
        else:
            found.add(name)
            if name == b":path" and not value:
                return False
    return block.is_too_large or found >= _NEEDED


def are_trailers(block: HeaderBlock) -> bool:
    """Tell whether headers may end a request."""
    return all(name[:1] != b":" and _NAME.match(name) is not None for name, _ in block.headers)


def written(headers: Headers) -> bytes:
    """Return a block of headers that are not put into a table."""
    return b"".join(
        b"\0%b%b%b%b" % (_length(name), name, _length(value), value) for name, value in headers
    )


def _length(data: bytes) -> bytes:
    size = len(data)
    if size < 0x7F:
        return bytes((size,))
    size -= 0x7F
    more = bytearray(b"\x7f")
    while size > 0x7F:
        more.append(size & 0x7F | 0x80)
        size >>= 7
    more.append(size)
    return bytes(more)
