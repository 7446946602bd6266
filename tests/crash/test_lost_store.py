"""A server whose store is taken away while it serves: what callers and operators see."""

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import pytest
from harness.processes import START_WITHIN, run, running
from harness.serving import V1, client, message, serving
from harness.waiting import WAIT, eventually, within

from dragoman import Agent
from dragoman.errors import StoreBroken
from dragoman.stores.sqlite import SQLiteStore

AGENT = """
from dragoman import Agent
agent = Agent("Echo", "Says it again.")

@agent.skill(default=True)
async def echo(text: str) -> str:
    return text
"""
# A renewal every half a second.
OFTEN = {"DRAGOMAN_LEASE": "1.5"}


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return file


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "tasks.db"


def served(agent: Path, store: Path, *more: str) -> tuple[str | Path, ...]:
    return ("serve", agent, "--listen", "127.0.0.1:0", "--store", store, *more)


async def sent(url: str) -> httpx.Response:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": message("hello")},
    }
    async with client(url) as http:
        return await http.post("/", json=body, headers=V1)


async def settled(store: Path) -> None:
    """Wait until the file itself has what tells it from a copy, and the lock says so."""
    await eventually(lambda: b"\n" not in Path(f"{store}.lock").read_bytes().strip())


async def test_readiness_and_health_say_it_without_a_path_and_no_task_begins(store: Path) -> None:
    echo = Agent("Echo", "Says it again.")

    @echo.skill(default=True)
    async def say(text: str) -> str:
        return text

    async with serving(echo, store=str(store)) as site:
        await site.send("hello")
        store.unlink()
        with pytest.raises(StoreBroken):
            await site.app.store.renew()
        await within(site.app.store.broken())
        for path in ("/readyz", "/healthz"):
            answer = await site.http.get(path)
            assert answer.status_code == 503 and "retry-after" in answer.headers
            assert answer.json() == {
                "status": "broken",
                "reason": "a file of the store is gone or was changed by another program",
            }
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {"message": message("hello")},
        }
        refused = await site.post(body, headers=V1)
        assert refused.status_code == 503 and str(store.parent) not in refused.text


@pytest.mark.parametrize("kind", ["one", "workers", "gateway"])
async def test_a_server_whose_file_is_gone_ends_and_the_next_one_does_not_begin_anew(
    agent: Path, store: Path, tmp_path: Path, kind: str
) -> None:
    command = served(agent, store)
    if kind == "workers":
        command = served(agent, store, "--workers", "2")
    elif kind == "gateway":
        command = ("gateway", "--listen", "127.0.0.1:0", "--store", store)
    with running(*command, cwd=tmp_path, env=OFTEN) as child:
        url = child.ready()
        if kind != "gateway":
            assert (await sent(url)).status_code == 200
        store.unlink()
        assert await asyncio.to_thread(child.process.wait, START_WITHIN) == 1
        assert f"{store} is gone; what was acknowledged since then is lost" in child.log
        assert "restore a backup" in child.log and "Traceback" not in child.log
    again = await asyncio.to_thread(run, *command, cwd=tmp_path)
    assert again.returncode == 2 and "Traceback" not in again.stderr
    assert f"{store}: is gone, but a store was here" in again.stderr
    assert not store.exists()
    with running(*command, "--new-store", cwd=tmp_path) as child:
        child.ready()
        assert child.stop() == 0


async def test_a_backup_that_is_copied_over_a_served_store_is_noticed_and_can_be_served(
    agent: Path, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "backup.db"
    with running(*served(agent, store), cwd=tmp_path, env=OFTEN) as child:
        assert (await sent(child.ready())).status_code == 200
        made = await asyncio.to_thread(run, "backup", copy, "--store", store, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        await settled(store)
        shutil.copyfile(copy, store)
        assert await asyncio.to_thread(child.process.wait, START_WITHIN) == 1
        assert "was overwritten with" in child.log
    again = await asyncio.to_thread(run, *served(agent, store), cwd=tmp_path)
    assert again.returncode == 2 and "was written for another file" in again.stderr
    for end in ("-wal", "-shm"):
        os.unlink(f"{store}{end}")
    with running(*served(agent, store), cwd=tmp_path) as child:
        child.ready()
        assert child.stop() == 0


async def test_a_log_that_is_deleted_ends_the_server_and_loses_nothing(
    agent: Path, store: Path, tmp_path: Path
) -> None:
    with running(*served(agent, store), cwd=tmp_path, env=OFTEN) as child:
        url = child.ready()
        assert (await sent(url)).status_code == 200
        os.unlink(f"{store}-wal")
        task = (await sent(url)).json()["result"]["task"]["id"]
        assert await asyncio.to_thread(child.process.wait, START_WITHIN) == 1
        assert "nothing that was acknowledged is lost" in child.log
    shown = await asyncio.to_thread(run, "tasks", "show", task, "--store", store, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


async def test_a_folder_for_data_is_made_and_one_that_was_named_is_not(
    agent: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "no" / "such" / "tasks.db"
    ended = await asyncio.to_thread(run, *served(agent, missing), cwd=tmp_path)
    assert ended.returncode == 2 and f"there is no folder {missing.parent}" in ended.stderr
    assert not (tmp_path / "no").exists()
    with running("serve", agent, "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        child.ready()
        assert child.stop() == 0
    made = tmp_path / "made" / "here"
    with running("gateway", "--listen", "127.0.0.1:0", "--data-dir", made, cwd=tmp_path) as child:
        child.ready()
        assert child.stop(2 * WAIT) == 0
    assert (made / "tasks.db").is_file()


async def test_a_key_file_that_is_gone_is_told_while_it_can_be_put_back(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Agent("Echo", "Says it again.")

    @echo.skill(default=True)
    async def say(text: str) -> str:
        return text

    async with serving(echo, store=str(store)) as site:
        opened = site.app.store
        assert isinstance(opened, SQLiteStore)
        await opened.renew()
        key = Path(f"{store}.key")
        body = key.read_bytes()
        key.unlink()
        for _ in range(2):
            await opened.renew()
        (told,) = [one for one in caplog.messages if "key file of the store is gone" in one]
        assert str(key) in told
        key.write_bytes(body)
        key.chmod(0o600)
        await opened.renew()
        await site.send("hello")
