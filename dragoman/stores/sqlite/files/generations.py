"""Which file a write-ahead log belongs to: SQLite itself does not know.

SQLite applies any log that is whole to any file it lies beside, so a backup that is copied over
the file of a server that was killed is mixed with that server's log. Therefore a file has a
generation, a random number that changes when a process opens the file alone, and a count of the
renewals of leases since: each of them writes both into the log once more. The lock file lists the
generations that a file beside the present log may be of; a copy has one of its own.

The list is on disk before the file has a new generation, and is cut to that one once the file
itself has it: whenever a process dies, its own file is on the list.
"""

import os
import time
from pathlib import Path
from urllib.parse import quote

import apsw
import msgspec

from dragoman.errors import ConfigError
from dragoman.stores.sqlite.schema import queries, run, transaction

_SQL = queries("files/files.sql")
_BYTES = 16
# After the generation: how often leases were renewed in it.
_COUNTER_BYTES = 8
# What a file has that is older than generations, or has not got its tables yet.
NONE = b""
# On the list instead of a generation: the file needs no log.
_WHOLE = "whole"
# What a log begins with; without more there is nothing in it.
_LOG_HEAD = 32
_MOST = 4096
# How often a log is judged, as a process may begin between the list and the file; and seconds
# between two looks.
_LOOKS = 4
_BETWEEN_LOOKS = 0.05


class Mark(msgspec.Struct, frozen=True):
    """What tells a file from its copies, and a state of it from those before."""

    generation: bytes
    renewals: int = 0


def mark_of(connection: apsw.Connection) -> Mark:
    """Return the mark that a connection sees, log and all."""
    rows = run(connection, _SQL["generation"])
    value = bytes(rows[0][0]) if rows else NONE
    return Mark(value[:_BYTES], int.from_bytes(value[_BYTES:]))


def mark_in(path: Path) -> Mark | None:
    """Return the mark in the file itself, without its log; None: it cannot be told now."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)
    except apsw.Error:
        return None
    try:
        return mark_of(connection)
    except apsw.SQLError:
        # There is no such table yet.
        return Mark(NONE)
    except apsw.Error:
        # Another process may be bringing its log into the file.
        return None
    finally:
        connection.close()


def renew_generation(connection: apsw.Connection) -> None:
    """Give a file a generation of its own. In a transaction."""
    run(connection, _SQL["set_generation"], (os.urandom(_BYTES),))


class Generations:
    """The list of one lock file, for the process that has the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Of the file as we know it.
        self.current = NONE
        self.is_listed_alone = False

    def begin(self, connection: apsw.Connection, lock: int, *, had_log: bool) -> None:
        """Give the file a new generation; we are alone with it, and it had a log or not."""
        before = self.current = mark_of(connection).generation
        if had_log and before and _listed(os.pread(lock, _MOST, 0)) != [before]:
            # The process before us died before its generation was in the file. It stays, or the
            # list would grow with each one that dies so early.
            return
        self.current = os.urandom(_BYTES)
        own = mark_in(self._path) or Mark(NONE)
        _write(lock, [own.generation, before, self.current])
        with transaction(connection):
            run(connection, _SQL["set_generation"], (self.current,))

    def join(self, connection: apsw.Connection) -> None:
        """Learn the generation of a file that others use."""
        self.current = mark_of(connection).generation
        self.is_listed_alone = True

    def count_renewal(self, connection: apsw.Connection) -> None:
        """Have the log say which generation it is of, and how old. In a transaction."""
        found = mark_of(connection)
        if found.generation:
            renewals = (found.renewals + 1).to_bytes(_COUNTER_BYTES)
            run(connection, _SQL["set_generation"], (found.generation + renewals,))

    def settle(self, lock: int) -> None:
        """Take the generations before ours off the list, once the file itself has ours."""
        if self.current and not self.is_listed_alone:
            _write(lock, [self.current])
            self.is_listed_alone = True

    def close_whole(self, lock: int) -> None:
        """Say that the file has everything, so that a log beside it is not its own."""
        _replace(lock, f"{_WHOLE}\n")


def has_log(path: Path) -> bool:
    """Tell whether there is a log with anything in it beside a file."""
    try:
        return os.stat(f"{os.path.realpath(path)}-wal").st_size > _LOG_HEAD
    except OSError:
        return False


def check_log(path: Path) -> None:
    """Refuse a file beside the log of another one, before SQLite applies it."""
    for _ in range(_LOOKS):
        listed = _list_of(path)
        if not listed or not has_log(path) or _is_own_log(path, listed):
            return
        # A server may be starting on it just now.
        time.sleep(_BETWEEN_LOOKS)
    raise ConfigError(_foreign(path))


def _is_own_log(path: Path, listed: list[bytes]) -> bool:
    """Tell whether the file is one that the log was written for, by itself and with the log."""
    own = mark_in(path)
    if own is not None and own.generation not in listed:
        return False
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return mark_of(connection).generation in listed
    except apsw.Error:
        # The file as a whole cannot be read, or not now: the next to open it says why.
        return True
    finally:
        connection.close()


def _foreign(path: Path) -> str:
    return (
        f"{path}: the log {path.name}-wal beside it was written for another file, and would damage "
        f"it; if you restored a backup, move {path.name}-wal and {path.name}-shm away, and if you "
        f"restored file and log together, move {path.name}.lock away"
    )


def _list_of(path: Path) -> list[bytes]:
    try:
        with open(f"{os.path.realpath(path)}.lock", "rb") as file:
            return _listed(file.read(_MOST))
    except OSError:
        return []


def _listed(text: bytes) -> list[bytes]:
    """Return what a lock file lists; nothing if it is of an earlier release."""
    found: list[bytes] = []
    for word in text.decode("ascii", "replace").split():
        if word == _WHOLE:
            return [_WHOLE.encode()]
        try:
            found.append(NONE if word == "-" else bytes.fromhex(word))
        except ValueError:
            return []
    return found


def _write(lock: int, generations: list[bytes]) -> None:
    _replace(lock, "".join(f"{one.hex() or '-'}\n" for one in dict.fromkeys(generations)))


def _replace(lock: int, text: str) -> None:
    """Write into the lock file as it is: another file would be another lock."""
    os.pwrite(lock, text.encode(), 0)
    os.ftruncate(lock, len(text))
    os.fsync(lock)
