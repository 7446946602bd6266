"""The proof of triggers with one kill at a few steps, on both stores, and what its check finds."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.model.clock import stamp
from dragoman.testing.servers import PostgresServer
from proof.cluster.database import Database
from proof.crash.checker import Stored
from proof.gateway.triggers import STEPS, TriggerCounts, TriggersResult, check, prove_store

MINUTE = 60_000
# Before and behind what is written, and within.
FEW = [
    "between the look and the tasks",
    "while a task is recorded",
    "after a task, before the trigger has it",
    "before the due time moves on",
]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_each_due_time_and_each_post_begins_one_task_over_kills(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = None
    if store == "postgres":
        databases = request.getfixturevalue("databases")
        server: PostgresServer = databases.server
        url = databases.make()
        request.addfinalizer(lambda: databases.drop(url))
        database = Database(server, url.rpartition("/")[2])
    found = asyncio.run(prove_store(1, 5, folder=tmp_path, database=database, steps=FEW))
    rows = TriggersResult(seed=5, stores={store: found}).rows()
    assert [row.promise for row in rows if not row.kept] == [], found.findings
    assert found.kills == dict.fromkeys(FEW, 1) and found.due and found.posts
    assert STEPS.keys() > {*FEW}


def task(text: str, state: str = "TASK_STATE_COMPLETED") -> Stored:
    body = msgspec.json.encode({"task": {"history": [{"parts": [{"text": text}]}]}})
    return Stored(1, "id", state, 1, "", [body])


def at(minute: int) -> str:
    return stamp(minute * MINUTE * 1000)


def test_what_is_lost_doubled_foreign_or_unfinished_is_found() -> None:
    good = [task(f"s0 {at(n)}") for n in (5, 6, 7)]
    # One that is due after the end may be there, and under way.
    whole = [*good, task("post 1"), task(f"s0 {at(8)} edit 3")]

    def violations(tasks: list[Stored]) -> dict[str, int]:
        counts = TriggerCounts(processes=1)
        check(counts, tasks, [5 * MINUTE], 7 * MINUTE, ["1"])
        assert (counts.due, counts.posts) == (3, 1)
        kinds = ("lost", "doubled", "foreign", "unfinished")
        return {kind: count for kind in kinds if (count := getattr(counts, kind))}

    assert violations(whole) == {}
    late, due = (task(f"s0 {at(n)}", "TASK_STATE_SUBMITTED") for n in (8, 7))
    assert violations([*whole[:-1], late]) == {}
    assert violations([*whole[:2], due, *whole[3:]]) == {"unfinished": 1}
    assert violations(whole[1:]) == {"lost": 1}
    assert violations([*whole, task(f"s0 {at(6)} edit 2")]) == {"doubled": 1}
    assert violations([*whole, task(f"s0 {at(4)}")]) == {"foreign": 1}
    assert violations([*whole[:-1], task(f"s0 {at(8)}", "TASK_STATE_FAILED")]) == {"unfinished": 1}
