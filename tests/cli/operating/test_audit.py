"""`dragoman audit`: the log of who was refused and what was done, and whether it is whole."""

from pathlib import Path

import pytest

from dragoman.config import SecuritySettings, Settings, StoreSettings
from dragoman.security.audit.chain import AuditEntry
from dragoman.security.audit.file import AuditFile
from tests.cli.command import document, fields, inside, lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.db.audit.jsonl"
    AuditFile(path, max_bytes=500).append(
        [
            AuditEntry(
                "2026-01-31T12:00:00.000Z", "auth.denied", "denied", "", "", "expired", "::1"
            ),
            AuditEntry("2026-01-31T13:00:00.000Z", "key.created", "ok", "token:ops", "k1"),
        ]
    )
    AuditFile(path, max_bytes=500).append(
        [
            AuditEntry("2026-01-31T14:00:00.000Z", "key.revoked", "ok", "token:ops", "k1\x1b[2J"),
            AuditEntry("2026-01-31T15:00:00.000Z", "auth.denied", "denied", "\u202e", count=12),
        ]
    )
    assert path.with_name("tasks.db.audit.jsonl.1").exists()
    return path


def test_a_log_in_order_is_told_with_its_head_and_times(log: Path, tmp_path: Path) -> None:
    ended = inside("audit", "verify", "--audit", log, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = fields(ended.stdout)
    assert found["Lines"] == "4" and found["Result"] == "ok" and found["First-Line"] == "1"
    assert found["First"] == "2026-01-31T12:00:00.000Z"
    assert found["Last"] == "2026-01-31T15:00:00.000Z"
    told = document(inside("audit", "verify", "--audit", log, "-o", "json", cwd=tmp_path))
    assert told["head"] == found["Head"] and told["result"] == "ok" and told["torn"] == []
    again = inside("audit", "verify", "--audit", log, "--expect", found["Head"], cwd=tmp_path)
    assert again.returncode == 0
    missed = inside("audit", "verify", "--audit", log, "--expect", "0a" * 32, cwd=tmp_path)
    assert missed.returncode == 1 and "no line has the expected hash" in missed.stderr
    wrong = inside("audit", "verify", "--audit", log, "--expect", "xyz", cwd=tmp_path)
    assert wrong.returncode == 2


def test_a_log_that_was_changed_is_exit_1_and_told_by_file_and_line(
    log: Path, tmp_path: Path
) -> None:
    first = log.with_name("tasks.db.audit.jsonl.1")
    first.write_bytes(first.read_bytes().replace(b"token:ops", b"token:opz"))
    ended = inside("audit", "verify", "--audit", log, cwd=tmp_path)
    assert ended.returncode == 1
    assert "Error: DRAGOMAN_ERR_AUDIT_BROKEN" in ended.stderr
    assert f"{first}, line 2: was changed: its hash does not fit it" in ended.stderr
    assert fields(ended.stdout)["Lines"] == "1" and "Result" not in fields(ended.stdout)
    told = document(inside("audit", "verify", "--audit", log, "-o", "json", cwd=tmp_path), 1)
    assert told["error"]["code"] == "DRAGOMAN_ERR_AUDIT_BROKEN"


def test_a_log_that_a_crash_left_unfinished_is_torn_and_not_broken(
    log: Path, tmp_path: Path
) -> None:
    log.write_bytes(log.read_bytes()[:-30])
    ended = inside("audit", "verify", "--audit", log, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = fields(ended.stdout)
    assert found["Result"] == "torn" and f"{log}, line 2" in found["Torn"]
    told = document(inside("audit", "verify", "--audit", log, "-o", "json", cwd=tmp_path))
    assert [one["line"] for one in told["torn"]] == [2]


def test_the_latest_come_first_and_can_be_chosen_and_paged(log: Path, tmp_path: Path) -> None:
    def listed(*words: str) -> list[int]:
        ended = inside("audit", "list", "--audit", log, "-o", "json", *words, cwd=tmp_path)
        return [item["seq"] for item in document(ended)["items"]]

    assert listed() == [4, 3, 2, 1]
    assert listed("--act", "auth.denied") == [4, 1]
    assert listed("--act", "key") == [3, 2] and listed("--act", "ke") == []
    assert listed("--who", "token:ops") == [3, 2]
    assert listed("--since", "2026-01-31T15:30:00+01:00") == [4]
    assert listed("--since", "2026-01-31T15:00:00+01:00") == [4, 3]
    first = inside("audit", "list", "--audit", log, "--limit", "3", cwd=tmp_path)
    token = fields(first.stdout)["Next-Page"]
    assert listed("--limit", "3", "--page-token", token) == [1]
    streamed = inside("audit", "list", "--audit", log, "-o", "json", "--stream", cwd=tmp_path)
    assert [item["seq"] for item in lines(streamed)] == [4, 3, 2, 1]
    bad = inside("audit", "list", "--audit", log, "--page-token", "x", cwd=tmp_path)
    assert bad.returncode == 2


def test_what_callers_chose_cannot_move_a_cursor(log: Path, tmp_path: Path) -> None:
    shown = inside("audit", "list", "--audit", log, cwd=tmp_path).stdout
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "Object: k1\\x1b[2J" in shown and "Count: 12" in shown


def test_the_log_is_looked_for_beside_the_store_and_may_be_off(log: Path, tmp_path: Path) -> None:
    found = inside("audit", "verify", "--store", tmp_path / "tasks.db", cwd=tmp_path)
    assert fields(found.stdout)["Lines"] == "4"
    env = {"DRAGOMAN_AUDIT": str(log)}
    assert fields(inside("audit", "verify", cwd=tmp_path, env=env).stdout)["Lines"] == "4"
    off = inside("audit", "verify", "--audit", "off", cwd=tmp_path)
    assert off.returncode == 2 and "--audit" in off.stderr
    memory = inside("audit", "list", "--store", "memory:", cwd=tmp_path)
    assert memory.returncode == 2
    missing = inside("audit", "list", "--audit", "nowhere.jsonl", cwd=tmp_path)
    assert missing.returncode == 1 and "DRAGOMAN_ERR_STORE" in missing.stderr
    assert not (tmp_path / "nowhere.jsonl").exists()


def test_the_setting_names_a_file_or_none() -> None:
    assert Settings(stores=StoreSettings(location="memory:")).audit_path() is None
    assert (
        Settings(
            stores=StoreSettings(location="x/tasks.db"), security=SecuritySettings(audit="off")
        ).audit_path()
        is None
    )
    # Two stores in one folder have each a log of their own.
    assert Settings(stores=StoreSettings(location="x/tasks.db")).audit_path() == Path(
        "x/tasks.db.audit.jsonl"
    )
    assert Settings(stores=StoreSettings(location="x/b.db")).audit_path() == Path(
        "x/b.db.audit.jsonl"
    )
    assert Settings(
        stores=StoreSettings(location="memory:"), security=SecuritySettings(audit="y.jsonl")
    ).audit_path() == Path("y.jsonl")


def test_help_says_what_a_chain_does_not_show(tmp_path: Path) -> None:
    shown = " ".join(inside("audit", "verify", "--help", cwd=tmp_path).stdout.split())
    assert "cut off" in shown and "--expect" in shown
