"""Words of tasks as vectors with an index of their words.

Numbers of tasks come from blocks, each of one worker, and ascend within a block alone: how far the
index is stands beside each block that may still get tasks.
"""

from collections.abc import Sequence
from typing import Any

from dragoman.stores.interface import LATEST, Survey, TaskWords
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Row
from dragoman.stores.postgres.deeds import do

_SQL = statements("dragoman.stores.postgres", "words.sql")
# Tasks that one call looks at, and the scopes that it names; of more it looks at all tasks.
_LOOKED_AT = 2000
_SCOPES = 200


class DatabaseWords:
    """The index of words in a database."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections

    async def unindexed(self, limit: int, newest: bool) -> list[Row]:
        """Return tasks that are new, and that ended since."""
        name = "unindexed_last" if newest else "unindexed_first"
        rows = await self._connections.rows(_SQL[name], limit)
        return rows + await self._connections.rows(_SQL["finished_since"], limit)

    async def add(self, tasks: Sequence[TaskWords]) -> None:
        """Record words, and that these tasks were looked at."""
        worded = [
            (task.number, task.is_final, " ".join(sorted(task.words)))
            for task in tasks
            if task.words is not None
        ]
        final = [task.number for task in tasks if task.words is None and task.is_final]

        async def note_blocks(connection: Connection) -> None:
            await connection.execute(_SQL["lock_blocks"])
            await connection.execute(_SQL["drop_blocks"])
            await connection.execute(_SQL["add_blocks"])

        async def record(connection: Connection) -> None:
            if worded:
                columns = [list(column) for column in zip(*worded, strict=True)]
                await connection.execute(_SQL["set_words"], *columns)
            await connection.execute(_SQL["set_final"], final)
            numbers = [task.number for task in tasks]
            await connection.execute(_SQL["move_cursors"], numbers)

        await do(self._connections, note_blocks, is_repeatable=True)
        await do(self._connections, record, is_repeatable=True)

    async def search(self, survey: Survey, words: Sequence[str]) -> tuple[list[Row], int]:
        """Return tasks that have all words, and below which number the next look begins."""
        texts = survey.agent, survey.tenant, survey.owner
        if any("\0" in (text or "") for text in texts):
            # PostgreSQL has no text with this character, and refuses the question.
            return [], 0
        below = LATEST if survey.after is None else survey.after[1]
        who = survey.principal
        of: list[Any] = [survey.agent, survey.tenant, survey.owner]
        of += [None, None, None] if who is None else [who.tenant, *who.owners()]

        async def read(connection: Connection) -> tuple[list[Row], int]:
            scopes: list[int] | None = None
            if survey.is_of_some:
                found = await connection.fetch(_SQL["scopes"], *of, _SCOPES + 1)
                if not found:
                    return [], 0
                scopes = [scope for (scope,) in found] if len(found) <= _SCOPES else None
            asked = _expression(words, scopes)
            matches = await connection.fetch(_SQL["matches"], asked, below, _LOOKED_AT)
            numbers = [number for (number,) in matches]
            rest = numbers[-1] if len(numbers) == _LOOKED_AT else 0
            return await connection.fetch(_SQL["rows"], numbers), rest

        return await self._connections.at_one_moment(read)


def _expression(words: Sequence[str], scopes: Sequence[int] | None) -> str:
    """Return what is searched for. Words have neither quotes nor spaces."""
    asked = " & ".join(f"'{word}':*" for word in words)
    if scopes is None:
        return asked
    any_of = " | ".join(f"'§{scope}'" for scope in scopes)
    return f"({any_of}) & {asked}"
