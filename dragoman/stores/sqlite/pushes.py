"""Receivers of events and how far each is, beside the tasks they belong to."""

import time
from collections.abc import Awaitable, Callable

import apsw
import msgspec

from dragoman.errors import StoreConflict
from dragoman.model.identity import Scope
from dragoman.model.push import PushConfig
from dragoman.model.record import encode
from dragoman.stores.interface import DeadLetter, Push
from dragoman.stores.sqlite.schema import Row, run
from dragoman.stores.sqlite.writer import Chore

_decode_config = msgspec.json.Decoder(PushConfig).decode


class Pushes:
    """The part of the store that push delivery uses."""

    def __init__(
        self,
        reader: apsw.Connection,
        sql: dict[str, str],
        scope: Callable[[int], Scope],
        do: Callable[[Chore], Awaitable[None]],
        worker: int,
    ) -> None:
        self._reader = reader
        self._sql = sql
        self._scope = scope
        # Runs a chore in a transaction of its own.
        self._do = do
        self._worker = worker

    async def put(self, number: int, config: PushConfig, after: int) -> Push:
        """Keep a receiver in place of one with the same id."""

        def put(connection: apsw.Connection) -> None:
            self._forget(connection, number, config.id)
            run(
                connection,
                self._sql["put_push"],
                (number, config.id, encode(config), self._worker, after),
            )

        await self._do(put)
        return next(push for push in self.of(number) if push.config.id == config.id)

    async def drop(self, number: int, config_id: str) -> None:
        """Forget a receiver and what it never took."""
        await self._do(lambda connection: self._forget(connection, number, config_id))

    def _forget(self, connection: apsw.Connection, number: int, config_id: str) -> None:
        run(connection, self._sql["drop_letters"], (number, config_id))
        run(connection, self._sql["drop_push"], (number, config_id))

    def of(self, number: int) -> list[Push]:
        """Return a task's receivers."""
        return [self._push(row) for row in run(self._reader, self._sql["pushes"], (number,))]

    async def claim(self, limit: int) -> list[Push]:
        """Take over what nobody delivers; most often nothing, which one look tells."""
        if not run(self._reader, self._sql["abandoned_pushes"], (1,)):
            return []
        claimed: list[Row] = []

        def claim(connection: apsw.Connection) -> None:
            claimed.extend(run(connection, self._sql["abandoned_pushes"], (limit,)))
            numbers = msgspec.json.encode([row[0] for row in claimed]).decode()
            run(connection, self._sql["claim_pushes"], (self._worker, numbers))

        await self._do(claim)
        return [self._push(row) for row in claimed]

    async def settle(self, push: Push, letter: DeadLetter | None) -> None:
        """Record how far a receiver is, if it is still ours."""

        def settle(connection: apsw.Connection) -> None:
            run(
                connection,
                self._sql["settle"],
                (
                    push.cursor,
                    push.tries,
                    push.due_at,
                    push.failing_since,
                    int(push.is_open),
                    push.problem,
                    push.number,
                    self._worker,
                ),
            )
            if connection.changes() != 1:
                raise StoreConflict("another worker delivers, or the receiver was dropped")
            if letter is not None:
                at = letter.at or time.time_ns() // 1_000_000
                run(
                    connection,
                    self._sql["add_letter"],
                    (push.number, letter.seq, letter.tries, at, letter.problem),
                )

        await self._do(settle)

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return what was never taken, latest first."""
        letters: list[DeadLetter] = []
        for push, body, seq, tries, at, problem in run(
            self._reader, self._sql["dead_letters"], (limit,)
        ):
            config = _decode_config(body)
            letters.append(
                DeadLetter(push, config.task_id, config.id, config.url, seq, tries, at, problem)
            )
        return letters

    def _push(self, row: Row) -> Push:
        number, task, scope, config, cursor, tries, due_at, failing_since, is_open, problem = row
        return Push(
            number,
            task,
            self._scope(scope),
            _decode_config(config),
            cursor,
            tries,
            due_at,
            failing_since,
            bool(is_open),
            problem,
        )
