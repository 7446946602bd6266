"""`dragoman ledger`: balances, statements and transfers of a store's file; whether it is whole."""

import asyncio
import csv
import io
import stat
from pathlib import Path

import apsw
import pytest

from dragoman.model.money import MICRO
from dragoman.model.task import TaskState
from tests.cli.command import document, fields, inside, lines
from tests.gateway.money.order_stores import begin, done, end, ordering_file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a file with four tasks: two completed, one failed, one not ended."""

    async def make(path: Path) -> None:
        store = ordering_file(path).store
        await store.open()
        await done(store, "first", 1_110_000)
        await done(store, "second")
        await begin(store, "failed", 3 * MICRO)
        await end(store, "failed", TaskState.FAILED)
        await begin(store, "open", 5 * MICRO)
        await store.close()

    path = tmp_path_factory.mktemp("ledger") / "tasks.db"
    asyncio.run(make(path))
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may spoil."""
    path = tmp_path / "tasks.db"
    path.write_bytes(made.read_bytes())
    return path


def spoil(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_balances_of_all_accounts_are_zero_together(store: Path, tmp_path: Path) -> None:
    shown = document(inside("ledger", "balance", "--store", store, "-o", "json", cwd=tmp_path))
    assert shown["nextPageToken"] == ""
    found = {(one["account"], one["owner"]): one for one in shown["items"]}
    assert found["user", "alice"] == {
        "account": "user",
        "owner": "alice",
        "available": "983.89",
        "held": "5.00",
        "total": "988.89",
    }
    assert found["user", "bob"]["total"] == "1010.55"
    assert found["fees", ""]["total"] == "0.56"
    assert found["issued", ""]["total"] == "-2000.00"
    page = document(
        inside("ledger", "balance", "--store", store, "--limit", "2", "-o", "json", cwd=tmp_path)
    )
    assert len(page["items"]) == 2 and page["nextPageToken"] == "2"


def test_a_balance_of_one_is_text_too_and_of_nobody_is_not_found(
    store: Path, tmp_path: Path
) -> None:
    ended = inside("ledger", "balance", "--store", store, "--owner", "alice", cwd=tmp_path)
    found = fields(ended.stdout)
    assert (found["Available"], found["Held"], found["Total"]) == ("983.89", "5.00", "988.89")
    missed = inside(
        "ledger", "balance", "--store", store, "--owner", "zoe", "-o", "json", cwd=tmp_path
    )
    assert document(missed, 1)["error"]["code"] == "DRAGOMAN_ERR_NOT_FOUND"


def test_a_statement_is_paged_from_the_latest_on(store: Path, tmp_path: Path) -> None:
    asked = ("ledger", "statement", "--store", store, "--owner", "alice", "-o", "json")
    shown = document(inside(*asked, cwd=tmp_path))["items"]
    assert [(one["kind"], one["amount"], one["balanceAfter"]) for one in shown] == [
        ("task_debit", "-10.00", "988.89"),
        ("task_debit", "-1.11", "998.89"),
        ("initial_grant", "1000.00", "1000.00"),
    ]
    assert shown[0]["reference"] == "second" and shown[0]["memo"] == "Task completed"
    seen: list[str] = []
    token = ""
    while True:
        page = document(
            inside(*asked, "--holds", "--limit", "3", "--page-token", token, cwd=tmp_path)
        )
        seen += [one["kind"] for one in page["items"]]
        token = page["nextPageToken"]
        if not token:
            break
    assert seen.count("hold") == 4 and seen.count("release") == 1 and len(seen) == 8
    only = lines(inside(*asked, "--kind", "task_debit", "--stream", cwd=tmp_path))
    assert [one["kind"] for one in only] == ["task_debit"] * 2
    wrong = inside(*asked, "--kind", "bribe", cwd=tmp_path)
    assert wrong.returncode == 2 and "must be one of" in wrong.stdout + wrong.stderr


def test_a_task_shows_its_transfers_and_a_transfer_its_entries(store: Path, tmp_path: Path) -> None:
    asked = ("ledger", "show", "--store", store, "-o", "json")
    hold, capture = document(inside(*asked, "second", cwd=tmp_path))["items"]
    assert (hold["kind"], capture["kind"]) == ("hold", "capture")
    entries = [(one["owner"], one["kind"], one["amount"]) for one in capture["entries"]]
    assert entries == [
        ("alice", "task_debit", "-10.00"),
        ("bob", "task_credit", "9.50"),
        ("bob", "platform_fee", "0.00"),
        ("", "platform_fee", "0.50"),
    ]
    for id in (capture["id"], str(capture["position"])):
        (again,) = document(inside(*asked, id, cwd=tmp_path))["items"]
        assert again == capture
    ended = inside("ledger", "show", "--store", store, capture["id"], cwd=tmp_path)
    assert "Entry: bob: task_credit 9.50" not in ended.stdout
    assert "Entry: user bob: task_credit 9.50" in ended.stdout
    for id in ("nothing", "99", "ab" * 32):
        missed = document(inside(*asked, id, cwd=tmp_path), 1)
        assert missed["error"]["code"] == "DRAGOMAN_ERR_NOT_FOUND"


def test_a_ledger_that_is_whole_is_told_with_its_head(store: Path, tmp_path: Path) -> None:
    told = document(inside("ledger", "verify", "--store", store, "-o", "json", cwd=tmp_path))
    assert told["result"] == "ok" and told["differences"] == []
    assert (told["orders"], told["charged"]) == (4, "11.11")
    ended = inside("ledger", "verify", "--store", store, "--expect", told["head"], cwd=tmp_path)
    assert ended.returncode == 0 and fields(ended.stdout)["Result"] == "ok"
    missed = inside("ledger", "verify", "--store", store, "--expect", "0a" * 32, cwd=tmp_path)
    assert missed.returncode == 1 and "no transfer has the expected hash" in missed.stderr
    wrong = inside("ledger", "verify", "--store", store, "--expect", "xyz", cwd=tmp_path)
    assert wrong.returncode == 2


@pytest.mark.parametrize(
    ("statements", "what"),
    [
        (["UPDATE accounts SET balance = balance + 1 WHERE owner = 'bob'"], "is not what its"),
        (
            [
                "DROP TRIGGER entries_stay",
                "UPDATE entries SET amount = amount + 1 WHERE kind = 'task_credit'",
            ],
            "its hash does not fit it",
        ),
        (["UPDATE accounts SET owner = 'mallory' WHERE owner = 'bob'"], "does not fit it"),
        (
            ["DROP TRIGGER transfers_stay", "UPDATE transfers SET at = at + 1 WHERE number = 2"],
            "its hash does not fit it",
        ),
        (["UPDATE errands SET charged = 0 WHERE task_id = 'first'"], "task first: 0 micro-credits"),
        (["DELETE FROM errands WHERE task_id = 'first'"], "there is no such order"),
        (["UPDATE errands SET held = 1 WHERE task_id = 'failed'"], "still holds credits"),
        (["UPDATE tasks SET state = 4 WHERE id = 'open'"], "has ended, and its order has not"),
        (
            ["DROP TRIGGER transfers_last", "DELETE FROM transfers WHERE number = 3"],
            "transfer 3: is missing",
        ),
    ],
)
def test_whatever_is_changed_is_found(
    store: Path, tmp_path: Path, statements: list[str], what: str
) -> None:
    spoil(store, *statements)
    ended = inside("ledger", "verify", "--store", store, cwd=tmp_path)
    assert ended.returncode == 1 and "DRAGOMAN_ERR_LEDGER_BROKEN" in ended.stderr
    assert what in ended.stdout, ended.stdout


def test_everything_is_exported_as_lines_or_as_a_table(store: Path, tmp_path: Path) -> None:
    exported = lines(inside("ledger", "export", "--store", store, cwd=tmp_path))
    assert [one["position"] for one in exported] == list(range(1, len(exported) + 1))
    save = tmp_path / "ledger.csv"
    asked = ("ledger", "export", "--store", store, "--format", "csv", "--save", save)
    told = document(inside(*asked, "-o", "json", cwd=tmp_path))
    assert told == {"path": str(save), "transfers": len(exported)}
    assert stat.S_IMODE(save.stat().st_mode) == 0o600
    rows = list(csv.DictReader(io.StringIO(save.read_text())))
    assert len(rows) == sum(len(one["entries"]) for one in exported)
    assert rows[0]["owner"] == "alice" and rows[0]["amount"] == "1000.00"
    nowhere = inside("ledger", "export", "--store", store, "--save", "/no/such/x", cwd=tmp_path)
    assert nowhere.returncode == 1 and "/no/such/x" in nowhere.stderr


def test_a_file_without_a_ledger_is_told_as_one(tmp_path: Path) -> None:
    missing = inside("ledger", "verify", "--store", tmp_path / "none.db", cwd=tmp_path)
    assert missing.returncode == 2 and "there is no such file" in missing.stderr


@pytest.mark.parametrize("word", ["balance", "statement", "verify"])
def test_nobody_believes_that_an_agent_is_asked(word: str, tmp_path: Path) -> None:
    ended = inside("ledger", word, "-a", "http://127.0.0.1:9", cwd=tmp_path)
    assert ended.returncode == 2
    assert f"without effect on dragoman ledger {word}: --agent-card" in ended.stderr
