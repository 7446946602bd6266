"""Answers that are written at once, and what has to go by ASGI."""

import asyncio
from typing import Any

import pytest
from harness.waiting import within

from dragoman.http.exchange import Flow
from tests.http.wire import HOST, guarding, post

LENGTH = (b"content-length", b"2")
GOOD = [LENGTH, (b"x-good", b"yes")]


class App:
    """Tries an answer at once, tells how that went, and answers by ASGI if it has to."""

    def __init__(self, status: int = 200, headers: list[tuple[bytes, bytes]] = GOOD) -> None:
        self._status = status
        self._headers = headers
        self.written: list[bool] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        answer = scope["state"]["exchange"].answer
        self.written.append(answer(self._status, self._headers, b"ok"))
        if self.written[-1]:
            assert not answer(200, GOOD, b"no"), "a second answer to one request"
            return
        await send({"type": "http.response.start", "status": 200, "headers": GOOD})
        await send({"type": "http.response.body", "body": b"ok"})


async def test_an_answer_is_written_at_once_and_the_connection_goes_on() -> None:
    app = App()
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(post(b"1") + post(b"2"))
        for _ in range(2):
            answer = await peer.answer()
            assert (answer.status, answer.body) == (200, b"ok")
            assert answer.headers["x-good"] == "yes"
    assert app.written == [True, True]


@pytest.mark.parametrize(
    "header",
    [
        (b"x-bad", b"a\r\nset-cookie: b"),
        (b"x-bad", b"a\nb"),
        (b"x-bad", b"a\rb"),
        (b"x-bad", b"a\0b"),
        (b"x-bad\r\ny", b"a"),
    ],
)
async def test_no_header_gets_a_line_of_its_own(header: tuple[bytes, bytes]) -> None:
    app = App(headers=[LENGTH, header])
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(post(b"1"))
        answer = await peer.answer()
    assert app.written == [False] and "set-cookie" not in answer.headers


async def test_an_answer_without_a_length_is_not_written_at_once() -> None:
    app = App(headers=[(b"x-good", b"yes")])
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(post(b"1"))
        assert (await peer.answer()).body == b"ok"
    assert app.written == [False]


async def test_the_last_answer_says_that_it_is_the_last() -> None:
    app = App()
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % HOST)
        assert (await peer.answer()).headers["connection"] == "close"
    assert app.written == [False]


async def test_an_answer_to_head_is_not_written_at_once() -> None:
    app = App()
    async with guarding(app) as place, place.peer() as peer:
        await peer.send(b"HEAD / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST)
        lines = [await peer.line() for _ in range(4)]
        assert lines[0].startswith(b"HTTP/1.1 200") and lines[3] == b"\r\n"
        await peer.send(post(b"1"))
        assert (await peer.answer()).body == b"ok"
    assert app.written == [False, True]


async def test_who_waits_for_a_body_is_not_cut_off_with_another_who_does() -> None:
    bodies: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        waiting = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
        waiting[0].cancel()
        bodies.append((await waiting[1])["body"])
        await send({"type": "http.response.body", "body": b"ok"})

    async with guarding(app) as place, place.peer() as peer:
        head, _, body = post(b"late").partition(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n")
        # Its head is answered before the body comes.
        assert (await peer.line()).startswith(b"HTTP/1.1 200")
        await peer.send(body)
        while await peer.line() != b"\r\n":
            pass
        await place.until(lambda: bodies)
    assert bodies == [b"late"]


async def test_a_writer_waits_while_its_reader_takes_nothing() -> None:
    transport: Any = None
    flow = Flow(transport)
    await within(flow.drain())
    flow.pause_writing()
    waiting = [asyncio.ensure_future(flow.drain()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    flow.resume_writing()
    await within(asyncio.gather(*waiting))
    flow.pause_writing()
    again = asyncio.ensure_future(flow.drain())
    await asyncio.sleep(0)
    assert not again.done()
    flow.resume_writing()
    await within(again)
