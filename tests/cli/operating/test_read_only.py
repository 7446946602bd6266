"""A server that only reads its store, while the store is copied: with the real command."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.databases import Databases
from harness.processes import run, running

from dragoman.testing.processes import ServerProcess
from tests.cli.operating.test_store_command import HELLO

LISTEN = ("--listen", "127.0.0.1:0")


def shown(folder: Path, *words: str | Path, code: int = 0) -> Any:
    done = run(*words, "-o", "json", cwd=folder)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return json.loads(done.stdout or done.stderr)


def filled(folder: Path, store: str) -> dict[str, Any]:
    """Serve a gateway until a task has ended, one waits and a third one was cut off by a kill."""
    with running("up", *LISTEN, "--store", store, cwd=folder) as server:
        url = server.ready()
        ended = shown(folder, "send", "-a", url, HELLO)["task"]
        order = ("--data", '{"item": "tea"}', "--skill", "order")
        waiting = shown(folder, "send", "-a", url, *order)["task"]
        return {"ended": ended["id"], "waiting": waiting["id"]}


def rpc(url: str, method: str, **params: Any) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(url, json=body, headers={"a2a-version": "1.0"}, timeout=60)


def reads(folder: Path, server: ServerProcess, tasks: dict[str, Any]) -> None:
    """See that what is there is answered."""
    url = server.url
    assert shown(folder, "task", "get", tasks["ended"], "-a", url)["id"] == tasks["ended"]
    listed = {one["id"] for one in shown(folder, "task", "list", "-a", url)["tasks"]}
    assert {*tasks.values()} <= listed
    # A task at rest: its subscriber is shown how it stands.
    followed = run("task", "subscribe", tasks["waiting"], "-a", url, cwd=folder)
    assert "INPUT_REQUIRED" in followed.stdout.upper().replace("-", "_"), followed
    assert shown(folder, "card", "get", "-a", url)["name"]
    assert httpx.get(f"{url}/readyz", timeout=60).status_code == 200
    assert httpx.get(f"{url}/api/v1/console/tasks", timeout=60).status_code == 200
    assert httpx.get(f"{url}/console/tasks", timeout=60).status_code == 200
    assert shown(folder, "trust", "list", "--gateway", url)["items"]
    assert shown(folder, "ledger", "verify", "--gateway", url)["result"] == "ok"


def refuses(server: ServerProcess, tasks: dict[str, Any]) -> None:
    """See that nothing is changed, and that the caller is told when to try again."""
    url = server.url
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    for method, params in (
        ("SendMessage", {"message": message}),
        ("SendMessage", {"message": message | {"taskId": tasks["waiting"]}}),
        ("CancelTask", {"id": tasks["waiting"]}),
    ):
        answer = rpc(url, method, **params)
        assert (answer.status_code, answer.headers.get("retry-after")) == (503, "30"), answer.text
        assert "READ_ONLY" in answer.text and "only reads" in answer.text
    agent = httpx.get(f"{url}/api/v1/agents", timeout=60).json()["data"]["agents"][0]["id"]
    for refused in (
        httpx.delete(f"{url}/api/v1/agents/{agent}", timeout=60),
        httpx.post(f"{url}/api/v1/console/inbox", json={"id": tasks["waiting"], "decline": "no"}),
    ):
        assert refused.status_code == 503 and refused.headers["retry-after"] == "30", refused.text


@pytest.mark.parametrize("way", ["to a database", "to a file"])
def test_a_store_is_copied_while_a_server_reads_it(
    way: str, databases: Databases, tmp_path: Path
) -> None:
    file = str(tmp_path / "gateway.db")
    source, target = (
        (file, databases.make()) if way == "to a database" else (databases.make(), file)
    )
    tasks = filled(tmp_path, source)
    with running("up", *LISTEN, "--store", source, "--read-only", cwd=tmp_path) as server:
        server.ready()
        reads(tmp_path, server, tasks)
        refuses(server, tasks)
        copied = shown(tmp_path, "store", "copy", source, target)
        assert copied["rows"]["tasks"] >= 3
        reads(tmp_path, server, tasks)
        log = server.log
    assert "Traceback" not in log and "ERROR" not in log, log
    assert shown(tmp_path, "store", "check", "--store", target)["result"] == "ok"
    # What waited goes on where it was copied to.
    with running("up", *LISTEN, "--store", target, cwd=tmp_path) as server:
        url = server.ready()
        answer = ("inbox", "answer", tasks["waiting"], "--decline", "no", "--gateway", url)
        assert shown(tmp_path, *answer)["result"] == "answered"


SLOW = """
from dragoman import Agent, Turn
agent = Agent("Slow", "never ends")

@agent.skill
async def dig(text: str, turn: Turn) -> str:
    await turn.say("digging")
    await turn.sleep(3600)
    return "done"
"""


def contents(file: Path) -> str:
    connection = sqlite3.connect(file)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()


def test_a_server_that_only_reads_takes_nothing_over_and_writes_nothing(tmp_path: Path) -> None:
    """Unfinished tasks of a server that was killed stay as they are."""
    file, serve = tmp_path / "tasks.db", ("serve", "slow.py", *LISTEN, "--store", "tasks.db")
    (tmp_path / "slow.py").write_text(SLOW)
    with running(*serve, cwd=tmp_path) as server:
        task = shown(tmp_path, "send", "-a", server.ready(), "x", "--async")["task"]["id"]
        server.kill()
    before = contents(file)
    with running(*serve, "--read-only", cwd=tmp_path, env={"DRAGOMAN_LEASE": "1"}) as server:
        url = server.ready()
        for _ in range(2):
            found = shown(tmp_path, "task", "get", task, "-a", url)
            assert found["status"]["state"] == "TASK_STATE_WORKING"
    assert contents(file) == before


def test_what_is_not_there_or_of_another_schema_is_not_read(
    databases: Databases, tmp_path: Path
) -> None:
    for store in (str(tmp_path / "none.db"), databases.server.make_database("template1")):
        done = run("up", *LISTEN, "--store", store, "--read-only", cwd=tmp_path)
        assert done.returncode != 0 and not (tmp_path / "none.db").exists(), done
    filled(tmp_path, str(tmp_path / "old.db"))
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.execute("PRAGMA user_version = 3")
    connection.commit()
    connection.close()
    done = run("up", *LISTEN, "--store", "old.db", "--read-only", cwd=tmp_path)
    assert "dragoman store migrate" in done.stderr, done.stderr
