"""`dragoman keys` as somebody types it: what it shows, what it changes, and what it survives."""

import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.processes import environment, run
from harness.waiting import WAIT

from dragoman.security.keys.api_keys import hash_of
from tests.cli.command import Ended, document, fields, home, inside, lines

KEY = re.compile(r"dgm_[0-9a-z]{10}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")


def keys(folder: Path, *words: str, env: dict[str, str] | None = None) -> Ended:
    return inside("keys", *words, cwd=folder, env=env)


def made(folder: Path, *words: str) -> Any:
    return document(keys(folder, "create", "--owner", "alice", *words, "-o", "json"))


def listed(folder: Path) -> list[Any]:
    return document(keys(folder, "list", "-o", "json"))["items"]


def test_a_key_is_made_and_shown_once(tmp_path: Path) -> None:
    ended = run(
        *("keys", "create", "--owner", "alice", "--scope", "maps", "--scope", "dragoman:admin"),
        *("--tenant", "acme", "--expires", "90d"),
        cwd=tmp_path,
        env=home(tmp_path) | {"XDG_DATA_HOME": str(tmp_path / "data")},
    )
    assert ended.returncode == 0, ended.stderr
    shown = fields(ended.stdout)
    assert KEY.fullmatch(shown["Key"]) and shown["Key"].split("_")[1] == shown["Id"]
    assert shown["Scopes"] == "dragoman:admin maps" and shown["Tenant"] == "acme"
    assert "shown this once" in ended.stderr and shown["Key"] not in ended.stderr
    file = tmp_path / "data" / "dragoman" / "keys.json"
    assert shown["File"] == str(file) and file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    (kept,) = json.loads(file.read_text())["keys"]
    assert kept["hash"] == hash_of(shown["Key"]).hex()
    assert shown["Key"].split("_")[2] not in file.read_text()


def test_keys_are_listed_and_shown_without_their_secrets(tmp_path: Path) -> None:
    first, second = made(tmp_path, "--tenant", "acme"), made(tmp_path, "--expires", "12h")
    assert first["expiresAt"] is None and second["state"] == "active"
    text = keys(tmp_path, "list").stdout
    shown = keys(tmp_path, "show", first["id"]).stdout
    assert f"Id: {first['id']}" in text and f"Id: {second['id']}" in text
    assert fields(shown)["Tenant"] == "acme"
    for one in (first, second):
        assert one["key"].split("_")[2] not in text + shown
    one = document(keys(tmp_path, "show", first["id"], "-o", "json"))
    assert one == listed(tmp_path)[0] == {name: first[name] for name in one}

    page = document(keys(tmp_path, "list", "--limit", "1", "-o", "json"))
    assert [item["id"] for item in page["items"]] == [first["id"]] == [page["nextPageToken"]]
    rest = keys(tmp_path, "list", "--page-token", first["id"], "-o", "json", "--stream")
    assert [item["id"] for item in lines(rest)] == [second["id"]]
    assert keys(tmp_path, "list", "--page-token", "nobody").returncode == 2


def test_there_may_be_no_keys_yet(tmp_path: Path) -> None:
    assert document(keys(tmp_path, "list", "-o", "json")) == {"items": [], "nextPageToken": ""}
    assert not [*tmp_path.rglob("keys.json*")]


def test_a_key_is_revoked_only_when_told_so(tmp_path: Path) -> None:
    key = made(tmp_path)
    refused = keys(tmp_path, "revoke", key["id"])
    assert refused.returncode == 2 and "--yes" in refused.stderr
    would = document(keys(tmp_path, "revoke", key["id"], "--dry-run", "-o", "json"))
    assert would["result"] == "would be revoked" and listed(tmp_path)[0]["state"] == "active"
    done = document(keys(tmp_path, "revoke", key["id"], "--yes", "-o", "json"))
    assert (done["result"], done["state"]) == ("revoked", "revoked")
    again = document(keys(tmp_path, "revoke", key["id"], "--yes", "-o", "json"))
    assert again["revokedAt"] == done["revokedAt"] == listed(tmp_path)[0]["revokedAt"]


