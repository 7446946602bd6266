"""What tools read of a store's file besides its tasks: facts for an operator, judged elsewhere.

The file is opened for reading alone and the reader is no worker of it, so servers that use the file
neither wait nor notice. Contents of messages are never read.
"""

import shlex
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from dragoman.errors import ConfigError
from dragoman.stores.columns import dead_letter, receiver_line
from dragoman.stores.interface import DeadLetter, Push
from dragoman.stores.interface.inspection import NoteFacts, OrphanFacts, ReceiverFacts, WorkerFacts
from dragoman.stores.sqlite.files.generations import check_log
from dragoman.stores.sqlite.files.leftovers import check_leftovers
from dragoman.stores.sqlite.files.opening import (
    absolute,
    check_present,
    explaining,
    later,
    no_store,
)
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations, one_moment, queries, run
from dragoman.stores.sqlite.workers import Workers, machine_time

# Seconds after the end of a lease within which another worker takes over.
GRACE = 5.0
# The first schema with workers, notes, deadlines and receivers.
_SHARED = 2
_PATIENCE_MS = 10_000
_SQL = queries("inspection.sql")


class Inspection:
    """One look into a file."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        lease: float,
        clock: Callable[[], int] = machine_time,
        own: int = 0,
    ) -> None:
        """`own`: the worker that looks; 0: it is none."""
        self._own = own
        self._connection = connection
        self._path = path
        self._lease = lease
        self._clock = clock
        ((self.schema,),) = run(connection, "PRAGMA user_version")

    @property
    def is_shared(self) -> bool:
        """Whether the file knows of workers; one of an early release does not."""
        return self.schema >= _SHARED

    @property
    def is_present(self) -> bool:
        """Whether a server has nothing to migrate."""
        return self.schema == migrations()[-1][0]

    def damage(self) -> str:
        """Return the first thing that is wrong with the file; empty: nothing. Reads all of it."""
        ((found,),) = run(self._connection, "PRAGMA quick_check(1)")
        return "" if found == "ok" else str(found)

    def journal(self) -> str:
        """Return the journal mode."""
        ((mode,),) = run(self._connection, "PRAGMA journal_mode")
        return str(mode)

    async def tasks(self) -> int:
        """Return how many tasks there are."""
        ((number,),) = run(self._connection, _SQL["tasks"])
        return int(number)

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers that have a row, dead or alive."""
        now = self._clock()
        rows = run(self._connection, _SQL["workers"])
        found: list[WorkerFacts] = []
        for number, expires, lease, tasks in rows:
            if number == self._own or Workers(self._path, 0, self._clock).is_live(
                self._connection, number
            ):
                found.append(WorkerFacts(number, "live", is_due=False, tasks=tasks))
                continue
            # As of a moment within its lease, what is left to ask is whether the process runs.
            then = Workers(self._path, 0, lambda at=expires - 1: at)
            is_running = then.is_live(self._connection, number)
            # A lease that ends later than any could was given before the machine started again.
            is_recent = now - GRACE * 1000 < expires <= now + lease
            state = "frozen" if is_running else "dead"
            found.append(WorkerFacts(number, state, not is_recent, tasks))
        return found

    async def orphans(self) -> OrphanFacts:
        """Return unfinished tasks that a worker should have taken over by now."""
        with one_moment(self._connection):
            values = {"held": await self._held(), "before": self._before()}
            ((number, unfinished),) = run(self._connection, _SQL["unfinished"], values)
            agents = run(self._connection, _SQL["orphaned_agents"], values) if number else []
        return OrphanFacts(number, [agent for (agent,) in agents], unfinished)

    async def notes(self) -> NoteFacts:
        """Return how many messages and cancels wait in notes."""
        with one_moment(self._connection):
            return NoteFacts(*run(self._connection, _SQL["notes"], {"held": await self._held()})[0])

    async def overdue(self) -> int:
        """Return how many tasks should have ended by their deadline."""
        ((number,),) = run(self._connection, _SQL["overdue"], {"before": self._before()})
        return int(number)

    async def receivers(self) -> ReceiverFacts:
        """Return how many receivers do not get their posts."""
        with one_moment(self._connection):
            values = {"held": await self._held(), "before": self._before()}
            return ReceiverFacts(*run(self._connection, _SQL["pushes"], values)[0])

    async def dead_letters(self) -> tuple[int, int]:
        """Return how many events no receiver took, and when the latest was given up."""
        rows = run(self._connection, _SQL["dead_letters"])
        return rows[0][0], rows[0][1]

    async def stuck(self, before: int) -> int:
        """Return how many receivers of ended tasks a live worker should have posted to before a
        time. The last event of an ended task is posted in every version."""
        live = [worker.number for worker in await self.workers() if worker.state == "live"]
        values = {"live": msgspec.json.encode(live).decode(), "before": before}
        return int(run(self._connection, _SQL["stuck"], values)[0][0])

    async def pushes(self) -> list[tuple[Push, int]]:
        """Return all receivers without their secrets, each with the last event of its task."""
        return [receiver_line(row) for row in run(self._connection, _SQL["all_pushes"])]

    async def letters(self) -> list[DeadLetter]:
        """Return all dead letters by receiver and event."""
        return [dead_letter(row) for row in run(self._connection, _SQL["letters"])]

    async def newest(self) -> int:
        """Return when a task's status last changed, in milliseconds; 0: never."""
        ((at,),) = run(self._connection, _SQL["newest"])
        return int(at or 0)

    async def _held(self) -> str:
        """Return the workers whose tasks are not to be taken over (yet)."""
        held = [worker.number for worker in await self.workers() if not worker.is_due]
        return msgspec.json.encode(held).decode()

    def _before(self) -> int:
        return time.time_ns() // 1_000_000 - int((self._lease + GRACE) * 1000)


@contextmanager
def inspecting(path: Path, lease: float = 30.0) -> Generator[Inspection]:
    """Look into a file; refuse one that is not ours in the words a server would use."""
    connection = open_to_read(path)
    try:
        yield Inspection(connection, path, lease)
    finally:
        connection.close()


def open_to_read(path: Path) -> apsw.Connection:
    """Open a store's file for reading alone, also while servers use it."""
    check_leftovers(path)
    check_present(path)
    with explaining(path):
        check_log(path)
        connection = apsw.Connection(str(absolute(path)), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(_PATIENCE_MS)
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def check_schema(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file of an older release, whose schema only a writer may change."""
    ((schema,),) = run(connection, "PRAGMA user_version")
    if schema < migrations()[-1][0]:
        raise ConfigError(
            f"{path}: an older release made it; dragoman store migrate brings it to the present "
            "schema",
            remedy=f"dragoman store migrate --store {shlex.quote(str(path))}",
        )


def _check(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file that is none of ours, or not yet."""
    ((schema,),) = run(connection, "PRAGMA user_version")
    ((marked,),) = run(connection, "PRAGMA application_id")
    if marked != APPLICATION_ID:
        raise ConfigError(no_store(path))
    if schema > migrations()[-1][0]:
        raise ConfigError(later(path, schema))
