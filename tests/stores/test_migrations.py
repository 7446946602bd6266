"""A file of an earlier release opens with all it has; a crash on the way leaves it old or new."""

import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from dragoman.model.task import TaskState
from dragoman.stores.interface import Known, Query, Survey, TaskWords
from dragoman.stores.sqlite import SQLiteStore, schema
from dragoman.stores.sqlite.schema import APPLICATION_ID, migrations
from dragoman.testing.promises.samples import (
    HERE,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    opening,
    snapshot_of,
    walk,
    write,
)

LATEST = migrations()[-1][0]


def of_schema_1(path: Path) -> None:
    """Make a file as the first release left it: two tasks, a key, a kept reply."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("BEGIN")
    connection.execute(migrations()[0][1])
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute("INSERT INTO facts VALUES ('secret', ?)", (b"s" * 32,))
    connection.execute("INSERT INTO scopes VALUES (1, 'agent', '', 'alice')")
    tasks = [("done", TaskState.COMPLETED, 3), ("open", TaskState.WORKING, 2)]
    for number, (task_id, state, code) in enumerate(tasks, 1):
        first = creation(task_id, chunk(task_id, "x", append=False), state=state, at=number)
        connection.execute(
            "INSERT INTO tasks VALUES (?, ?, 1, 'c', ?, ?, 2, 1)", (number, task_id, code, number)
        )
        bodies = b"\n".join(recorded.body for recorded in first.events)
        connection.execute("INSERT INTO events VALUES (?, 2, 0, ?)", (number << 20 | 2, bodies))
        connection.execute("INSERT INTO counts VALUES (1, ?, 1)", (code,))
    snapshot = snapshot_of(opening("done"), 2)
    values = (snapshot.head, snapshot.artifacts)
    connection.execute("INSERT INTO snapshots VALUES (1, 2, ?, ?)", values)
    connection.execute("INSERT INTO keys VALUES (1, ?, 1, NULL, 5)", (b"key",))
    connection.execute("INSERT INTO keys VALUES (1, ?, NULL, ?, 5)", (b"reply", b"{}"))
    connection.execute("COMMIT")
    connection.close()


def shape(path: Path) -> tuple[int, list[Any]]:
    connection = apsw.Connection(str(path))
    version = connection.pragma("user_version")
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return version, rows


async def check_all_is_there(path: Path) -> None:
    store = SQLiteStore(path)
    await store.open()
    try:
        await store.prepare()
        assert store.secret == b"s" * 32
        heads = await walk(store, Query(HERE, 1))
        assert [(head.task_id, head.holder, head.fence) for head in heads] == [
            ("open", 0, 1),
            ("done", 0, 1),
        ]
        for head in heads:
            log = await log_of(store, head)
            assert [recorded.event for recorded in log] == [
                opening(head.task_id),
                chunk(head.task_id, "x", append=False),
            ]
        reading = await store.snapshot(1)
        assert reading is not None and reading.task == opening("done")
        assert await store.known(HERE, b"key") == Known(task_id=heads[1].task_id)
        assert await store.known(HERE, b"reply") == Known(reply=b"{}")
        # Nobody died on what an earlier release left.
        ((head, held_by),) = await store.claim("agent", 10)
        assert (head.task_id, held_by, head.fence) == ("open", 0, 2)
        await write(store, addition(head, chunk("open", "y")))
        assert (await head_of(store, "open")).holder == store.worker
        assert await write(store, creation("new")) == 3
    finally:
        await store.close()


async def test_a_file_of_the_first_release_opens_with_all_its_tasks(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    of_schema_1(path)
    await check_all_is_there(path)
    fresh = SQLiteStore(tmp_path / "fresh.db")
    await fresh.open()
    await fresh.close()
    assert {row[:2] for row in shape(path)[1]} == {row[:2] for row in shape(fresh.path)[1]}


@pytest.mark.parametrize("start", [0, 1])
async def test_a_crash_anywhere_in_a_migration_leaves_a_schema_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """Cut off before every statement, each time from a fresh copy of the file."""
    origin = tmp_path / "origin.db"
    if start:
        of_schema_1(origin)
    shapes: dict[int, list[Any]] = {}

    class Cut(Exception):
        pass

    run = schema.run
    for cut in range(1000):
        path = tmp_path / f"{cut}" / "tasks.db"
        path.parent.mkdir()
        if start:
            shutil.copy(origin, path)
        left = cut

        def counted(connection: apsw.Connection, sql: str, values: Any = ()) -> Any:
            nonlocal left
            # A script is many statements, and the process may end between any two.
            statements = [sql]
            if sql.count(";") > 1:
                statements = [f"{part};" for part in sql.split(";\n") if part.strip()]
            found: list[Any] = []
            for statement in statements:
                if statement != "ROLLBACK":
                    if left == 0:
                        raise Cut
                    left -= 1
                found = run(connection, statement, values)
            return found

        monkeypatch.setattr(schema, "run", counted)
        connection = schema.connect(str(path)) if left > 3 else None
        try:
            if connection is not None:
                schema.migrate(connection)
        except Cut:
            pass
        else:
            if connection is not None:
                connection.close()
                break
        finally:
            monkeypatch.setattr(schema, "run", run)
            if connection is not None:
                connection.close()
        version, rows = shape(path)
        assert shapes.setdefault(version, rows) == rows
        if start:
            await check_all_is_there(path)
    else:
        raise AssertionError("it was never done")
    shapes.setdefault(*shape(path))
    # A new file gets all its tables at once, an older one step after step.
    assert sorted(shapes) == ([*range(start, LATEST + 1)] if start else [0, LATEST])


@pytest.mark.parametrize("has_agents", [False, True])
async def test_words_are_indexed_anew_where_a_gateway_gave_tasks_away(
    tmp_path: Path, has_agents: bool
) -> None:
    """Their index does not have the agents yet."""
    path = tmp_path / "tasks.db"
    store = SQLiteStore(path)
    await store.open()
    await write(store, creation("t"))
    head = await head_of(store, "t")
    await store.index_words([TaskWords(head.number, frozenset(["word"]), is_final=True)])
    assert await store.unindexed(1) == []
    await store.close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 16)
    connection.execute("DROP TABLE fresh_keys")
    if has_agents:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(agents)")]
        marks = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO agents VALUES ({marks})", ("1",) * len(columns))
    connection.close()
    store = SQLiteStore(path)
    await store.open()
    assert [one.task_id for one in await store.unindexed(1)] == ["t"] * has_agents
    # What there is, is found meanwhile.
    found = await store.search(Survey(limit=1), ["word"])
    assert [one.task_id for one in found.heads] == ["t"]
    await store.close()
