"""Headers as HPACK has them (RFC 7541): those of callers are read with their table, ours are written
without one.

A table that answers shared would tell one caller of another's headers by their length.
"""

import logging
import re

from hpack import Decoder, HPACKError

from dragoman.http.grpc.frames import COMPRESSION_ERROR
from dragoman.http.request import MAX_HEADER_BYTES, MAX_HEADERS, Headers

# The bytes of a block, and what its headers come to with the 32 that HPACK adds for each.
MOST_BYTES = MAX_HEADER_BYTES
_MOST_UNPACKED = MAX_HEADER_BYTES + 32 * MAX_HEADERS
_MOST_REMEMBERED = 16
# A field that is in the table, named by one byte.
_NAMED_BY_A_BYTE = bytes(range(0x81, 0xFF))
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
_BAD_IN_VALUE = re.compile(rb"[\0\r\n]")

# It tells whole headers, with their secrets.
logging.getLogger("hpack").setLevel(logging.WARNING)


class ConnectionFault(Exception):
    """What ends a connection: one of the codes of HTTP/2."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class HeaderReader:
    """Reads the header blocks of one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=_MOST_UNPACKED)
        # Blocks that were read since the table last changed, and that do not change it.
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """Return the headers of a block, which are not to be changed; raises `ConnectionFault`."""
        found = self._known.get(block)
        if found is not None:
            return found
        try:
            headers: Headers = [
                (bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)
            ]
        except (HPACKError, IndexError, ValueError):
            raise ConnectionFault(COMPRESSION_ERROR) from None
        if block.translate(None, _NAMED_BY_A_BYTE):
            self._known.clear()
        elif len(self._known) < _MOST_REMEMBERED:
            self._known[block] = headers
        return headers


def are_well_formed(headers: Headers) -> bool:
    """Tell whether headers are such as HTTP/2 allows."""
    is_plain = False
    for name, value in headers:
        if _NAME.match(name) is None or _BAD_IN_VALUE.search(value) is not None:
            return False
        if name[0] != 0x3A:
            is_plain = True
        elif is_plain:
            # Those with a colon come first.
            return False
    return True


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
