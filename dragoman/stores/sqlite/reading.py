"""Tasks and their logs as one reads them from outside: no worker, and no write.

The file has no order of events across tasks, only within each. Whoever follows all tasks therefore
holds a `Position`: the highest task seen and, of those that had not ended, how far each was. Ended
tasks never change, so that is all it takes to miss nothing.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import apsw

from dragoman.model.identity import ContextId, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState
from dragoman.stores.interface import READ_BYTES, Snapshot
from dragoman.stores.sqlite.schema import Row, rows_of, run
from dragoman.stores.sqlite.writer import MAX_SEQ, SEQ_BITS, STATE_NUMBERS

_STATES = {number: state for state, number in STATE_NUMBERS.items()}
_EVERYTHING = 1 << 62
_CHUNK = b'{"artifactUpdate"'
_COLUMNS = "tasks.number, id, context, state, status_at, last_seq, agent, tenant, owner"
_FROM = f"SELECT {_COLUMNS} FROM tasks JOIN scopes ON scopes.number = tasks.scope"
_PAGE = f"""
{_FROM} WHERE scope = :scope AND (status_at, tasks.number) < (:status_at, :number)
    AND status_at >= :since AND (:state IS NULL OR state = :state)
    AND (:context = '' OR context = :context)
ORDER BY status_at DESC, tasks.number DESC LIMIT :limit
"""
_BY_ID = f"{_FROM} WHERE id = ? AND (? = '' OR agent = ?) ORDER BY tasks.number"
_BY_NUMBER = f"{_FROM} WHERE tasks.number = ?"
_AFTER = f"{_FROM} WHERE tasks.number > ? AND (? = '' OR agent = ?) ORDER BY tasks.number LIMIT ?"
_LIVE = f"""
{_FROM} WHERE state IN (1, 2, 6, 8) AND (? = '' OR agent = ?) ORDER BY tasks.number
"""
_SCOPES = "SELECT number FROM scopes WHERE ? = '' OR agent = ?"
_EVENTS = """
SELECT position & 1048575, n, bodies FROM events
WHERE position > ? AND position <= ? ORDER BY position
"""
_SNAPSHOT = "SELECT seq, head, artifacts FROM snapshots WHERE task = ?"


class Line(NamedTuple):
    """A task as its row has it."""

    number: int
    task_id: TaskId
    context_id: ContextId
    state: TaskState
    # Milliseconds.
    status_at: int
    last_seq: int
    agent: str
    tenant: str
    owner: str


class Asked(NamedTuple):
    """Which tasks are wanted."""

    agent: str = ""
    context_id: str = ""
    state: TaskState | None = None
    # Milliseconds.
    since: int = 0


class Position(NamedTuple):
    """How far a reader of all tasks is."""

    highest: int
    # Of those that had not ended, the last event that was read.
    seen: dict[int, int]

    def __str__(self) -> str:
        pairs = "".join(f"_{number}.{seq}" for number, seq in sorted(self.seen.items()))
        return f"p{self.highest}{pairs}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Return the position of a text; raises ValueError."""
        first, *pairs = text.removeprefix("p").split("_")
        if not text.startswith("p"):
            raise ValueError("is no position")
        found = [pair.partition(".") for pair in pairs]
        return cls(int(first), {int(number): int(seq) for number, _, seq in found})


