"""How the database is searched: the cost of a look may grow with what there is to do, and not with
the tasks that were ever stored. With statistics as a busy database has them."""

import json
from typing import Any

import pytest
from harness.databases import Databases

from dragoman.stores.named_sql import statements
from dragoman.stores.postgres import Addresses, PostgresStore

QUERIES = statements("dragoman.stores.postgres", "queries.sql")
PUSHES = statements("dragoman.stores.postgres", "pushes.sql")
PRUNING = statements("dragoman.stores.postgres", "pruning.sql")
READING = statements("dragoman.stores.postgres.operating", "reading.sql")
TASKS = 30_000

FILL = """
INSERT INTO scopes (agent, tenant, owner)
    SELECT 'agent', '', 'owner' || n FROM generate_series(1, 300) AS n;
INSERT INTO workers (release, schema, lease) SELECT 'x', 99, '30s' FROM generate_series(1, 3);
INSERT INTO tasks SELECT n, 't' || n, n % 300 + 1, 'c' || n % 5000,
    CASE WHEN n % 3000 = 0 THEN 2 WHEN n % 1000 = 1 THEN 6 ELSE 3 END, 1700000000000 + n * 10,
    3, 1, n % 3 + 1
    FROM (SELECT 4096 + n / 2 + n % 2 * 1048576 AS n FROM generate_series(1, {tasks}) AS n) AS m;
CREATE TABLE events_0 PARTITION OF events FOR VALUES FROM (0) TO (1048576);
CREATE TABLE snapshots_0 PARTITION OF snapshots FOR VALUES FROM (0) TO (1048576);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (1048576) TO (2097152);
CREATE TABLE snapshots_1 PARTITION OF snapshots FOR VALUES FROM (1048576) TO (2097152);
INSERT INTO events SELECT number, 3, 3, 0, convert_to(repeat('x', 500), 'UTF8') FROM tasks;
INSERT INTO snapshots SELECT number, 3, convert_to(repeat('x', 300), 'UTF8'), '[]' FROM tasks;
INSERT INTO keys SELECT scope, sha256(id::bytea), number, NULL, 1700000000000 FROM tasks;
INSERT INTO counts SELECT n, 3, w, 30 FROM generate_series(1, 300) AS n, generate_series(1, 3) AS w;
INSERT INTO notes (task, body) SELECT number, '{{}}' FROM tasks WHERE state = 6 LIMIT 5;
INSERT INTO deadlines SELECT number, status_at FROM tasks WHERE state IN (2, 6);
INSERT INTO pushes (task, id, config, holder, is_open, cursor)
    SELECT number, 'r', '{{}}', 1, number % 100 = 0, 3 FROM tasks WHERE number % 3 = 0;
ANALYZE"""

NOW = 1_800_000_000_000
# Each with values as they are asked for.
LOOKS: dict[str, tuple[str, list[Any]]] = {
    "known": (QUERIES["known"], [[7, 8], [b"x", b"y"]]),
    "head": (QUERIES["head"], ["agent", "", "owner7", "t5000"]),
    "at rest": (QUERIES["at_rest"], [[7, 8], ["t5000", "t5001"]]),
    "log": (QUERIES["read"], [5000, 0, 1, 128, 65536]),
    "logs": (QUERIES["read_many"], [[5000, 5001], [0, 0], 128, 65536]),
    "snapshot": (QUERIES["snapshot"], [5000]),
    "page": (QUERIES["page"], [7, 0, NOW, 1 << 60, 50]),
    "page of a state": (QUERIES["page_of_state"], [7, 0, NOW, 1 << 60, 50, 2]),
    "page of a context": (QUERIES["page_of_context"], [7, 0, NOW, 1 << 60, 50, None, "c7"]),
    "total": (QUERIES["total"], [7, None]),
    "bodies": (QUERIES["bodies"], [[5000, 5001], [3, 3], 65536, True]),
    "claimable": (QUERIES["claimable"], ["agent", 100]),
    "noted": (QUERIES["noted"], [1, "agent"]),
    "overdue": (QUERIES["overdue"], [1, "agent"]),
    "met deadlines": (QUERIES["drop_met_deadlines"], [1]),
    "notes": (QUERIES["notes"], [5000]),
    "pushes of a task": (PUSHES["of"], [5000]),
    "abandoned pushes": (PUSHES["claimable"], [100]),
    "taking over pushes": (PUSHES["claim"], [1, [7, 8], [2, 2]]),
    "settling": (
        PUSHES["settle"],
        [3, 0, 0, 0, True, "", 7, 1, None, None, 0, None],
    ),
    "events of doomed tasks": (PRUNING["forget_events"], [[5000, 5001]]),
    "emptiness of a partition": (PRUNING["has_tasks"], [1]),
    "new tasks for a tail": (READING["within"], [[1063000], [1 << 60], "", 500]),
    "blocks for a tail": (READING["open_blocks"], []),
}
# What grows with all tasks; scopes, workers, counts and what is under way are few.
LARGE = ("tasks", "events", "snapshots", "keys", "pushes")


@pytest.fixture(scope="module")
def filled(databases: Databases) -> str:
    url = databases.make()
    databases.server.sql(FILL.format(tasks=TASKS), url.rpartition("/")[2])
    return url


def scans(plan: Any, found: list[str]) -> list[str]:
    """Return which tables a plan reads from end to end."""
    table = plan.get("Relation Name", "")
    is_large = any(table == name or table.startswith(f"{name}_") for name in LARGE)
    if plan["Node Type"] == "Seq Scan" and is_large:
        found.append(table)
    # An index that is read from end to end is no better.
    index = plan.get("Index Name", "")
    if index and is_large and "Index Cond" not in plan and not _is_partial(index):
        found.append(index)
    for part in plan.get("Plans", ()):
        scans(part, found)
    return found


def _is_partial(index: str) -> bool:
    return index in ("tasks_unfinished", "pushes_open")


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_look_passes_over_no_task_that_it_is_not_about(
    filled: str, name: str, mode: str
) -> None:
    """With the values at hand, and as a plan that is made once for all of them."""
    sql, values = LOOKS[name]
    store = PostgresStore(Addresses(filled))
    await store._connections.open()
    try:
        async with store._connections.transaction() as connection:
            await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *values)
    finally:
        await store._connections.close()
    (found,) = json.loads(text)
    assert scans(found["Plan"], []) == [], json.dumps(found, indent=1)
    assert found["Plan"]["Total Cost"] < 5000, json.dumps(found, indent=1)
