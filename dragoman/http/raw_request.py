"""The bytes of a request that the parser reads and does not show: the request line as it was
written, the size of a head that is still coming, the lines between the chunks of a body."""

from dragoman.http.head_rules import BAD_FRAMING, BAD_LINE, HeadRefused
from dragoman.http.request import MAX_HEADER_BYTES, MAX_URL_BYTES

# What chunks may take besides their content, and besides as much again as that.
MAX_FRAMING_BYTES = 64 * 1024
# Hexadecimal digits of a size: as many as 64 bits have.
MAX_DIGITS = 16
# Bytes of one line, with the extension that may follow the size.
MAX_LINE_BYTES = 1024


class ChunkLines:
    """Follows one chunked body through the pieces in which it comes.

    The parser takes any number of zeros before a size, and an extension of any length. Readers
    differ in what they make of such a line, so those that no client writes are refused.
    """

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


class RawRequest:
    """Follows the request that is being read from one connection."""

    __slots__ = ("_before", "_chunks", "_data", "_head_at", "_piece", "_slack", "received")

    def __init__(self) -> None:
        # What came before in the head that is being read; the piece that is being parsed, and how
        # far into both the last head began.
        self._before = bytearray()
        self._data = b""
        self._head_at = 0
        # Follows a chunked body.
        self._chunks: ChunkLines | None = None
        # Bytes of the request in this and earlier pieces, and of this piece; where the request
        # began within a piece, `_slack` is how long that piece was: the parser does not say where.
        self.received = self._piece = self._slack = 0

    @property
    def most(self) -> int:
        """At most so many bytes of the request have come."""
        return self.received + self._slack

    @property
    def begins(self) -> bytes:
        """How the request begins, if it began with the piece that is being parsed."""
        return self._data if self.received == self._piece and not self._slack else b""

    def begin(self) -> None:
        """A request begins with the next piece."""
        self.received = self._slack = 0

    def end(self) -> None:
        """A request was read; another one may follow in the same piece."""
        self._chunks = None
        self.received, self._slack = 0, self._piece

    def take(self, data: bytes) -> bool:
        """Count a piece, and tell whether the lines between chunks are as they should be so far."""
        self._piece = len(data)
        self.received += self._piece
        self._data, self._head_at = data, 0
        return self._chunks is None or self._chunks.take(data)

    def replace(self, data: bytes) -> None:
        """Parse these bytes instead of the piece, of which they are made."""
        self._before = bytearray()
        self._data, self._head_at = data, 0

    def keep(self, *, is_head: bool) -> None:
        """The piece was parsed; keep what has come of a head that is not complete."""
        if is_head:
            # From behind the last request line that was found.
            self._before += self._data
            del self._before[: self._head_at]
        elif self._before:
            self._before = bytearray()
        self._data = b""

    def check_line(self, method: bytes, url: bytes, version: str) -> None:
        """Refuse a request line that was not written with single spaces: the parser skips more."""
        # Most requests begin with their piece.
        if not self._head_at and self._data.startswith(b"%b %b HTTP/1." % (method, url)):
            self._head_at = 1
            return
        line = b"%b %b HTTP/%b\r\n" % (method, url, version.encode())
        head = self._before + self._data if self._before else self._data
        found = head.find(line, self._head_at)
        if found < 0:
            raise HeadRefused(BAD_LINE)
        self._head_at = found + len(line)

    def begin_chunks(self) -> None:
        """Look at the lines of a chunked body from here on."""
        self._chunks = ChunkLines()
        head = self._before + self._data if self._before else self._data
        begin = head.find(b"\r\n\r\n", max(0, self._head_at - 2)) + 4
        if not self._chunks.take(bytes(head), begin):
            raise HeadRefused(BAD_FRAMING)

    def is_head_too_long(self) -> bool:
        """Tell whether more has come of a head than one may have."""
        return self.received > MAX_HEADER_BYTES + MAX_URL_BYTES + self._slack

    def is_framing_too_long(self, body_bytes: int) -> bool:
        """Tell whether more has come around the chunks of a body than anyone needs."""
        around = self.received - 2 * body_bytes - self._slack
        return around > MAX_HEADER_BYTES + MAX_FRAMING_BYTES
