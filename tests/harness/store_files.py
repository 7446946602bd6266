"""New SQLite stores in this process: each begins as a copy of a file that has the schema, because
running all migrations for every test took a seventh of their processor time. Commands and servers
that tests start make their files themselves."""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apsw

from dragoman.stores.sqlite import schema, store

_DISK = apsw.vfs_names()[0]


def install() -> None:
    """Make new stores so from here on."""
    store.create = _create


def _create(path: Path) -> None:
    """Make a store at once whole, as other processes see it; raises FileExistsError."""
    if apsw.vfs_names()[0] != _DISK:
        # A recorder has to see how the file comes to be.
        schema.create(path)
        return
    number, part = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(number, "wb") as file:
            file.write(_image(schema.migrations()))
        os.link(part, path)
    finally:
        os.unlink(part)


@cache
def _image(migrations: Sequence[tuple[int, str]]) -> bytes:
    """Return an empty store with a schema; a test may have another one than we."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        connection = schema.connect(str(path))
        schema.migrate(connection)
        connection.close()
        return path.read_bytes()