def test_a_key_is_rotated_with_an_overlap(tmp_path: Path) -> None:
    key = made(tmp_path, "--scope", "maps", "--tenant", "acme")
    would = document(keys(tmp_path, "rotate", key["id"], "--dry-run", "-o", "json"))
    assert would["result"] == "would be rotated" and "key" not in would
    assert len(listed(tmp_path)) == 1
    after = document(keys(tmp_path, "rotate", key["id"], "--overlap", "0s", "-o", "json"))
    assert after["replaces"] == key["id"] and KEY.fullmatch(after["key"])
    assert after["key"] != key["key"]
    for name in ("owner", "scopes", "tenant"):
        assert after[name] == key[name]
    before, successor = listed(tmp_path)
    assert (before["state"], before["followedBy"]) == ("expired", after["id"])
    assert successor["state"] == "active"
    assert keys(tmp_path, "rotate", key["id"]).returncode == 2
    shown = fields(keys(tmp_path, "rotate", after["id"]).stdout)
    assert shown["Replaces"] == after["id"] and "Replaced-Until" in shown


def test_a_successor_is_good_for_no_longer_than_the_key_before(tmp_path: Path) -> None:
    key = made(tmp_path, "--expires", "1d")
    for more in ([], ["--dry-run"]):
        ended = keys(tmp_path, "rotate", key["id"], "--expires", "2d", *more)
        assert ended.returncode == 2 and "for no longer" in ended.stderr
    assert len(listed(tmp_path)) == 1
    after = document(keys(tmp_path, "rotate", key["id"], "--expires", "12h", "-o", "json"))
    assert after["expiresAt"] < key["expiresAt"]


def test_a_store_that_cannot_be_read_keeps_no_key_of_the_file_from_being_revoked(
    tmp_path: Path,
) -> None:
    key = made(tmp_path)
    (tmp_path / "broken.db").write_bytes(b"no database, but long enough to be taken for one" * 99)
    env = {"DRAGOMAN_STORE": str(tmp_path / "broken.db"), "DRAGOMAN_AUDIT": "off"}
    done = keys(tmp_path, "revoke", key["id"], "--yes", "-o", "json", env=env)
    assert document(done)["state"] == "revoked"
    told = keys(tmp_path, "list", env=env)
    assert told.returncode == 2 and "broken.db" in told.stderr


