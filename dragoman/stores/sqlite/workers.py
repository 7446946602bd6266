"""The processes that share the file: which of them live, and whether we are alone.

A process that ends drops its locks, however it ends: the others see that at once. One that is only
frozen keeps them, and is taken for dead when it has not renewed its lease in time. Time is the
machine's own clock since it started: a change of the date does not matter. A lease that ends later
than any could was given before the machine started again.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from dragoman.errors import ConfigError
from dragoman.stores.sqlite.schema import queries, run, transaction

try:
    import fcntl
except ImportError:  # no such locks on this system: leases end by time alone
    fcntl = None


_SQL = queries("workers.sql")


def machine_time() -> int:
    """Return milliseconds since the machine started."""
    return time.monotonic_ns() // 1_000_000


class Workers:
    """Our place among the workers of one file."""

    def __init__(self, path: Path, lease: float, clock: Callable[[], int]) -> None:
        # By whichever link the file is opened: all who use it have the same locks.
        self._path = Path(os.path.realpath(path))
        self._lease = int(lease * 1000)
        self._clock = clock
        self.number = 0
        # How often others had taken us for dead.
        self.lapses = 0
        self._own: int | None = None
        self._shared: int | None = None

    def join(self, connection: apsw.Connection) -> None:
        """Become a worker; from here on the others know of us."""
        self._shared = _open(f"{self._path}.lock")
        with transaction(connection):
            self._tidy(connection)
            rows = run(
                connection,
                _SQL["add"],
                (self._clock() + self._lease, self._lease),
            )
            self.number = int(rows[0][0])
            # Before any process can see the row: one that sees it may ask for the lock.
            self._own = _open(self._lock_of(self.number))
            _lock(self._own, exclusive=True)

    def leave(self, connection: apsw.Connection) -> None:
        """Release everything in good order: the tasks have no holder, and no attempt is lost."""
        # Tasks that rest have no live holder once we have no row.
        for name in ("release_tasks", "release_pushes", "release_duties", "remove"):
            run(connection, _SQL[name], (self.number,))

    def close(self) -> None:
        """Drop the locks."""
        if self._own is not None:
            os.close(self._own)
            Path(self._lock_of(self.number)).unlink(missing_ok=True)
        if self._shared is not None:
            os.close(self._shared)
        self._own = self._shared = None

    @property
    def lock(self) -> int:
        """The lock file that all workers share; only after `join`."""
        assert self._shared is not None
        return self._shared

    def files(self) -> dict[str, int]:
        """Return the lock files that we hold, by their names."""
        assert self._own is not None
        return {f"{self._path}.lock": self.lock, self._lock_of(self.number): self._own}

    def try_alone(self) -> bool:
        """Keep others from beginning to write until we say so; false if any is there already."""
        return self._shared is not None and _lock(self._shared, exclusive=True)

    def try_shared(self) -> bool:
        """Write along with the others; false while one still believes to be alone."""
        return self._shared is not None and _lock(self._shared, exclusive=False)

    def renew(self, connection: apsw.Connection) -> None:
        """Prolong our lease, also if it was taken for lapsed."""
        self.lapses += not self.is_listed(connection)
        run(
            connection,
            _SQL["renew"],
            (self.number, self._clock() + self._lease, self._lease),
        )

    def is_listed(self, connection: apsw.Connection) -> bool:
        """Tell whether we have a row: if not, others took us for dead."""
        return bool(run(connection, _SQL["is_listed"], (self.number,)))

    def others(self, connection: apsw.Connection) -> list[int]:
        """Return the other workers that have a row, dead or alive."""
        rows = run(connection, _SQL["others"], (self.number,))
        return [int(number) for (number,) in rows]

    def is_live(self, connection: apsw.Connection, number: int) -> bool:
        """Tell whether a worker's lease is valid."""
        if number == self.number:
            return True
        rows = run(connection, _SQL["lease"], (number,))
        if not rows:
            return False
        expires, lease = rows[0]
        # Its own lease and not ours: processes may be started with different ones.
        return 0 < expires - self._clock() <= lease and not self._is_gone(number)

    def reap(self, connection: apsw.Connection, number: int) -> None:
        """Remove a dead worker's row, unless it has come back to life."""
        if not self.is_live(connection, number):
            run(connection, _SQL["remove"], (number,))
            run(connection, _SQL["release_duties"], (number,))
            if self._is_gone(number):
                Path(self._lock_of(number)).unlink(missing_ok=True)

    def leader(self, connection: apsw.Connection, duty: str) -> int:
        """Return the worker that has a duty; 0: none that lives has."""
        for (number,) in run(connection, _SQL["leader"], (duty,)):
            if self.is_live(connection, number):
                return int(number)
        return 0

    def take_duty(self, connection: apsw.Connection, duty: str) -> bool:
        """Have a duty unless another worker that lives has it."""
        leader = self.leader(connection, duty)
        if not leader:
            run(connection, _SQL["take_duty"], (duty, self.number))
        return leader in (0, self.number)

    def _tidy(self, connection: apsw.Connection) -> None:
        """Remove lock files of processes that ended after they had been reaped."""
        prefix = f"{self._path.name}.worker-"
        listed = {number for (number,) in run(connection, _SQL["numbers"])}
        for name in os.listdir(self._path.parent):
            digits = name.removeprefix(prefix)
            if name == digits or not digits.isdecimal() or int(digits) in listed:
                continue
            if self._is_gone(int(digits)):
                (self._path.parent / name).unlink(missing_ok=True)

    def _is_gone(self, number: int) -> bool:
        """Tell whether the process has certainly ended."""
        if fcntl is None:
            return False
        try:
            lock = os.open(self._lock_of(number), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return _lock(lock, exclusive=True)
        finally:
            os.close(lock)

    def _lock_of(self, number: int) -> str:
        return f"{self._path}.worker-{number}"


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be opened ({error.strerror}); give this user the right to"
        ) from None


def _lock(file: int, *, exclusive: bool) -> bool:
    """Take a lock without waiting; a lock of the other kind on the same file is exchanged."""
    if fcntl is None:
        return not exclusive
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without such locks: leases end by time alone.
        return not exclusive
    return True
