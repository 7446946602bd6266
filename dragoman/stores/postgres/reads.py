"""What the store reads of tasks and their logs."""

from collections.abc import Sequence
from typing import Any

from dragoman.model.identity import Principal, Scope, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState
from dragoman.stores.columns import STATE_NUMBERS, STATES, task_row, unpacked
from dragoman.stores.interface import (
    LATEST,
    READ_BYTES,
    Bodies,
    Known,
    Query,
    Snapshot,
    Survey,
    TaskRow,
    TaskRows,
    whole_task,
)
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.gathering import Gathered
from dragoman.stores.postgres.scopes import Scopes

_SQL = statements("dragoman.stores.postgres", "queries.sql")
# The highest position, and rows of events per query: a row has at least one event.
_MAX_SEQ = (1 << 31) - 1
_ROWS = 128


class TaskReads:
    """The reading part of `PostgresStore`."""

    def __init__(self, connections: DatabaseConnections, scopes: Scopes) -> None:
        self._connections = connections
        self._scopes = scopes
        self._known = Gathered(self._known_of)
        self._at_rest = Gathered(self._at_rest_of)

    def is_new(self, key: bytes) -> bool:
        """Tell nothing: other processes write keys."""
        return False

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for."""
        number = await self._scopes.number(scope)
        return None if number is None else await self._known.one((number, key))

    async def _known_of(self, asked: Sequence[tuple[int, bytes]]) -> list[Known | None]:
        found: list[Known | None] = [None] * len(asked)
        for place, task_id, reply in await self._rows("known", *_columns(asked)):
            found[place - 1] = Known(TaskId(task_id or ""), reply or b"")
        return found

    async def head(self, scope: Scope, task_id: TaskId) -> TaskRow | None:
        """Return a task's row."""
        rows = await self._rows("head", scope.agent, scope.tenant, scope.owner, task_id)
        return task_row(rows[0], scope) if rows else None

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[int, int, TaskReading | None] | None:
        """Return a task's number and last position and, if it rests, the task."""
        number = await self._scopes.number(scope)
        if number is None or (row := await self._at_rest.one((number, task_id))) is None:
            return None
        number, last, head, artifacts = row
        if head is None:
            return number, last, None
        return number, last, TaskReading(last, body=whole_task(head, artifacts))

    async def _at_rest_of(self, asked: Sequence[tuple[int, str]]) -> list[Row | None]:
        found: list[Row | None] = [None] * len(asked)
        for place, *row in await self._rows("at_rest", *_columns(asked)):
            found[place - 1] = tuple(row)
        return found

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

        async def all_of(connection: Connection) -> list[Recorded]:
            return await read_events(
                connection, number, after=after, limit=limit, artifacts=artifacts, size=size
            )

        return await self._connections.patiently(all_of)

    async def read_many(
        self, places: Sequence[tuple[int, int]], *, limit: int, size: int = READ_BYTES
    ) -> list[list[Recorded]]:
        """Return the events after each position, in one go."""
        numbers, afters = [list(column) for column in zip(*places, strict=True)] or ([], [])
        rows = await self._rows("read_many", numbers, afters, min(limit, _ROWS), size)
        found: list[list[Any]] = [[] for _ in places]
        for place, *row in rows:
            found[place - 1].append(row)
        return [
            unpacked(rows, after=after, limit=limit, size=size)
            for rows, after in zip(found, afters, strict=True)
        ]

    async def last_seqs(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the last position of each task's log."""
        return {number: last for number, last in await self._rows("last_seqs", numbers)}

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = await self._rows("snapshot" if artifacts else "snapshot_head", number)
        return Snapshot(*rows[0]).reading(artifacts=artifacts) if rows else None

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have."""
        rows = await self._rows("stored", principal.tenant, *principal.owners())
        return rows[0][0]

    async def page(self, query: Query, *, bodies: Bodies | None = None) -> TaskRows:
        """Return one page; totals without a filter come from counters."""
        scope = await self._scopes.number(query.scope)
        if scope is None:
            return TaskRows([], 0)
        state = None if query.state is None else STATE_NUMBERS[query.state]
        since = 0 if query.status_since is None else query.status_since
        after = query.after or (LATEST, LATEST)
        page: list[Any] = [scope, since, *after, query.limit]
        total: list[Any] = [scope, state]
        if query.ordered_from:
            name = "of_agent"
            page += [state, query.context_id, query.ordered_from]
            total += [since, query.context_id, query.ordered_from]
        elif query.context_id:
            name = "of_context"
            page += [state, query.context_id]
            total += [since, query.context_id]
        else:
            name = "of_state" if state is not None else ""
            page += [] if state is None else [state]
        totals = f"total_{name}" if name in ("of_agent", "of_context") else "total"
        if totals == "total" and query.status_since is not None:
            totals = "total_since"
            total.append(since)

        async def read(connection: Connection) -> TaskRows:
            rows = await connection.fetch(_SQL[f"page_{name}" if name else "page"], *page)
            count = await connection.fetchval(_SQL[totals], *total)
            readings = [] if bodies is None else await _readings(connection, rows, bodies)
            return TaskRows([task_row(row, query.scope) for row in rows], count, readings)

        return await self._connections.at_one_moment(read)

    async def survey(self, survey: Survey) -> list[TaskRow]:
        """Return tasks of all owners, latest status first."""
        texts = survey.agent, survey.tenant, survey.owner, survey.task_id, survey.context_id
        if any("\0" in (text or "") for text in texts):
            # PostgreSQL has no text with this character, and refuses the question.
            return []
        who = survey.principal
        values: list[Any] = [
            *survey.starts_below(),
            survey.status_since,
            survey.limit,
            survey.agent,
            survey.tenant,
            survey.owner,
            None if who is None else who.tenant,
            *((None, None) if who is None else who.owners()),
        ]
        state = None if survey.state is None else STATE_NUMBERS[survey.state]
        if survey.task_id:
            name, more = "survey_of_id", [state, survey.context_id, survey.task_id]
        elif survey.context_id:
            name, more = "survey_of_context", [state, survey.context_id]
        elif state is not None:
            name, more = "survey_of_state", [state]
        else:
            name, more = "survey", []
        return await self._task_rows(await self._rows(name, *values, *more))

    async def counts(self) -> dict[TaskState, int]:
        """Return how many tasks are in each state."""
        return {STATES[state]: count for state, count in await self._rows("counts")}

    async def overdue(self, agent: str, now: int) -> list[TaskRow]:
        """Return the tasks that should have ended; forget the deadlines of those that did."""
        rows = await self._rows("overdue", now, agent)
        await self._rows("drop_met_deadlines", now)
        return await self._task_rows(rows)

    async def _rows(self, name: str, *values: Any) -> list[Row]:
        return await self._connections.rows(_SQL[name], *values)

    async def _task_rows(self, rows: Sequence[Row]) -> list[TaskRow]:
        scopes = await self._scopes.of(row[3] for row in rows)
        return [task_row(row, scopes[row[3]]) for row in rows]


def _columns(asked: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*asked, strict=True)]


async def read_events(
    connection: Connection,
    number: int,
    *,
    after: int,
    limit: int,
    artifacts: bool = True,
    size: int = READ_BYTES,
) -> list[Recorded]:
    """Return the events of a task after a position."""
    events: list[Recorded] = []
    place = min(after, _MAX_SEQ)
    while True:
        rows = await connection.fetch(
            _SQL["read"], number, place, 1 if artifacts else 0, _ROWS, size
        )
        some = unpacked(
            rows, after=place, limit=limit - len(events), size=size, artifacts=artifacts
        )
        events += some
        size -= sum(len(one.body) for one in some)
        # Without artifacts, rows that reach the size may have nothing to show: what follows has.
        is_end = len(rows) < _ROWS and (events or not rows)
        if is_end or len(events) >= limit or size <= 0:
            return events
        place = rows[-1][0]


async def _readings(
    connection: Connection, rows: Sequence[Row], bodies: Bodies
) -> list[TaskReading | None]:
    numbers, lasts = [row[0] for row in rows], [row[6] for row in rows]
    found: list[TaskReading | None] = [None] * len(rows)
    for place, *columns in await connection.fetch(
        _SQL["bodies"], numbers, lasts, bodies.size, bodies.artifacts
    ):
        found[place - 1] = Snapshot(*columns).reading(artifacts=bodies.artifacts)
    return found
