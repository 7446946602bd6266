"""Whether a file is whole: as a file of SQLite, and as a store."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.errors import ConfigError
from dragoman.stores.at_once import at_once
from dragoman.stores.consistency import FILE_LOG, Inconsistency, inconsistencies
from dragoman.stores.sqlite.inspection import check_schema, open_to_read
from dragoman.stores.sqlite.schema import one_moment, run


def inconsistencies_in(path: Path) -> list[Inconsistency]:
    """Return what in a file should not be, as of one moment."""
    with closing(open_to_read(path)) as connection:
        check_schema(connection, path)
        ((sound,),) = run(connection, "PRAGMA quick_check(1)")
        if sound != "ok":
            raise ConfigError(f"{path}: the file is damaged: {str(sound).splitlines()[-1]}")

        async def ask(question: str) -> Sequence[tuple[Any, ...]]:
            return run(connection, question)

        with one_moment(connection):
            return at_once(inconsistencies(ask, FILE_LOG))
