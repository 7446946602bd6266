"""Whether the files of an open store are still the ones that were opened.

SQLite goes on in a file that was deleted or replaced, and what it writes there is lost with the
process. So each renewal of the lease looks: at which files have the names, and at the first bytes
of the file and both ends of its log. All of it is read through SQLite's own descriptors: to close
one of our own would drop the locks this process has on the file.
"""

import os
from enum import Enum
from pathlib import Path

import apsw
import msgspec

from dragoman.stores.sqlite.files.generations import mark_in, mark_of
from dragoman.stores.sqlite.schema import APPLICATION_ID, run

_MAGIC = b"SQLite format 3\0"
_LOG_MAGIC = (0x377F0682, 0x377F0683)
_HEAD_BYTES = 100
_LOG_HEAD = 32
_FRAME_HEAD = 24
# Frames of the log that one look reads at most, about.
_SAMPLES = 200


class StoreFilePart(Enum):
    """What of a store is lost."""

    FILE = "file"
    # The log has lost its name, but SQLite still has it open.
    LOG_NAME = "log name"
    LOG = "log"
    LOCK = "lock"


class Loss(msgspec.Struct, frozen=True):
    """What happened to a store, for its operator."""

    part: StoreFilePart
    what: str

    def sentence(self, *, is_rescued: bool = False) -> str:
        """Say what happened, what is lost and what to do."""
        if self.part is StoreFilePart.FILE:
            advice = (
                "what was acknowledged since then is lost; stop every server on it, put the file "
                "back or restore a backup (dragoman backup --help), then start again"
            )
        elif self.part is StoreFilePart.LOCK or is_rescued:
            advice = "nothing that was acknowledged is lost; start the server again"
        else:
            advice = (
                "what was acknowledged lately may be lost; start the server again, or restore a "
                "backup (dragoman backup --help)"
            )
        return f"{self.what}; {advice}"


class _Head(msgspec.Struct, frozen=True):
    """The first bytes of the file itself, as of the last time its log was brought into it."""

    is_ours: bool
    bytes: int


_Identity = tuple[int, int]


