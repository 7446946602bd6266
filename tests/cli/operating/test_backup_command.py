"""`dragoman backup` as a user types it, and the drill: a server on the copy finishes everything."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import httpx
from harness.processes import environment, run, running
from harness.serving import client, message
from harness.waiting import WAIT, within

from dragoman.security.vault import key_file_of
from dragoman.testing.processes import ServerProcess

AGENT = """
import asyncio
from dragoman import Agent

agent = Agent("Copied", "Is copied at work.")

@agent.skill
async def count(text: str):
    for n in range(10):
        await asyncio.sleep(0.05)
        yield f"{n} "
"""
COUNTED = "".join(f"{n} " for n in range(10))


def serving(folder: Path, store: Path) -> Any:
    (folder / "copied.py").write_text(AGENT)
    return running("serve", "copied.py", "--listen", "127.0.0.1:0", "--store", store, cwd=folder)


async def send(http: httpx.AsyncClient, said: dict[str, Any], *, wait: bool) -> Any:
    body = {"message": said, "configuration": {"returnImmediately": not wait}}
    answer = await http.post("/message:send", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]


class Load:
    """Callers that keep a server busy and remember what was acknowledged."""

    def __init__(self) -> None:
        self.acked: list[tuple[dict[str, Any], str]] = []
        self._goal = 0
        self._reached = asyncio.Event()

    async def keep_sending(self, http: httpx.AsyncClient) -> None:
        while True:
            said = message("go")
            task = await send(http, said, wait=False)
            self.acked.append((said, task["id"]))
            if len(self.acked) >= self._goal:
                self._reached.set()

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        self._goal = len(self.acked) + count
        self._reached.clear()
        await within(self._reached.wait())


async def back_up_under_load(
    servers: list[ServerProcess], *arguments: str | Path, cwd: Path
) -> Load:
    """Make a copy while callers send; return what was acknowledged before it began."""
    load, before = Load(), Load()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(server.url)) for server in servers]
        sending = [asyncio.ensure_future(load.keep_sending(http)) for http in clients * 2]
        try:
            await load.more(100)
            before.acked = list(load.acked)
            copied = await asyncio.to_thread(run, "backup", *arguments, cwd=cwd)
            assert copied.returncode == 0, copied.stderr
            # The servers are as they were.
            await load.more(50)
        finally:
            for sender in sending:
                sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*sending)
    return before


def check_file(path: Path) -> None:
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        assert file.pragma("integrity_check") == "ok"
        expected = 0
        rows = file.execute("SELECT position >> 20, position & 1048575, n FROM events").fetchall()
        last: dict[int, int] = {}
        for task, seq, n in sorted(rows):
            expected = last.get(task, 0) + n
            assert seq == expected, f"a gap before event {seq} of task {task}"
            last[task] = seq
        assert last == dict(file.execute("SELECT number, last_seq FROM tasks").fetchall())
    finally:
        file.close()


async def test_a_server_on_the_copy_finishes_everything_acknowledged_before_it(
    tmp_path: Path,
) -> None:
    store, copy = tmp_path / "tasks.db", tmp_path / "copy.db"
    with serving(tmp_path, store) as one, serving(tmp_path, store) as other:
        one.ready()
        other.ready()
        before = await back_up_under_load([one, other], copy, "--store", store, cwd=tmp_path)
        # The machine they ran on is gone.
        one.process.kill()
        other.process.kill()
    check_file(copy)
    file = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert file.execute("SELECT count(*) FROM tasks WHERE state IN (1, 2)").get > 0
    file.close()
    # What opens its secrets is no part of a copy.
    shutil.copy(key_file_of(store), key_file_of(copy))
    with serving(tmp_path, copy) as restored:
        restored.ready()
        async with client(restored.url) as http:

            async def settle(said: dict[str, Any], task_id: str) -> None:
                # Repeated as it was: the same task, at its end.
                task = await send(http, said, wait=True)
                assert task["id"] == task_id
                assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
                parts = task["artifacts"][-1]["parts"]
                assert "".join(part["text"] for part in parts) == COUNTED

            await within(asyncio.gather(*(settle(*acked) for acked in before.acked)))
        assert restored.stop() == 0
    assert len(before.acked) >= 100
    check_file(copy)


def test_the_command_says_what_it_made_and_replaces_only_by_force(tmp_path: Path) -> None:
    store, copy = tmp_path / "tasks.db", tmp_path / "copy.db"
    with serving(tmp_path, store) as server, httpx.Client(trust_env=False) as http:
        url = server.ready()
        http.post(f"{url}/message:send", json={"message": message("go")}).raise_for_status()
        made = run("backup", copy, "--store", store, cwd=tmp_path)
        assert made.returncode == 0 and made.stderr == ""
        size = copy.stat().st_size
        assert made.stdout == (
            f"File: {copy}\nBytes: {size}\nTasks: 1\nUnfinished: 0\n"
            f"Key-File: {key_file_of(store)} (not in the copy)\n"
        )
        again = run("backup", copy, "--store", store, cwd=tmp_path)
        assert again.returncode == 2 and "--force" in again.stderr and again.stdout == ""
        forced = run("backup", "--force", "-o", "json", copy, "--store", store, cwd=tmp_path)
        assert forced.returncode == 0
        assert json.loads(forced.stdout) == {
            "path": str(copy),
            "size": copy.stat().st_size,
            "tasks": 1,
            "unfinished": 0,
            "keyFile": str(key_file_of(store)),
        }


def test_what_cannot_be_copied_is_a_sentence(tmp_path: Path) -> None:
    missing = run("backup", "copy.db", "--store", "no.db", cwd=tmp_path)
    assert (
        missing.returncode == 2 and "no.db: there is no such file; name the store" in missing.stderr
    )
    memory = run("backup", "copy.db", "--store", "memory:", cwd=tmp_path)
    assert memory.returncode == 2 and "memory" in memory.stderr
    assert not (tmp_path / "copy.db").exists() and not (tmp_path / "no.db").exists()


# Stops half way and says so.
HALF = """
import sys, time
from dragoman.cli import main
from dragoman.stores.sqlite.files import backup

backup._PAGES = 1

def show(self, done, total):
    print("half", flush=True)
    time.sleep(60)

from dragoman.cli.operating.backup import Progress
Progress.show = show
sys.argv = ["dragoman", "backup", "copy.db", "--store", "tasks.db"]
main.main()
"""


def test_a_command_that_is_ended_half_way_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "tasks.db") as server:
        server.ready()
        before = set(os.listdir(tmp_path))
        half = subprocess.Popen(
            [sys.executable, "-c", HALF],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert half.stdout is not None and half.stdout.readline() == "half\n"
            assert set(os.listdir(tmp_path)) > before
            half.send_signal(signal.SIGTERM)
            assert half.wait(WAIT) == 143
        finally:
            half.kill()
            half.communicate(timeout=WAIT)
        assert set(os.listdir(tmp_path)) == before
