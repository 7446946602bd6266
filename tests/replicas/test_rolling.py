"""Replicas that are restarted one after the other, under load: no caller that tries twice sees a
failure, nothing is lost and nothing done twice."""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from harness.serving import V1, client, message
from harness.waiting import WAIT, eventually, within

from dragoman import Client
from dragoman.model.events import ArtifactUpdate
from tests.replicas.replicas import Replicas, busy, replicas, said, state

CALLERS = 8
MOST_RETRIES = 2
# Seconds, on a busy machine: a lease would be 30.
SOON = 5.0


class Load:
    """Callers that send one message after the other, and try each twice at most."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent: dict[str, str] = {}
        self.failures: list[str] = []
        # Why first and second tries failed.
        self.problems: list[str] = []
        self.retries = 0
        self.is_over = False

    async def has_sent(self, count: int) -> bool:
        return len(self.sent) >= count

    async def run(self, name: str) -> None:
        async with client(self._url) as http:
            n = 0
            while not self.is_over:
                n += 1
                await self._send(http, f"{name}-{n}")

    async def _send(self, http: httpx.AsyncClient, text: str) -> None:
        body = {"message": message(text, metadata={"skill": "noted"})}
        for is_last in (False, True):
            problem = ""
            try:
                answer = await http.post("/message:send", json=body, headers=V1)
                if answer.status_code == 200:
                    task = answer.json()["task"]
                    assert state(task) == "completed", task
                    self.sent[text] = task["id"]
                    return
                problem = f"{answer.status_code} {answer.text}"
            except httpx.TransportError as error:
                problem = repr(error)
            self.problems.append(f"{text}: {problem}")
            if is_last:
                self.failures.append(f"{text}: {problem}")
            self.retries += 1


async def restart(three: Replicas, place: int, program: str = "") -> None:
    """End one in good order, and have another in its place, perhaps of another program."""
    server = three.servers[place]
    server.signal(signal.SIGTERM)
    code = await asyncio.to_thread(server.process.wait, WAIT)
    assert code == 0, server.log
    await three.join(three.begin(program), place)


async def test_a_rolling_restart_under_load_fails_no_caller_that_tries_twice(
    tmp_path: Path, database: str
) -> None:
    async with replicas(tmp_path, database, 3) as three:
        load = Load(three.proxy.url)
        callers = [asyncio.create_task(load.run(f"c{n}")) for n in range(CALLERS)]
        for place in range(3):
            before = len(load.sent)
            await within(restart(three, place))
            # Through the new one, too.
            await eventually(partial(load.has_sent, before + 50))
        load.is_over = True
        await within(asyncio.gather(*callers))
        assert load.failures == []
        # Each connection found a replica, and what was accepted was answered. One that comes in the
        # instant in which a replica stops to listen may be reset.
        assert three.proxy.refused == 0
        assert load.retries <= MOST_RETRIES, load.problems
        done = (tmp_path / "done").read_text().splitlines()
        assert sorted(done) == sorted(load.sent)
        assert len(set(load.sent.values())) == len(load.sent)
        # All of them are there for each of the new ones.
        for site in three.sites:
            assert await site.total() == len(load.sent)


async def test_tasks_of_a_replica_that_ends_go_on_elsewhere_within_a_second(
    tmp_path: Path, database: str
) -> None:
    async with replicas(tmp_path, database, 2) as two:
        tasks = [await two.held(f"gate-{n}") for n in range(5)]
        server = two.servers[0]
        server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, WAIT) == 0
        ended = asyncio.get_running_loop().time()
        pid = two.servers[1].pid
        for task in tasks:
            # The first attempt still: no one died.
            await two.until(1, task["id"], lambda task: f"{pid} 1" in said(task))
        took = asyncio.get_running_loop().time() - ended
        for n, task in enumerate(tasks):
            two.open(f"gate-{n}")
            done = await two.until(1, task["id"], lambda task: state(task) == "completed")
            assert [text for text in said(done) if text.endswith("ends")] == [f"{pid} ends"]
        assert took < SOON


async def test_a_replica_that_is_about_to_end_takes_no_tasks_over(
    tmp_path: Path, database: str
) -> None:
    async with replicas(tmp_path, database, 2, DRAGOMAN_DRAIN="4") as two:
        left = await two.held("left", by=1)
        ending, other = two.servers
        # A request that waits keeps it for as long as it may.
        body = {"message": message("never", metadata={"skill": "held"})}
        waiting = asyncio.create_task(
            two.sites[0].http.post("/message:send", json=body, headers=V1)
        )
        await eventually(partial(is_running, two, f"{ending.pid} 1"))
        ending.signal(signal.SIGTERM)
        await eventually(partial(is_closed, ending.port))
        other.signal(signal.SIGTERM)
        assert await asyncio.to_thread(other.process.wait, WAIT) == 0
        assert (await within(waiting)).status_code == 503
        assert await asyncio.to_thread(ending.process.wait, WAIT) == 0
        third = await two.join(two.begin(), 1)
        two.open("left")
        done = await two.until(1, left["id"], lambda task: state(task) == "completed")
        assert str(ending.pid) not in " ".join(said(done))
        assert await third.total() == 2


async def is_running(two: Replicas, words: str) -> bool:
    """Tell whether a task said something, as another replica sees it."""
    return any(words in said(task) for task in await two.sites[1].tasks())


async def is_closed(port: int) -> bool:
    """Tell whether a server takes no more connections."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_a_stream_goes_on_when_the_replica_that_runs_its_task_ends(
    tmp_path: Path, database: str
) -> None:
    async with replicas(tmp_path, database, 2) as two, Client(two.proxy.url) as caller:
        texts: list[str] = []
        restarting = None
        async with caller.stream("60", metadata={"skill": "counts"}) as stream:
            async for event in stream:
                if isinstance(event, ArtifactUpdate):
                    if not event.append:
                        texts.clear()
                    texts += [part.text or "" for part in event.artifact.parts]
                if len(texts) >= 10 and restarting is None:
                    restarting = asyncio.create_task(restart(two, (await busy(two))[0]))
        assert restarting is not None
        assert "".join(texts).split() == [str(n) for n in range(60)]
        await within(restarting)


async def test_a_request_that_waits_for_a_task_is_answered_elsewhere_when_it_is_made_again(
    tmp_path: Path, database: str
) -> None:
    async with replicas(tmp_path, database, 2, DRAGOMAN_DRAIN="1") as two:
        body: Any = {"message": message("gate", metadata={"skill": "held"})}
        waiting = asyncio.create_task(
            two.sites[0].http.post("/message:send", json=body, headers=V1)
        )
        tasks = await eventually(two.sites[1].tasks)
        two.servers[0].signal(signal.SIGTERM)
        await asyncio.wait([waiting])
        refused = waiting.result()
        # It is told to come back, and by the proxy it comes to another.
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        again = asyncio.create_task(two.sites[1].http.post("/message:send", json=body, headers=V1))
        two.open("gate")
        answer = await within(again)
        assert answer.json()["task"]["id"] == tasks[0]["id"]
        assert state(answer.json()["task"]) == "completed"
