"""In overload a served app refuses requests, whole plain ones without reading them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, app_of, client, message
from harness.waiting import WAIT, eventually, within

from dragoman import Agent
from dragoman.http.admission import (
    Admission,
    Ticket,
)
from dragoman.http.connections import Connections
from dragoman.http.protocol import HttpProtocol, protocol
from dragoman.http.refusals.limited_callers import MAX_HEADS, Heads, is_plain

PLAIN = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        PLAIN.replace(b"Host: a", b"Host: a\r\nConnection: keep-alive"),
        PLAIN.replace(b"/ ", b"/message:send?x=y "),
        PLAIN.replace(b"Content-Length", b"content-length"),
    ],
)
def test_one_whole_plain_request_is_refused_unread(data: bytes) -> None:
    assert is_plain(data)
    heads = Heads()
    assert heads.find(data) is not None and heads.find(data) == heads.find(data)
    assert heads.find(data + b"x") is None and heads.find(data[:-1]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:-1],
        PLAIN + b"x",
        PLAIN + PLAIN,
        PLAIN[: PLAIN.find(b"{")],
        PLAIN.replace(b"POST", b"GET"),
        PLAIN.replace(b"POST", b"xPOST"),
        PLAIN.replace(b"POST /", b"POST http://a/"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b" HTTP/1.1", b""),
        PLAIN.replace(b"Host: a", b"Content-Length: 2"),
        PLAIN.replace(b"Host: a", b"X: Content-Length: 9"),
        PLAIN.replace(b"Length: 2", b"Length: +2"),
        PLAIN.replace(b"Length: 2", b"Length:  2"),
        PLAIN.replace(b"Length: 2", b"Length : 2"),
        PLAIN.replace(b"Length: 2", b"Length: 0x2"),
        PLAIN.replace(b"Length: 2", b"Length: 2, 2"),
        PLAIN.replace(b"Host: a", b"Transfer-Encoding: chunked"),
        PLAIN.replace(b"Host: a", b"Transfer-Encoding : chunked"),
        PLAIN.replace(b"Host: a", b"Expect: 100-continue"),
        PLAIN.replace(b"Host: a", b"Connection: close"),
        PLAIN.replace(b"Host: a", b"Connection : close"),
        PLAIN.replace(b"Host: a", b"Last-Event-ID: 4"),
        PLAIN.replace(b"Host: a\r\n", b"Host: a\n"),
        PLAIN.replace(b"Host: a", b"Host: a\nX: b"),
        PLAIN.replace(b"\r\n", b"\n"),
    ],
)
def test_what_could_end_elsewhere_or_means_more_is_read(data: bytes) -> None:
    assert not is_plain(data)
    heads = Heads()
    heads.find(PLAIN)
    assert heads.find(data) is None


def test_heads_are_remembered_in_bounded_memory() -> None:
    heads = Heads()
    found = {heads.find(PLAIN.replace(b"Host: a", b"Host: %d" % number)) for number in range(5000)}
    assert len(found) == 5000 and None not in found
    assert heads.find(PLAIN.replace(b"Host: a", b"Host: " + b"a" * 5000)) is not None
    assert len(heads) <= MAX_HEADS and max(map(len, heads._lengths)) <= 16


# Served


class Shut(Admission):
    """Lets nobody begin, as in the deepest overload."""

    def __init__(self) -> None:
        super().__init__()
        self.is_overloaded = True
        self.asked: list[bool] = []
        self.ended = 0
        self.connections: Connections | None = None

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> Ticket | None:
        self.asked.append(is_preferred)
        return (0, None) if is_preferred or not self.is_overloaded else None

    def end(self, ticket: Ticket) -> None:
        assert ticket == (0, None)
        self.ended += 1


@pytest.fixture
async def crowded() -> AsyncIterator[tuple[Site, Shut]]:
    agent = Agent("Echo", "Repeats.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    app = app_of(agent)
    app.access.admission = shut = Shut()
    shut.connections = Connections(app.settings, shut)
    loop = asyncio.get_running_loop()
    async with app.running():
        server = await loop.create_server(protocol(app, shut.connections), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            async with client(url) as http:
                yield Site(url, http, app), shut
        finally:
            server.close()
            app.end_streams()
            await within(shut.connections.close(WAIT))


def call() -> dict[str, Any]:
    params = {"message": message("hi")}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


def is_refusal(answer: httpx.Response) -> bool:
    assert answer.status_code in (200, 503)
    if answer.status_code == 200:
        return False
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["status"] == 503
    return True


async def test_in_overload_cards_health_and_reading_go_on(crowded: tuple[Site, Shut]) -> None:
    site, shut = crowded
    for path in ("/.well-known/agent-card.json", "/healthz", "/readyz", "/tasks"):
        assert (await site.http.get(path, headers=V1)).status_code == 200, path
    assert is_refusal(await site.post(call()))
    rest = await site.http.post("/message:send", json={"message": message("hi")}, headers=V1)
    assert is_refusal(rest)
    resumed = await site.post(call(), headers={"last-event-id": "1"})
    assert not is_refusal(resumed)
    shut.is_overloaded = False
    assert not is_refusal(await site.post(call()))


def request(body: bytes, *more: str, length: int | None = None) -> bytes:
    lines = [
        "POST / HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        head = (await within(reader.readuntil(b"\r\n\r\n"))).decode().lower()
        found.append(int(head.split()[1]))
        await within(reader.readexactly(int(head.split("content-length: ")[1].split()[0])))
    return found


async def test_a_refused_connection_goes_on_with_the_next_request(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    # Its answer comes before its body has, which is then nobody's, whatever it says.
    writer.write(request(b"", length=len(body)))
    assert await answers(reader, 1) == [503]
    writer.write(body)
    # In pieces, at once, and several behind each other.
    for piece in (request(body)[:30], request(body)[30:-5], request(body)[-5:]):
        writer.write(piece)
        await asyncio.sleep(0)
    writer.write(request(body) * 5)
    assert await answers(reader, 6) == [503] * 6
    shut.is_overloaded = False
    writer.write(request(body))
    assert await answers(reader, 1) == [200]
    writer.close()


async def test_a_head_is_known_again_only_if_it_is_the_same_to_the_byte(
    crowded: tuple[Site, Shut],
) -> None:
    site, _ = crowded
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    for _ in range(2):
        writer.write(request(body, "Connectors: close"))
        assert await answers(reader, 1) == [503]
    # The same head, and more behind it than one request.
    writer.write(request(body, "Connectors: close") * 2)
    assert await answers(reader, 2) == [503] * 2
    # As long, and not the same.
    writer.write(request(body, "Connection: close"))
    assert await answers(reader, 1) == [503]
    assert await within(reader.read()) == b""
    writer.close()


async def test_long_heads_are_not_kept_and_refused_all_the_same(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    assert shut.connections is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    for padding, is_kept in (("short", True), ("x" * 5000, False), ("short", True)):
        writer.write(request(body, f"Padding: {padding}"))
        assert await answers(reader, 1) == [503]
        (one,) = shut.connections._open
        assert isinstance(one, HttpProtocol)
        # What it is known by is that of the same head.
        assert one.early.head == (request(body, f"Padding: {padding}")[: -len(body)] * is_kept)
        assert (one.early.length >= 0) is is_kept
    writer.close()


async def test_whom_a_connection_counts_for_is_asked_again_once_the_app_may_know_it(
    crowded: tuple[Site, Shut], monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a delay it is asked as well.
    monkeypatch.setattr("dragoman.http.refusals.delayed.AGAIN", -1.0)
    site, shut = crowded
    asked: list[object] = []

    def who(connection: object) -> object:
        asked.append(connection)
        return connection

    shut.who = who  # type: ignore[method-assign]  # to be counted
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    for is_overloaded, status, times in (
        (True, 503, 1),
        (True, 503, 1),
        (False, 200, 1),
        (True, 503, 2),
        (True, 503, 2),
    ):
        shut.is_overloaded = is_overloaded
        writer.write(request(json.dumps(call()).encode()))
        assert await answers(reader, 1) == [status]
        assert len(asked) == times
    writer.close()


async def test_who_is_let_in_during_overload_is_answered_and_counted_once(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    asked: list[object] = []

    def every_second(connection: object, **more: Any) -> Ticket | None:
        asked.append(connection)
        return (0, None) if len(asked) % 2 else None

    shut.enter = every_second  # type: ignore[method-assign]  # lets in whose turn it is
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    for status in (200, 503, 200, 503):
        writer.write(request(json.dumps(call()).encode()))
        assert await answers(reader, 1) == [status]
    # Read in pieces, it is asked about once as well.
    for status in (200, 503):
        writer.write(request(body)[:40])
        await writer.drain()
        writer.write(request(body)[40:])
        assert await answers(reader, 1) == [status]
    assert len(asked) == 6 and shut.ended == 3
    writer.close()


async def test_what_is_not_plain_is_refused_as_well(crowded: tuple[Site, Shut]) -> None:
    site, _ = crowded
    port = int(site.url.rpartition(":")[2])
    body = json.dumps(call()).encode()
    chunked = (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )
    large = request(b"", length=500_000)
    for sent in (
        request(body, "Connection: close"),
        chunked,
        large,
        request(body, "Expect: 100-continue"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await answers(reader, 1) == [503]
        writer.close()


async def test_what_is_under_way_is_counted_until_it_is_answered(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    shut.is_overloaded = False
    assert not is_refusal(await site.post(call()))
    assert shut.ended == 1
    streamed = call() | {"method": "SendStreamingMessage"}
    assert not is_refusal(await site.post(streamed))
    assert shut.ended == 2
    # What nobody has to be let in for is not counted.
    assert (await site.http.get("/healthz")).status_code == 200
    assert shut.ended == len(shut.asked) == 2


async def test_who_hangs_up_is_not_under_way_any_more(crowded: tuple[Site, Shut]) -> None:
    site, shut = crowded
    shut.is_overloaded = False
    _, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    writer.write(request(body)[:-1])
    await writer.drain()
    await eventually(lambda: shut.asked)
    writer.transport.abort()
    await eventually(lambda: shut.ended)
    assert shut.ended == 1


async def test_requests_behind_one_that_is_answered_are_refused_in_their_order(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    shut.is_overloaded = False
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    calm = shut.enter

    def crowd(connection: object, **more: Any) -> Ticket | None:
        began = calm(connection, **more)
        shut.is_overloaded = True
        return began

    shut.enter = crowd  # type: ignore[method-assign]  # the crowd comes behind the first one
    writer.write(request(body) + request(body) * 3)
    assert await answers(reader, 4) == [200, 503, 503, 503]
    writer.close()


@pytest.mark.parametrize("wanted", [1, 2])
async def test_a_loop_that_is_real_is_watched_only_while_someone_comes(wanted: int) -> None:
    admission = Admission()
    for _ in range(wanted):
        assert admission.enter("a")
    # It notices by itself, within a few turns.
    await eventually(lambda: not admission._is_watching)
    assert admission._begun == 0 and admission.admitted == wanted
