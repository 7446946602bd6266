"""Overload: who may begin, who is refused and how, what is answered all the same, and its end."""

import asyncio
import contextlib
import copy
import json
from collections import deque
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
    SLOW_FOR,
    TURNS,
    Admission,
    Ticket,
)
from dragoman.server.connections import Connections
from dragoman.server.http import Connection, protocol
from dragoman.server.plain import MAX_HEADS, Heads, is_plain


class Time:
    """A loop that does as much work as it is told to, turn by turn. A request takes as many turns
    as a short task does, with a part of its work in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.work = 0.0
        self.admission = Admission(lambda: self.now, lambda: self.work)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._soon: list[Callable[[], None]] = []
        # What is under way: its ticket, the turns it still takes, and its work in each.
        self.under_way: list[tuple[Ticket, int, float]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._later.append((self.now + seconds, callback))

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._soon.append(lambda: callback(*args))

    @property
    def is_watched(self) -> bool:
        return bool(self._later)

    def turn(self, arrivals: int = 0, cost: float = 0.001, who: object = "a") -> int:
        """Let requests arrive, each of which costs so much; return how many began."""
        return self.crowd({who: arrivals}, cost)[who]

    def crowd(self, arrivals: dict[object, int], cost: float = 0.001) -> dict[object, int]:
        began: dict[object, int] = dict.fromkeys(arrivals, 0)
        for who, count in arrivals.items():
            for _ in range(count):
                if ticket := self.admission.enter(who):
                    self.under_way.append((ticket, TURNS, cost / TURNS))
                    began[who] += 1
        self.pass_(sum(part for _, _, part in self.under_way))
        under_way, self.under_way = self.under_way, []
        for ticket, left, part in under_way:
            if left > 1:
                self.under_way.append((ticket, left - 1, part))
            else:
                self.admission.end(ticket)
        return began

    def callers(self, count: int, seconds: float, *, rest: float = 0.0) -> None:
        """Let so many ask again whenever they are answered, or refused."""
        ends = self.now + seconds
        while self.now < ends:
            self.turn(max(0, count - len(self.under_way)))
            if rest or not self.under_way:
                self.idle(rest or 0.002)

    def pass_(self, seconds: float, beside: float = 0.0) -> None:
        """Let a turn go by."""
        self.now += seconds + beside
        self.work += seconds
        soon, self._soon = self._soon, []
        due = [one for one in self._later if one[0] <= self.now]
        self._later = [one for one in self._later if one[0] > self.now]
        for callback in soon:
            callback()
        for _, callback in due:
            callback()

    def idle(self, seconds: float) -> None:
        """Nothing to do but what is due."""
        ends = self.now + seconds
        while self._soon or (self._later and min(self._later)[0] <= ends):
            waits = 0.0 if self._soon else min(self._later)[0] - self.now
            self.pass_(0.0, beside=max(0.0, waits))
        self.now = max(self.now, ends)

    def finish(self) -> None:
        """Do all that is under way."""
        while self.under_way:
            self.turn()


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
        began += loop.turn(came)
        if not loop.under_way:
            loop.idle(0.002)
    return began


def filled(loop: Time) -> list[Ticket]:
    """Let as many begin as may, which then wait; return their tickets."""
    began: list[Ticket] = []
    while ticket := loop.admission.enter("a"):
        began.append(ticket)
    return began


def test_what_there_is_time_for_is_never_refused(loop: Time) -> None:
    for _ in range(500):
        assert loop.turn(8) == 8
        loop.idle(0.001)
    assert loop.admission.refused == 0 and not loop.admission.is_overloaded


def test_a_crowd_that_comes_once_is_let_in(loop: Time) -> None:
    assert loop.turn(MOST) == MOST
    loop.finish()
    loop.idle(OVER_AFTER + 2 * LOOK)
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


def test_where_each_turn_is_short_and_requests_take_many_there_is_an_overload(loop: Time) -> None:
    loop.callers(int(1.5 * SLOW * 1000), 4 * SLOW_FOR)
    assert loop.admission.is_overloaded and loop.admission.refused > 0


@pytest.mark.parametrize(
    ("callers", "rest"), [(int(0.7 * SLOW * 1000), 0.0), (LEAST - 1, 0.0), (LEAST - 1, 0.1)]
)
def test_callers_who_are_answered_soon_are_no_overload(
    loop: Time, callers: int, rest: float
) -> None:
    loop.callers(callers, 20 * SLOW_FOR, rest=rest)
    assert not loop.admission.is_overloaded and loop.admission.refused == 0


def test_few_requests_that_block_the_loop_are_no_overload(loop: Time) -> None:
    for _ in range(100):
        loop.turn(1, cost=2 * SLOW)
    assert not loop.admission.is_overloaded


def test_requests_that_wait_for_something_else_are_no_overload(loop: Time) -> None:
    """However busy the loop is with what is short."""
    waiting: deque[tuple[float, Ticket]] = deque()
    for _ in range(1000):
        for _ in range(10):
            ticket = loop.admission.enter("a")
            assert ticket is not None
            waiting.append((loop.now + 10 * SLOW, ticket))
        loop.pass_(0.0048, beside=0.0002)
        while waiting[0][0] < loop.now:
            loop.admission.end(waiting.popleft()[1])
    assert not loop.admission.is_overloaded and loop.admission.refused == 0


def test_what_costs_nothing_does_not_hide_an_overload(loop: Time) -> None:
    ends = loop.now + 4 * SLOW_FOR
    while loop.now < ends:
        loop.turn(max(0, int(1.5 * SLOW * 1000) - len(loop.under_way)))
        if quick := loop.admission.enter("b"):
            loop.admission.end(quick)
    assert loop.admission.is_overloaded
    most = loop.admission.most
    for _ in range(50):
        if quick := loop.admission.enter("b"):
            loop.admission.end(quick)
        loop.turn(200)
    assert loop.admission.most <= max(most, 1.2 * LONG * 1000)


def test_in_overload_one_begins_when_one_is_answered(loop: Time) -> None:
    overload(loop)
    loop.finish()
    admission = loop.admission
    began = filled(loop)
    # Who is the only one has no share beyond what all may have.
    assert admission.most <= admission.under_way < admission.most + 1
    assert not admission.enter("a") and admission.turns_away("a")
    admission.end(began.pop())
    assert not admission.turns_away("a") and admission.enter("a")
    assert not admission.enter("a")


def test_who_waits_for_long_is_not_counted_as_under_way(loop: Time) -> None:
    overload(loop)
    loop.finish()
    loop.pass_(LOOK)
    admission = loop.admission
    began = filled(loop)
    # As long as it may still be our work.
    for _ in range(LOOKS_UNDER_WAY - 1):
        loop.pass_(LOOK)
        assert not admission.enter("a")
    loop.pass_(LOOK)
    assert admission.under_way == 0 and admission.enter("a")
    for ticket in began:
        admission.end(ticket)
    assert admission.under_way == 1, "nobody is counted twice"
    assert set(admission._of) == {"a"}


def test_who_has_few_under_way_begins_beside_one_whose_requests_wait(loop: Time) -> None:
    overload(loop)
    loop.finish()
    for _ in range(50):
        filled(loop)
        for _ in range(2):
            ticket = loop.admission.enter("quiet")
            assert ticket is not None
            loop.under_way.append((ticket, TURNS, 0.0001))
        for _ in range(4):
            loop.turn()
        loop.pass_(LOOK / 4)


def test_so_many_are_refused_at_once_and_no_more(loop: Time) -> None:
    overload(loop)
    loop.finish()
    admission = loop.admission
    loop.pass_(LOOK)
    filled(loop)
    at_once = 0
    for _ in range(100 * LEAST):
        assert admission.turns_away("a")
        at_once += admission.refused < admission.at_once
    assert 6 * admission.most < at_once < 9 * admission.most
    loop.pass_(LOOK)
    assert admission.turns_away("a") and admission.refused < admission.at_once


def test_some_are_let_in_however_slow_they_are(loop: Time) -> None:
    overload(loop)
    for _ in range(50):
        loop.finish()
        loop.idle(LOOK)
        assert loop.turn(100, cost=0.5) >= LEAST


def test_slow_things_are_no_overload(loop: Time) -> None:
    for _ in range(10):
        assert loop.turn(1, cost=20 * LATE) == 1
        loop.finish()
        loop.idle(0.1)
        assert loop.turn(100, cost=0.0001) == 100
        loop.finish()
        loop.idle(0.1)
    for _ in range(15):
        assert loop.turn(1, cost=4 * LATE) == 1
        loop.finish()
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
        loop.finish()
        loop.idle(2 * LOOK)
    assert not loop.admission.is_overloaded
    for _ in range(5):
        loop.turn(200)
        loop.finish()
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
        crowd: dict[object, int] = {"loud": 300, "quiet": 1, "third": 1}
        found = loop.crowd(crowd)
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
        found = loop.crowd({**dict.fromkeys(range(100), 5), "x": 1})
        quiet += found["x"] if turn >= 50 else 0
    assert quiet == 100
    for number in range(100):
        loop.admission.forget(number)
    assert list(loop.admission._known) == ["x"]


def test_what_only_reads_is_preferred(loop: Time) -> None:
    overload(loop)
    filled(loop)
    assert not loop.admission.enter("a")
    assert loop.admission.enter("a", is_preferred=True)


def test_in_overload_what_waited_too_long_does_not_begin(loop: Time) -> None:
    assert loop.admission.enter("a", came_at=loop.now - 5)
    overload(loop)
    loop.finish()
    assert not loop.admission.enter("a", came_at=loop.now - 1)
    assert loop.admission.enter("a", came_at=loop.now)


def test_who_is_turned_away_at_a_glance_would_not_have_been_let_in(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    seen: set[bool] = set()
    began: list[Ticket] = []
    for _ in range(20):
        for number in range(800):
            # One asks most, and many ask once.
            who = "a" if number % 2 else number
            at_a_glance = copy.copy(admission).turns_away(who)
            ticket = admission.enter(who)
            assert (ticket is None) is at_a_glance
            if ticket is not None:
                began.append(ticket)
            seen.add(at_a_glance)
        loop.pass_(LOOK / 2)
        while began:
            admission.end(began.pop())
    assert seen == {True, False}
    refused = admission.refused
    while not admission.turns_away("a"):
        assert admission.enter("a")
    assert admission.refused == refused + 1, "it is counted"
    # It is what goes on with the overload.
    loop.idle(OVER_AFTER - LOOK)
    while not admission.turns_away("a"):
        assert admission.enter("a")
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
        while not shut.asked:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while not shut.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
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
    async with asyncio.timeout(60):
        # It notices by itself, within a few turns.
        while admission._is_watching:  # noqa: ASYNC110
            await asyncio.sleep(LOOK / 4)
    assert admission._begun == 0 and admission.admitted == wanted
