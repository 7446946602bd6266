"""`kill -9` at any moment: what was acknowledged is there, and what was begun is finished."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import httpx
import pytest
from serving import WAIT, Child, client, message, running

from dragoman.model.identity import Scope, TaskId
from dragoman.stores.interface import Query
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.stores import log_of, walk

ROUNDS = 5
HERE = Scope("agent", "", "alice")

# Writes as fast as it can and says of each write that it is durable, after it is told so.
LOADER = """
import asyncio, sys
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.stores import HERE, addition, chunk, creation, head_of, write

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


def rpc(method: str, params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class Callers:
    """Clients that never give a message up: one that was not answered is sent again as it was."""

    def __init__(self) -> None:
        self.unanswered: list[dict[str, object]] = []
        self.tasks: dict[str, str] = {}

    async def call(self, http: httpx.AsyncClient, method: str, params: object) -> dict[str, object]:
        body = (await http.post("/", json=rpc(method, params))).json()
        assert "result" in body, body
        return body["result"]

    async def send(self, http: httpx.AsyncClient, said: dict[str, object]) -> None:
        self.unanswered.append(said)
        params = {"message": said, "configuration": {"returnImmediately": True}}
        result = await self.call(http, "SendMessage", params)
        id = str(said["messageId"])
        task = result["task"]
        assert isinstance(task, dict)
        # A repetition that is answered with another task would show here.
        assert self.tasks.setdefault(id, task["id"]) == task["id"]
        self.unanswered.remove(said)

    async def keep_sending(self, http: httpx.AsyncClient) -> None:
        try:
            while True:
                await self.send(http, message("go"))
        except httpx.TransportError:
            pass

    async def load(self, server: Child, acknowledged: int) -> None:
        """Send from eight connections and kill the server once so many are acknowledged."""
        enough = len(self.tasks) + acknowledged
        async with client(server.url) as http:
            sending = [asyncio.ensure_future(self.keep_sending(http)) for _ in range(8)]
            async with asyncio.timeout(WAIT):
                while len(self.tasks) < enough:
                    await asyncio.sleep(0.001)
            server.process.kill()
            await asyncio.wait_for(asyncio.gather(*sending), WAIT)

    async def settle(self, server: Child) -> None:
        """Repeat what was not answered; then every task must come to its end."""
        async with client(server.url) as http:
            for said in list(self.unanswered):
                self.unanswered.remove(said)
                await self.send(http, said)
            for task_id in self.tasks.values():
                task = await self.ended(http, task_id)
                assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
                parts = task["artifacts"][-1]["parts"]
                assert "".join(part["text"] for part in parts) == COUNTED
            total = await self.call(http, "ListTasks", {"pageSize": 1})
            assert total["totalSize"] == len(self.tasks)

    async def ended(self, http: httpx.AsyncClient, task_id: str) -> dict[str, dict[str, object]]:
        async with asyncio.timeout(WAIT):
            while True:
                task = await self.call(http, "GetTask", {"id": task_id})
                if json.dumps(task["status"]).count("WORKING") + json.dumps(task).count(
                    "STATE_SUBMITTED"
                ):
                    await asyncio.sleep(0.01)
                    continue
                return task  # type: ignore[return-value]


@pytest.mark.requirement("T-7", "T-32")
async def test_a_killed_server_finishes_every_task_it_acknowledged_once(tmp_path: Path) -> None:
    (tmp_path / "crash_agent.py").write_text(AGENT)
    arguments = ("serve", "crash_agent.py", "--port", "0", "--store", tmp_path / "tasks.db")
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
        assert server.end() == 0
    assert len(callers.tasks) >= 20 * ROUNDS
