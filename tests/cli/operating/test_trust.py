"""`dragoman trust`: how agents stand, why, and whether that follows from the log."""

import json
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust import recording
from dragoman.model.identity import LOCAL
from dragoman.stores.at_once import at_once
from dragoman.stores.sqlite.ledger.accounting import SQLiteAccounting
from dragoman.stores.sqlite.ledger.transactions import DirectTransactions
from dragoman.stores.sqlite.schema import run
from tests.cli.command import Ended, document, fields, inside
from tests.gateway.trust.ended_orders import DAY, Past, agent, end, enroll, opened


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A gateway's file: one agent did well, one did not, one did nothing yet."""
    path = tmp_path / "tasks.db"
    connection = opened(path)
    now = int(time.time() * 1000)
    for id in ("good", "bad", "idle"):
        enroll(connection, replace(agent(id), created_at=now - 73 * DAY))
    tasks = end(
        connection,
        *[Past("good", at=now, seconds=300)] * 4,
        Past("bad", at=now, state="failed"),
        Past("bad", "stranger", at=now, state="failed"),
    )
    accounting = SQLiteAccounting(DirectTransactions(connection))
    at_once(recording.observe(accounting, 100))
    at_once(recording.rate(accounting, "good", TaskReference(tasks[0]), LOCAL, 5, "", now))
    connection.close()
    return path


def test_an_agent_is_shown_as_the_api_shows_it(store: Path, tmp_path: Path) -> None:
    told = document(
        inside("trust", "show", "good-name", "--store", store, "-o", "json", cwd=tmp_path)
    )
    assert told == {
        "agentId": "good",
        "agentName": "good-name",
        "trustScore": 78,
        "badge": "Trusted",
        "components": {"reliability": 100.0, "speed": 50.0, "quality": 100.0, "tenure": 20.0},
        "taskStats": {"total": 4, "completed": 4, "failed": 0},
        "ratingStats": {"avgRating": 5.0, "count": 1},
    }
    text = fields(inside("trust", "show", "good", "--store", store, cwd=tmp_path).stdout)
    assert text["Trust"] == "78 (Trusted)" and text["Tasks"] == "4 completed, 0 failed"
    assert text["Ratings"] == "5 of 5 by 1"


def test_the_most_trusted_are_listed_first_in_pages(store: Path, tmp_path: Path) -> None:
    def page(*words: str) -> tuple[list[tuple[str, int]], str]:
        ended = inside("trust", "list", "--store", store, "-o", "json", *words, cwd=tmp_path)
        told = document(ended)
        items = [(item["agentId"], item["trustScore"]) for item in told["items"]]
        return items, told["nextPageToken"]

    assert page() == ([("good", 78), ("idle", 50), ("bad", 26)], "")
    assert page("--limit", "2") == ([("good", 78), ("idle", 50)], "2")
    assert page("--limit", "2", "--page-token", "2") == ([("bad", 26)], "")
    wrong = inside("trust", "list", "--store", store, "--page-token", "x", cwd=tmp_path)
    assert wrong.returncode == 2


def test_a_score_is_explained(store: Path, tmp_path: Path) -> None:
    said = inside("trust", "explain", "bad", "--store", store, cwd=tmp_path).stdout
    assert "bad-name has 26 of 100: New." in said
    assert "0 of 1 tasks that count were completed" in said
    assert "Of 2 observed outcomes 1 count" in said
    told = document(
        inside("trust", "explain", "idle", "--store", store, "-o", "json", cwd=tmp_path)
    )
    assert "begins with 50" in told["explanation"][-1]


def test_another_policy_is_a_setting(store: Path, tmp_path: Path) -> None:
    env = {"DRAGOMAN_TRUST_POLICY": "corvid"}
    ended = inside("trust", "show", "good", "--store", store, "-o", "json", cwd=tmp_path, env=env)
    told = document(ended)
    assert told["badge"] == "high" and "peerRating" in told["components"]


