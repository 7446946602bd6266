"""Refusals without the app: who is refused, for how long, in which words, and how often."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Settings
from dragoman.model.identity import ANONYMOUS
from dragoman.server import http_line
from dragoman.server import refusals as module
from dragoman.server.admission import Admission
from dragoman.server.connections import BUSY, LIMITED
from dragoman.server.http_line import MAX_HELD_BYTES, MAX_KEPT_BYTES
from dragoman.server.limits import Limits
from dragoman.server.refusals import HOLD, MAX_AGE, MAX_LIMITED, Refusals
from tests.serving import within

from .wire import Answer, Peer, Place, call, get, guarding, message, post

RATE = "2/10s"


def ask(*fields: bytes, text: str = "hello") -> bytes:
    """Return a request of one length, so that its head is the same each time."""
    return post(call("SendMessage", message(text, messageId=f"m-{next(_numbers):06d}")), *fields)


_numbers = iter(range(1_000_000))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """Counts what reaches the app."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self.count = 0
        limits = place.app.door._limits
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
        place.app.door.refusals._now = clock
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
        kept = repr(place.app.door.refusals.heads._lengths) + repr(place.app.door.refusals._limited)
        assert "a-long-token" not in kept


async def test_one_agent_too_many_does_not_keep_the_others_out() -> None:
    async with guarding(rate_limit_agent=RATE) as place, place.peer() as peer:
        asked = Asked(place, Clock())
        one, other = b"X-Source-Agent: one", b"X-Source-Agent: two"
        await use_up(peer, one)
        assert (await exchange(peer, ask(one))).status == 429 and asked.count == 3
        assert (await exchange(peer, ask(other))).status == 200
        assert (await exchange(peer, ask())).status == 200


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
        place.app.door.refusals._now = clock
        asked = Asked(place, Clock())
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429 and asked.count == 3
        clock.now += MAX_AGE
        assert (await exchange(peer, ask())).status == 429 and asked.count == 4
        clock.now += MAX_AGE
        place.app.door.refusals._forget()
        assert not place.app.door.refusals.is_alert and not place.app.door.refusals._by_head


async def test_callers_are_remembered_in_bounded_memory() -> None:
    clock = Clock()
    limits = Limits(Settings(rate_limit="1/1h"), now=clock)
    limits.admit(ANONYMOUS, None, "10.0.0.1")
    standing = limits.standing(ANONYMOUS, "10.0.0.1")
    refusals = Refusals([b"authorization"], now=clock)
    for number in range(MAX_LIMITED + 50):
        headers = [(b"authorization", b"%d" % number)]
        refusals.note(refusals.caller("10.0.0.1", None, headers), standing, [], b"")
        known = "10.0.0.1", None, b"%d" % number
        assert refusals.of("10.0.0.1", None, headers, known) == refusals.of_head(known) is not None
    assert len(refusals._limited) == MAX_LIMITED and len(refusals._by_head) <= MAX_LIMITED
    assert refusals.of("10.0.0.2", None, headers, None) is None
    assert refusals.of("10.0.0.1", b"a certificate", headers, None) is None


# Held


class Later:
    """A loop whose time passes when a test says so; the rest is the real one's."""

    def __init__(self, refusals: Refusals, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[Callable[[], Any]] = []
        monkeypatch.setattr(module, "HOLD", None)
        # Everybody asks again too soon.
        monkeypatch.setattr(http_line, "AGAIN", math.inf)
        real = asyncio.get_running_loop()
        hold = refusals.hold

        def call_later(seconds: float | None, callback: Callable[[], Any], *args: Any) -> Any:
            if seconds is None:
                return self.due.append(callback)
            return real.call_later(seconds, callback, *args)

        class Loop:
            def __getattr__(self, name: str) -> Any:
                return call_later if name == "call_later" else getattr(real, name)

        def held(connection: Any) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(module.asyncio, "get_running_loop", Loop)
                hold(connection)

        monkeypatch.setattr(refusals, "hold", held)

    def pass_(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_refusals_are_given_together_and_nothing_is_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer, place.peer() as other:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        later = Later(place.app.door.refusals, monkeypatch)
        refused = place.connections.refused
        before = refused[LIMITED]
        for one in (peer, other):
            await one.send(ask())
        await place.until(lambda: refused[LIMITED] == before + 2)
        # Whoever asks on is not heard until then.
        for _ in range(5):
            await peer.send(ask())
        await settle()
        assert refused[LIMITED] == before + 2 and len(later.due) == 1
        assert not peer._reader._buffer and not other._reader._buffer  # type: ignore[attr-defined]  # what has come
        later.pass_()
        assert [(await one.answer()).status for one in (peer, other)] == [429, 429]
        # One of them was kept, and the rest came together after it.
        for count in (1, 4):
            await place.until(lambda: bool(later.due))
            later.pass_()
            assert [(await peer.answer()).status for _ in range(count)] == [429] * count


async def test_what_is_held_and_kept_for_one_connection_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        assert (await exchange(peer, ask())).status == 429
        later = Later(place.app.door.refusals, monkeypatch)
        line: Any = next(iter(place.connections._open))
        refused = place.connections.refused
        answer = await held_answer(place, peer, later)
        await peer.send(ask())
        await place.until(lambda: line._held)
        before = refused[LIMITED]
        # Too much to keep is read, and then nothing more.
        sending = asyncio.ensure_future(peer.send(ask() * (MAX_HELD_BYTES // 64)))
        await place.until(lambda: refused[LIMITED] > before)
        assert line.flow.read_paused and not line._kept
        for _ in range(50):
            later.pass_()
            await asyncio.sleep(0.001)
            assert len(line._held) <= MAX_HELD_BYTES + len(answer)
            assert len(line._kept) <= MAX_KEPT_BYTES
        sending.cancel()


async def held_answer(place: Place, peer: Peer, later: "Later") -> bytes:
    """Return what is held for one request, and let it go."""
    line: Any = next(iter(place.connections._open))
    await peer.send(ask())
    await place.until(lambda: line._held)
    held: bytes = line._held
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
        assert count <= 0.4 / HOLD + 2


async def test_who_waits_after_a_refusal_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with guarding(rate_limit=RATE) as place, place.peer() as peer:
        await use_up(peer)
        later = Later(place.app.door.refusals, monkeypatch)
        monkeypatch.setattr(http_line, "AGAIN", -1.0)
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
        later = Later(place.app.door.refusals, monkeypatch)
        await peer.send(ask())
        await place.until(lambda: bool(later.due))
        (line,) = (one for one in place.connections._open)
        line.shutdown()  # type: ignore[attr-defined]  # as uvicorn calls it
        assert (await peer.answer()).status == 429
        assert await peer.rest() == b""
        later.pass_()


async def test_refusals_of_overload_are_held_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarding() as place, place.peer() as peer:
        place.connections.admission = admission = Admission()
        admission.is_overloaded = True
        monkeypatch.setattr(admission, "enter", lambda *_, **__: False)
        later = Later(place.app.door.refusals, monkeypatch)
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


def test_how_long_someone_waits_is_the_longest_of_all_that_keeps_them_out() -> None:
    clock = Clock()
    settings = Settings(
        rate_limit="2/10s",
        rate_limit_agent="1/40s",
        rate_limit_address="3/60s",
        rate_limit_failures="1/90s",
        max_requests_per_caller=2,
    )
    limits = Limits(settings, now=clock)
    one, all_there = limits.standing(ANONYMOUS, "10.0.0.1"), limits.standing(None, "10.0.0.1")

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
    assert limits.standing(None, "10.0.0.2").wait(None) == 0