class FileWatch:
    """The files of one store, as they were when it was opened."""

    def __init__(self, path: Path, generation: bytes, locks: dict[str, int]) -> None:
        real = os.path.realpath(path)
        self._path = path
        self._generation = generation
        self._log = f"{real}-wal"
        # Each name, what it means that another file has it, and which one it was. The worst first.
        self._files = {
            str(path): (StoreFilePart.FILE, _identity(os.stat(path))),
            self._log: (StoreFilePart.LOG_NAME, _identity(os.stat(self._log))),
            f"{real}-shm": (StoreFilePart.LOCK, _identity(os.stat(f"{real}-shm"))),
        }
        for name, lock in locks.items():
            self._files[name] = (StoreFilePart.LOCK, _identity(os.fstat(lock)))
        self._size = 0
        self._head: _Head | None = None
        # The log as of the last look: what its frames have in common, and how many there are.
        self._salts = b""
        self._frames = 1
        # Whether the file itself has had our generation, and how old it was.
        self.is_settled = False
        self._renewals = 0

    def loss(self, connection: apsw.Connection) -> Loss | None:
        """Return what is not as it was, if anything is. Cheap: a few looks at names and heads."""
        misplaced = self._misplaced()
        if misplaced is not None and misplaced.part is StoreFilePart.FILE:
            return misplaced
        # What is worse comes first.
        return self._overwritten(connection) or self._log_loss(connection) or misplaced

    # Which files have the names

    def _misplaced(self) -> Loss | None:
        for name, (part, before) in self._files.items():
            if what := _changed(name, before):
                return Loss(part, f"{name} {what}")
        return None

    # The file itself

    def _overwritten(self, connection: apsw.Connection) -> Loss | None:
        try:
            size = os.stat(self._path).st_size
            whole, head = connection.read("main", 0, 0, _HEAD_BYTES)
        except (OSError, apsw.Error) as error:
            return Loss(StoreFilePart.FILE, f"{self._path} cannot be read any more ({error})")
        found = _head_of(head) if whole else None
        if what := self._judged(found, size) or self._judged_contents(connection):
            return Loss(StoreFilePart.FILE, f"{self._path} {what}")
        self._head, self._size = found, size
        return None

    def _judged(self, found: _Head | None, size: int) -> str:
        """Say what is wrong with the file, given its head; empty: nothing."""
        if found is None:
            return "was overwritten or cut off"
        before = self._head
        if before is not None:
            if before.is_ours and not found.is_ours:
                return "was overwritten with another database"
            if size < self._size and size < found.bytes:
                return "was cut off"
        return self._judged_mark()

    def _judged_mark(self) -> str:
        if not self._generation:
            return ""
        found = mark_in(self._path)
        if found is None:
            # The log is on its way into the file, or the process that brought it there died.
            return ""
        if found.generation == self._generation:
            if found.renewals < self._renewals:
                return "was overwritten with an earlier state of it"
            self.is_settled, self._renewals = True, found.renewals
        elif self.is_settled:
            return "was overwritten with a copy or a backup"
        return ""

    def _judged_contents(self, connection: apsw.Connection) -> str:
        """Say what is wrong with what SQLite sees, log and all: another program may have restored
        something through SQLite itself, which is in order but not our store."""
        try:
            is_ours = not self._generation or mark_of(connection).generation == self._generation
        except apsw.SQLError:
            is_ours = False
        except apsw.Error:
            # The log may be what is lost; that is found next.
            return ""
        return "" if is_ours else "was overwritten with something else"

    # Its log

    def _log_loss(self, connection: apsw.Connection) -> Loss | None:
        try:
            ((_, frames, _),) = run(connection, "PRAGMA wal_checkpoint(noop)")
            if frames <= 0:
                return None
            what = self._judged_log(connection, frames)
        except apsw.BusyError:
            # Another process puts the log's index in order.
            return None
        except apsw.Error as error:
            return Loss(StoreFilePart.LOG, f"{self._log} cannot be read any more ({error})")
        return Loss(StoreFilePart.LOG, f"{self._log} {what}") if what else None

    def _judged_log(self, connection: apsw.Connection, frames: int) -> str:
        whole, head = connection.read("main", 1, 0, _LOG_HEAD)
        if not whole or int.from_bytes(head[:4]) not in _LOG_MAGIC:
            return "was overwritten or cut off"
        page, salts = int.from_bytes(head[8:12]), head[16:24]
        # With other salts the log was begun anew; else it goes on where we were.
        first = self._frames if salts == self._salts and self._frames <= frames else 1
        numbers = _sampled(first, frames)
        if any(_frame_salts(connection, page, number) != salts for number in numbers):
            return "was overwritten or cut off"
        self._salts, self._frames = salts, frames
        return ""


def _sampled(first: int, last: int) -> list[int]:
    """Return numbers of frames, the last one too. Not all of them: what a look costs is not to grow
    with what was written."""
    return [*range(first, last, max(1, (last - first) // _SAMPLES)), last]


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _changed(name: str, before: _Identity) -> str:
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"is out of reach ({error.strerror})"
    return "" if _identity(found) == before else "was replaced by another file"


def _head_of(head: bytes) -> _Head | None:
    if not head.startswith(_MAGIC):
        return None
    page = int.from_bytes(head[16:18])
    size = int.from_bytes(head[28:32]) * (65_536 if page == 1 else page)
    is_ours = int.from_bytes(head[68:72]) == APPLICATION_ID
    return _Head(is_ours, size)


def _frame_salts(connection: apsw.Connection, page: int, number: int) -> bytes:
    """Return what a frame has in common with the others; nothing if the log ends before it."""
    at = _LOG_HEAD + (number - 1) * (_FRAME_HEAD + page)
    whole, head = connection.read("main", 1, at, _FRAME_HEAD)
    return head[8:16] if whole else b""
