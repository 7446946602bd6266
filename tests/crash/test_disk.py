"""A disk that is full and one that fails: what callers hear, and what is kept."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import ROOT, START_WITHIN, running
from harness.serving import client, message
from harness.waiting import eventually, within

from dragoman.testing.processes import ServerProcess

AGENT = """
import asyncio
from dragoman import Agent, Turn
agent = Agent("Worker", "Works.")

@agent.skill(default=True)
async def echo(text: str) -> str:
    return text

@agent.skill
async def slowly(text: str, turn: Turn) -> str:
    for n in range(int(text)):
        await turn.step(f"step {n}", asyncio.sleep, 0.05)
    return "done"
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return file


@contextmanager
def on_faulty_disk(agent: Path, folder: Path) -> Generator[ServerProcess]:
    """Serve on a disk with switches: `disk.full` and `disk.lost` in the folder."""
    script = str(ROOT / "tests" / "crash" / "faulty_disk.py")
    command = (script, str(folder / "disk"))
    serving = ("serve", agent, "--listen", "127.0.0.1:0", "--store", folder / "tasks.db")
    with running(*serving, cwd=folder, command=command) as child:
        child.ready()
        yield child


async def post(http: httpx.AsyncClient, method: str, params: Any) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await http.post("/", json=body, headers={"a2a-version": "1.0"})


async def sent(http: httpx.AsyncClient, text: str, **more: Any) -> httpx.Response:
    said = message(text, **{k: v for k, v in more.items() if k != "configuration"})
    params = {"message": said}
    if "configuration" in more:
        params["configuration"] = more["configuration"]
    return await post(http, "SendMessage", params)


async def state_of(http: httpx.AsyncClient, task: str) -> str:
    return (await post(http, "GetTask", {"id": task})).json()["result"]["status"]["state"]


async def test_a_full_disk_is_told_and_heals_by_itself(agent: Path, tmp_path: Path) -> None:
    full = tmp_path / "disk.full"
    with on_faulty_disk(agent, tmp_path) as child:
        async with client(child.url) as http:
            before = (await sent(http, "a")).json()["result"]["task"]
            working = (
                await sent(
                    http,
                    "40",
                    metadata={"skill": "slowly"},
                    configuration={"returnImmediately": True},
                )
            ).json()["result"]["task"]
            full.touch()
            refused = await sent(http, "b")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["data"][0]["metadata"]["reason"] == "STORAGE_FULL"
            # Reading goes on.
            assert await state_of(http, before["id"]) == "TASK_STATE_COMPLETED"
            assert (await http.get("/readyz")).status_code == 200
            full.unlink()

            async def heals() -> bool:
                return (await sent(http, "c")).status_code == 200

            await eventually(heals)

            async def finishes() -> bool:
                return await state_of(http, working["id"]) == "TASK_STATE_COMPLETED"

            await eventually(finishes)


async def test_a_disk_that_lost_a_write_gets_no_further_word_of_success(
    agent: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "disk.lost"
    with on_faulty_disk(agent, tmp_path) as child:
        async with client(child.url) as http:
            kept = (await sent(http, "a")).json()["result"]["task"]
            lost.touch()
            assert (await sent(http, "b")).status_code == 503
            # The next sync would succeed, and prove nothing.
            lost.unlink()
            # It may be gone already, which is no success either.
            with suppress(httpx.TransportError):
                assert (await sent(http, "c")).status_code == 503
        assert await asyncio.to_thread(child.process.wait, START_WITHIN) == 1
    with on_faulty_disk(agent, tmp_path) as child:
        await within(_is_kept(child, kept["id"]))


async def _is_kept(child: ServerProcess, task: str) -> None:
    async with client(child.url) as http:
        assert await state_of(http, task) == "TASK_STATE_COMPLETED"