def test_a_store_and_its_export_verify_to_the_same_scores(store: Path, tmp_path: Path) -> None:
    told = document(inside("trust", "verify", "--store", store, "-o", "json", cwd=tmp_path))
    assert told["result"] == "ok" and told["events"] == 7 and told["waiting"] == 0
    assert told["scores"] == {"bad": 26, "good": 78, "idle": 50}
    save = tmp_path / "trust.jsonl"
    written = inside("trust", "export", "--store", store, "--save", save, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    again = document(inside("trust", "verify", save, "-o", "json", cwd=tmp_path))
    assert again["scores"] == told["scores"] and again["events"] == 7
    assert fields(written.stdout)["Head"] == again["head"] != told["head"]
    assert json.loads(save.read_text().splitlines()[-1])["prev"] == told["head"]


def test_what_was_changed_is_exit_1_and_said(store: Path, tmp_path: Path) -> None:
    save = tmp_path / "trust.jsonl"
    inside("trust", "export", "--store", store, "--save", save, cwd=tmp_path)
    save.write_text(save.read_text().replace('"score":-3', '"score":3', 1))
    ended = inside("trust", "verify", save, cwd=tmp_path)
    assert ended.returncode == 1 and "Error: DRAGOMAN_ERR_TRUST_BROKEN" in ended.stderr
    assert f"{save}: line 5: was changed" in ended.stderr
    connection = opened(store)
    run(connection, "UPDATE trust_days SET completed = 100 WHERE agent = 'bad'")
    connection.close()
    ended = inside("trust", "verify", "--store", store, cwd=tmp_path)
    assert ended.returncode == 1 and "the sums are not those of the events" in ended.stderr


def test_what_is_not_there_is_said_with_what_to_do(store: Path, tmp_path: Path) -> None:
    ended = inside("trust", "show", "nobody", "--store", store, cwd=tmp_path)
    assert ended.returncode == 1 and "DRAGOMAN_ERR_AGENT_NOT_FOUND" in ended.stderr
    assert "dragoman trust list" in ended.stderr
    assert inside("trust", "verify", tmp_path / "no.jsonl", cwd=tmp_path).returncode == 1
    missing = inside("trust", "list", "--store", tmp_path / "no.db", cwd=tmp_path)
    assert missing.returncode == 2 and "there is no such file" in missing.stderr
    connection = opened(store)
    run(connection, "PRAGMA user_version = 3")
    connection.close()
    old = inside("trust", "list", "--store", store, cwd=tmp_path)
    assert old.returncode == 2 and "start one on it" in old.stderr


def test_a_dispute_is_listed_and_decided_once_and_leaves_a_trace(
    store: Path, tmp_path: Path
) -> None:
    def typed(*words: str) -> Ended:
        return inside("trust", *words, "--store", store, cwd=tmp_path)

    assert document(typed("disputes", "-o", "json"))["items"] == []
    connection = opened(store)
    accounting = SQLiteAccounting(DirectTransactions(connection))
    now = int(time.time() * 1000)
    for number in (1, 2):
        task, reason = TaskReference(f"t{number}"), f"nothing came of {number}"
        at_once(recording.dispute(accounting, "good", task, LOCAL, reason, now))
    connection.close()
    first = document(typed("disputes", "-o", "json", "--limit", "1"))
    assert [one["taskId"] for one in first["items"]] == ["t1"] and first["nextPageToken"] == "1"
    shown = typed("disputes", "--page-token", "1")
    told = fields(shown.stdout)
    assert (told["Task"], told["Agent"]) == ("t2", "good-name")
    assert told["Reason"] == "nothing came of 2"
    assert "dragoman trust resolve t2 upheld" in shown.stderr

    before = document(typed("show", "good", "-o", "json"))
    decided = document(typed("resolve", "t1", "upheld", "--note", "seen", "-o", "json"))
    assert decided == {"result": "upheld", "taskId": "t1", "taskNumber": 1}
    after = document(typed("show", "good", "-o", "json"))
    assert after["taskStats"] == {"total": 4, "completed": 3, "failed": 1}
    assert after["trustScore"] < before["trustScore"]
    assert fields(typed("resolve", "t2", "rejected").stdout)["Result"] == "rejected"
    assert document(typed("disputes", "-o", "json"))["items"] == []
    for words, code in ((("t1", "upheld"), 1), (("t1", "maybe"), 2), (("t9", "upheld"), 1)):
        refused = typed("resolve", *words)
        assert refused.returncode == code, words
        assert code == 2 or "dragoman trust disputes" in refused.stderr
    assert typed("verify").returncode == 0
    lines = store.with_name("tasks.db.audit.jsonl").read_text().splitlines()
    acts = [(one["act"], one["object"], one["reason"]) for one in map(json.loads, lines)]
    assert acts == [
        ("trust.resolve", "t1 number 1", "upheld"),
        ("trust.resolve", "t2 number 2", "rejected"),
    ]
