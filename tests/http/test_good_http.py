"""What is legal is served: pipelining, bodies that are waited for, wishes that are not granted; and
what follows a request on its connection is never taken for a part of it.
"""

import asyncio
import socket
from typing import Any

from harness.waiting import within

from dragoman.http.deadlines import BODY_SECONDS, LINGER_SECONDS
from dragoman.http.protocol import MAX_PIPELINED
from tests.http.wire import HOST, call, get, guarding, is_problem, message, post


class Echo:
    """An app that says what it was asked, and keeps how."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["path"] == "/stream":
            await self._stream(receive, send)
            return
        body, more = b"", scope["path"] != "/unread"
        while more:
            got = await receive()
            if got["type"] == "http.disconnect":
                self.left.set()
                return
            body += got["body"]
            more = got["more_body"]
        said = scope["path"].encode() + b" " + body
        fields = [(b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": said})

    async def _stream(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        writing = asyncio.ensure_future(self._write_on(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        self.left.set()

    async def _write_on(self, send: Any) -> None:
        # As our own streams do when they are quiet, only more often.
        while True:
            await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": b":", "more_body": True})


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        wanted = [b"/%d" % number for number in range(50)]
        await peer.send(b"".join(post(b"x", path=path) for path in wanted))
        answers = [(await peer.answer()).body for _ in wanted]
        assert answers == [path + b" x" for path in wanted]
        await peer.send(get(b"/after"))
        assert (await peer.answer()).body == b"/after "


async def test_more_pipelined_requests_than_wait_are_left_for_the_next_connection() -> None:
    app = Echo()
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(get(b"/") * 5000)
        answers = [await peer.answer() for _ in range(MAX_PIPELINED + 1)]
        assert [answer.headers.get("connection") for answer in answers[-2:]] == [None, "close"]
        assert await peer.rest() == b""
    assert len(app.scopes) == MAX_PIPELINED + 1


async def test_a_broken_request_behind_a_good_one_is_refused_after_its_answer() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await peer.send(post(b"x", path=b"/first") + b"nonsense\r\n\r\n" + get(b"/never"))
        assert (await peer.answer()).body == b"/first x"
        assert is_problem(await peer.answer())
        assert await peer.rest() == b""


async def test_a_broken_request_behind_a_stream_does_not_break_the_stream() -> None:
    app = Echo()
    async with guarding(app) as place:
        async with place.peer() as peer:
            await peer.send(get(b"/stream") + b"nonsense\r\n\r\n")
            while await peer.line() != b"begun\r\n":
                pass
            await place.until(lambda: place.connections.refused.get("syntax"))
            await peer.send(b"more nonsense")
            for _ in range(10):
                assert await peer.line() in (b"1\r\n", b":\r\n")
        await within(app.left.wait())


async def test_a_stream_hears_that_its_caller_left_although_another_request_came_behind_it() -> (
    None
):
    app = Echo()
    async with guarding(app) as place:
        async with place.peer() as peer:
            await peer.send(get(b"/stream"))
            while await peer.line() != b"begun\r\n":
                pass
            await peer.send(get(b"/behind"))
            # Read, and waiting for its turn.
            (one,) = place.connections._open
            await place.until(lambda: one._waiting)
        await within(app.left.wait())


async def test_a_body_is_sent_once_we_say_that_we_wait_for_it() -> None:
    async with guarding() as place, place.peer() as peer:
        data = post(call("SendMessage", message("hello")), b"Expect: 100-continue")
        head, _, body = data.partition(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n")
        assert await peer.interim() == 100
        await peer.send(body)
        assert "result" in (await peer.answer()).value
        # The whole of it has come, so the next request is one.
        await peer.send(post(call("SendMessage", message("hello"))))
        assert "result" in (await peer.answer()).value


async def test_a_caller_that_was_not_told_to_send_its_body_sends_nothing_more_here() -> None:
    """It may send the body all the same, or leave it out: what comes next could be either."""
    async with guarding() as place, place.peer() as peer:
        data = post(b"", b"Expect: 100-continue", path=b"/nowhere")
        await peer.send(data.replace(b"Content-Length: 0", b"Content-Length: 40"))
        answer = await peer.answer()
        assert answer.status == 404 and answer.headers["connection"] == "close"
        await peer.send(get(b"/healthz"))
        assert await peer.line() == b""


async def test_nobody_waits_for_a_body_that_is_too_large() -> None:
    async with guarding() as place, place.peer() as peer:
        fields = b"Content-Length: 99999999\r\nExpect: 100-continue"
        data = post(b"").replace(b"Content-Length: 0", fields)
        await peer.send(data)
        assert await peer.interim() == 200
    async with guarding(Echo()) as place, place.peer() as peer:
        # A caller of HTTP/1.0 does not know the word.
        await peer.send(post(b"x", b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert await peer.interim() == 200


async def test_a_wish_to_speak_another_protocol_is_ignored_and_the_body_kept() -> None:
    wish = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    async with guarding(Echo()) as place:
        for fields in (wish, (b"Connection: upgrade", b"Upgrade: websocket")):
            data = post(b"GET /smuggled HTTP/1.1\r\n\r\n", *fields, path=b"/wish")
            async with place.peer() as peer:
                for pieces in ([data], [data[:-9], data[-9:]], [data[:40], data[40:]]):
                    for piece in pieces:
                        await peer.send(piece)
                    assert (await peer.answer()).body == b"/wish GET /smuggled HTTP/1.1\r\n\r\n"
                await peer.send(post(b"x", path=b"/next"))
                assert (await peer.answer()).body == b"/next x"
            async with place.peer() as peer:
                await peer.send(data.replace(b"Content-Length", b"Transfer-Encoding: x\r\nX"))
                assert is_problem(await peer.answer())


async def test_chunks_are_read_and_their_trailers_dropped() -> None:
    app = Echo()
    async with guarding(app) as place, place.peer() as peer:
        head = b"POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(head + b"3;note=x\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: y\r\nHost: b\r\n\r\n")
        await peer.send(get(b"/after"))
        assert (await peer.answer()).body == b"/chunks abcde"
        assert (await peer.answer()).body == b"/after "
    names = [name for name, _ in app.scopes[0]["headers"]]
    assert names == [b"host", b"transfer-encoding"]


async def test_an_absolute_uri_of_the_host_asked_is_a_path() -> None:
    async with guarding(Echo()) as place:
        for target, path in {
            b"http://127.0.0.1/a?b=c": b"/a",
            b"HTTP://127.0.0.1/a": b"/a",
            b"http://127.0.0.1": b"/",
            b"http://127.0.0.1?b": b"/",
            b"//evil.test/a": b"//evil.test/a",
        }.items():
            answer = await place.exchange(get(target))
            assert answer.body == path + b" ", target


async def test_http_1_0_is_served_without_a_host() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await peer.send(b"GET /old HTTP/1.0\r\n\r\n")
        assert (await peer.answer()).body == b"/old "
        assert await peer.rest() == b""


async def test_limits_are_limits_and_not_less() -> None:
    async with guarding(Echo()) as place:
        fields = [b"X-%d: %b" % (number, b"a" * 300) for number in range(99)]
        path = b"/" + b"p" * 8191
        assert (await place.exchange(get(path, *fields))).body == path + b" "
        async with place.peer() as peer:
            # Behind a body that came in the same piece, and in two.
            data = get(path, *fields)
            await peer.send(post(b"y" * 60_000) + data[:20_000])
            assert len((await peer.answer()).body) == 60_002
            await peer.send(data[20_000:])
            assert (await peer.answer()).body == path + b" "


async def test_a_large_head_behind_another_request_is_large_all_the_same() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        await peer.send(post(b"x") + get(b"/", b"X: " + b"a" * 40_000))
        assert (await peer.answer()).body == b"/ x"
        assert (await peer.answer()).status == 431


async def test_an_answer_that_needs_no_body_keeps_the_connection_if_the_body_is_small() -> None:
    async with guarding(Echo()) as place, place.peer() as peer:
        head, _, body = post(b"z" * 500, path=b"/unread").partition(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n")
        assert (await peer.answer()).body == b"/unread "
        await peer.send(body + get(b"/after"))
        assert (await peer.answer()).body == b"/after "


async def test_an_app_hears_that_the_body_it_reads_is_broken() -> None:
    app = Echo()
    async with guarding(app) as place, place.peer() as peer:
        head = b"POST /broken HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(head + b"3\r\nabc\r\n")
        await place.until(lambda: app.scopes)
        await peer.send(b"nonsense\r\n")
        assert is_problem(await peer.answer())
        await within(app.left.wait())
        assert await peer.rest() == b""


async def test_an_app_that_does_not_count_is_not_given_more_than_the_limit() -> None:
    app = Echo()
    async with guarding(app, max_body_bytes=1024) as place:
        for data in (
            post(b"a" * 2000, path=b"/counts"),
            b"POST /counts HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"3e8\r\n%b\r\n" % (b"a" * 1000) * 3
            + b"0\r\n\r\n",
        ):
            app.left.clear()
            async with place.peer() as peer:
                await peer.send(data + get(b"/smuggled"))
                await place.until(lambda: any(one._is_deaf for one in place.connections._open))
                # It never comes to an end, and is let go like any other that does not.
                await place.pass_time(BODY_SECONDS + 1)
                assert await peer.rest() == b""
                await within(app.left.wait())
    assert [scope["path"] for scope in app.scopes] == ["/counts", "/counts"]


def _sent_whole(port: int, data: bytes) -> bytes:
    """Send all before reading anything, as simple clients do."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as asking:
        asking.sendall(data)
        answer = b""
        while piece := asking.recv(65_536):
            answer += piece
        return answer


async def test_who_sends_all_before_reading_still_reads_the_answer() -> None:
    async with guarding(Echo()) as place:
        data = post(b"a" * 8_000_000, path=b"/unread")
        answer = await asyncio.to_thread(_sent_whole, place.port, data)
        assert answer.endswith(b"/unread "), answer[:200]
        refused = await asyncio.to_thread(_sent_whole, place.port, data.replace(b"Host", b"X"))
        assert refused.startswith(b"HTTP/1.1 400 "), refused[:200]


async def test_an_answer_before_a_large_body_is_read_by_who_still_sends_it() -> None:
    async with guarding(Echo()) as place:
        for fields in (b"Content-Length: 5000000", b"Transfer-Encoding: chunked"):
            async with place.peer() as peer:
                await peer.send(b"POST /unread HTTP/1.1\r\nHost: %b\r\n%b\r\n\r\n" % (HOST, fields))
                answer = await peer.answer()
                assert answer.headers["connection"] == "close"
                await peer.send(b"z" * 100_000)
                assert await peer.rest() == b""
                await place.pass_time(LINGER_SECONDS)
                await place.until(lambda: not len(place.connections))
