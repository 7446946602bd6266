"""Bodies that a peer packed although it was asked not to, unpacked no further than they are read.

A few bytes may unpack to gigabytes, so every step has a bound, and the reader decides about the
next one.
"""

import zlib
from collections.abc import Iterator

from dragoman.egress.http1 import WireError

_STEP = 256 * 1024
# With a head of gzip, and with that of zlib.
_GZIP, _ZLIB, _RAW = 31, 15, -15


class NotUnpacked(WireError):
    """The answer is packed in a way we do not know, or is damaged."""


class Unpacker:
    """Unpacks one body; `encoding` is what the peer says of it."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower().removeprefix("x-")
        if self._encoding not in ("gzip", "deflate"):
            raise NotUnpacked
        self._stream = zlib.decompressobj(_GZIP)
        # Made anew when the first byte is here, which says what kind of deflate is meant.
        self._is_begun = False

    def unpack(self, packed: bytes) -> Iterator[bytes]:
        """Yield what a piece unpacks to, in pieces of bounded length; raises NotUnpacked."""
        while packed:
            if not self._is_begun:
                self._is_begun = True
                self._stream = zlib.decompressobj(self._bits(packed))
            try:
                out = self._stream.decompress(packed, _STEP)
            except zlib.error:
                raise NotUnpacked from None
            packed = self._stream.unconsumed_tail
            if self._stream.eof:
                # One archive may follow another; of anything else there is nothing to say.
                packed = self._stream.unused_data if self._encoding == "gzip" else b""
                self._is_begun = not packed
            if out:
                yield out

    def finish(self) -> None:
        """Say that all has come; raises NotUnpacked when that cannot be."""
        if self._is_begun and not self._stream.eof:
            raise NotUnpacked

    def _bits(self, first: bytes) -> int:
        if self._encoding == "gzip":
            return _GZIP
        # Some send what the name promises, others what the standard means by it.
        return _ZLIB if first[0] & 0x0F == 8 else _RAW
