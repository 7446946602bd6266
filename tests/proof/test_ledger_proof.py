"""The proof of the ledger with few crashes: it finds nothing, and in spoiled books it does."""

import asyncio
from pathlib import Path

import apsw
import pytest
from gateway.accounting import begin, done

from dragoman.proof import ledger
from dragoman.proof.ledger_audit import Audit
from dragoman.proof.spenders import Job
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.books import Books


def test_books_are_whole_wherever_their_writers_are_killed(tmp_path: Path) -> None:
    result = ledger.prove(16, 3, folder=tmp_path)
    assert result.findings == [] and result.kept, result
    assert result.crash_points == sum(result.points.values()) == 16
    assert result.spenders == 64 and result.accepted == result.affordable == 142
    assert result.transfers > 150 and result.errands > 140


@pytest.fixture
def books(tmp_path: Path) -> Path:
    async def make(path: Path) -> None:
        store = SQLiteStore(path, books=Books())
        await store.open()
        await done(store, "t")
        await begin(store, "open")
        await store.close()

    path = tmp_path / "books.db"
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
def test_what_is_wrong_with_books_is_counted_as_what_it_is(books: Path, name: str) -> None:
    acks = books.with_suffix(".acks")
    acks.write_text("begun open\nended t\n")
    audit = Audit()
    audit.look(books, acks)
    assert not audit.counts and not audit.findings
    connection = apsw.Connection(str(books))
    for statement in SPOILS[name]:
        connection.execute(statement)
    connection.close()
    audit.look(books, acks)
    assert audit.counts[name] > 0 and audit.findings


def test_a_hold_that_is_left_when_all_is_over_is_found(books: Path) -> None:
    audit = Audit()
    audit.look(books, books.with_suffix(".acks"), is_over=True)
    assert audit.counts["holds_left"] == 1
    assert (audit.counts["errands"], audit.counts["transfers"]) == (2, 5)


def test_a_file_that_is_no_store_yet_has_no_books_to_look_at(tmp_path: Path) -> None:
    """As a process leaves it that is killed while it makes the file."""
    path = tmp_path / "books.db"
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
