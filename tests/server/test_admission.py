"""Overload: who may begin, who is refused and how, what is answered all the same, and its end."""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import uvicorn
from serving import V1, Site, client, message, within

from dragoman import Agent, App, Settings
from dragoman.server.admission import (
    LATE,
    LEAST,
    LONG,
    LOOK,
    LOOKS_UNDER_WAY,
    MOST,
    OVER_AFTER,
    SHORT,
    SLOW,
    SLOW_LOOKS,
    Admission,
)
from dragoman.server.connections import Connections
from dragoman.server.http import Connection, protocol
from dragoman.server.plain import MAX_HEADS, Heads, is_plain


class Time:
    """A loop that does as much work as it is told to, turn by turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.work = 0.0
        self.admission = Admission(lambda: self.now, lambda: self.work)
        self._later: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._later.append((self.now + seconds, callback))

    @property
    def is_watched(self) -> bool:
        return bool(self._later)

    def turn(self, arrivals: int, cost: float = 0.001, who: object = "a") -> int:
        """Let requests arrive, each of which costs so much; return how many began."""
        return self.crowd({who: arrivals}, cost)[who]

    def crowd(self, arrivals: dict[object, int], cost: float = 0.001) -> dict[object, int]:
        began: dict[object, list[float]] = {who: [] for who in arrivals}
        for who, count in arrivals.items():
            for _ in range(count):
                if self.admission.enter(who):
                    began[who].append(self.admission.begin())
        self.pass_(sum(map(len, began.values())) * cost)
        for times in began.values():
            for at in times:
                self.admission.end(at, is_stream=False)
        return {who: len(times) for who, times in began.items()}

    def slow(self, arrivals: int, looks: int, *, rest: float = 0.0, is_stream: bool = False) -> int:
        """Let so many requests come in each look, and be answered after so many looks of work,
        with or without rest, in turns that are short; return how many began."""
        under_way: list[tuple[int, float]] = []
        began = 0
        for look in range(looks, looks * 5):
            for _ in range(arrivals):
                if self.admission.enter("a"):
                    under_way.append((look, self.admission.begin()))
                    began += 1
            for _ in range(8):
                self.pass_(LOOK / 8 * (1 - rest), beside=LOOK / 8 * rest)
            while under_way and under_way[0][0] <= look - looks:
                self.admission.end(under_way.pop(0)[1], is_stream=is_stream)
        return began

    def pass_(self, seconds: float, beside: float = 0.0) -> None:
        self.now += seconds + beside
        self.work += seconds
        due = [one for one in self._later if one[0] <= self.now]
        self._later = [one for one in self._later if one[0] > self.now]
        for _, callback in due:
            callback()

    def idle(self, seconds: float) -> None:
        """Nothing to do but what is due."""
        ends = self.now + seconds
        while self._later and min(self._later)[0] <= ends:
            self.pass_(0.0, beside=min(self._later)[0] - self.now)
        self.now = ends


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def overload(loop: Time, seconds: float = 10.0) -> int:
    """Five times what there is time for; return how many began."""
    ends, before, began = loop.now + seconds, loop.now, 0
    while loop.now < ends:
        # A request takes a millisecond, so that a thousand a second can be answered.
        came = int((loop.now - before) * 5000)
        before = loop.now
        done = loop.turn(came)
        began += done
        if not done:
            loop.idle(0.002)
    return began


def test_what_there_is_time_for_is_never_refused(loop: Time) -> None:
    for _ in range(500):
        assert loop.turn(50) == 50
        loop.idle(0.001)
    assert loop.admission.refused == 0 and not loop.admission.is_overloaded


def test_a_crowd_that_comes_once_is_let_in(loop: Time) -> None:
    assert loop.turn(MOST) == MOST
    loop.idle(OVER_AFTER)
    assert loop.turn(MOST) == MOST
    assert loop.turn(MOST + 1) <= MOST


def test_in_overload_what_begins_is_answered_soon_and_the_time_is_used(loop: Time) -> None:
    overload(loop, 5)
    began_at = loop.now
    began = overload(loop)
    assert loop.admission.is_overloaded
    assert began / (loop.now - began_at) > 800, "who began had most of the time there is"
    # A thousand are answered in a second.
    assert 0.8 * SHORT * 1000 <= loop.admission.most <= 1.2 * LONG * 1000


def test_where_each_turn_is_short_and_each_request_takes_many_there_is_an_overload(
    loop: Time,
) -> None:
    looks = int(SLOW / LOOK) + 2
    assert loop.slow(2 * LEAST, looks) < 2 * LEAST * 4 * looks
    assert loop.admission.is_overloaded and loop.admission.refused > 0


@pytest.mark.parametrize(
    ("arrivals", "looks", "rest", "is_stream"),
    [
        (2 * LEAST, int(SLOW / LOOK) + 2, 0.5, False),
        (2 * LEAST, int(SLOW / LOOK) - 1, 0.0, False),
        (LEAST // 2 - 1, int(SLOW / LOOK) + 2, 0.0, False),
        (2 * LEAST, int(SLOW / LOOK) + 2, 0.0, True),
    ],
    ids=["they wait for something else", "they are quick", "they are few", "they are streams"],
)
def test_requests_that_take_long_are_no_overload_where(
    loop: Time, arrivals: int, looks: int, rest: float, is_stream: bool
) -> None:
    for _ in range(SLOW_LOOKS):
        loop.slow(arrivals, looks, rest=rest, is_stream=is_stream)
    assert not loop.admission.is_overloaded and loop.admission.refused == 0


def test_slow_ones_between_quick_ones_are_no_overload(loop: Time) -> None:
    for _ in range(10 * SLOW_LOOKS):
        long_ago = loop.now - 2 * SLOW
        for at in (long_ago, loop.now):
            for _ in range(LEAST):
                assert loop.admission.enter("a")
            loop.admission.begin()
            loop.pass_(LOOK / 2)
            loop.admission.end(at, is_stream=False)
    assert not loop.admission.is_overloaded


def test_in_overload_one_begins_when_one_is_answered(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    began: list[float] = []
    while admission.enter("a"):
        began.append(admission.begin())
    # Who is the only one has no share beyond what all may have.
    assert admission.most <= admission.under_way < admission.most + 1
    assert not admission.enter("a") and admission.turns_away("a")
    admission.end(began.pop(), is_stream=False)
    assert not admission.turns_away("a") and admission.enter("a")
    admission.begin()
    assert not admission.enter("a")


def test_who_waits_for_long_is_not_counted_as_under_way(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    began: list[float] = []
    while admission.enter("a"):
        began.append(admission.begin())
    # As long as it may still be our work.
    for _ in range(LOOKS_UNDER_WAY - 1):
        loop.pass_(LOOK)
        assert not admission.enter("a")
    loop.pass_(LOOK)
    assert admission.under_way == 0 and admission.enter("a")
    for at in began:
        admission.end(at, is_stream=True)
    assert admission.under_way == 0, "nobody is counted twice"


def test_so_many_are_refused_at_once_and_no_more(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    loop.pass_(LOOK)
    at_once = 0
    while admission.enter("a"):
        admission.begin()
    for _ in range(100 * LEAST):
        assert admission.turns_away("a")
        at_once += admission.refused < admission.at_once
    assert 6 * admission.most < at_once < 9 * admission.most
    loop.pass_(LOOK)
    assert admission.turns_away("a") and admission.refused < admission.at_once


def test_some_are_let_in_however_slow_they_are(loop: Time) -> None:
    overload(loop)
    for _ in range(50):
        loop.idle(LOOK)
        assert loop.turn(100, cost=0.5) >= LEAST


def test_slow_things_are_no_overload(loop: Time) -> None:
    for _ in range(10):
        assert loop.turn(1, cost=20 * LATE) == 1
        loop.idle(0.1)
        assert loop.turn(100, cost=0.0001) == 100
        loop.idle(0.1)
    for _ in range(15):
        assert loop.turn(1, cost=4 * LATE) == 1
    assert loop.turn(100) == 100 and not loop.admission.is_overloaded


def test_time_that_others_had_the_processor_is_not_ours(loop: Time) -> None:
    for _ in range(50):
        for _ in range(20):
            assert loop.admission.enter("a")
        loop.pass_(0.001, beside=5 * LATE)
    for _ in range(5):
        for _ in range(20):
            loop.admission.enter("a")
        loop.pass_(0.001, beside=20 * LATE)
    assert loop.admission.is_overloaded, "but a loop that stands still takes no more"


def test_crowds_with_rest_between_them_are_no_overload(loop: Time) -> None:
    for _ in range(50):
        assert loop.turn(200) == 200
        loop.idle(2 * LOOK)
    assert not loop.admission.is_overloaded
    for _ in range(5):
        loop.turn(200)
    assert loop.admission.is_overloaded


def test_overload_ends_when_the_crowd_does(loop: Time) -> None:
    overload(loop)
    assert loop.admission.most < MOST / 4
    loop.idle(OVER_AFTER + 0.1)
    assert not loop.admission.is_overloaded
    assert loop.turn(500, cost=0.0001) == 500


def test_an_idle_loop_is_left_alone(loop: Time) -> None:
    overload(loop)
    assert loop.is_watched
    loop.idle(OVER_AFTER + 1)
    assert not loop.is_watched


def test_who_asks_most_gives_way_first(loop: Time) -> None:
    began: dict[object, int] = {"loud": 0, "quiet": 0, "third": 0}
    asked = dict.fromkeys(began, 0)
    overload(loop)
    for turn in range(300):
        crowd: dict[object, int] = {"loud": 300, "quiet": 2, "third": 2}
        found = loop.crowd(crowd)
        loop.idle(LOOK)
        if turn >= 50:
            for who, count in found.items():
                began[who] += count
                asked[who] += crowd[who]
    assert began["quiet"] == asked["quiet"] and began["third"] == asked["third"]
    assert began["loud"] < asked["loud"] / 4


def test_connections_of_one_principal_count_together(loop: Time) -> None:
    for number in range(100):
        loop.admission.know(number, "loud")
    loop.admission.know("x", "quiet")
    quiet = 0
    overload(loop)
    for turn in range(150):
        found = loop.crowd({**dict.fromkeys(range(100), 5), "x": 2})
        loop.idle(LOOK)
        quiet += found["x"] if turn >= 50 else 0
    assert quiet == 200
    for number in range(100):
        loop.admission.forget(number)
    assert list(loop.admission._known) == ["x"]


def test_what_only_reads_is_preferred(loop: Time) -> None:
    overload(loop)
    while loop.admission.enter("a"):
        loop.admission.begin()
    assert not loop.admission.enter("a")
    assert loop.admission.enter("a", is_preferred=True)


def test_in_overload_what_waited_too_long_does_not_begin(loop: Time) -> None:
    assert loop.admission.enter("a", came_at=loop.now - 5)
    overload(loop)
    loop.idle(2 * LOOK)
    assert not loop.admission.enter("a", came_at=loop.now - 1)
    assert loop.admission.enter("a", came_at=loop.now)


def test_who_is_turned_away_at_a_glance_would_not_have_been_let_in(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    seen: set[bool] = set()
    began: list[float] = []
    for _ in range(20):
        for number in range(800):
            # One asks most, and many ask once.
            who = "a" if number % 2 else number
            at_a_glance = copy.copy(admission).turns_away(who)
            assert admission.enter(who) is not at_a_glance
            if not at_a_glance:
                began.append(admission.begin())
            seen.add(at_a_glance)
        loop.pass_(LOOK / 2)
        while began:
            admission.end(began.pop(), is_stream=False)
    assert seen == {True, False}
    refused = admission.refused
    while not admission.turns_away("a"):
        assert admission.enter("a")
        admission.begin()
    assert admission.refused == refused + 1, "it is counted"
    # It is what goes on with the overload.
    loop.idle(OVER_AFTER - LOOK)
    while not admission.turns_away("a"):
        assert admission.enter("a")
        admission.begin()
    loop.idle(OVER_AFTER)
    assert admission.is_overloaded
    loop.idle(OVER_AFTER + LOOK)
    assert not admission.is_overloaded


# Unread

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
        self.connections: Connections | None = None

    def enter(
        self, connection: object, *, is_preferred: bool = False, came_at: float | None = None
    ) -> bool:
        self.asked.append(is_preferred)
        return is_preferred or not self.is_overloaded


@pytest.fixture
async def crowded() -> AsyncIterator[tuple[Site, Shut]]:
    agent = Agent("Echo", "Repeats.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    app = App(agent, settings=Settings(store="memory:"))
    app.door.admission = shut = Shut()
    shut.connections = Connections(app.settings, shut)
    config = uvicorn.Config(
        app,
        http=protocol(shut.connections),
        port=0,
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # they are the test runner's
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        # uvicorn has no event for it.
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    try:
        async with client(url) as http:
            yield Site(url, http, app), shut
    finally:
        server.should_exit = True
        await within(running)


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
        assert isinstance(one, Connection)
        # What it is known by is that of the same head.
        assert one._plain == (request(body, f"Padding: {padding}")[: -len(body)] * is_kept)
        assert (one._plain_length >= 0) is is_kept
    writer.close()


async def test_whom_a_connection_counts_for_is_asked_again_once_the_app_may_know_it(
    crowded: tuple[Site, Shut],
) -> None:
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

    def every_second(connection: object, **more: Any) -> bool:
        asked.append(connection)
        return len(asked) % 2 == 1

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
    assert len(asked) == 6
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
    ended: list[bool] = []
    end = shut.end

    def counted(began: float, *, is_stream: bool) -> None:
        assert shut.under_way == 1
        ended.append(is_stream)
        end(began, is_stream=is_stream)

    shut.end = counted  # type: ignore[method-assign]  # to be counted
    assert not is_refusal(await site.post(call()))
    streamed = call() | {"method": "SendStreamingMessage"}
    assert not is_refusal(await site.post(streamed))
    assert (await site.http.get("/healthz")).status_code == 200
    assert ended == [False, True, False] and shut.under_way == 0


async def test_requests_behind_one_that_is_answered_are_refused_in_their_order(
    crowded: tuple[Site, Shut],
) -> None:
    site, shut = crowded
    shut.is_overloaded = False
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    body = json.dumps(call()).encode()
    calm = shut.enter

    def crowd(connection: object, **more: Any) -> bool:
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
    async with asyncio.timeout(10):
        # It notices by itself, within a few turns.
        while admission._is_watching:  # noqa: ASYNC110
            await asyncio.sleep(LOOK / 4)
    assert admission._begun == 0 and admission.admitted == wanted
