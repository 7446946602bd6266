"""How the file is searched for what is looked for every second: the cost of a look may grow with
what there is to do, and not with the tasks that were ever stored."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.task import TaskState
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.schema import run
from dragoman.testing.promises.samples import HERE, creation, head_of, submit, write

# A million ended tasks are in none of these.
FEW = (
    "USING INTEGER PRIMARY KEY (rowid=?)",
    "USING INDEX tasks_unfinished",
)
LOOKS: list[tuple[str, Any]] = [
    ("noted", (1, "agent")),
    ("overdue", (1, "agent")),
    ("met_deadlines", (1,)),
    ("abandoned", {"agent": "agent", "limit": 1}),
    ("abandoned_pushes", (1,)),
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


def plan(store: SQLiteStore, name: str, values: Any) -> list[str]:
    rows = run(store._reader, f"EXPLAIN QUERY PLAN {store._sql[name]}", values)
    return [row[3] for row in rows]


@pytest.mark.parametrize(("name", "values"), LOOKS, ids=[name for name, _ in LOOKS])
async def test_a_look_of_every_second_passes_over_no_ended_task(
    store: SQLiteStore, name: str, values: Any
) -> None:
    lines = plan(store, name, values)
    of_tasks = [line for line in lines if line.startswith(("SCAN tasks", "SEARCH tasks"))]
    assert of_tasks, lines
    for line in of_tasks:
        assert line.endswith(FEW), lines


@pytest.mark.parametrize(("name", "values"), LOOKS[:3], ids=[name for name, _ in LOOKS[:3]])
async def test_what_is_few_is_read_first(store: SQLiteStore, name: str, values: Any) -> None:
    lines = plan(store, name, values)
    tables = [line.split()[1] for line in lines if line.startswith(("SCAN", "SEARCH"))]
    assert tables[0] == ("notes" if name == "noted" else "deadlines")
    assert "SEARCH tasks USING INTEGER PRIMARY KEY (rowid=?)" in lines
    assert not any("TEMP B-TREE" in line or "AUTOMATIC" in line for line in lines)


async def test_deadlines_that_were_met_do_not_stand_before_one_that_was_not(
    store: SQLiteStore,
) -> None:
    ended = (creation(f"t{n}", state=TaskState.COMPLETED) for n in range(6_000))
    await submit(store, *ended)
    await store._do(lambda c: run(c, "INSERT INTO deadlines SELECT number, 1 FROM tasks"))
    await write(store, creation("late", state=TaskState.WORKING, deadline=2))
    late = await head_of(store, "late")
    assert await store.overdue(HERE.agent, 3) == [late]
    assert await store.overdue(HERE.agent, 3) == [late]
    # The others are forgotten, some thousands at a time.
    assert run(store._reader, "SELECT task FROM deadlines") == [(late.number,)]
