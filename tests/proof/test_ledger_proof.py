"""The proof of the ledger with few crashes: it finds nothing, and in a spoiled ledger it does."""

import asyncio
from pathlib import Path

import apsw
import pytest

from proof.money import ledger
from proof.money.audit import Audit
from proof.money.spenders import Job
from tests.gateway.money.order_stores import begin, done, ordering_file


def test_the_ledger_is_whole_wherever_its_writers_are_killed(tmp_path: Path) -> None:
    result = ledger.prove(16, 3, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.crash_points == sum(result.points.values()) == 16
    assert result.spenders == 64 and result.accepted == result.affordable == 142
    assert result.transfers > 150 and result.errands > 140


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    async def make(path: Path) -> None:
        store = ordering_file(path).store
        await store.open()
        await done(store, "t")
        await begin(store, "open")
        await store.close()

    path = tmp_path / "ledger.db"
    asyncio.run(make(path))
    return path


SPOILS: dict[str, tuple[str, ...]] = {
    "sum_violations": ("UPDATE accounts SET balance = balance + 1 WHERE owner = 'bob'",),
    "overspend": (
        "PRAGMA ignore_check_constraints = on",
        "UPDATE accounts SET held = balance + 1 WHERE owner = 'alice'",
    ),
    "double_charges": ("UPDATE errands SET price = price - 1 WHERE task_id = 't'",),
    "holds_left": ("UPDATE tasks SET state = 4 WHERE id = 'open'",),
    "lost": ("DELETE FROM errands WHERE task_id = 't'",),
    "differences": ("UPDATE errands SET fee = charged + 1 WHERE task_id = 't'",),
}


@pytest.mark.parametrize("name", SPOILS)
def test_what_is_wrong_with_a_ledger_is_counted_as_what_it_is(spoiled: Path, name: str) -> None:
    acks = spoiled.with_suffix(".acks")
    acks.write_text("begun open\nended t\n")
    audit = Audit()
    audit.look(spoiled, acks)
    assert not audit.counts and not audit.findings
    connection = apsw.Connection(str(spoiled))
    for statement in SPOILS[name]:
        connection.execute(statement)
    connection.close()
    audit.look(spoiled, acks)
    assert audit.counts[name] > 0 and audit.findings


def test_a_hold_that_is_left_when_all_is_over_is_found(spoiled: Path) -> None:
    audit = Audit()
    audit.look(spoiled, spoiled.with_suffix(".acks"), is_over=True)
    assert audit.counts["holds_left"] == 1
    assert (audit.counts["errands"], audit.counts["transfers"]) == (2, 5)


def test_a_file_that_is_no_store_yet_has_no_ledger_to_look_at(tmp_path: Path) -> None:
    """As a process leaves it that is killed while it makes the file."""
    path = tmp_path / "ledger.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.close()
    assert path.stat().st_size
    audit = Audit()
    audit.look(path, path.with_suffix(".acks"))
    assert not audit.counts and not audit.findings


def test_a_process_dies_at_the_place_that_is_named(tmp_path: Path) -> None:
    stage = ledger.Stage(tmp_path)
    try:
        for name, point in ledger.POINTS.items():
            store = tmp_path / f"{len(name)}-{len(point)}.db"
            job = Job(
                kind="errands",
                store=str(store),
                acks=str(store.with_suffix(".acks")),
                seed=1,
                dies_at=1,
                point=point,
            )
            assert stage.wait(stage.begin(job)) == -9, name
    finally:
        stage.close()