class Reading:
    """The tasks of a file that was opened to be read."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def version(self) -> int:
        """Return a number that changes when another process wrote."""
        return int(run(self._connection, "PRAGMA data_version")[0][0])

    def page(self, asked: Asked, limit: int, after: tuple[int, int] | None = None) -> list[Line]:
        """Return the tasks whose status changed last, after a time and number."""
        values = {
            "status_at": after[0] if after else _EVERYTHING,
            "number": after[1] if after else _EVERYTHING,
            "since": asked.since,
            "state": None if asked.state is None else STATE_NUMBERS[asked.state],
            "context": asked.context_id,
            "limit": limit,
        }
        found: list[Row] = []
        # By scope, since that is how the index goes.
        for (scope,) in run(self._connection, _SCOPES, (asked.agent, asked.agent)):
            found += run(self._connection, _PAGE, values | {"scope": scope})
        found.sort(key=lambda row: (row[4], row[0]), reverse=True)
        return [_line(row) for row in found[:limit]]

    def find(self, task_id: str, agent: str = "") -> list[Line]:
        """Return the tasks of an id: one, unless agents or owners share it."""
        return [_line(row) for row in run(self._connection, _BY_ID, (task_id, agent, agent))]

    def here(self, agent: str = "") -> Position:
        """Return the position of a reader that has seen everything."""
        with self._one_moment():
            ((highest,),) = run(self._connection, "SELECT coalesce(max(number), 0) FROM tasks")
            live = map(_line, run(self._connection, _LIVE, (agent, agent)))
            return Position(int(highest), {line.number: line.last_seq for line in live})

    def follow(
        self,
        position: Position,
        wanted: Callable[[Line], bool],
        limit: int,
        agent: str = "",
    ) -> tuple[list[tuple[Line, Recorded]], Position]:
        """Return events after a position, those of one task in their order, and where that ends.

        Fewer than `limit` means that there are no more yet.
        """
        events: list[tuple[Line, Recorded]] = []
        seen = dict(position.seen)
        highest = position.highest
        with self._one_moment():
            known = [row for number in seen for row in run(self._connection, _BY_NUMBER, (number,))]
            fresh = run(self._connection, _AFTER, (highest, agent, agent, limit))
            gone = seen.keys() - {row[0] for row in known}
            for line in map(_line, [*known, *fresh]):
                room = limit - len(events)
                if not room:
                    # A task that was not looked at keeps its place.
                    break
                seq = seen.get(line.number, 0)
                if wanted(line):
                    batch = self._events(line.number, seq, room)
                    events += [(line, one) for one in batch]
                    seq = batch[-1].seq if batch else seq
                else:
                    seq = line.last_seq
                highest = max(highest, line.number)
                seen[line.number] = seq
                if seq == line.last_seq and line.state.is_terminal:
                    del seen[line.number]
        for number in gone:
            # Old enough to be forgotten.
            del seen[number]
        return events, Position(highest, seen)

    def last(self, line: Line, count: int) -> list[Recorded]:
        """Return the last events of a task that streams show."""
        window = count
        while True:
            after = max(0, line.last_seq - window)
            found = self._events(line.number, after, window)
            public = [one for one in found if one.is_public]
            if len(public) >= count or not after:
                return public[-count:]
            # Some of them are for us alone: look further back.
            window *= 2

    def log(self, line: Line) -> Iterator[Recorded]:
        """Yield all events of a task."""
        seq = 0
        while batch := self._events(line.number, seq, 500):
            yield from batch
            seq = batch[-1].seq

    def _events(self, number: int, after: int, limit: int) -> list[Recorded]:
        first = number << SEQ_BITS
        values = (first | min(after, MAX_SEQ), first | MAX_SEQ)
        events: list[Recorded] = []
        with contextlib.closing(rows_of(self._connection, _EVENTS, values)) as rows:
            for last, count, bodies in rows:
                # The first row may begin before the position asked for.
                for seq, body in enumerate(bodies.split(b"\n"), last - count + 1):
                    if seq > after:
                        events.append(Recorded(seq, body=body))
                    if len(events) >= limit:
                        return events
        return events

    # The two reads of a store by which a task is folded from its log.

    async def read(
        self,
        number: int,
        *,
        after: int,
        limit: int,
        artifacts: bool = True,
        size: int = READ_BYTES,
    ) -> list[Recorded]:
        """Return the events after a position."""
        found = self._events(number, after, limit)
        return [one for one in found if artifacts or not one.body.startswith(_CHUNK)]

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = run(self._connection, _SNAPSHOT, (number,))
        if not rows:
            return None
        snapshot = Snapshot(*rows[0])
        return TaskReading(snapshot.seq, body=snapshot.whole() if artifacts else snapshot.head)

    @contextlib.contextmanager
    def _one_moment(self) -> Generator[None]:
        run(self._connection, "BEGIN")
        try:
            yield
        finally:
            run(self._connection, "COMMIT")


def _line(row: Row) -> Line:
    number, task_id, context, state, status_at, last_seq, *scope = row
    agent, tenant, owner = scope
    return Line(
        number,
        TaskId(task_id),
        ContextId(context),
        _STATES[state],
        status_at,
        last_seq,
        agent,
        tenant,
        owner,
    )
