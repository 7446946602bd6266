"""`kill -9` at any moment: what was acknowledged is there, and what was begun is finished."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from harness.processes import running
from harness.serving import client, message
from harness.waiting import WAIT, within

from dragoman.model.identity import Scope, TaskId
from dragoman.stores.interface import Query
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.processes import ServerProcess
from dragoman.testing.promises.samples import log_of, walk

ROUNDS = 5
CALLERS = 8
HERE = Scope("agent", "", "alice")

# Writes as fast as it can and says of each write that it is durable, after it is told so.
LOADER = """
import asyncio, sys
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.processes import ServerProcess
from dragoman.testing.promises.samples import HERE, addition, chunk, creation, head_of, write

async def writer(store, name):
    await write(store, creation(name, keys=[name.encode()]))
    sys.stdout.write(f"{name} 1\\n")
    for n in range(2, 200):
        head = await head_of(store, name)
        await write(store, addition(head, chunk(name, f"{name} {n}")))
        sys.stdout.write(f"{name} {n}\\n")

async def main(path, run):
    store = SQLiteStore(path)
    await store.open()
    for generation in range(1000):
        names = [f"r{run}.{generation}.{n}" for n in range(32)]
        await asyncio.gather(*(writer(store, name) for name in names))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def killed_loader(path: Path, run: int, after: int) -> dict[str, int]:
    """Load a store until so many writes are acknowledged, kill it; return how far each task got."""
    loader = subprocess.Popen(
        [sys.executable, "-u", "-c", LOADER, str(path), str(run)], stdout=subprocess.PIPE, text=True
    )
    reached: dict[str, int] = {}
    assert loader.stdout is not None
    with loader.stdout as lines:
        for count, line in enumerate(lines):
            # What it said before it died was said, so the rest is read too.
            if line.endswith("\n") and len(words := line.split()) == 2:
                reached[words[0]] = int(words[1])
            if count == after:
                loader.send_signal(signal.SIGKILL)
    assert loader.wait(WAIT) == -signal.SIGKILL
    return reached


async def test_a_killed_store_has_every_acknowledged_write(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    chance = random.Random(5)
    promised: dict[str, int] = {}
    for run in range(ROUNDS):
        after = chance.randrange(200, 4000)
        promised |= await asyncio.to_thread(killed_loader, path, run, after)
        store = SQLiteStore(path)
        await store.open()
        heads = {head.task_id: head for head in await walk(store, Query(HERE, 100))}
        for name, seq in promised.items():
            head = heads[TaskId(name)]
            assert head.standing.last_seq >= seq
            log = await log_of(store, head)
            assert [recorded.seq for recorded in log] == list(range(1, head.standing.last_seq + 1))
            known = await store.known(HERE, name.encode())
            assert known is not None and known.task_id == name
        await store.close()
    assert sum(promised.values()) > 200 * ROUNDS
    file = apsw.Connection(str(path))
    assert file.pragma("integrity_check") == "ok"
    file.close()


AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Crash", "Is killed.")

@agent.skill
async def count(text: str, turn: Turn):
    for n in range(10):
        await asyncio.sleep(0.005)
        yield f"{n} "
"""
COUNTED = "".join(f"{n} " for n in range(10))


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class Callers:
    """Clients that never give a message up: one that was not answered is sent again as it was."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, str] = {}
        self.enough = 0
        self.had_enough = asyncio.Event()

    async def call(self, http: httpx.AsyncClient, method: str, params: Any) -> Any:
        body = (await http.post("/", json=rpc(method, params))).json()
        assert "result" in body, body
        return body["result"]

    async def send(self, http: httpx.AsyncClient, said: dict[str, Any], *, wait: bool) -> Any:
        id = said["messageId"]
        self.said[id] = said
        params = {"message": said, "configuration": {"returnImmediately": not wait}}
        task = (await self.call(http, "SendMessage", params))["task"]
        # A repetition that is answered with another task would show here.
        assert self.tasks.setdefault(id, task["id"]) == task["id"]
        if len(self.tasks) >= self.enough:
            self.had_enough.set()
        return task

    async def keep_sending(self, http: httpx.AsyncClient) -> None:
        with contextlib.suppress(httpx.TransportError):
            while True:
                await self.send(http, message("go"), wait=False)

    async def load(self, server: ServerProcess, acknowledged: int) -> None:
        """Send from several connections and kill the server once so many are acknowledged."""
        self.enough = len(self.tasks) + acknowledged
        self.had_enough.clear()
        async with client(server.url) as http:
            sending = [asyncio.ensure_future(self.keep_sending(http)) for _ in range(CALLERS)]
            await within(self.had_enough.wait())
            server.process.kill()
            await within(asyncio.gather(*sending))

    async def read(self, http: httpx.AsyncClient, task_ids: Iterator[str]) -> None:
        for task_id in task_ids:
            await self.call(http, "GetTask", {"id": task_id})

    async def repeat(self, http: httpx.AsyncClient, messages: Iterator[dict[str, Any]]) -> None:
        for said in messages:
            task = await self.send(http, said, wait=True)
            assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
            parts = task["artifacts"][-1]["parts"]
            assert "".join(part["text"] for part in parts) == COUNTED

    async def settle(self, server: ServerProcess) -> None:
        """Repeat every message, answered or not: each has one task, and that comes to its end."""
        async with client(server.url) as http:
            acknowledged = iter(dict(self.tasks).values())
            await asyncio.gather(*(self.read(http, acknowledged) for _ in range(CALLERS)))
            unsettled = iter(dict(self.said).values())
            await asyncio.gather(*(self.repeat(http, unsettled) for _ in range(CALLERS)))
            listed = await self.call(http, "ListTasks", {"pageSize": 1})
            assert listed["totalSize"] == len(self.tasks) == len(self.said)


@pytest.mark.requirement("T-7", "T-32")
async def test_a_killed_server_finishes_every_task_it_acknowledged_once(tmp_path: Path) -> None:
    (tmp_path / "crash_agent.py").write_text(AGENT)
    arguments = (
        "serve",
        "crash_agent.py",
        "--listen",
        "127.0.0.1:0",
        "--store",
        tmp_path / "tasks.db",
    )
    callers = Callers()
    chance = random.Random(7)
    for _ in range(ROUNDS):
        with running(*arguments, cwd=tmp_path) as server:
            server.ready()
            await callers.settle(server)
            await callers.load(server, chance.randrange(20, 150))
    with running(*arguments, cwd=tmp_path) as server:
        server.ready()
        await callers.settle(server)
        assert server.stop() == 0
    assert len(callers.tasks) >= 20 * ROUNDS
