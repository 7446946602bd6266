"""The lines between the pieces of a chunked body, which the parser reads and does not show.

It takes any number of zeros before a size, and an extension of any length. Readers differ in what
they make of such a line, so those that no client writes are refused.
"""

# Hexadecimal digits of a size: as many as 64 bits have.
MAX_DIGITS = 16
# Bytes of one line, with the extension that may follow the size.
MAX_LINE_BYTES = 1024


class ChunkLines:
    """Follows one chunked body through the pieces in which it comes."""

    __slots__ = ("_is_ended", "_line", "_skips")

    def __init__(self) -> None:
        # What has come of a line, and the bytes that come before the next one.
        self._line = b""
        self._skips = 0
        self._is_ended = False

    def take(self, data: bytes, begin: int = 0) -> bool:
        """Look at what has come, and tell whether it is as it should be so far."""
        size = len(data)
        while not self._is_ended:
            if self._skips >= size - begin:
                self._skips -= size - begin
                return True
            begin += self._skips
            self._skips = 0
            end = data.find(b"\n", begin, begin + MAX_LINE_BYTES + 1)
            self._line += data[begin : end + 1 or begin + MAX_LINE_BYTES + 1]
            digits = self._line.partition(b";")[0].rstrip(b"\r\n")
            if len(digits) > MAX_DIGITS or len(self._line) > MAX_LINE_BYTES:
                return False
            if end < 0:
                return True
            begin = end + 1
            if not self._read_size(digits):
                # What is no size the parser refuses.
                return True
        return True

    def _read_size(self, digits: bytes) -> bool:
        self._line = b""
        try:
            chunk = int(digits, 16)
        except ValueError:
            self._is_ended = True
            return False
        # Its content has an end of line of its own. The last one is empty, and fields follow it.
        self._skips = chunk + 2
        self._is_ended = chunk == 0
        return True
