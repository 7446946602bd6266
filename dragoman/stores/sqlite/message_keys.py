"""Which keys of messages the file may have, as bits in memory.

Most messages are new, and looking in the file whether one is took longer than any other step of
accepting it. A key whose bit is not set is certainly not in the file; one whose bit is set is
looked up there. That holds while this process is alone with the file and has read the keys that
are older than itself; otherwise every key is looked up.
"""

import time
from collections.abc import Sequence

# Seconds that no other process can write after a look at the file found none: a newcomer waits for
# longer before it takes a process for frozen that has not noticed it.
TRUSTED_FOR = 2.0
# Keys that are read from the file at a time, which takes the loop a millisecond.
READ_AT_ONCE = 2_000
# Bytes at first and at most, and bits for each key before they are doubled.
_LEAST_BYTES = 64 * 1024
_MOST_BYTES = 4 * 1024 * 1024
_BITS_EACH = 16


class MessageKeys:
    """Keys that this process wrote or read; on the loop alone."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: another process may write keys."""
        self._bits = bytearray(_LEAST_BYTES)
        self._mask = 8 * _LEAST_BYTES - 1
        self._count = 0
        # Whether all keys that the file had were read, and the scope and the key read last.
        self.is_complete = False
        self.last: tuple[int, bytes] = (0, b"")
        # Until when no other process can have written a key, by the monotonic clock.
        self._trusted_until = 0.0

    def read(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Note keys of the file that come after the last one, with their scopes."""
        self.add([key for _, key in rows])
        self.is_complete = len(rows) < READ_AT_ONCE
        if rows:
            self.last = rows[-1]

    def trust(self, looked_at: float) -> None:
        """No other process had the file when it was looked at."""
        while self._count * _BITS_EACH > self._mask and len(self._bits) < _MOST_BYTES:
            # Each key has a bit in both halves then; those to come have one in either.
            self._bits += bytes(self._bits)
            self._mask = 2 * self._mask + 1
        if self.is_complete:
            self._trusted_until = looked_at + TRUSTED_FOR

    def may_have(self, key: bytes) -> bool:
        """Tell whether the file may have a key."""
        if time.monotonic() > self._trusted_until:
            return True
        bit = hash(key) & self._mask
        return self._bits[bit >> 3] >> (bit & 7) & 1 == 1

    def add(self, keys: Sequence[bytes]) -> None:
        """Note keys that are in the file, or soon will be."""
        bits, mask = self._bits, self._mask
        for key in keys:
            bit = hash(key) & mask
            bits[bit >> 3] |= 1 << (bit & 7)
        self._count += len(keys)
