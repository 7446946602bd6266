"""The files of the audit log: appended to by several processes at once, each under the lock.

A file that is full gets a number and the next one goes on with its chain; the highest number is
dropped. A line that a crash left unfinished stays where it is, and the next one tells of it.
"""

import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.security.audit.chain import (
    LARGEST_REMAINS,
    LONGEST_LINE,
    TORN,
    AuditEntry,
    ChainBroken,
    ChainHead,
    decode,
    digest_of,
    encode,
    starts_a_hole,
    timestamp,
)
from dragoman.security.audit.reading import MOST_TRIES, is_at, latest, numbered
from dragoman.security.private_files import lock, sync_folder

MAX_BYTES = 64 * 1024 * 1024
KEEP = 10
# More than a line can have, twice: the end of a file that was left in order.
_END = 2 * LONGEST_LINE


class AuditFile:
    """Appends to the chain; raises `OSError` where the disk does."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        # The file as we left it, and the end of its chain: (device, inode, size), head.
        self._last_state: tuple[tuple[int, int, int], ChainHead] | None = None

    def append(self, entries: Sequence[AuditEntry], unless_same: Sequence[AuditEntry] = ()) -> None:
        """Append lines, on the disk when this returns.

        `unless_same` are told unless the last line of the same act and object in the current file
        has the same reason.
        """
        for _ in range(MOST_TRIES):
            with self._locked() as descriptor:
                if not is_at(descriptor, self.path):
                    continue
                head = self._head(descriptor)
                if os.fstat(descriptor).st_size >= self._max_bytes and not head.remains:
                    self._rotate()
                    continue
                changed = [entry for entry in unless_same if not self._is_known(entry)]
                self._write(descriptor, head, [*entries, *changed])
                return
        raise OSError(f"{self.path} is replaced again and again")

    @contextmanager
    def _locked(self) -> Generator[int]:
        # For its owner alone: it names callers and addresses.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            lock(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, head: ChainHead, entries: Sequence[AuditEntry]) -> None:
        size = os.fstat(descriptor).st_size
        at, content = timestamp(time.time()), b"\n" if head.is_open else b""
        first: list[AuditEntry] = []
        if head.remains:
            # The line about them has to be the next one after them.
            reason = f"{len(head.remains)} bytes of a line that was never finished"
            first.append(AuditEntry(at, TORN, "found", "", digest_of(head.remains), reason))
        if head.note:
            first.append(AuditEntry(at, "audit.damaged", "found", reason=head.note))
        seq, digest = head.seq, head.hash
        for entry in [*first, *entries]:
            seq += 1
            line, digest = encode(seq, digest, entry)
            content += line
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            # Half a batch would be told twice, and half a line is a tear.
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        if not size:
            # The lines are written: telling them again would be worse.
            with suppress(OSError):
                sync_folder(self.path.parent)
        self._last_state = (_state(descriptor), ChainHead(seq, digest))

    def _head(self, descriptor: int) -> ChainHead:
        """Return the end of the chain, from memory if no process wrote since."""
        state = _state(descriptor)
        if self._last_state is not None and self._last_state[0] == state:
            return self._last_state[1]
        note = ""
        if self._last_state is not None:
            before = self._last_state[0]
            if before[:2] == state[:2] and state[2] < before[2]:
                note = f"the file has {before[2] - state[2]} bytes less than we left it with"
        remembered = self._last_state[1] if self._last_state else None
        head = _head_of(descriptor, state[2], remembered, note)
        if head.seq:
            return head
        # The chain goes on from the file before.
        for path in numbered(self.path):
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size and (before := _head_of(file.fileno(), size, None, note)).seq:
                    return before._replace(remains=head.remains, is_open=head.is_open)
        if remembered is None:
            return head
        # Its lines are gone; the next one says by its number that they were there.
        gone = note or "the file is gone that we wrote to"
        return remembered._replace(remains=head.remains, note=gone, is_open=head.is_open)

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            before = _number(self.path, number - 1) if number > 1 else self.path
            with suppress(FileNotFoundError):
                before.replace(_number(self.path, number))
        with suppress(OSError):
            sync_folder(self.path.parent)

    def _is_known(self, entry: AuditEntry) -> bool:
        last = latest(self.path, entry.act, entry.object)
        return last is not None and last.reason == entry.reason


def _head_of(descriptor: int, size: int, remembered: ChainHead | None, note: str) -> ChainHead:
    """Return the end of the chain in a file; 0 is the number of a line that is not there."""
    end = _read_end(descriptor, size, _END)
    if end.endswith(b"\n") and starts_a_hole(end) < 0:
        last = end[:-1].rpartition(b"\n")[2]
        try:
            line = decode(last)
        except ChainBroken:
            # Not ours to hide: verification finds the line, and this one after it.
            known = remembered or ChainHead(1, digest_of(last))
            return ChainHead(known.seq, known.hash, b"", note or "the last line was changed")
        return ChainHead(line.seq, line.hash, b"", note)
    end = _read_end(descriptor, size, LARGEST_REMAINS)
    hole = starts_a_hole(end)
    # Up to the last newline before what is none.
    whole = end[: hole if hole >= 0 else len(end)].rpartition(b"\n")[0]
    remains = end[len(whole) + 1 if whole else 0 :].removesuffix(b"\n")
    is_open = bool(end) and not end.endswith(b"\n")
    with suppress(ChainBroken):
        # Nothing but the newline is missing.
        line = decode(remains)
        return ChainHead(line.seq, line.hash, b"", note, is_open)
    if not whole:
        return ChainHead(remains=remains, note=note, is_open=is_open)
    last = whole.rpartition(b"\n")[2]
    try:
        line = decode(last)
    except ChainBroken:
        known = remembered or ChainHead(1, digest_of(last))
        return ChainHead(
            known.seq, known.hash, remains, note or "the last line was changed", is_open
        )
    return ChainHead(line.seq, line.hash, remains, note, is_open)


def _read_end(descriptor: int, size: int, most: int) -> bytes:
    at = max(size - most, 0)
    os.lseek(descriptor, at, os.SEEK_SET)
    content = b""
    while len(content) < size - at:
        block = os.read(descriptor, size - at - len(content))
        if not block:
            break
        content += block
    return content


def _state(descriptor: int) -> tuple[int, int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size


def _number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
