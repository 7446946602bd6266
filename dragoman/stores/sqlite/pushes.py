"""Receivers of events and how far each is, beside the tasks they belong to."""

import logging
import time
from collections.abc import Awaitable, Callable

import apsw
import msgspec

from dragoman.errors import StoreConflict, StoreUnavailable
from dragoman.model.identity import Scope
from dragoman.model.push import PushConfig
from dragoman.stores.columns import dead_letter
from dragoman.stores.interface import LATEST, DeadLetter, Push
from dragoman.stores.interface.pushes import NOT_OURS
from dragoman.stores.sqlite.schema import Row, run
from dragoman.stores.sqlite.seals import Seals
from dragoman.stores.sqlite.writer import Chore

logger = logging.getLogger("dragoman")


class Pushes:
    """The part of the store that push delivery uses."""

    def __init__(
        self,
        reader: apsw.Connection,
        sql: dict[str, str],
        scope: Callable[[int], Scope],
        do: Callable[[Chore], Awaitable[None]],
        worker: int,
        seals: Seals,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader = reader
        # Has what opens seals at hand.
        self._prepare = prepare
        self._seals = seals
        self._sql = sql
        self._scope = scope
        # Runs a chore in a transaction of its own.
        self._do = do
        self._worker = worker

    async def put(self, number: int, config: PushConfig, after: int, most: int) -> Push | None:
        """Keep a receiver in place of one with the same id, if there is room."""

        def put(connection: apsw.Connection) -> None:
            # Counted where it is added: others may be adding too.
            places = run(connection, self._sql["push_places"], (number,))
            kept = {id: (own, cursor) for own, id, cursor in places}
            before = kept.get(config.id)
            if before is None and len(kept) >= most:
                return
            if before is not None:
                # It goes on where the other was, under a number of its own: what the other still
                # has to say is void.
                run(connection, self._sql["drop_push"], (number, config.id))
            cursor = after if before is None else before[1]
            shown, sealed = self._seals.push(connection, number, config)
            values = (number, config.id, shown, sealed, self._worker, cursor)
            run(connection, self._sql["put_push"], values)
            if before is not None:
                moved = (connection.last_insert_rowid(), before[0])
                run(connection, self._sql["move_letters"], moved)

        await self._do(put)
        return next((push for push in self.of(number) if push.config.id == config.id), None)

    async def drop(self, number: int, config_id: str) -> None:
        """Forget a receiver and what it never took."""

        def forget(connection: apsw.Connection) -> None:
            run(connection, self._sql["drop_letters"], (number, config_id))
            run(connection, self._sql["drop_push"], (number, config_id))

        await self._do(forget)

    def of(self, number: int) -> list[Push]:
        """Return a task's receivers."""
        return [self._push(row) for row in run(self._reader, self._sql["pushes"], (number,))]

    async def claim(self, limit: int) -> list[Push]:
        """Take over receivers of dead workers; most often there are none: one look-up tells."""
        if not run(self._reader, self._sql["abandoned_pushes"], (1,)):
            return []
        await self._prepare()
        claimed: list[Row] = []

        def claim(connection: apsw.Connection) -> None:
            claimed.extend(run(connection, self._sql["abandoned_pushes"], (limit,)))
            numbers = msgspec.json.encode([row[0] for row in claimed]).decode()
            run(connection, self._sql["claim_pushes"], (self._worker, numbers))

        await self._do(claim)
        taken: list[Push] = []
        for row in claimed:
            try:
                taken.append(self._push(row))
            except StoreUnavailable as error:
                # The other receivers get their posts all the same.
                logger.error("receiver %d cannot be posted to: %s", row[0], error)
        return taken

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
                raise StoreConflict(NOT_OURS)
            if letter is not None:
                at = letter.at or time.time_ns() // 1_000_000
                run(
                    connection,
                    self._sql["add_letter"],
                    (push.number, letter.seq, letter.tries, at, letter.problem),
                )

        await self._do(settle)

    def dead_letters(self, limit: int, before: tuple[int, int, int] | None) -> list[DeadLetter]:
        """Return what was never taken, latest first."""
        at, push, seq = before or (LATEST, LATEST, LATEST)
        values = {"at": at, "push": push, "seq": seq, "limit": limit}
        return [dead_letter(row) for row in run(self._reader, self._sql["dead_letters"], values)]

    def letters_of(self, number: int) -> list[DeadLetter]:
        """Return what receivers of a task never took."""
        return [dead_letter(row) for row in run(self._reader, self._sql["letters_of"], (number,))]

    def _push(self, row: Row) -> Push:
        number, task, scope, config, sealed, cursor, *rest = row
        tries, due_at, failing_since, is_open, problem = rest
        return Push(
            number,
            task,
            self._scope(scope),
            self._seals.config(task, config, sealed),
            cursor,
            tries,
            due_at,
            failing_since,
            bool(is_open),
            problem,
        )
