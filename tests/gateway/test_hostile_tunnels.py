"""Hostile agents and hostile gateways: each is closed with a reason, and a neighbour in the same
process, with a task under way, notices nothing."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.clock import MovableLoop
from harness.waiting import eventually, within
from websockets.client import ClientProtocol
from websockets.frames import CloseCode
from websockets.protocol import Protocol, State
from websockets.uri import parse_uri

from dragoman import Agent, Client
from dragoman.config import load_settings
from dragoman.gateway.join_endpoint import PATH
from dragoman.server.process import joining
from dragoman.server.process.join_app import join_agent
from dragoman.tunnels.frames import Hello, Kind, Welcome, encode_text
from tests.gateway.gateway_site import GatewaySite, gateway, workshop
from tests.gateway.test_joined_agents import OpeningGateway
from tests.tunnels.hostile import Hostile, corpus

pytestmark = pytest.mark.anyio

REASONS = {
    CloseCode.PROTOCOL_ERROR,
    CloseCode.INVALID_DATA,
    CloseCode.POLICY_VIOLATION,
    CloseCode.MESSAGE_TOO_BIG,
}


class Neighbour:
    """A joined agent that counts as it is told, in one task that a caller reads."""

    def __init__(self, site: GatewaySite, url: str, steps: asyncio.Semaphore) -> None:
        self._site, self._url, self._steps = site, url, steps
        self._said: list[str] = []
        self._count = 0
        self._tunnels = self._open()

    def _open(self) -> list[Any]:
        found = self._site.gateway.joined.tunnels.items()
        return [one for host, some in found if ".neighbour." in host for one in some]

    async def read(self) -> None:
        async with Client(self._url) as client:
            async for text in client.stream_text("go"):
                self._said.append(text)

    async def notices_nothing(self) -> None:
        """Have it count on, over the connection that it had from the start."""
        self._steps.release()
        self._count += 1
        await eventually(lambda: len(self._said) == self._count)
        assert self._said == [f"{number} " for number in range(self._count)]
        assert self._open() == self._tunnels and not self._tunnels[0].is_lost


@asynccontextmanager
async def neighbour(site: GatewaySite) -> AsyncGenerator[Neighbour]:
    agent, steps = Agent("neighbour", "Counts."), asyncio.Semaphore(0)

    @agent.skill(default=True)
    async def count(text: str) -> AsyncIterator[str]:
        """Counts."""
        for number in range(1000):
            await steps.acquire()
            yield f"{number} "

    async with join_agent(agent, site.url, settings=load_settings({}, store="memory:")) as url:
        found = Neighbour(site, url, steps)
        reading = asyncio.create_task(found.read())
        await found.notices_nothing()
        yield found
        await found.notices_nothing()
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def has_said_why(peer: Protocol) -> bool:
    """Tell whether the other end closed a WebSocket with a reason."""
    closed = peer.close_rcvd
    return closed is not None and closed.code in REASONS and bool(closed.reason)


async def refused_agent(site: GatewaySite, name: str, hostile: Hostile) -> None:
    """Say something to where agents join, and be told why it is closed."""
    host, _, port = site.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = ClientProtocol(parse_uri(f"ws{site.url.removeprefix('http')}{PATH}"))
    peer.send_request(peer.connect())
    writer.write(b"".join(peer.data_to_send()))
    while peer.state is State.CONNECTING:
        peer.receive_data(await within(reader.read(65536)))
    if not hostile.is_first:
        peer.send_binary(encode_text(Kind.HELLO, Hello(name, "0123456789abcdef")))
        writer.write(b"".join(peer.data_to_send()))
        # It is asked for its card.
        peer.receive_data(await within(reader.read(65536)))
    writer.write(hostile.data)
    while data := await within(reader.read(65536)):
        peer.receive_data(data)
    writer.close()
    await writer.wait_closed()
    assert has_said_why(peer), (hostile.name, peer.close_rcvd)


async def test_hostile_agents_are_closed_with_a_reason_and_no_neighbour_notices(
    tmp_path: Path,
) -> None:
    found = corpus(of_agent=True)
    assert len({one.name for one in found}) >= 200
    async with gateway(tmp_path, is_ours=True) as site, neighbour(site) as other:
        for start in range(0, len(found), 10):
            await asyncio.gather(
                *(
                    refused_agent(site, f"hostile-{number}", hostile)
                    for number, hostile in enumerate(found[start : start + 10], start)
                )
            )
            await other.notices_nothing()
        # Nothing is left of them.
        await eventually(lambda: len(site.gateway.joined) == 1)
        assert [agent.name for agent in site.gateway.registry.all()] == ["neighbour"]


class HostileGateway(OpeningGateway):
    """Lets an agent in, and says the next thing that no gateway may say."""

    def __init__(self, left: Iterator[Hostile], told: dict[str, bool]) -> None:
        self._left, self._told = left, told
        self._hostile: Hostile | None = None

    def received(self, message: bytes) -> None:
        self._hostile = next(self._left, None)
        if self._hostile is None or not self._hostile.is_first:
            self._wire.send(encode_text(Kind.WELCOME, Welcome("workshop", "1")))
        if self._hostile is not None:
            self._transport.write(self._hostile.data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._wire is not None:
            self._wire.connection_lost(exc)
        if self._hostile is not None and self._wire is not None:
            self._told[self._hostile.name] = has_said_why(self._wire._peer)


def test_a_gateway_that_lets_in_and_closes_at_once_is_not_asked_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_SHORTEST_PAUSE", 1000.0)
    monkeypatch.setattr(joining, "_SHORT_PAUSE", 1000.0)
    loop, told = MovableLoop(), dict[str, bool]()
    left = iter([Hostile(f"{number}", b"\x80\x00") for number in range(1000)])

    async def test() -> None:
        server = await loop.create_server(lambda: HostileGateway(left, told), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = load_settings({}, store="memory:")
        async with server, join_agent(workshop(), url, settings=settings):
            for number in range(1, 4):
                await eventually(lambda least=number: len(told) == least)
                for _ in range(20):
                    # What it takes to connect.
                    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                    writer.close()
                    await writer.wait_closed()
                assert len(told) == number
                await loop.skip(2000)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test())


async def test_hostile_gateways_are_closed_with_a_reason_and_no_neighbour_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many tries as it takes, one after another.
    monkeypatch.setattr(joining, "_SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(joining, "_SHORT_PAUSE", 0.0)
    found = corpus(of_agent=False)
    assert len({one.name for one in found}) >= 200
    told: dict[str, bool] = {}
    left = iter([found[0], *found])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HostileGateway(left, told), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = load_settings({}, store="memory:")
    async with (
        gateway(tmp_path, is_ours=True) as site,
        neighbour(site) as other,
        server,
        join_agent(workshop(), url, settings=settings),
    ):
        for number in range(10, len(found), 10):
            await eventually(lambda least=number: len(told) >= least)
            await other.notices_nothing()
        await eventually(lambda: len(told) == len(found))
    assert [name for name, is_told in told.items() if not is_told] == []
