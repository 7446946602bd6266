"""Two `dragoman serve` on one file: one may be killed, frozen or asked instead of the other."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness.processes import running
from harness.serving import Site, client, message
from harness.waiting import within

from dragoman.testing.processes import ServerProcess

# Says where it runs, and goes on when a file of its task's name exists: in both processes at once.
AGENT = """
import asyncio, os
from pathlib import Path
from dragoman import Agent, Turn

agent = Agent("Shared", "Is served twice.")

async def opened(name: str) -> None:
    while not Path(name).exists():
        await asyncio.sleep(0.005)

@agent.skill
async def held(text: str, turn: Turn):
    await turn.say(f"{os.getpid()} {turn.attempt}")
    await opened(text)
    await turn.say(f"{os.getpid()} ends")
    return str(os.getpid())

@agent.skill
async def asks(text: str, turn: Turn):
    return (await turn.ask("which?")).text

@agent.skill
async def quick(text: str):
    return text
"""
# Seconds: one that a test waits for, and one that it does not.
SHORT_LEASE, LONG_LEASE = 1, 60
DONE = "TASK_STATE_COMPLETED"


class Two:
    """Two servers of one file."""

    def __init__(self, folder: Path, servers: list[ServerProcess], sites: list[Site]) -> None:
        self.folder = folder
        self.servers = servers
        self.sites = sites

    def open(self, name: str) -> None:
        (self.folder / name).touch()

    async def held(self, name: str, by: int = 0) -> Any:
        """Return a task that runs in one of them until its name is opened."""
        task = await self.sites[by].send(
            name, metadata={"skill": "held"}, configuration={"returnImmediately": True}
        )
        pid = self.servers[by].process.pid
        await self.until(by, task["id"], lambda task: f"{pid} 1" in said(task))
        return task

    async def until(self, by: int, id: str, is_so: Any) -> Any:
        """Ask one of them until a task is as it should be."""
        return await self.sites[by].task_when(id, is_so)


def said(task: Any) -> list[str]:
    spoken = [*task.get("history", []), task["status"].get("message") or {"parts": []}]
    return [part.get("text", "") for message in spoken for part in message["parts"]]


def state(task: Any) -> str:
    return task["status"]["state"]


def is_done(task: Any) -> bool:
    return state(task) == DONE


@contextlib.contextmanager
def serve(folder: Path, lease: int) -> Generator[ServerProcess]:
    arguments = (
        "serve",
        "shared_agent.py",
        "--listen",
        "127.0.0.1:0",
        "--store",
        folder / "tasks.db",
    )
    with running(*arguments, cwd=folder, env={"DRAGOMAN_LEASE": str(lease)}) as server:
        try:
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)


@pytest.fixture
async def two(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Two]:
    (tmp_path / "shared_agent.py").write_text(AGENT)
    async with contextlib.AsyncExitStack() as stack:
        # Both come up at the same moment, on a file that neither has made yet.
        lease = getattr(request, "param", SHORT_LEASE)
        servers = [stack.enter_context(serve(tmp_path, lease)) for _ in range(2)]
        sites = []
        for server in servers:
            url = await asyncio.to_thread(server.ready)
            http = await stack.enter_async_context(client(url))
            sites.append(Site(url, http))
        yield Two(tmp_path, servers, sites)
    file = apsw.Connection(str(tmp_path / "tasks.db"))
    assert file.pragma("integrity_check") == "ok"
    file.close()


@pytest.mark.parametrize("two", [LONG_LEASE], indirect=True)
async def test_either_answers_for_the_tasks_of_both(two: Two) -> None:
    a, b = two.sites
    # A message to a task that the other one holds, and its answer.
    task = await a.send("hi", metadata={"skill": "asks"})
    assert state(task) == "TASK_STATE_INPUT_REQUIRED"
    done = await b.send("this", taskId=task["id"])
    assert is_done(done) and done["artifacts"][0]["parts"][0]["text"] == "this"
    assert await a.task(task["id"]) == done

    # A cancel.
    running = await two.held("never")
    began = time.monotonic()
    canceled = await b.call("CancelTask", {"id": running["id"]})
    assert time.monotonic() - began < LONG_LEASE / 2
    assert state(canceled) == "TASK_STATE_CANCELED"
    assert state(await a.task(running["id"])) == "TASK_STATE_CANCELED"

    # The same message, many times, at once.
    params = {"message": message("once", metadata={"skill": "quick"})}
    before = await a.total()
    replies = await within(
        asyncio.gather(*((a, b)[n % 2].answer("SendMessage", params) for n in range(20)))
    )
    assert len({reply["result"]["task"]["id"] for reply in replies}) == 1
    assert await a.total() == await b.total() == before + 1

    # A stream of what the other one writes, and one that goes on from a position.
    running = await two.held("streamed")
    streams = [
        asyncio.ensure_future(site.events("SubscribeToTask", {"id": running["id"]}))
        for site in (a, b)
    ]
    async with b.stream("SubscribeToTask", {"id": running["id"]}) as stream:
        assert (await anext(stream)).id is not None
    two.open("streamed")
    await two.until(1, running["id"], is_done)
    after = {"Last-Event-ID": "1"}
    whole = [
        await site.events("SubscribeToTask", {"id": running["id"]}, headers=after)
        for site in (a, b)
    ]
    assert [(f.id, f.result) for f in whole[0]] == [(f.id, f.result) for f in whole[1]]
    ids = [frame.id for frame in whole[0]]
    for frames in await within(asyncio.gather(*streams)):
        assert [frame.id for frame in frames] == ids[-len(frames) :]


@pytest.mark.parametrize("two", [LONG_LEASE], indirect=True)
async def test_a_killed_server_is_succeeded_before_its_lease_ends(two: Two) -> None:
    b = two.sites[1]
    tasks = [await two.held(f"t{n}") for n in range(3)]
    asking = await two.sites[0].send("hi", metadata={"skill": "asks"})
    async with b.stream("SubscribeToTask", {"id": tasks[0]["id"]}) as stream:
        await anext(stream)
        two.servers[0].process.kill()
        began = time.monotonic()
        pid = two.servers[1].process.pid
        for task in tasks:
            await two.until(1, task["id"], lambda task: f"{pid} 2" in said(task))
        assert time.monotonic() - began < LONG_LEASE / 2
        for n in range(3):
            two.open(f"t{n}")
        seen = [frame async for frame in stream if frame.comment is None]
    assert seen[-1].result["statusUpdate"]["status"]["state"] == DONE
    numbers = [int(frame.id or 0) for frame in seen]
    assert numbers == sorted(set(numbers))
    for task in tasks:
        done = await two.until(1, task["id"], is_done)
        assert done["artifacts"][-1]["parts"][0]["text"] == str(pid)
    assert is_done(await b.send("this", taskId=asking["id"]))


async def test_a_frozen_server_loses_its_tasks_and_what_it_writes_when_it_wakes_is_refused(
    two: Two,
) -> None:
    a, b = two.sites
    frozen, other = (server.process.pid for server in two.servers)
    tasks = [await two.held(f"t{n}") for n in range(3)]
    kept = message("hi", metadata={"skill": "quick"})
    two.servers[0].process.send_signal(signal.SIGSTOP)
    for task in tasks:
        await two.until(1, task["id"], lambda task: f"{other} 2" in said(task))
    two.open("t0")
    done = await two.until(1, tasks[0]["id"], is_done)
    answer = await b.answer("SendMessage", {"message": kept})
    # It wakes with its code at work, and the gates of two more tasks open at that moment.
    two.open("t1")
    two.open("t2")
    two.servers[0].process.send_signal(signal.SIGCONT)
    for task in tasks:
        ended = await two.until(0, task["id"], is_done)
        assert ended["artifacts"][-1]["parts"][0]["text"] == str(other)
        assert f"{frozen} ends" not in said(ended)
        assert await b.task(task["id"]) == ended
    assert await a.task(tasks[0]["id"]) == done
    # Both serve on; what was made while it slept is known to it.
    again = await a.answer("SendMessage", {"message": kept})
    assert again["result"]["task"]["id"] == answer["result"]["task"]["id"]
    for site in (a, b):
        assert is_done(await site.send("on", metadata={"skill": "quick"}))
    assert [server.stop() for server in two.servers] == [0, 0]