def test_nothing_is_made_by_a_dry_run(tmp_path: Path) -> None:
    would = keys(tmp_path, "create", "--owner", "alice", "--scope", "x", "--dry-run")
    assert fields(would.stdout)["Result"] == "would be made"
    assert not KEY.search(would.stdout) and not [*tmp_path.rglob("keys.json*")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create",), "--owner"),
        (("create", "--owner", ""), "--owner must be"),
        (("create", "--owner", "a b"), "--owner must be"),
        (("create", "--owner", "a", "--scope", "x y"), "--scope must be"),
        (("create", "--owner", "a", "--expires", "soon"), "90d, 12h or 30m"),
        (("create", "--owner", "a", "--expires", "0s"), "at least 1s"),
        (("create", "--owner", "a", "--expires", "999999d"), "at most 36500d"),
        (("show", "nobody"), "there is no key nobody"),
        (("revoke", "nobody", "--yes"), "there is no key nobody"),
        (("rotate", "nobody"), "there is no key nobody"),
        (("revoke", "dgm_abc_def"), "and not the key"),
        (("revoke", "nxk_abc_def"), "and not the key"),
        (("lst",), "did you mean list?"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ended = keys(tmp_path, *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    told = document(keys(tmp_path, *words, "-o", "json"), exit=2)
    assert told["error"]["code"] == "A2ACLI_ERR_USAGE"
    assert not [*tmp_path.rglob("keys.json")]


def test_the_file_is_the_one_that_is_named(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    for words, env, file in (
        (["--keys", str(here)], {"DRAGOMAN_KEYS": str(there)}, here),
        ([], {"DRAGOMAN_KEYS": str(there)}, there),
    ):
        ended = keys(tmp_path, "create", "--owner", "a", *words, env=env)
        assert fields(ended.stdout)["File"] == str(file) and file.exists()


def test_commands_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    def create(number: int) -> str:
        ended = run("keys", "create", "--owner", f"n{number}", "--keys", "k.json", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return fields(ended.stdout)["Id"]

    with ThreadPoolExecutor(4) as pool:
        ids = [*pool.map(create, range(4))]
    kept = json.loads((tmp_path / "k.json").read_text())["keys"]
    assert sorted(one["id"] for one in kept) == sorted(ids)


# Dies at a point of its choice in the middle of a change.
DYING = """
import os, signal, sys

def die(*arguments, **more):
    os.kill(os.getpid(), signal.SIGKILL)

def after(*arguments):
    replace(*arguments)
    die()

replace = os.replace
point = sys.argv[1]
if point == "after":
    os.replace = after
else:
    setattr(os, point, die)

from dragoman.cli.main import main
main(["keys", "create", "--owner", "b", "--keys", "k.json"])
"""


@pytest.mark.parametrize(("point", "count"), [("fsync", 1), ("replace", 1), ("after", 2)])
def test_a_command_that_is_killed_leaves_the_file_whole(
    tmp_path: Path, point: str, count: int
) -> None:
    file = tmp_path / "k.json"
    first = made(tmp_path, "--keys", str(file))
    ended = subprocess.run(
        [sys.executable, "-c", DYING, point],
        cwd=tmp_path,
        # Which writes, and would die, before the keys do.
        env=environment(tmp_path) | {"DRAGOMAN_AUDIT": "off"},
        capture_output=True,
        timeout=WAIT,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    kept = document(keys(tmp_path, "list", "--keys", str(file), "-o", "json"))["items"]
    assert len(kept) == count and kept[0]["id"] == first["id"]
    # What it left behind is in nobody's way.
    made(tmp_path, "--keys", str(file))
    assert len(json.loads(file.read_text())["keys"]) == count + 1
    assert sorted(path.name for path in tmp_path.glob("k.json*")) == ["k.json", "k.json.lock"]


def test_every_change_is_in_the_audit_log_and_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    env = {"DRAGOMAN_AUDIT": str(log), "LOGNAME": "root"}
    words = ("create", "--owner", "alice", "--scope", "maps", "--tenant", "acme", "-o", "json")
    key = document(keys(tmp_path, *words, env=env))
    after = document(keys(tmp_path, "rotate", key["id"], "-o", "json", env=env))
    for more in (["--dry-run"], [], ["--yes"]):
        keys(tmp_path, "revoke", after["id"], *more, env=env)
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["act"], one["object"], one["who"]) for one in found] == [
        ("key.create", f"{key['id']} alice", "local:root"),
        ("key.rotate", f"{key['id']} alice", "local:root"),
        ("key.revoke", f"{after['id']} alice", "local:root"),
    ]
    assert found[0]["reason"] == "maps tenant acme" and after["id"] in found[1]["reason"]
    for one in (key, after):
        assert one["key"].split("_")[2] not in log.read_text()


@pytest.mark.parametrize(
    ("words", "log"),
    [(("--store", "b.db"), "b.db.audit.jsonl"), (("--audit", "a.jsonl"), "a.jsonl")],
)
def test_a_change_is_in_the_log_of_the_store_that_is_named(
    tmp_path: Path, words: tuple[str, ...], log: str
) -> None:
    key = made(tmp_path, *words)
    after = document(keys(tmp_path, "rotate", key["id"], *words, "-o", "json"))
    document(keys(tmp_path, "revoke", after["id"], "--yes", *words, "-o", "json"))
    found = [json.loads(line)["act"] for line in (tmp_path / log).read_text().splitlines()]
    assert found == ["key.create", "key.rotate", "key.revoke"]


def test_nothing_is_changed_that_cannot_be_recorded(tmp_path: Path) -> None:
    env = {"DRAGOMAN_AUDIT": str(tmp_path)}
    ended = keys(tmp_path, "create", "--owner", "a", "--keys", "k.json", env=env)
    assert ended.returncode == 2 and "audit: " in ended.stderr and not ended.stdout
    assert not (tmp_path / "k.json").exists()


def test_a_file_that_is_broken_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "k.json"
    file.write_text("{")
    for words in (("create", "--owner", "a"), ("list",), ("revoke", "x", "--yes")):
        ended = keys(tmp_path, *words, "--keys", str(file))
        assert ended.returncode == 2 and "restore it from a copy" in ended.stderr
    assert file.read_text() == "{"


def test_a_change_waits_for_another_but_not_for_ever(tmp_path: Path) -> None:
    import fcntl

    file = tmp_path / "k.json"
    made(tmp_path, "--keys", str(file))
    with (tmp_path / "k.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ("keys", "create", "--owner", "b", "--keys", str(file), "--timeout", "200ms")
        ended = run(*words, cwd=tmp_path, env=home(tmp_path))
    assert ended.returncode == 5 and "A2ACLI_ERR_TIMEOUT" in ended.stderr
    assert len(json.loads(file.read_text())["keys"]) == 1
