"""Words of tasks in full-text tables of the file, each of so many task numbers: the work that a
common word makes is bounded by a table, and a table whose tasks are all forgotten is dropped."""

import time
from collections.abc import Callable, Sequence

import apsw
import msgspec

from dragoman.stores.interface import LATEST, Survey, TaskRow, TasksFound, TaskWords
from dragoman.stores.sqlite.schema import Row, one_moment, queries, run
from dragoman.stores.sqlite.surveys import survey_values
from dragoman.stores.sqlite.transactions import FileTransactions

# Task numbers of a table: two to the power of this.
_PART_BITS = 17
# Tasks that one call looks at, and the scopes that it names; of more it looks at all tasks.
_LOOKED_AT = 2000
_SCOPES = 200
# After so long no further table is begun.
_SECONDS = 0.05


class FileWords:
    """The index of words in a file."""

    def __init__(
        self,
        file: FileTransactions,
        sql: dict[str, str],
        head: Callable[[Row], TaskRow],
    ) -> None:
        self._file = file
        self._survey_scopes = sql["survey_scopes"]
        self._sql = queries("words.sql")
        self._head = head
        self._part_bits = _PART_BITS

    async def unindexed(self, limit: int, newest: bool) -> list[TaskRow]:
        """Return tasks that are new, and that ended since."""
        name = "unindexed_last" if newest else "unindexed_first"

        def read(connection: apsw.Connection) -> list[Row]:
            with one_moment(connection):
                rows = run(connection, self._sql[name], (limit,))
                return rows + run(connection, self._sql["finished_since"], (limit,))

        return [self._head(row) for row in await self._file.read_tx(read)]

    async def add(self, tasks: Sequence[TaskWords]) -> None:
        """Record words, and that these tasks were looked at."""
        await self._file.write_tx(lambda connection: self._add(connection, tasks))

    def _add(self, connection: apsw.Connection, tasks: Sequence[TaskWords]) -> None:
        parts = {part for (part,) in run(connection, self._sql["parts"])}
        for task in tasks:
            if task.words is not None:
                part = task.number >> self._part_bits
                if part not in parts:
                    run(connection, self._of("make_part", part))
                    parts.add(part)
                words = " ".join(sorted(task.words))
                run(connection, self._of("set_words", part), (words, task.number))
            name = "drop_unfinished" if task.is_final else "add_unfinished"
            run(connection, self._sql[name], (task.number,))
        highest = max((task.number for task in tasks), default=0)
        run(connection, self._sql["move_cursor"], (highest,))

    def _of(self, name: str, part: int) -> str:
        return self._sql[name].replace("{part}", str(part))

    async def search(self, survey: Survey, words: Sequence[str]) -> TasksFound:
        """Return tasks that have all words, table by table."""
        below = LATEST if survey.after is None else survey.after[1]

        def read(connection: apsw.Connection) -> tuple[list[Row], int]:
            with one_moment(connection):
                scopes = self._scopes(connection, survey)
                if scopes == []:
                    return [], 0
                numbers, rest = self._matches(connection, _expression(words, scopes), below)
                wanted = msgspec.json.encode(numbers).decode()
                return run(connection, self._sql["rows"], (wanted,)), rest

        rows, rest = await self._file.read_tx(read)
        heads = [head for row in rows if survey.covers(head := self._head(row))]
        if len(heads) > survey.limit:
            heads = heads[: survey.limit]
            rest = heads[-1].number
        return TasksFound(heads, rest)

    def _scopes(self, connection: apsw.Connection, survey: Survey) -> list[int] | None:
        """Return the scopes whose tasks are looked for; None: any."""
        if not survey.is_of_some:
            return None
        # A state is not known by its scope alone.
        values = survey_values(survey) | {"state": None}
        found = [scope for (scope,) in run(connection, self._survey_scopes, values)]
        return found if len(found) <= _SCOPES else None

    def _matches(
        self, connection: apsw.Connection, expression: str, below: int
    ) -> tuple[list[int], int]:
        """Return numbers of tasks, highest first, and where the next look begins."""
        ends_at = time.monotonic() + _SECONDS
        for (part,) in run(connection, self._sql["parts"]):
            if part << self._part_bits >= below:
                continue
            found = run(connection, self._of("matches", part), (expression, below, _LOOKED_AT))
            if found:
                return [number for (number,) in found], (
                    found[-1][0] if len(found) == _LOOKED_AT else part << self._part_bits
                )
            if time.monotonic() > ends_at:
                return [], part << self._part_bits
        return [], 0

    def forget(self, connection: apsw.Connection, numbers: Sequence[int]) -> None:
        """Forget the words of tasks."""
        parts = {part for (part,) in run(connection, self._sql["parts"])}
        for number in numbers:
            run(connection, self._sql["drop_unfinished"], (number,))
            if (part := number >> self._part_bits) in parts:
                run(connection, self._of("forget_words", part), (number,))

    async def drop_empty(self) -> None:
        """Drop the tables whose tasks are all forgotten."""

        def drop(connection: apsw.Connection) -> None:
            ((lowest,),) = run(connection, self._sql["lowest_number"])
            for (part,) in run(connection, self._sql["parts"]):
                if lowest is None or part < lowest >> self._part_bits:
                    run(connection, self._of("drop_part", part))

        await self._file.write_tx(drop)


def _expression(words: Sequence[str], scopes: Sequence[int] | None) -> str:
    """Return what full-text search is asked for. Words have neither quotes nor spaces."""
    asked = " AND ".join(f'"{word}"*' for word in words)
    if scopes is None:
        return asked
    any_of = " OR ".join(f'"§{scope}"' for scope in scopes)
    return f"({any_of}) AND {asked}"
