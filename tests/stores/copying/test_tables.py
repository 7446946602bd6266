"""Everything that a store has is copied, or is known not to be worth it."""

from contextlib import closing
from pathlib import Path

from harness.databases import Databases

from dragoman.stores.copying.tables import TABLES
from dragoman.stores.sqlite.schema import connect, migrate, run

# Of processes that live, made anew, or carried over as a mark.
NOT_COPIED = {
    "agent_circuits",
    "agent_keys_version",
    "agents_watch",
    "beats",
    "chains",
    "counts",
    "dragoman_schema",
    "duties",
    "limits",
    "seats",
    "sqlite_sequence",
    "task_words",
    "unfinished_words",
    "unindexed_blocks",
    "workers",
}
# Columns that only one side has, or that are made anew.
NOT_READ = {
    "tasks": {"holder"},
    "pushes": {"holder"},
    "agents": {"number"},
    "agent_credentials": {"number"},
    "accounts": {"ahead"},
    "transfers": {"place", "legs", "opens_with", "is_counted"},
    "events": {"position"},
}


def check(found: dict[str, set[str]], *, in_file: bool) -> None:
    tables = {table.file_name if in_file else table.name: table for table in TABLES}
    if in_file:
        tables |= {table.also_in_file: table for table in TABLES if table.also_in_file}
    assert found.keys() - NOT_COPIED == tables.keys()
    for name, table in tables.items():
        left_out = found[name] - set(table.columns) - NOT_READ.get(name, set())
        assert not left_out, f"{name}: {left_out} would be lost"


def test_all_of_a_file_is_copied(tmp_path: Path) -> None:
    with closing(connect(str(tmp_path / "tasks.db"))) as connection:
        migrate(connection)
        names = run(connection, "SELECT name FROM sqlite_schema WHERE type = 'table'")
        found = {
            name: {column for _, column, *_ in run(connection, f"PRAGMA table_info({name})")}
            for (name,) in names
        }
    check(found, in_file=True)


def test_all_of_a_database_is_copied(databases: Databases) -> None:
    url = databases.make()
    rows = databases.server.sql(
        "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') "
        "AND NOT relispartition AND attnum > 0 AND NOT attisdropped",
        url.rpartition("/")[2],
    )
    found: dict[str, set[str]] = {"chains": set()}
    for line in rows.splitlines():
        table, column = line.split("|")
        found.setdefault(table, set()).add(column)
    check(found, in_file=False)
