"""Callers that trickle, hold and do not read are let go in time, and nobody else is.

The guard's clock runs when a test says so, so nothing here waits for it.
"""

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

from harness.waiting import within

from dragoman.http.deadlines import (
    BODY_SECONDS,
    BYTES_PER_SECOND,
    HEAD_SECONDS,
    IDLE_SECONDS,
    WRITE_SECONDS,
)
from tests.http.test_good_http import Echo
from tests.http.wire import HOST, Peer, Place, get, guarding, is_problem, post

LARGE = 8 * 1024 * 1024
CHUNKED = b"POST /slow HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % HOST


async def _arrived(place: Place, size: int) -> None:
    """Wait until the server has read so many bytes of the one request there is."""
    await place.until(lambda: sum(one._raw.received for one in place.connections._open) >= size)


async def test_a_head_that_trickles_is_refused_after_its_time() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\nX-A: "
    async with guarding(Echo()) as place:
        for cut in (1, 10, 20, len(data)):
            async with place.peer() as peer:
                await peer.send(data[:cut])
                await _arrived(place, cut)
                await place.pass_time(HEAD_SECONDS / 2)
                await peer.send((data + b"a")[cut : cut + 1])
                await _arrived(place, cut + 1)
                await place.pass_time(HEAD_SECONDS / 2 + 0.1)
                answer = await peer.answer()
                assert answer.status == 408
                assert is_problem(answer)
                assert await peer.rest() == b""
            await place.until(lambda: not len(place.connections))


async def test_a_second_head_has_its_own_time() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        for _ in range(3):
            await peer.send(get(b"/a"))
            assert (await peer.answer()).body == b"/a "
            await place.pass_time(HEAD_SECONDS * 2)
        await peer.send(b"GET")
        await _arrived(place, 3)
        await place.pass_time(HEAD_SECONDS - 1)
        await place.pass_time(2)
        assert (await peer.answer()).status == 408
        assert await peer.rest() == b""


async def test_who_connects_and_says_nothing_is_let_go_without_a_word() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await place.until(lambda: len(place.connections) == 1)
        await place.pass_time(HEAD_SECONDS + 0.1)
        assert await peer.rest() == b""
        assert place.connections.refused == {"idle": 1}


async def test_a_connection_is_kept_for_a_while_between_requests() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await peer.send(get(b"/a"))
        await peer.answer()
        await place.pass_time(IDLE_SECONDS - 1)
        await peer.send(get(b"/b"))
        assert (await peer.answer()).body == b"/b "
        await place.pass_time(IDLE_SECONDS + 1)
        assert await peer.rest() == b""


async def _trickle(place: Place, peer: Peer, head: bytes, piece: bytes) -> None:
    await peer.send(head + piece)
    await _arrived(place, len(head) + len(piece))
    for second in range(1, 10):
        await place.pass_time(BODY_SECONDS / 10)
        await peer.send(piece)
        await _arrived(place, len(head) + len(piece) * (second + 1))
    await place.pass_time(BODY_SECONDS / 10 + 0.1)


async def test_a_body_that_trickles_is_refused_after_its_time() -> None:
    sized = b"POST /slow HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n"
    for head, piece in (
        (sized % (HOST, 1000), b"a"),
        (sized % (HOST, 1_000_000), b"a"),
        (CHUNKED, b"1\r\na\r\n"),
        (CHUNKED, b"100;aaaaaaaaaa"),
    ):
        app = Echo()
        async with guarding(app) as place, place.peer() as peer:
            await _trickle(place, peer, head, piece)
            answer = await peer.answer()
            assert answer.status in (400, 408)
            assert is_problem(answer)
            assert await peer.rest() == b""
            # To the app this is a caller who left.
            await within(app.left.wait())


async def test_a_large_body_may_take_the_time_its_rate_gives_it() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        size = 400_000
        seconds = size / BYTES_PER_SECOND
        head = b"POST /slow HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n" % (HOST, size)
        await peer.send(head)
        await _arrived(place, len(head))
        sent = 0
        while sent < size - 40_000:
            await peer.send(b"a" * 40_000)
            sent += 40_000
            await _arrived(place, len(head) + sent)
            await place.pass_time(seconds / 11)
        assert place.connections.now > BODY_SECONDS
        await peer.send(b"a" * (size - sent))
        assert (await peer.answer()).body == b"/slow " + b"a" * size
        assert place.connections.refused == {}


