"""Heads of requests that a connection has read before, so that their requests need no parser.

A head is known by its bytes, all but the digits of its length: those of a request that was read by
the strict parser, in one piece, and answered. A request with a known head goes straight to what
answered the one before, which judges again whatever can change.
"""

import re
from collections.abc import Mapping

import msgspec

from dragoman.http.exchange import KnownRequest
from dragoman.model.patterns import late_pattern

# How many heads one connection knows, and the bytes and fields of each: they contain credentials,
# as the fields of the last request do, and are kept no longer than the connection.
MAX_HEADS = 16
MAX_HEAD_BYTES = 1024
MAX_FIELDS = 32
# Heads that all connections know together: beyond that each knows one.
MAX_ALL_HEADS = 16_384

_LENGTH_DIGITS = 5
_LENGTH = late_pattern(rb"\r\ncontent-length: ([0-9]{1,%d})\r\n" % _LENGTH_DIGITS, re.IGNORECASE)


class WholeRequest(msgspec.Struct, frozen=True):
    """The bytes of exactly one request, taken apart."""

    # Its head; one with a length is without the digits of it and without the empty line at the end.
    key: bytes
    body: bytes

    def __repr__(self) -> str:
        # The head has the credential of its sender.
        return "WholeRequest(...)"


def whole_request(data: bytes) -> WholeRequest | None:
    """Return what one whole request with a small head is known by, and its body; None: these bytes
    are less, more, or something else.

    Whether the head is a good one is not looked at. Among good ones, which name their length once,
    two with the same key differ in the digits of it and in nothing else.
    """
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
    if end == 3:
        return None
    found = _LENGTH.search(data, 0, end)
    if found is None:
        return WholeRequest(data, b"") if len(data) == end else None
    begin, behind = found.span(1)
    if len(data) - end != int(data[begin:behind]):
        return None
    # Without the empty line, so that no head with an empty length is taken for it.
    return WholeRequest(data[:begin] + data[behind : end - 2], data[end:])


def head_key(data: bytes, fields: Mapping[bytes, bytes], count: int) -> bytes:
    """Return what the head of a request that was parsed is known by; empty: it is not one to be
    known. `fields` say where it ends, and `count` is how many it has in all."""
    if b"transfer-encoding" in fields or count > MAX_FIELDS:
        return b""
    whole = whole_request(data)
    # The same length as the parser found, so that no reader could place the end elsewhere.
    length = fields.get(b"content-length", b"0")
    if whole is None or len(length) > _LENGTH_DIGITS or len(whole.body) != int(length):
        return b""
    return whole.key


class HeadTotal:
    """How many heads all connections of a process know."""

    count = 0


class KnownHeads:
    """The heads that one connection knows."""

    __slots__ = ("_known", "_last", "_last_head", "_last_length", "_total")

    def __init__(self, total: HeadTotal) -> None:
        self._total = total
        self._known: dict[bytes, KnownRequest] = {}
        # The last one that was found, with its length, and the bytes of the whole request.
        self._last: KnownRequest | None = None
        self._last_head = b""
        self._last_length = 0

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: bytes, request: KnownRequest) -> None:
        """Know a head from here on; the one that was known first makes room."""
        known = self._known
        if key not in known:
            if len(known) >= MAX_HEADS or (known and self._total.count >= MAX_ALL_HEADS):
                del known[next(iter(known))]
            else:
                self._total.count += 1
        known[key] = request
        # It may have been the one that made room, or what this one replaces.
        self._last = None

    def find(self, data: bytes) -> tuple[KnownRequest, bytes] | None:
        """Return what answered a request with the same head, and the body of this one; None: it is
        not one whole request with a known head."""
        last, head = self._last, self._last_head
        if last is not None and len(data) == self._last_length and data.startswith(head):
            # One that is repeated is as long each time.
            return last, data[len(head) :]
        if not self._known:
            return None
        whole = whole_request(data)
        known = None if whole is None else self._known.get(whole.key)
        if whole is None or known is None:
            return None
        self._last, self._last_length = known, len(data)
        self._last_head = data[: len(data) - len(whole.body)]
        return known, whole.body

    def clear(self) -> None:
        """Know none."""
        self._total.count -= len(self._known)
        self._known.clear()
        self._last = None
