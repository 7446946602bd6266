"""Refusals without the app: who is refused, for how long, in which words, and how often."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.clock import Clock
from harness.waiting import within

from dragoman import Settings
from dragoman.config import HttpSettings
from dragoman.http.admission import Admission
from dragoman.http.connections import BUSY, LIMITED
from dragoman.http.limits import CallerLimits
from dragoman.http.protocol import HttpProtocol
from dragoman.http.refusals import delayed as module
from dragoman.http.refusals.delayed import (
    DELAY,
    MAX_DELAYED_BYTES,
    MAX_UNREAD_BYTES,
    DelayedRefusals,
)
from dragoman.http.refusals.limited_callers import (
    MAX_AGE,
    MAX_LIMITED,
    LimitedCaller,
    LimitedCallers,
)
from dragoman.model.identity import ANONYMOUS
from tests.http.wire import Answer, Peer, Place, call, get, guarding, message, post

RATE = "2/10s"


def ask(*fields: bytes, text: str = "hello") -> bytes:
    """Return a request of one length, so that its head is the same each time."""
    return post(call("SendMessage", message(text, messageId=f"m-{next(_numbers):06d}")), *fields)


_numbers = iter(range(1_000_000))


class Asked:
    """Counts what reaches the app."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self.count = 0
        limits = place.app.access._limits
        limits._now = clock
        arrive = limits.arrive

        def counted(address: str, **more: bool) -> None:
            self.count += 1
            arrive(address, **more)

        limits.arrive = counted


async def exchange(peer: Peer, data: bytes) -> Answer:
    await peer.send(data)
    return await peer.answer()


async def use_up(peer: Peer, *fields: bytes) -> Answer:
    """Use a rate up; return what the app then says."""
    for _ in range(2):
        assert (await exchange(peer, ask(*fields))).status == 200
    return await exchange(peer, ask(*fields))


# Rates


async def test_who_is_refused_is_refused_again_in_the_same_words_without_the_app() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer, place.peer() as other:
        asked = Asked(place, Clock())
        first = await use_up(peer)
        assert first.status == 429 and asked.count == 3
        for one in (peer, peer, other, other):
            again = await exchange(one, ask())
            assert again.body == first.body and again.status == 429
            assert list(again.headers) == list(first.headers)
            same = {name: again.headers[name] == first.headers[name] for name in first.headers}
            # It is the date of a second, and one may have passed.
            assert [name for name in same if not same[name]] in ([], ["x-ratelimit-reset"])
        assert asked.count == 3 and place.connections.refused == {LIMITED: 4}


async def test_it_lasts_exactly_until_there_is_one_to_take() -> None:
    async with guarding(rate_limit="2/8s") as place, place.peer() as peer:
        clock = Clock()
        place.app.access.refusals._now = clock
        asked = Asked(place, clock)
        assert (await use_up(peer)).headers["retry-after"] == "4"
        assert (await exchange(peer, ask())).headers["retry-after"] == "4"
        clock.now += 3.99
        late = await exchange(peer, ask())
        assert late.status == 429 and late.headers["retry-after"] == "1" and asked.count == 3
        clock.now += 0.02
        assert (await exchange(peer, ask())).status == 200 and asked.count == 4
        # What that one took is known at once.
        assert (await exchange(peer, ask())).status == 429 and asked.count == 4


def at_once(place: Place, *fields: bytes) -> None:
    """Have all connections ask before the app does anything, each with the next of the fields."""
    for number, line in enumerate(list(place.connections._open)):
        line.data_received(ask(*fields[number : number + 1]))  # type: ignore[attr-defined]  # as its transport calls it


@pytest.mark.parametrize("is_known", [True, False], ids=["a head like before", "another head"])
async def test_of_many_who_wait_for_one_to_take_one_reaches_the_app(is_known: bool) -> None:
    async with guarding(rate_limit="2/8s") as place, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(place.peer()) for _ in range(6)]
        clock = Clock()
        place.app.access.refusals._now = clock
        asked = Asked(place, clock)
        await use_up(peers[0])
        for peer in peers:
            assert (await exchange(peer, ask())).status == 429
        assert asked.count == 3
        clock.now += 4.01
        at_once(place, *([] if is_known else [b"X: %d" % number for number in range(6)]))
        assert sorted([(await peer.answer()).status for peer in peers]) == [200] + [429] * 5
        assert asked.count == 4


