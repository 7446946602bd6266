"""Stores with something in every table, made of nothing but rows."""

import random
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.stores.copying.tables import TABLES, Table
from dragoman.stores.sqlite.schema import connect, migrate, run, transaction
from dragoman.stores.sqlite.writer import SEQ_BITS

# In three partitions of a database.
TASKS = (1, 2, 4095, 4096, 5000, 1 << 20, (1 << 20) + 7, 3 << 20)
_ODD = "ü 'quoted' \\ tab\t 終"


def fill(path: Path, seed: int = 1, rows: int = len(TASKS)) -> None:
    """Make a file with rows in every table."""
    choice = random.Random(seed)
    with closing(connect(str(path))) as connection:
        migrate(connection)
        with transaction(connection):
            run(connection, "DELETE FROM accounts")
            for table in TABLES:
                if table.name == "events":
                    for task in TASKS:
                        for last in (1, 3):
                            place = task << SEQ_BITS | last
                            values = (place, 1 if last == 1 else 2, 0, choice.randbytes(40))
                            run(connection, "INSERT INTO events VALUES (?, ?, ?, ?)", values)
                    continue
                for n in range(1, rows + 1):
                    insert(connection, table, n, choice)
            run(
                connection,
                "INSERT INTO counts SELECT scope, state, count(*) FROM tasks GROUP BY 1, 2",
            )
            run(connection, "UPDATE agents_watch SET version = 41")
            run(connection, "UPDATE agent_keys_version SET version = 42")
            run(connection, "INSERT INTO facts VALUES ('retired_number', ?)", (9 << 20,))


def insert(connection: Any, table: Table, n: int, choice: random.Random) -> None:
    """Insert the n-th row of a table."""
    types = {
        name: kind for _, name, kind, *_ in run(connection, f"PRAGMA table_info({table.file_name})")
    }
    values = [_value(table, name, types[name], n, choice) for name in table.columns]
    names = [*table.columns, *(name for name, _ in table.fixed)]
    # Whoever holds it does not come along.
    values += [17 for _ in table.fixed]
    if table.name == "facts" and n > 1:
        return
    marks = ", ".join("?" * len(values))
    run(
        connection,
        f"INSERT INTO {table.file_name} ({', '.join(names)}) VALUES ({marks})",
        tuple(values),
    )


def _value(table: Table, name: str, kind: str, n: int, choice: random.Random) -> Any:
    if name in table.switches:
        return int(n == 1)
    if table.name == "tasks":
        known = {"number": TASKS[n - 1], "last_seq": 3, "state": 3, "scope": 1 + n % 3}
        if name in known:
            return known[name]
    if table.name == "accounts" and name in ("balance", "held"):
        return n * 10 if name == "balance" else n
    if name == "task":
        return TASKS[n - 1]
    if table.name == "facts":
        return "sealed_secret" if name == "name" else b"\x01" + choice.randbytes(60)
    if name in table.key or name == "id":
        return {"INTEGER": n, "TEXT": f"{table.name}{n}"}.get(kind, bytes([n]) * 8)
    if name in ("tenant", "reply", "sealed", "expires_at") and n % 2:
        return None if (table.name, name) != ("scopes", "tenant") and name != "tenant" else ""
    if kind == "INTEGER":
        return choice.randrange(1 << 31) if name != "kind" else 1
    return f"{_ODD}{choice.random()}" if kind == "TEXT" else choice.randbytes(50)


def unseal(path: Path) -> None:
    """Take the secrets out of a file, so that no key is needed to serve from it."""
    with closing(connect(str(path))) as connection, transaction(connection):
        run(connection, "DELETE FROM vault_keys")
        run(connection, "DELETE FROM facts WHERE name = 'sealed_secret'")


def contents(path: Path) -> dict[str, list[Any]]:
    """Return all rows of a file, and what goes with them."""
    found: dict[str, list[Any]] = {}
    with closing(connect(str(path))) as connection:
        for table in TABLES:
            names = "*" if table.name == "events" else ", ".join(table.columns)
            rows = run(connection, f"SELECT {names} FROM {table.file_name} WHERE {table.where}")
            found[table.name] = sorted(rows, key=repr)
        for name in ("counts", "agents_watch", "agent_keys_version"):
            found[name] = sorted(run(connection, f"SELECT * FROM {name}"))
        found["held"] = run(connection, "SELECT count(*) FROM tasks WHERE holder <> 0")
        found["delivered"] = run(connection, "SELECT count(*) FROM pushes WHERE holder <> 0")
    return found
