"""`dragoman vault` on a store that a server works on; killed at any place, it is done again."""

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.commands import invoke
from harness.processes import environment, run, running
from harness.serving import message
from harness.waiting import WAIT

from dragoman.config import load_settings
from dragoman.errors import ConfigError
from dragoman.security.vault import key_file_of, new_key, read_key_file, vault_of
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.rotation import sealed_with

AGENT = """
from dragoman import Agent, Turn

agent = Agent("Discreet", "Asks for a password.")

@agent.skill
async def work(text: str, turn: Turn) -> str:
    answer = await turn.ask("Password?", sensitive=True)
    await turn.ask("Sure?")
    return str(len(answer.text))
"""
# Runs the command and kills it at a place, as the system would.
KILLED = """
import os, signal, sys
from dragoman.cli.main import main
from dragoman.security.vault import Vault
from dragoman.stores.sqlite import rotation

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

place, *words = sys.argv[1:]
if place == "added":
    rotation.rotate = die
elif place == "sealed":
    Vault.set_aside_others = die
else:
    step, left = rotation._step, [int(place)]
    def counted(*given):
        left[0] -= 1
        return step(*given) if left[0] >= 0 else die()
    rotation._AT_ONCE, rotation._step = 1, counted
main(words)
"""


class Caller:
    """Speaks to a server."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url

    def call(self, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._http.post(self._url, json=body, headers={"A2A-Version": "1.0"})
        assert "result" in answer.json(), answer.text
        return answer.json()["result"]

    def send(self, text: str, **more: Any) -> Any:
        return self.call("SendMessage", {"message": message(text, **more)})["task"]


def keys(path: Path) -> list[str]:
    return [id.hex() for id in sealed_with(path)]


def test_the_key_changes_under_a_running_server_and_a_kill_at_any_place_loses_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "discreet.py").write_text(AGENT)
    store = tmp_path / "tasks.db"
    words = ("--listen", "127.0.0.1:0", "--store", str(store))
    env = {"DRAGOMAN_ALLOW_PRIVATE": "on"}
    with (
        running("serve", "discreet.py", *words, cwd=tmp_path, env=env) as server,
        httpx.Client(trust_env=False, timeout=WAIT) as http,
    ):
        caller = Caller(http, server.ready())
        task = caller.send("go")
        place = {"taskId": task["id"], "id": "p"}
        config = place | {"url": "http://127.0.0.1:9/", "token": "t0ken"}
        caller.call("CreateTaskPushNotificationConfig", config)
        waiting = caller.send("hush-hush", taskId=task["id"])
        assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        for cut in ("added", "0", "2", "sealed"):
            before = keys(store)[0]
            killed = subprocess.run(
                [sys.executable, "-c", KILLED, cut, "vault", "rotate", "--store", str(store)],
                env=environment(tmp_path),
                cwd=tmp_path,
                timeout=WAIT,
            )
            assert killed.returncode == -signal.SIGKILL
            assert len(read_key_file(key_file_of(store))) == 2
            token = caller.call("GetTaskPushNotificationConfig", place)["token"]
            assert token == "t0ken"
            ended = invoke("vault", "rotate", "--store", store, "-o", "json")
            assert ended.exit_code == 0, ended.output
            assert keys(store) == [json.loads(ended.stdout)["key"]] != [before]
            assert len(read_key_file(key_file_of(store))) == 1
            assert caller.call("GetTaskPushNotificationConfig", place)["token"] == "t0ken"
        # The server that knew only the first key seals with the last.
        caller.call("CreateTaskPushNotificationConfig", config | {"id": "q", "token": "t1"})
        server.process.kill()
        server.process.wait(WAIT)
    shown = json.loads(invoke("vault", "show", "--store", store, "-o", "json").stdout)
    assert [(key["state"], key["atHand"]) for key in shown["keys"]] == [("current", True)]
    assert shown["source"] == str(key_file_of(store))
    assert stat.S_IMODE(key_file_of(store).stat().st_mode) == 0o600
    # Another server has only the last key, and the code there gets the same answer.
    with (
        running("serve", "discreet.py", *words, cwd=tmp_path, env=env) as server,
        httpx.Client(trust_env=False, timeout=WAIT) as http,
    ):
        caller = Caller(http, server.ready())
        done = caller.send("yes", taskId=task["id"])
        assert done["artifacts"][0]["parts"] == [{"text": "9"}]
        listed = caller.call("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
        assert [one["token"] for one in listed["configs"]] == ["t0ken", "t1"]


async def made(path: Path, **settings: str) -> None:
    store = SQLiteStore(path, sealing=vault_of(load_settings({}, store=str(path), **settings)))
    await store.open()
    await store.prepare()
    assert store.secret
    await store.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


async def test_keys_in_the_environment_change_by_giving_both(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (base64.b64encode(new_key()).decode() for _ in range(2))
    await made(store, store_key=old)
    before = keys(store)
    monkeypatch.setenv("DRAGOMAN_STORE_KEY", new)
    refused = invoke("vault", "rotate", "--store", store)
    assert refused.exit_code == 2 and before[0] in refused.stderr
    monkeypatch.setenv("DRAGOMAN_STORE_KEY", f"{new},{old}")
    # A server with both goes on with the old one until the command says otherwise.
    await made(store, store_key=f"{new},{old}")
    assert keys(store) == before
    done = invoke("vault", "rotate", "--store", store)
    assert done.exit_code == 0 and "Old-Keys: kept" in done.stdout
    assert keys(store) != before and len(keys(store)) == 1
    await made(store, store_key=new)
    again = json.loads(invoke("vault", "rotate", "--store", store, "-o", "json").stdout)
    assert again["values"] == 0
    assert not key_file_of(store).exists()
    said = done.output + refused.output
    assert old not in said and new not in said


async def test_a_file_that_was_named_keeps_its_old_keys_for_other_stores(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = store.with_name("keys"), store.with_name("other.db")
    await made(store, store_key_file=str(file))
    await made(other, store_key_file=str(file))
    monkeypatch.setenv("DRAGOMAN_STORE_KEY_FILE", str(file))
    assert invoke("vault", "rotate", "--store", store).exit_code == 0
    assert len(read_key_file(file)) == 2
    await made(other, store_key_file=str(file))
    shown = invoke("vault", "show", "--store", store).stdout
    assert shown.count("current") == shown.count("unused") == 1


async def test_who_changed_the_key_is_in_the_audit_log(store: Path) -> None:
    await made(store)
    assert invoke("vault", "rotate", "--store", store).exit_code == 0
    lines = [json.loads(line) for line in Path(f"{store}.audit.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["act"] == "vault.rotate"]
    assert line["who"].startswith("local:") and line["object"]


async def test_the_key_before_is_set_aside_and_opens_the_backups_made_before(store: Path) -> None:
    await made(store)
    copy, (before,) = store.with_name("copy.db"), keys(store)
    assert invoke("backup", copy, "--store", store).exit_code == 0
    told = invoke("vault", "rotate", "--store", store).stdout
    aside = Path(f"{key_file_of(store)}.old-{before}")
    assert f"Set-Aside: {aside}, needed for backups made before" in told
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    again = json.loads(invoke("vault", "rotate", "--store", store, "-o", "json").stdout)
    shown = json.loads(invoke("vault", "show", "--store", store, "-o", "json").stdout)
    files = [one["file"] for one in shown["setAside"]]
    assert sorted([str(aside), *again["setAside"]]) == files and len(files) == 2
    assert f"Set-Aside: {aside}" in invoke("vault", "show", "--store", store).stdout
    # Where the store itself is restored, what is missing is told as it is typed.
    copy.replace(store)
    with pytest.raises(ConfigError, match="for a backup: ") as refused:
        await made(store)
    command = str(refused.value).partition("for a backup: ")[2]
    subprocess.run(["sh", "-c", command], check=True, timeout=WAIT)
    await made(store)


async def test_a_missing_key_is_shown_and_nothing_secret_is(store: Path) -> None:
    await made(store)
    text = key_file_of(store).read_text().strip()
    key_file_of(store).rename(store.with_name("away"))
    shown = invoke("vault", "show", "--store", store)
    assert shown.exit_code == 0 and "current (missing)" in shown.stdout
    assert text not in shown.output
    refused = invoke("vault", "rotate", "--store", store)
    assert refused.exit_code == 2 and "put the key file of this store there" in refused.stderr


async def test_two_changes_at_once_are_refused(store: Path) -> None:
    import fcntl

    await made(store)
    with open(f"{key_file_of(store)}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = invoke("vault", "rotate", "--store", store)
    assert refused.exit_code != 0 and "another `vault rotate`" in refused.stderr


async def test_what_is_not_secret_is_read_without_the_key(store: Path, tmp_path: Path) -> None:
    await made(store)
    os.unlink(key_file_of(store))
    for words in (["tasks", "list"], ["push", "list"], ["backup", tmp_path / "copy"]):
        ended = invoke(*words, "--store", store)
        assert ended.exit_code == 0, ended.output
    refused = invoke("push", "secret", "--store", store)
    assert refused.exit_code == 2 and "put the key file" in refused.stderr


def test_a_server_with_a_wrong_key_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "discreet.py").write_text(AGENT)
    store = tmp_path / "tasks.db"
    words = ("serve", "discreet.py", "--listen", "127.0.0.1:0", "--store", str(store))
    with running(*words, cwd=tmp_path) as server:
        server.ready()
        assert server.stop() == 0
    wrong = base64.b64encode(new_key()).decode()
    refused = run(*words, cwd=tmp_path, env={"DRAGOMAN_STORE_KEY": wrong})
    assert refused.returncode == 2 and "DRAGOMAN_STORE_KEY does not have" in refused.stderr
    assert wrong not in refused.stderr + refused.stdout