async def test_each_who_finds_one_to_take_gets_it() -> None:
    async with guarding(rate_limit="2/4s") as place, place.peer() as peer:
        clock = Clock()
        place.app.access.refusals._now = clock
        asked = Asked(place, clock)
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429 and asked.count == 3
        clock.now += 4
        answers = [await exchange(peer, ask()) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-remaining"] == "1" and asked.count == 5


async def test_who_keeps_a_quick_pace_is_not_refused_for_it() -> None:
    async with guarding(rate_limit="100/1s") as place, place.peer() as peer:
        clock = Clock()
        place.app.access.refusals._now = clock
        Asked(place, clock)
        answers = [(await exchange(peer, ask())).status for _ in range(101)]
        assert answers == [200] * 100 + [429]
        for _ in range(5):
            # Taken and there again within the time that taking it may need.
            clock.now += 0.0101
            assert (await exchange(peer, ask())).status == 200


async def test_one_agent_on_its_way_does_not_keep_another_out() -> None:
    agents = b"X-Source-Agent: one", b"X-Source-Agent: two"
    async with guarding(rate_limit_agent="1/4s") as place, place.peer() as one, place.peer() as two:
        clock = Clock()
        place.app.access.refusals._now = clock
        Asked(place, clock)
        for agent in agents:
            answers = [await exchange(one, ask(agent)) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 429, 429]
        assert (await exchange(two, ask())).status == 200
        clock.now += 4
        at_once(place, *agents)
        assert [(await peer.answer()).status for peer in (one, two)] == [200, 200]


def test_what_one_did_not_take_is_there_for_the_next() -> None:
    clock = Clock()
    limits = CallerLimits(Settings(http=HttpSettings(rate_limit="2/8s")), now=clock)
    for _ in range(2):
        limits.admit(ANONYMOUS, None, "10.0.0.1").leave()
    limited = LimitedCaller(limits.usage(ANONYMOUS, "10.0.0.1"), [], b"", clock)
    clock.now += 4.01
    for _ in range(2):
        assert limited.answer(None) is None, "it is not let in by having been looked at"
    limited.let_through(None)
    told = limited.answer(None)
    assert told is not None and b"\r\nretry-after: 1\r\n" in told
    clock.now += 0.021
    assert limited.answer(None) is None


async def test_the_same_words_from_elsewhere_are_another_caller() -> None:
    elsewhere = {"local_addr": ("127.0.0.2", 0)}
    async with (
        guarding(rate_limit=RATE) as place,
        place.peer() as peer,
        place.peer(**elsewhere) as other,
    ):
        await use_up(peer)
        for _ in range(2):
            assert (await exchange(peer, ask())).status == 429
        assert (await exchange(other, ask())).status == 200


async def test_what_differs_in_nothing_that_says_who_asks_is_refused_as_well() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        asked = Asked(place, Clock())
        await use_up(peer)
        for number in range(5):
            data = ask(b"Traceparent: %d" % number, text="x" * number)
            assert (await exchange(peer, data)).status == 429
        # Also in pieces, and several behind each other.
        data = ask(b"X: y")
        for piece in (data[:20], data[20:-5], data[-5:]):
            await peer.send(piece)
            await asyncio.sleep(0)
        assert (await peer.answer()).status == 429
        await peer.send(ask() * 3 + get(b"/healthz"))
        assert [(await peer.answer()).status for _ in range(4)] == [429] * 3 + [200]
        assert asked.count == 3


async def test_reading_cards_and_health_is_not_what_is_limited() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        for path in (b"/.well-known/agent-card.json", b"/healthz"):
            assert (await exchange(peer, get(path))).status == 200


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    path = tmp_path / "tokens.toml"
    names = ("loud", "quiet")
    path.write_text("".join(f'[{name}]\ntoken = "a-long-token-of-{name}"\n' for name in names))
    path.chmod(0o600)
    return str(path)


async def test_others_on_the_same_connection_are_not_refused(tokens: str) -> None:
    loud, quiet = (b"Authorization: Bearer a-long-token-of-" + one for one in (b"loud", b"quiet"))
    async with guarding(rate_limit=RATE, auth_tokens=tokens) as place, place.peer() as peer:
        asked = Asked(place, Clock())
        await use_up(peer, loud)
        assert (await exchange(peer, ask(loud))).status == 429 and asked.count == 3
        assert (await exchange(peer, ask(quiet))).status == 200
        assert (await exchange(peer, ask())).status == 401
        assert (await exchange(peer, ask(loud, b"X-Source-Agent: a"))).status == 429
        assert asked.count == 5
        kept = repr(place.app.access.refusals.heads._lengths) + repr(
            place.app.access.refusals._limited
        )
        assert "a-long-token" not in kept


async def test_one_agent_too_many_does_not_keep_the_others_out() -> None:
    async with guarding(rate_limit_agent=RATE) as place, place.peer() as peer:
        asked = Asked(place, Clock())
        one, other = b"X-Source-Agent: one", b"X-Source-Agent: two"
        await use_up(peer, one)
        assert (await exchange(peer, ask(one))).status == 429 and asked.count == 3
        assert (await exchange(peer, ask(other))).status == 200
        assert (await exchange(peer, ask())).status == 200


async def test_a_caller_beside_one_that_is_refused_is_answered_unparsed_as_before(
    tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = (b"Authorization: Bearer a-long-token-of-" + one for one in (b"loud", b"quiet"))
    settings = {"rate_limit": RATE, "auth_tokens": tokens}
    async with guarding(**settings) as place, place.peer() as peer, place.peer() as other:
        assert (await use_up(peer, alice)).status == 429
        assert (await exchange(peer, ask(alice))).status == 429
        assert place.app.access.refusals.is_alert
        # Its first request is read.
        assert (await exchange(other, ask(bob))).status == 200
        parsed: list[bytes] = []
        parse = HttpProtocol._parse

        def noted(self: HttpProtocol, data: bytes) -> None:
            parsed.append(data)
            parse(self, data)

        monkeypatch.setattr(HttpProtocol, "_parse", noted)
        assert (await exchange(other, ask(bob))).status == 200 and not parsed
        # Its own limit holds all the same: first as the app says, then without it.
        assert (await exchange(other, ask(bob))).status == 429 and not parsed
        before = place.connections.refused[LIMITED]
        assert (await exchange(other, ask(bob))).status == 429 and not parsed
        assert place.connections.refused[LIMITED] == before + 1


async def test_an_address_that_is_kept_out_is_so_whatever_it_shows(tokens: str) -> None:
    settings = {"rate_limit_address": RATE, "auth_tokens": tokens}
    async with guarding(**settings) as place, place.peer() as peer:
        asked = Asked(place, Clock())
        bearer = b"Authorization: Bearer a-long-token-of-"
        for name in (b"loud", b"quiet"):
            assert (await exchange(peer, ask(bearer + name))).status == 200
        for number in range(4):
            answer = await exchange(peer, ask(bearer + b"guess-%d" % number))
            assert answer.status == 429, answer
        assert asked.count == 3


async def test_who_someone_is_gets_asked_again_after_a_while() -> None:
    async with guarding(rate_limit="2/1h") as place, place.peer() as peer:
        clock = Clock()
        place.app.access.refusals._now = clock
        asked = Asked(place, Clock())
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429 and asked.count == 3
        clock.now += MAX_AGE
        assert (await exchange(peer, ask())).status == 429 and asked.count == 4
        clock.now += MAX_AGE
        place.app.access.refusals._forget()
        assert not place.app.access.refusals.is_alert and not place.app.access.refusals._by_head


async def test_callers_are_remembered_in_bounded_memory() -> None:
    clock = Clock()
    limits = CallerLimits(Settings(http=HttpSettings(rate_limit="1/1h")), now=clock)
    limits.admit(ANONYMOUS, None, "10.0.0.1")
    usage = limits.usage(ANONYMOUS, "10.0.0.1")
    refusals = LimitedCallers([b"authorization"], now=clock)
    for number in range(MAX_LIMITED + 50):
        headers = [(b"authorization", b"%d" % number)]
        refusals.add(refusals.caller_key("10.0.0.1", None, headers), usage, [], b"")
        known = "10.0.0.1", None, b"%d" % number
        assert refusals.of("10.0.0.1", None, headers, known) == refusals.of_head(known) is not None
    assert len(refusals._limited) == MAX_LIMITED and len(refusals._by_head) <= MAX_LIMITED
    assert refusals.of("10.0.0.2", None, headers, None) is None
    assert refusals.of("10.0.0.1", b"a certificate", headers, None) is None


# Held


class Later:
    """A loop whose time passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        self._time = 0.0
        # Everybody asks again too soon.
        monkeypatch.setattr(module, "AGAIN", math.inf)
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: self))

    def time(self) -> float:
        return self._time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.due.append((self._time + seconds, callback))

    def turn(self) -> None:
        """Call what is due next."""
        self.due.sort(key=lambda one: one[0])
        self._time, callback = self.due.pop(0)
        callback()

    def pass_(self, seconds: float = DELAY) -> None:
        until = self._time + seconds
        # As exact as clocks are.
        while any(at <= until + 1e-9 for at, _ in self.due):
            self.turn()
        self._time = until


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_each_refusal_is_held_for_its_own_while_and_nothing_is_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer, place.peer() as other:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        later = Later(monkeypatch)
        refused = place.connections.refused
        before = refused[LIMITED]
        for count, one in enumerate((peer, other), 1):
            await one.send(ask())
            await place.until(lambda count=count: refused[LIMITED] == before + count)
            later.pass_(DELAY / 4)
        # Whoever asks on is not heard until then.
        await peer.send(ask())
        await settle()
        for _ in range(4):
            await peer.send(ask())
        await settle()
        assert refused[LIMITED] == before + 2 and len(later.due) == 1
        assert not has_come(peer) and not has_come(other)
        later.pass_(DELAY / 2)
        assert (await peer.answer()).status == 429
        await settle()
        assert not has_come(other) and len(later.due) == 1
        later.pass_(DELAY / 4)
        assert (await other.answer()).status == 429 and not has_come(peer)
        # One of them was kept, and the rest came together after it.
        for count in (1, 4):
            await place.until(lambda: bool(later.due))
            later.pass_()
            assert [(await peer.answer()).status for _ in range(count)] == [429] * count


async def test_who_asks_at_once_after_a_refusal_that_was_held_long_is_held_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        again = module.AGAIN
        later, clock = Later(monkeypatch), Clock()
        monkeypatch.setattr(module, "AGAIN", again)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
        # Who has waited is told at once.
        assert (await exchange(peer, ask())).status == 429
        clock.now += 2 * again
        assert (await exchange(peer, ask())).status == 429 and not later.due
        for _ in range(3):
            await peer.send(ask())
            await place.until(lambda: bool(later.due))
            clock.now += 2 * again
            later.pass_()
            assert (await peer.answer()).status == 429


def has_come(peer: Peer) -> bool:
    return bool(peer._reader._buffer)  # type: ignore[attr-defined]  # nobody else tells


class Eager:
    """Gives its refusal, and may have the next one held at once."""

    def __init__(self, refusals: DelayedRefusals, *, is_again: bool = False) -> None:
        self._refusals = refusals
        self._is_again = is_again
        self.given = 0

    def flush_refusals(self) -> None:
        self.given += 1
        if self._is_again:
            self._refusals.add(self)


def test_many_that_are_due_are_given_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    later, refusals = Later(monkeypatch), DelayedRefusals()
    held = [Eager(refusals) for _ in range(150)]
    for one in held:
        refusals.add(one)
    counts: list[int] = []
    while later.due:
        assert len(later.due) == 1
        later.turn()
        counts.append(sum(one.given for one in held))
        assert all(one.given for one in held[: counts[-1]]), "the first comes first"
    assert counts == [64, 128, 150] and later.time() == DELAY


@pytest.mark.parametrize("count", [1, 2, 64, 100])
def test_who_is_held_again_at_once_is_given_one_in_each_while(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, refusals = Later(monkeypatch), DelayedRefusals()
    held = [Eager(refusals, is_again=True) for _ in range(count)]
    for one in held:
        refusals.add(one)
    for number in range(1, 6):
        later.pass_()
        assert {one.given for one in held} == {number} and len(later.due) == 1


def test_who_gives_its_own_and_is_held_again_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later, refusals = Later(monkeypatch), DelayedRefusals()
    loud, quiet = Eager(refusals), Eager(refusals)
    refusals.add(loud)
    later.pass_(DELAY / 4)
    refusals.add(quiet)
    for _ in range(4):
        refusals.add(loud)
        later.pass_(DELAY / 4)
    assert (loud.given, quiet.given) == (0, 1) and len(later.due) == 1
    later.pass_()
    assert loud.given == 1 and not later.due


async def test_what_is_held_and_kept_for_one_connection_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        later = Later(monkeypatch)
        line: Any = next(iter(place.connections._open))
        refused = place.connections.refused
        answer = await held_answer(place, peer, later)
        await peer.send(ask())
        await place.until(lambda: line._refusals.waiting)
        before = refused[LIMITED]
        # Too much to keep is read, and then nothing more.
        sending = asyncio.ensure_future(peer.send(ask() * (MAX_DELAYED_BYTES // 64)))
        await place.until(lambda: refused[LIMITED] > before)
        assert line.flow.read_paused and not line._refusals.unread
        for _ in range(50):
            later.pass_()
            await asyncio.sleep(0.001)
            assert len(line._refusals.waiting) <= MAX_DELAYED_BYTES + len(answer)
            assert len(line._refusals.unread) <= MAX_UNREAD_BYTES
        sending.cancel()


async def held_answer(place: Place, peer: Peer, later: "Later") -> bytes:
    """Return what is held for one request, and let it go."""
    line: Any = next(iter(place.connections._open))
    await peer.send(ask())
    await place.until(lambda: line._refusals.waiting)
    held: bytes = line._refusals.waiting
    later.pass_()
    await peer.answer()
    return held


async def test_a_flood_from_one_connection_costs_a_few_refusals_a_second() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        while loop.time() < began + 0.4:
            assert (await exchange(peer, ask())).status == 429
            count += 1
        assert count <= 0.4 / DELAY + 2


async def test_who_waits_after_a_refusal_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        later = Later(monkeypatch)
        monkeypatch.setattr(module, "AGAIN", -1.0)
        for _ in range(5):
            assert (await exchange(peer, ask())).status == 429
        await peer.send(ask() * 5)
        assert [(await peer.answer()).status for _ in range(5)] == [429] * 5
        assert not later.due


async def test_what_is_accepted_behind_held_refusals_is_answered_after_them() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        clock = Clock()
        Asked(place, clock)
        await use_up(peer)
        await peer.send(ask() + ask() + get(b"/healthz") + ask())
        assert [(await peer.answer()).status for _ in range(4)] == [429, 429, 200, 429]


async def test_a_server_that_ends_gives_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        later = Later(monkeypatch)
        await peer.send(ask())
        await place.until(lambda: bool(later.due))
        (line,) = (one for one in place.connections._open)
        line.shutdown()
        assert (await peer.answer()).status == 429
        assert await peer.rest() == b""
        later.pass_()


async def test_refusals_of_overload_are_held_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarding() as place, place.peer() as peer:
        place.connections.admission = admission = Admission()
        admission.is_overloaded = True
        monkeypatch.setattr(admission, "enter", lambda *_, **__: None)
        later = Later(monkeypatch)
        for data in (ask(), ask(b"X: \xff", text="in pieces")):
            await peer.send(data[:30] if b"\xff" in data else data)
            await settle()
            if b"\xff" in data:
                await peer.send(data[30:])
            await place.until(lambda: bool(later.due))
            later.pass_()
            answer = await peer.answer()
            assert answer.status == 503 and json.dumps(answer.value)
        assert place.connections.refused == {BUSY.reason: 2}
        monkeypatch.undo()
        admission.is_overloaded = False
        assert (await within(exchange(peer, ask()))).status == 200


async def test_who_is_let_in_and_has_asked_too_often_is_not_under_way() -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        place.connections.admission = admission = Admission()
        admission.is_overloaded = True
        # A head that nobody has seen: there is room for it, and it has to be read.
        assert (await exchange(peer, ask(b"X: y"))).status == 429
        assert admission.admitted == 1 and admission.under_way == 0


def test_how_long_someone_waits_is_the_longest_of_all_that_keeps_them_out() -> None:
    clock = Clock()
    settings = Settings(
        http=HttpSettings(
            rate_limit="2/10s",
            rate_limit_agent="1/40s",
            rate_limit_address="3/60s",
            rate_limit_failures="1/90s",
            max_requests_per_caller=2,
        )
    )
    limits = CallerLimits(settings, now=clock)
    one, all_there = limits.usage(ANONYMOUS, "10.0.0.1"), limits.usage(None, "10.0.0.1")

    def waits() -> list[float]:
        return [round(wait, 3) for wait in (all_there.wait("a"), one.wait(None), one.wait("a"))]

    assert waits() == [0, 0, 0]
    rooms = [limits.admit(ANONYMOUS, "a", "10.0.0.1")]
    assert waits() == [0, 0, 40]
    rooms.append(limits.admit(ANONYMOUS, None, "10.0.0.1"))
    assert waits() == [0, 5, 40]
    clock.now += 10
    assert waits() == [0, 1, 30], "two are under way, and nobody knows for how long"
    for room in rooms:
        room.leave()
    assert waits() == [0, 0, 30]
    for _ in range(3):
        limits.arrive("10.0.0.1")
    assert waits() == [20, 20, 30]
    # Only the app knows who guesses, and who does not pay for that.
    limits.failed("10.0.0.1")
    assert waits() == [20, 20, 30]
    assert limits.usage(None, "10.0.0.2").wait(None) == 0
