"""Connections that are kept, and a client that is closed."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from harness.stub_servers import listening

from dragoman.egress import egress as module
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressClosed, EgressFailed
from dragoman.egress.targets import Anywhere
from dragoman.errors import ConfigError
from tests.egress.servers import OK, Dials, serving, silence


class TestClosing:
    """Closing is for good, and whoever waits is told."""

    async def test_a_later_request_is_refused_and_opens_nothing(self, dials: Dials) -> None:
        async with serving() as server:
            egress = Egress(policy=Anywhere(), keep_alive=True)
            assert (await egress.get(server.url())).body == b"ok"
            await egress.close()
            dialled = len(dials)
            for ask in (egress.get(server.url()), egress.post(server.url(), b"", {})):
                with pytest.raises(EgressClosed, match="closed") as raised:
                    await ask
                assert isinstance(raised.value, ConfigError)
            with pytest.raises(EgressClosed):
                async with egress.open("GET", server.url(), headers={}):
                    pass
            assert len(dials) == dialled
            await egress.close()

    async def test_a_head_that_is_waited_for_fails(self) -> None:
        asked = asyncio.Event()

        async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with serving(answer) as server, asyncio.timeout(60):
            egress = Egress(policy=Anywhere())
            asking = asyncio.create_task(egress.post(server.url(), b"", {}))
            await asked.wait()
            await egress.close()
            with pytest.raises(EgressFailed) as raised:
                await asking
        assert raised.value.reason == "the client was closed" and raised.value.is_sent

    async def test_a_body_that_is_read_breaks_off(self) -> None:
        async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
            await writer.drain()
            await asyncio.Event().wait()

        async with serving(answer) as server, asyncio.timeout(60):
            egress = Egress(policy=Anywhere())
            async with egress.open("GET", server.url(), headers={}) as reply:
                chunks = reply.chunks()
                assert await anext(chunks) == b"first"
                reading = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0)
                await egress.close()
                with pytest.raises(EgressFailed) as raised:
                    await reading
        assert raised.value.reason == "the client was closed"

    async def test_a_name_that_is_looked_up_is_waited_for_no_longer(self) -> None:
        asked = asyncio.Event()

        async def resolve(host: str) -> Sequence[str]:
            asked.set()
            await asyncio.Event().wait()
            return ()

        async with asyncio.timeout(60):
            egress = Egress(policy=Anywhere(), resolver=resolve, connect_timeout=60)
            asking = asyncio.create_task(egress.get("http://slow.example/", timeout=60))
            await asked.wait()
            await egress.close()
            with pytest.raises(EgressFailed):
                await asking

    async def test_a_limit_of_time_still_ends_what_nobody_closed(self) -> None:
        async with serving(silence) as server, Egress(policy=Anywhere()) as egress:
            with pytest.raises(EgressFailed) as raised:
                await egress.get(server.url(), timeout=0.05)
            assert "0.05 s" in raised.value.reason


class Kept:
    """A peer that keeps connections, and counts them."""

    def __init__(self) -> None:
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await writer.drain()


class TestKeptConnections:
    """Which requests go out on a connection that served others before."""

    @staticmethod
    async def ask(egress: Egress, url: str, method: str, **more: bool) -> None:
        async with asyncio.timeout(60), egress.open(method, url, headers={}, **more) as reply:
            assert [piece async for piece in reply.chunks()] == [b"ok"]

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[tuple[Kept, str]]:
        kept = Kept()
        async with listening(kept.talk) as port:
            yield kept, f"http://127.0.0.1:{port}/"

    async def test_a_read_does_and_a_post_only_where_it_may_be_made_twice(self) -> None:
        async with self.peer() as (kept, url), Egress(policy=Anywhere(), keep_alive=True) as egress:
            for _ in range(3):
                await self.ask(egress, url, "GET")
            assert kept.connections == 1
            for _ in range(3):
                await self.ask(egress, url, "POST")
            assert kept.connections == 4
            for _ in range(3):
                await self.ask(egress, url, "POST", reuse=True)
            assert kept.connections == 4

    async def test_none_does_unless_connections_are_kept(self) -> None:
        async with self.peer() as (kept, url), Egress(policy=Anywhere()) as egress:
            for _ in range(2):
                await self.ask(egress, url, "POST", reuse=True)
                await self.ask(egress, url, "GET")
            assert kept.connections == 4

    async def test_one_that_was_idle_for_longer_than_peers_keep_it_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The servers we know hang up after five seconds.
        assert module.IDLE < 5
        monkeypatch.setattr(module, "IDLE", 0.05)
        async with self.peer() as (kept, url), Egress(policy=Anywhere(), keep_alive=True) as egress:
            await self.ask(egress, url, "GET")
            time.sleep(0.1)  # noqa: ASYNC251 - time itself is what passes
            await self.ask(egress, url, "GET")
            assert kept.connections == 2


def test_each_loop_has_connections_of_its_own() -> None:
    egress = Egress(policy=Anywhere(), keep_alive=True)

    async def use(*, is_last: bool = False) -> bytes:
        async with serving() as server, asyncio.timeout(60):
            answer = await egress.get(server.url())
            if is_last:
                await egress.close()
            return answer.body

    assert asyncio.run(use()) == b"ok"
    assert asyncio.run(use()) == b"ok"
    assert asyncio.run(use(is_last=True)) == b"ok"
