"""Which keys of messages the file may have, as bits in memory.

Most messages are new, and looking in the file whether one is took longer than any other step of
accepting it. A key whose bit is not set is certainly not in the file; one whose bit is set is
looked up there. That holds while this process is alone with the file and has read the keys that
are older than itself; otherwise every key is looked up.

While it holds, a new key is not put into the index of keys either: keys are random, so each would
be one more page of it to write. It is appended to a table without an index, and thousands of them
are moved together. Before other processes write to the file, all are moved.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import apsw

from dragoman.stores.sqlite.schema import run

# Seconds that no other process can write after a look at the file found none: a newcomer waits for
# longer before it takes a process for frozen that has not noticed it.
TRUSTED_FOR = 2.0
# Keys that are read from the file at a time, which takes the loop a millisecond.
READ_AT_ONCE = 2_000
# Keys that are moved into the index together. More of them cost less each, and keep writers waiting
# for longer: for some ten milliseconds.
INDEXED_AT_ONCE = 4_000
# Bytes at first and at most, and bits for each key before they are doubled.
_LEAST_BYTES = 64 * 1024
_MOST_BYTES = 4 * 1024 * 1024
_BITS_EACH = 16

# A key as it is stored: its scope, what it stands for, and when it was made.
KeyRow = tuple[int, bytes, int | None, bytes | None, int]
# Without a step of Python for each key.
_key_of: Callable[[KeyRow], bytes] = itemgetter(1)


class MessageKeys:
    """Keys that this process wrote or read; on the loop alone."""

    def __init__(self) -> None:
        # Those that may be beside the index, and those that may be on their way.
        self._fresh: set[bytes] = set()
        self._moving: set[bytes] = set()
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
        # Moving them may have failed, and those in the index alone are read again.
        for key in self._fresh | self._moving:
            self._note(key)

    def _note(self, key: bytes) -> None:
        bit = hash(key) & self._mask
        self._bits[bit >> 3] |= 1 << (bit & 7)
        self._count += 1

    def read(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Note keys of the file that come after the last one, with their scopes."""
        bits, mask = self._bits, self._mask
        for _, key in rows:
            bit = hash(key) & mask
            bits[bit >> 3] |= 1 << (bit & 7)
        self._count += len(rows)
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

    def is_new(self, key: bytes) -> bool:
        """Tell whether it is certain that the file does not have a key."""
        if time.monotonic() > self._trusted_until:
            return False
        bit = hash(key) & self._mask
        return not self._bits[bit >> 3] & 1 << (bit & 7)

    def take(self, rows: Sequence[KeyRow]) -> tuple[Sequence[KeyRow], Sequence[KeyRow]]:
        """Note keys that soon will be in the file; return those that go beside the index, and those
        that go into it. In the transaction that writes them: no other process can begin one now."""
        self._count += len(rows)
        bits, mask = self._bits, self._mask
        fresh: list[KeyRow] = []
        others: list[KeyRow] = []
        for row in rows:
            bit = hash(row[1]) & mask
            place, flag = bit >> 3, 1 << (bit & 7)
            before = bits[place]
            if before & flag:
                others.append(row)
            else:
                bits[place] = before | flag
                fresh.append(row)
        if time.monotonic() > self._trusted_until:
            return (), rows
        self._fresh.update(map(_key_of, fresh))
        return fresh, others

    def is_fresh(self, key: bytes) -> bool:
        """Tell whether a key may be beside the index: what was rolled back, or moved by another
        process, is not."""
        return key in self._fresh or key in self._moving

    @property
    def has_many_fresh(self) -> bool:
        """Whether it is time to move those that are beside the index."""
        return len(self._fresh) >= INDEXED_AT_ONCE

    def begin_indexing(self) -> set[bytes]:
        """Those that are beside the index are about to be moved, which may fail; return them."""
        self._moving |= self._fresh
        self._fresh = set()
        return set(self._moving)

    def end_indexing(self, moved: set[bytes]) -> None:
        """These are in the index. Others may wait for another move, which began meanwhile."""
        self._moving -= moved


def has_fresh_keys(connection: apsw.Connection, sql: Mapping[str, str]) -> bool:
    """Tell whether any keys are beside their index."""
    return bool(run(connection, sql["has_fresh_keys"])[0][0])


def index_keys(connection: apsw.Connection, sql: Mapping[str, str]) -> None:
    """Move the keys that are beside their index into it."""
    if has_fresh_keys(connection, sql):
        run(connection, sql["index_fresh_keys"])
        run(connection, sql["clear_fresh_keys"])
