"""A look into a store's file from outside: facts for an operator, judged by nobody here.

The file is opened for reading alone and the one who looks is no worker of it, so servers that use
the file neither wait nor notice. Contents of messages are never read.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import apsw
import msgspec

from dragoman.errors import ConfigError
from dragoman.stores.sqlite.generations import check_log
from dragoman.stores.sqlite.leftovers import check_leftovers
from dragoman.stores.sqlite.opening import absolute, check_present, explaining, later, no_store
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations, run
from dragoman.stores.sqlite.workers import Workers, machine_time

# Seconds after the end of a lease within which someone takes over.
GRACE = 5.0
# The first schema with workers, notes, deadlines and receivers.
_SHARED = 2
_PATIENCE_MS = 10_000

_UNFINISHED = """
SELECT count(*) FILTER (WHERE status_at < :before AND NOT is_held), count(*)
FROM (SELECT status_at, holder IN (SELECT value FROM json_each(:held)) AS is_held
    FROM tasks INDEXED BY tasks_unfinished WHERE state IN (1, 2))
"""
_ORPHANED_AGENTS = """
SELECT DISTINCT agent FROM tasks INDEXED BY tasks_unfinished
JOIN scopes ON scopes.number = tasks.scope
WHERE state IN (1, 2) AND status_at < :before
    AND holder NOT IN (SELECT value FROM json_each(:held))
ORDER BY agent
"""
_NOTES = """
SELECT count(*) FILTER (WHERE state IN (3, 4, 5, 7)),
    count(*) FILTER (WHERE state NOT IN (3, 4, 5, 7)
        AND holder NOT IN (SELECT value FROM json_each(:held))),
    count(*)
FROM notes JOIN tasks ON tasks.number = notes.task
"""
_OVERDUE = """
SELECT count(*) FROM deadlines JOIN tasks ON tasks.number = deadlines.task
WHERE at < :before AND state NOT IN (3, 4, 5, 7)
"""
# A receiver that was given up keeps its failure; one that got everything has none.
_PUSHES = """
SELECT count(*) FILTER (WHERE is_open = 1 AND failing_since > 0),
    count(*) FILTER (WHERE is_open = 0 AND failing_since > 0 AND cursor < last_seq),
    count(*) FILTER (WHERE is_open = 1 AND cursor < last_seq
        AND status_at < :before AND due_at < :before
        AND pushes.holder NOT IN (SELECT value FROM json_each(:held)))
FROM pushes JOIN tasks ON tasks.number = pushes.task
"""
_NEWEST = """
SELECT max((SELECT max(status_at) FROM tasks WHERE scope = scopes.number)) FROM scopes
"""


class Worker(NamedTuple):
    """A process that has a row in the file."""

    number: int
    # Frozen: it runs, but gave no sign of life in time. Dead: it has ended.
    state: Literal["live", "frozen", "dead"]
    # Whether another should have taken over what it held.
    is_due: bool


class Orphans(NamedTuple):
    """Unfinished tasks that nobody works on."""

    number: int
    agents: list[str]
    # Unfinished ones in all.
    unfinished: int


class Notes(NamedTuple):
    """What processes left for a task's holder."""

    late: int  # the task had ended
    stuck: int  # nobody is there to read them
    number: int


class Receivers(NamedTuple):
    """Receivers of webhooks that do not get them."""

    failing: int
    given_up: int
    abandoned: int  # nobody delivers


class Inspection:
    """One look into a file."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        lease: float,
        clock: Callable[[], int] = machine_time,
    ) -> None:
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

    def tasks(self) -> int:
        """Return how many tasks there are."""
        ((number,),) = run(self._connection, "SELECT coalesce(sum(n), 0) FROM counts")
        return int(number)

    def workers(self) -> list[Worker]:
        """Return who has a row, dead or alive."""
        now = self._clock()
        rows = run(self._connection, "SELECT number, expires, lease FROM workers ORDER BY number")
        found: list[Worker] = []
        for number, expires, lease in rows:
            if Workers(self._path, 0, self._clock).is_live(self._connection, number):
                found.append(Worker(number, "live", is_due=False))
                continue
            # As of a moment within its lease, what is left to ask is whether the process runs.
            then = Workers(self._path, 0, lambda at=expires - 1: at)
            is_running = then.is_live(self._connection, number)
            # A lease that ends later than any could was given before the machine started again.
            is_recent = now - GRACE * 1000 < expires <= now + lease
            found.append(Worker(number, "frozen" if is_running else "dead", not is_recent))
        return found

    def orphans(self) -> Orphans:
        """Return unfinished tasks that someone should have taken over by now."""
        with self._one_moment():
            values = {"held": self._held(), "before": self._before()}
            ((number, unfinished),) = run(self._connection, _UNFINISHED, values)
            agents = run(self._connection, _ORPHANED_AGENTS, values) if number else []
        return Orphans(number, [agent for (agent,) in agents], unfinished)

    def notes(self) -> Notes:
        """Return how many messages and cancels wait in notes."""
        with self._one_moment():
            return Notes(*run(self._connection, _NOTES, {"held": self._held()})[0])

    def overdue(self) -> int:
        """Return how many tasks should have ended by their deadline."""
        ((number,),) = run(self._connection, _OVERDUE, {"before": self._before()})
        return int(number)

    def receivers(self) -> Receivers:
        """Return how many receivers are not told."""
        with self._one_moment():
            values = {"held": self._held(), "before": self._before()}
            return Receivers(*run(self._connection, _PUSHES, values)[0])

    def dead_letters(self) -> tuple[int, int]:
        """Return how many events no receiver took, and when the latest was given up."""
        rows = run(self._connection, "SELECT count(*), coalesce(max(at), 0) FROM dead_letters")
        return rows[0][0], rows[0][1]

    def newest(self) -> int:
        """Return when a task's status last changed, in milliseconds; 0: never."""
        ((at,),) = run(self._connection, _NEWEST)
        return int(at or 0)

    @contextmanager
    def _one_moment(self) -> Generator[None]:
        """Have all reads within speak of the same moment."""
        run(self._connection, "BEGIN")
        try:
            yield
        finally:
            run(self._connection, "COMMIT")

    def _held(self) -> str:
        """Return whose tasks are not to be taken over (yet)."""
        held = [worker.number for worker in self.workers() if not worker.is_due]
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
    """Open a store's file for reading alone, whoever uses it."""
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


def _check(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file that is none of ours, or not yet."""
    ((schema,),) = run(connection, "PRAGMA user_version")
    ((marked,),) = run(connection, "PRAGMA application_id")
    if marked != APPLICATION_ID:
        raise ConfigError(no_store(path))
    if schema > migrations()[-1][0]:
        raise ConfigError(later(path, schema))
