"""Receivers of events and how far each is, beside the tasks they belong to."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dragoman.errors import StoreConflict, StoreUnavailable
from dragoman.model.push import PushConfig
from dragoman.stores.columns import dead_letter, receiver_line
from dragoman.stores.interface import LATEST, DeadLetter, Push
from dragoman.stores.interface.pushes import NOT_OURS
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.scopes import Scopes
from dragoman.stores.postgres.seals import Seals

logger = logging.getLogger("dragoman")

_SQL = statements("dragoman.stores.postgres", "pushes.sql")
_LAST_SEQ = (1 << 31) - 1


class PushRows(ABC):
    """The part of `PostgresStore` that push delivery uses."""

    _connections: DatabaseConnections
    _scopes: Scopes
    _seals: Seals

    @property
    @abstractmethod
    def worker(self) -> int:
        """Our number among the workers."""

    async def put_push(
        self, number: int, config: PushConfig, after: int, *, most: int
    ) -> Push | None:
        """Keep a receiver in place of one with the same id, if there is room."""

        async def put(connection: Connection) -> None:
            async with connection.transaction():
                await self._put(connection, number, config, after, most)

        await self._connections.patiently(put)
        return next(
            (push for push in await self.pushes(number) if push.config.id == config.id), None
        )

    async def _put(
        self, connection: Connection, number: int, config: PushConfig, after: int, most: int
    ) -> None:
        await connection.fetchval(_SQL["lock_task"], number)
        places = await connection.fetch(_SQL["places"], number)
        kept = {id: (own, cursor) for own, id, cursor in places}
        before = kept.get(config.id)
        if before is None and len(kept) >= most:
            return
        if before is not None:
            # It goes on where the other was, under a number of its own: what the other still has
            # to say is void.
            await connection.execute(_SQL["drop"], number, config.id)
        cursor = after if before is None else before[1]
        shown, sealed = await self._seals.push_in(connection, number, config)
        own = await connection.fetchval(
            _SQL["put"], number, config.id, shown, sealed, self.worker, cursor
        )
        if before is not None:
            await connection.execute(_SQL["move_letters"], own, before[0])

    async def drop_push(self, number: int, config_id: str) -> None:
        """Forget a receiver and what it never took."""

        async def drop(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute(_SQL["drop_letters"], number, config_id)
                await connection.execute(_SQL["drop"], number, config_id)

        await self._connections.patiently(drop)

    async def pushes(self, number: int) -> list[Push]:
        """Return a task's receivers."""
        return await self._pushes(await self._connections.rows(_SQL["of"], number))

    async def claim_pushes(self, limit: int) -> list[Push]:
        """Take over receivers of dead workers."""
        found = await self._connections.rows(_SQL["claimable"], limit)
        if not found:
            return []
        numbers, holders = [list(column) for column in zip(*found, strict=True)]
        rows = await self._connections.rows(_SQL["claim"], self.worker, numbers, holders)
        return await self._pushes(rows, skips=True)

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is, if it is still ours."""
        told = (None, None, 0, None)
        if letter is not None:
            told = (letter.seq, letter.tries, letter.at, letter.problem)
        rows = await self._connections.rows(
            _SQL["settle"],
            push.cursor,
            push.tries,
            push.due_at,
            push.failing_since,
            push.is_open,
            push.problem,
            push.number,
            self.worker,
            *told,
        )
        if rows[0][0] != 1:
            raise StoreConflict(NOT_OURS)

    async def drop_letter(self, push: int, seq: int) -> None:
        """Forget a dead letter."""
        await self._connections.rows(_SQL["drop_letter"], push, seq)

    async def reopen_push(self, push: int) -> None:
        """Have a receiver that was given up delivered to again."""
        await self._connections.rows(_SQL["reopen"], push)

    async def dead_letters(
        self, limit: int, *, before: tuple[int, int, int] | None = None
    ) -> list[DeadLetter]:
        """Return what was never taken, latest first."""
        place = before or (LATEST, LATEST, _LAST_SEQ)
        rows = await self._connections.rows(_SQL["dead_letters"], limit, *place)
        return [dead_letter(row) for row in rows]

    async def letters_of(self, number: int) -> list[DeadLetter]:
        """Return what receivers of a task never took."""
        rows = await self._connections.rows(_SQL["letters_of"], number)
        return [dead_letter(row) for row in rows]

    async def receivers(
        self, *, limit: int, before: int = 0, failing: bool = False
    ) -> list[tuple[Push, int]]:
        """Return receivers of all tasks, latest first."""
        rows = await self._connections.rows(_SQL["receivers"], limit, before or LATEST, failing)
        lines = [receiver_line(row) for row in rows]
        return [(push.without_secrets(), last) for push, last in lines]

    async def _pushes(self, rows: Sequence[Row], *, skips: bool = False) -> list[Push]:
        scopes = await self._scopes.of(row[2] for row in rows)
        found: list[Push] = []
        for number, task, scope, config, sealed, *rest in rows:
            try:
                opened = self._seals.config(task, config, sealed)
            except StoreUnavailable as error:
                if not skips:
                    raise
                # The other receivers get their posts all the same.
                logger.error("receiver %d cannot be posted to: %s", number, error)
                continue
            found.append(Push(number, task, scopes[scope], opened, *rest))
        return found
