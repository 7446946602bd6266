"""Connections whose last request was refused in overload are read together, and by the loop again
once something else comes."""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dragoman.http.admission import MOST, Admission
from dragoman.http.connections import BUSY
from dragoman.http.deadlines import IDLE_SECONDS
from dragoman.http.protocol import HttpProtocol
from dragoman.http.refusals import refused_connections as module
from dragoman.http.refusals.refused_connections import RefusedConnections
from tests.http.wire import Peer, Place, call, get, guarding, message, post

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="there is no epoll")


class Full(Admission):
    """An overload that lasts until a test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.is_overloaded = True
        self.most = 0.0
        self.at_once = float(MOST)

    def _adapt(self, now: float, took: float | None) -> None:
        """Stay as it is."""

    def open(self) -> None:
        """Let all begin, in overload still."""
        self.most = float(MOST)


def ask(text: str = "hello", **more: Any) -> bytes:
    return post(call("SendMessage", message(text, **more)))


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with guarding() as place:
        place.app.access.admission = place.connections.admission = Full()
        yield place


def admission(place: Place) -> Full:
    found = place.connections.admission
    assert isinstance(found, Full)
    return found


def lines(place: Place) -> list[HttpProtocol]:
    return [one for one in place.connections._open if isinstance(one, HttpProtocol)]


def refused_of(place: Place) -> RefusedConnections:
    return lines(place)[0]._refused


async def statuses(peer: Peer, data: bytes, count: int = 1) -> list[int]:
    await peer.send(data)
    return [(await peer.answer()).status for _ in range(count)]


async def test_who_was_refused_is_read_with_others_and_refused_in_the_same_words(
    place: Place,
) -> None:
    async with place.peer() as peer:
        await peer.send(ask())
        first = await peer.answer()
        assert first.status == 503 and first.headers["retry-after"] == "1"
        (line,) = lines(place)
        for number in range(1, 4):
            assert len(refused_of(place)) == 1 and not line.transport.is_reading()
            await peer.send(ask())
            assert await peer.answer() == first
            assert place.connections.refused == {BUSY.reason: number + 1}
            assert admission(place).refused == number + 1


async def test_what_many_ask_together_is_refused_in_one_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = RefusedConnections._read

    def counted(self: RefusedConnections) -> None:
        before = place.connections.refused[BUSY.reason]
        real(self)
        calls.append(place.connections.refused[BUSY.reason] - before)

    monkeypatch.setattr(RefusedConnections, "_read", counted)
    async with AsyncExitStack() as stack:
        raw: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        for _ in range(20):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", place.port))
            await loop.sock_sendall(one, ask())
            assert b"503" in await loop.sock_recv(one, 4096)
            raw.append(one)
        assert len(refused_of(place)) == 20
        # The loop does not run in between.
        for one in raw:
            one.send(ask())
        for one in raw:
            assert b"503" in await loop.sock_recv(one, 4096)
        assert [count for count in calls if count] == [20]
        # No more than some at once: the loop has other work.
        monkeypatch.setattr(module, "_AT_ONCE", 5)
        calls.clear()
        for one in raw:
            one.send(ask())
        for one in raw:
            assert b"503" in await loop.sock_recv(one, 4096)
        assert max(calls) == 5 and sum(calls) == 20


async def test_once_there_is_room_the_loop_reads_on(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        (line,) = lines(place)
        refused = line._refused
        admission(place).open()
        assert await statuses(peer, ask()) == [200]
        assert not len(refused) and line.transport.is_reading() and line._descriptor is None
        assert refused._poll is None, "what watches none is closed"
        admission(place).most = 0.0
        assert await statuses(peer, ask()) == [503]
        assert len(refused) == 1
        admission(place).is_overloaded = False
        assert await statuses(peer, ask()) == [200]
        assert admission(place).under_way == 0


async def test_a_caller_with_few_requests_begins_beside_those_who_are_refused(
    place: Place,
) -> None:
    full = admission(place)
    async with place.peer() as loud, place.peer() as quiet:
        assert await statuses(loud, ask()) == await statuses(quiet, ask()) == [503]
        by_peer = {line.client: line for line in lines(place)}
        names = [by_peer[peer._writer.get_extra_info("sockname")] for peer in (loud, quiet)]
        for line, name in zip(names, ("loud", "quiet"), strict=True):
            full.identify(line.client, name)  # type: ignore[arg-type]  # any name will do
            line.early.counts_for = None
        full.most = 20.0
        full.under_way, full._of = 20, {"loud": 20}
        assert await statuses(loud, ask()) == await statuses(loud, ask()) == [503]
        assert await statuses(quiet, ask()) == [200]
        full._of.clear()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ask() * 3, [503] * 3),
        (ask() + get(b"/healthz"), [503, 200]),
        (get(b"/healthz"), [200]),
        (get(b"/healthz") + ask(), [200, 503]),
        (ask("x" * 40_000), [503]),
        (ask("a longer one"), [503]),
    ],
    ids=["pipelined", "a read behind it", "a read", "before it", "a large one", "another length"],
)
async def test_what_comes_behind_a_refusal_is_answered_whatever_it_is(
    place: Place, data: bytes, expected: list[int]
) -> None:
    async with place.peer() as peer:
        for _ in range(2):
            assert await statuses(peer, ask()) == [503]
            assert await statuses(peer, data, len(expected)) == expected


async def test_a_request_that_comes_in_pieces_is_answered(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        data = ask()
        await peer.send(data[:50])
        await place.until(lambda: lines(place)[0]._descriptor is None)
        assert await statuses(peer, data[50:]) == [503]


async def test_who_leaves_is_forgotten_and_another_may_have_its_descriptor(place: Place) -> None:
    async with place.peer() as stays:
        assert await statuses(stays, ask()) == [503]
        refused = refused_of(place)
        for _ in range(3):
            async with place.peer() as peer:
                assert await statuses(peer, ask()) == [503]
                assert len(refused) == 2
            await place.until(lambda: len(place.connections) == 1)
            assert len(refused) == 1
        (line,) = lines(place)
        assert line._descriptor is not None
        refused.remove(line._descriptor, object())  # type: ignore[arg-type]  # one that was there before
        assert len(refused) == 1
        assert await statuses(stays, ask()) == [503]


def _few(descriptor: int, data: bytes) -> int:
    return _write(descriptor, data[:10])


def _none(descriptor: int, data: bytes) -> int:
    raise BlockingIOError


_write = os.write


@pytest.mark.parametrize("write", [_few, _none])
async def test_what_the_system_does_not_take_is_written_later(
    place: Place, write: Callable[[int, bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", type("os", (), {"read": os.read, "write": write}))
            await peer.send(ask())
            assert (await peer.answer()).body == BUSY.answer.partition(b"\r\n\r\n")[2]
        assert await statuses(peer, ask()) == [503]


async def test_what_is_unsent_comes_first(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        admission(place).open()
        (line,) = lines(place)
        assert await statuses(peer, ask()) == [200]
        admission(place).most = 0.0
        transport = line.transport
        line.transport = Unsent(transport)  # type: ignore[assignment]  # has what is used here
        assert await statuses(peer, ask()) == [503]
        assert line._descriptor is None, "its refusal stands behind what is unsent"
        line.transport = transport
        assert await statuses(peer, ask()) == [503]
        assert line._descriptor is not None


class Unsent:
    """A transport that has something unsent."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return 1

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_a_server_that_ends_takes_the_request_that_is_on_its_way(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        (line,) = lines(place)
        admission(place).open()
        place.connections.is_stopping = True
        line.shutdown()
        assert line._descriptor is None and line.transport.is_reading()
        await peer.send(ask())
        answer = await peer.answer()
        assert answer.status == 200 and answer.headers["connection"] == "close"


async def test_while_a_server_ends_the_loop_reads_those_who_are_refused(place: Place) -> None:
    place.connections.is_stopping = True
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        assert lines(place)[0]._descriptor is None


async def test_who_does_not_ask_again_is_closed_as_any_idle_connection(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        place.connections.pass_time(IDLE_SECONDS - 1)
        assert await statuses(peer, ask()) == [503]
        place.connections.pass_time(IDLE_SECONDS - 1)
        assert len(place.connections) == 1, "each refusal begins the time anew"
        place.connections.pass_time(1)
        await place.until(lambda: not place.connections)


async def test_refusals_beyond_those_at_once_are_delayed(place: Place) -> None:
    async with place.peer() as peer:
        assert await statuses(peer, ask()) == [503]
        admission(place).at_once = 0.0
        # The first is due; the next one comes too soon.
        assert await statuses(peer, ask()) == [503]
        (line,) = lines(place)
        line._refusals._refused_at = asyncio.get_running_loop().time() + 1000
        await peer.send(ask())
        await place.until(lambda: line._refusals.waiting)
        assert line._descriptor is not None
        line.flush_refusals()
        assert (await peer.answer()).status == 503
        assert line._descriptor is not None


async def known(place: Place, peer: Peer) -> HttpProtocol:
    """Return the connection of a caller that was answered, and then refused."""
    assert await statuses(peer, ask()) == [503]
    admission(place).open()
    assert await statuses(peer, ask()) == [200]
    admission(place).most = 0.0
    assert await statuses(peer, ask()) == [503]
    (line,) = lines(place)
    assert line._descriptor is not None
    return line


async def test_who_is_let_in_with_a_known_head_stays_until_the_overload_is_over(
    place: Place,
) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        full = admission(place)
        for _ in range(2):
            full.open()
            for _ in range(2):
                assert await statuses(peer, ask()) == [200]
                assert line._descriptor is not None and not line.transport.is_reading()
                assert full.under_way == 0 and line.early._ticket is None
            full.most = 0.0
            assert await statuses(peer, ask()) == [503]
        full.is_overloaded = False
        assert await statuses(peer, ask()) == [200]
        assert line._descriptor is None and line.transport.is_reading()


async def test_what_comes_before_the_answer_is_answered_behind_it(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        admission(place).open()
        assert line.read_together(ask("first"))
        assert not line.read_together(ask("again"))
        line.return_to_loop(ask("again"))
        assert line._descriptor is None
        found = [await peer.answer() for _ in range(2)]
        assert [one.status for one in found] == [200, 200]
        assert b"first" in found[0].body and b"again" in found[1].body


async def test_who_was_let_in_is_refused_again_by_a_comparison(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[bytes] = []
    real = HttpProtocol.read_together

    def counted(self: HttpProtocol, data: bytes) -> bool:
        judged.append(data)
        return real(self, data)

    async with place.peer() as peer:
        line = await known(place, peer)
        admission(place).open()
        assert await statuses(peer, ask()) == [200]
        monkeypatch.setattr(HttpProtocol, "read_together", counted)
        admission(place).most = 0.0
        assert await statuses(peer, ask()) == [503]
        assert line._descriptor is not None and not judged


async def test_what_comes_before_the_answer_is_not_refused_before_it(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        full = admission(place)
        full.open()
        assert line.read_together(ask("first"))
        full.most = 0.0
        # The loop does not run in between: the first one has no answer yet.
        peer._writer.write(ask("again"))
        line._refused._read()
        assert line._descriptor is None and place.connections.refused[BUSY.reason] == 2
        found = [await peer.answer() for _ in range(2)]
        assert [one.status for one in found] == [200, 503]


async def test_what_comes_before_a_delayed_refusal_is_answered_behind_it(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        full = admission(place)
        full.at_once = 0.0
        line._refusals._refused_at = asyncio.get_running_loop().time() + 1000
        await peer.send(ask())
        await place.until(lambda: line._refusals.waiting)
        full.open()
        await peer.send(ask())
        await place.until(lambda: line._refusals.unread)
        assert line._descriptor is None
        line.flush_refusals()
        assert [(await peer.answer()).status for _ in range(2)] == [503, 200]


async def test_a_delayed_refusal_stands_behind_what_is_unsent(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        admission(place).at_once = 0.0
        line._refusals._refused_at = asyncio.get_running_loop().time() + 1000
        await peer.send(ask())
        await place.until(lambda: line._refusals.waiting)
        transport = line.transport
        line.transport = unsent = Unsent(transport)  # type: ignore[assignment]  # has what is used here
        line.flush_refusals()
        assert unsent.written == [BUSY.answer]
        line.transport = transport
        assert (await peer.answer()).status == 503


async def test_each_connection_may_be_refused_once_without_a_delay(place: Place) -> None:
    full = admission(place)
    async with place.peer() as peer, place.peer() as other:
        for count, one in enumerate((peer, other), 1):
            assert await statuses(one, ask()) == [503]
            assert full.refused_connections == count
        full.open()
        assert await statuses(other, get(b"/healthz")) == [200]
        assert full.refused_connections == 1
        full.most = 0.0
    await place.until(lambda: full.refused_connections == 0)


async def test_nothing_is_refused_before_an_answer_that_is_unsent(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        transport = line.transport
        line.transport = Unsent(transport)  # type: ignore[assignment]  # has what is used here
        assert not line.read_together(ask())
        line.transport = transport


async def test_who_leaves_while_it_is_answered_is_seen_to(place: Place) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        admission(place).open()
        await peer.send(ask())
    await place.until(lambda: not place.connections)
    assert line._descriptor is None and not len(line._refused)
    await place.until(lambda: admission(place).under_way == 0)


async def test_one_that_was_let_in_is_not_judged_again_where_its_head_is_not_known(
    place: Place,
) -> None:
    async with place.peer() as peer:
        line = await known(place, peer)
        admission(place).open()
        line._heads.clear()
        assert await statuses(peer, ask()) == [200]
        assert line._descriptor is None
        assert admission(place).admitted == 2 and admission(place).under_way == 0


async def test_what_fills_a_read_may_have_more_behind_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", len(ask()))
    async with place.peer() as peer:
        for _ in range(2):
            assert await statuses(peer, ask()) == [503]
            assert await statuses(peer, ask() * 2, 2) == [503, 503]
