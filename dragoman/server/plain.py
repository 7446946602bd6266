"""Requests so plain that they can be refused unread: one whole request, and nobody could take its
end to be elsewhere. Reading what is not answered is most of what a refusal costs.
"""

import os
import re
from hashlib import blake2b

# Heads that are remembered.
MAX_HEADS = 1024

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,5})\r\n")
_KEPT = b"\r\nconnection: keep-alive\r\n"


def is_plain(data: bytes) -> bool:
    """Tell whether these bytes are one whole request, and a plain one."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"POST /"):
        return False
    head = data[: end + 2].lower()
    length = _LENGTH.search(head)
    return (
        length is not None
        and len(data) == end + 4 + int(length[1])
        and head.count(b"content-length") == 1
        and head.count(b"\n") == head.count(b"\r\n")
        and 0 < head.find(b" http/1.1\r\n") < head.find(b"\r\n")
        # Other framing, a wait for our word, an end, or going on with a stream.
        and b"transfer-encoding" not in head
        and b"\r\nexpect" not in head
        and b"\r\nlast-event-id" not in head
        and (b"\r\nconnection" not in head or _KEPT in head)
    )


class Heads:
    """Heads of plain requests, which need not be looked at twice, in bounded memory.

    What is kept of one is a hash that nobody outside can compute: there are credentials in it.
    """

    def __init__(self) -> None:
        self._pepper = os.urandom(16)
        # How long the whole request is.
        self._lengths: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def find(self, data: bytes) -> bytes | None:
        """Return what the head is known by; None if this is not one whole plain request."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = blake2b(data[:end], digest_size=16, key=self._pepper).digest()
        length = self._lengths.get(head)
        if length is None:
            if not is_plain(data):
                return None
            if len(self._lengths) >= MAX_HEADS:
                self._lengths.clear()
            self._lengths[head] = length = len(data)
        return head if length == len(data) else None
