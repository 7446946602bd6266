"""How long the headers of an rpc are, read off the frames of HTTP/2 while they pass.

gRPC has a limit of its own, and refuses what is above it in due form. But it takes in headers that
never end before it says so, and each of them costs more than a byte that passes by here.
"""

from dragoman.http.request import MAX_HEADER_BYTES

# What gRPC refuses itself may pass.
MOST_BYTES = 4 * MAX_HEADER_BYTES
_FRAME_HEAD = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS = 0x4


class HeaderBlocks:
    """Follows the frames of one connection, from its preface on."""

    def __init__(self, preface: int) -> None:
        """`preface` is the length of what comes before the first frame."""
        # Bytes until the next frame begins, the beginning of a head that came in pieces, and the
        # length of the headers that have not ended.
        self._left = preface
        self._head = b""
        self._open = 0

    def takes(self, data: bytes) -> bool:
        """Tell whether what came next may pass."""
        if self._head:
            data = self._head + data
            self._head = b""
        at, end = self._left, len(data)
        while at + _FRAME_HEAD <= end:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind = data[at + 3]
            at += _FRAME_HEAD
            if kind in (_HEADERS, _CONTINUATION):
                # Empty frames count too.
                self._open += length + _FRAME_HEAD
                if self._open > MOST_BYTES:
                    return False
                if data[at - _FRAME_HEAD + 4] & _END_HEADERS:
                    self._open = 0
            at += length
        if at < end:
            self._head = data[at:]
            self._left = 0
        else:
            self._left = at - end
        return True