async def test_who_waits_for_our_word_or_for_us_to_read_is_not_late() -> None:
    reads = asyncio.Event()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await reads.wait()
        await Echo()(scope, receive, send)

    for field, body in ((b"Expect: 100-continue", b""), (b"X: y", b"a" * 90_000)):
        reads.clear()
        async with guarding(busy) as place, place.peer() as peer:
            size = 90_000
            head = b"POST / HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n%b\r\n\r\n"
            head %= (HOST, size + 1000, field)
            await peer.send(head + body)
            await _arrived(place, len(head))
            if body:
                (one,) = place.connections._open
                await place.until(lambda one=one: one.flow.read_paused)
            for _ in range(4):
                await place.pass_time(BODY_SECONDS - 1)
            reads.set()
            await peer.send(b"a" * (size + 1000 - len(body)))
            assert (await peer.answer()).status == 200


async def _large(scope: Any, receive: Any, send: Any) -> None:
    """Answer at length: in one piece, or as a stream."""
    kind = [(b"content-length", b"%d" % LARGE)] if scope["path"] == "/plain" else []
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    for _ in range(1 if kind else 1000):
        body = b"a" * (LARGE if kind else 64 * 1024)
        await send({"type": "http.response.body", "body": body, "more_body": not kind})


def _deaf(place: Place) -> socket.socket:
    """Return a connection that will not read, with no room for what it does not read."""
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    asking.connect(("127.0.0.1", place.port))
    return asking


async def test_who_does_not_read_an_answer_is_let_go() -> None:
    for more in (b"", b"Connection: close"):
        async with guarding(_large) as place:
            fields = [more] if more else []
            # Asking again gives no more time.
            with _deaf(place) as asking:
                asking.sendall(get(b"/plain", *fields))
                await place.until(
                    lambda: any(o.deadlines.write_by < 1e9 for o in place.connections._open)
                )
                asking.sendall(get(b"/plain") * 3)
                await place.pass_time(WRITE_SECONDS)
                assert len(place.connections) == 1
                await place.pass_time(LARGE / BYTES_PER_SECOND + 1)
                await place.until(lambda: not len(place.connections))
                assert place.connections.refused == {"unread": 1}


async def test_a_small_answer_nobody_reads_does_not_keep_its_connection_either() -> None:
    async with guarding(Echo(), buffer=2048) as place:
        with _deaf(place) as asking:
            asking.sendall(post(b"a" * 50_000))
            await place.until(
                lambda: any(
                    one.transport.get_write_buffer_size() for one in place.connections._open
                )
            )
            await place.pass_time(IDLE_SECONDS + 1)
            await place.until(lambda: not len(place.connections))
            assert place.connections.refused == {"unread": 1}


async def test_a_stream_is_not_cut_because_its_reader_pauses() -> None:
    async with guarding(_large) as place:
        with _deaf(place) as asking:
            asking.sendall(get(b"/stream"))
            await place.until(lambda: any(o.flow.write_paused for o in place.connections._open))
            await place.pass_time(10 * WRITE_SECONDS)
            assert len(place.connections) == 1
            assert place.connections.refused == {}


async def test_time_in_which_the_process_did_not_listen_is_nobodys_fault() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await peer.send(post(b"x")[:20])
        await _arrived(place, 20)
        loop = asyncio.get_running_loop()
        before = place.connections.now
        place.connections._swept_at = loop.time() - 600
        place.connections._sweep(loop)
        assert place.connections.now - before <= 2
        await peer.send(post(b"x")[20:])
        assert (await peer.answer()).status == 200


async def test_many_who_are_late_at_once_are_let_go_some_at_a_time() -> None:
    async with guarding(Echo()) as place, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(place.peer()) for _ in range(120)]
        await place.until(lambda: len(place.connections) == 120)
        place.connections.pass_time(HEAD_SECONDS + 1)
        assert place.connections.refused == {"idle": 50}
        # Who says something before its turn comes is not late.
        for peer in peers:
            await peer.send(get(b"/a"))
        await place.until(lambda: sum(place.connections.refused.values()) + served(place) == 120)
        assert set(place.connections.refused) == {"idle"}


def served(place: Place) -> int:
    return sum(one._exchange is not None for one in place.connections._open)
