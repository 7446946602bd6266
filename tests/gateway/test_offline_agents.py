"""An agent that dialled out loses its network while it works: it goes on with what it has, and
delivers when it is back, within the task's deadline."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.waiting import eventually, within

from dragoman import Agent, Client, TaskState
from dragoman.config import load_settings
from dragoman.gateway.joined_agents import JoinedAgents
from dragoman.server.process.join_app import join_agent
from tests.gateway.gateway_site import GatewaySite, gateway, log

pytestmark = pytest.mark.anyio
# Seconds for which the gateway waits for an agent that has no deadline.
PATIENCE = 0.5


class Network:
    """What an agent reaches the gateway by, at one port that is there or not."""

    def __init__(self, gateway_url: str) -> None:
        self._host, _, port = gateway_url.removeprefix("http://").partition(":")
        self._to = int(port)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._to)
        await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()


class Laptop:
    """An agent that begins, and ends when it may, also without a network."""

    def __init__(self) -> None:
        self.runs = 0
        self.may_end, self.has_ended = asyncio.Event(), asyncio.Event()
        self.agent = Agent("laptop", "Works offline.")

        @self.agent.skill(default=True)
        async def work(text: str) -> AsyncIterator[str]:
            """Works."""
            self.runs += 1
            try:
                yield "begun "
                await self.may_end.wait()
                yield "ended"
            finally:
                self.has_ended.set()


@asynccontextmanager
async def offline(
    folder: Path, seconds: int
) -> AsyncGenerator[tuple[GatewaySite, Network, Laptop, "asyncio.Task[str]", list[str]]]:
    """An agent that was cut off while it works on a task with so many seconds, and its caller."""
    laptop, said = Laptop(), list[str]()
    async with gateway(folder, is_ours=True, forward_patience=PATIENCE) as site:
        network = Network(site.url)
        await network.start()
        settings = load_settings({}, store="memory:")
        async with join_agent(laptop.agent, network.url, settings=settings):

            async def read() -> str:
                async with Client(f"{site.url}/a2a/laptop") as client:
                    events = client.stream("go", metadata={"timeoutSeconds": seconds})
                    async for _ in events:
                        said[:] = [events.answer.text]
                    assert events.task is not None
                    return events.task.id

            reading = asyncio.create_task(read())
            await eventually(lambda: said == ["begun "])
            await network.cut()
            await eventually(lambda: not len(site.gateway.joined))
            yield site, network, laptop, reading, said
            await network.cut()


async def test_an_agent_that_is_back_before_the_deadline_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = JoinedAgents.connect

    async def briefly(
        self: JoinedAgents, host: str, protocol: asyncio.Protocol, within: float
    ) -> bool:
        # So that the gateway finds it away many times, and not once.
        return await connect(self, host, protocol, min(within, 0.1))

    monkeypatch.setattr(JoinedAgents, "connect", briefly)
    async with offline(tmp_path, 300) as (site, network, laptop, reading, said):
        since = time.monotonic()
        laptop.may_end.set()
        await within(laptop.has_ended.wait())
        # For much longer than a gateway waits for an agent whose task has no deadline.
        await eventually(lambda: time.monotonic() - since > 6 * PATIENCE)
        assert not reading.done() and said == ["begun "]
        await network.start()
        task_id = await within(reading)
        assert said == ["begun ended"] and laptop.runs == 1
        async with Client(f"{site.url}/a2a/laptop") as client:
            task = await client.get(task_id)
        assert task.status.state is TaskState.COMPLETED
        lines = await log(site, task_id)
        assert sum(b'"begun "' in line for line in lines) == 1
        assert sum(b'"ended"' in line for line in lines) == 1


async def test_an_agent_that_is_back_after_the_deadline_changes_nothing(tmp_path: Path) -> None:
    async with offline(tmp_path, 3) as (site, network, laptop, reading, _):
        task_id = await within(reading)
        async with Client(f"{site.url}/a2a/laptop") as client:
            task = await client.get(task_id)
            assert task.status.state is TaskState.FAILED and task.status.message is not None
            assert "in time" in task.status.message.text or "deadline" in task.status.message.text
            lines = await log(site, task_id)
            await network.start()
            await eventually(lambda: len(site.gateway.joined) == 1)
            laptop.may_end.set()
            await within(laptop.has_ended.wait())
            # The agent takes tasks again, and the one that is over stays as it was.
            assert (await within(client.send("again"))).text == "begun ended"
            assert await client.get(task_id) == task
        assert await log(site, task_id) == lines and laptop.runs == 2
