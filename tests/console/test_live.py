"""Streams of pages: what each carries, how often, and what ends it."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from harness.clock import Clock
from harness.serving import Frame, Site, client, frames, message
from harness.waiting import WAIT, eventually, within

from dragoman.console import live
from dragoman.console.api import VisitorApi
from dragoman.console.live import LivePages
from dragoman.console.part import ConsolePart
from dragoman.console.sessions import LASTS_SECONDS, Sessions, VisitorSession
from dragoman.server.store_marks import ended_sessions
from dragoman.stores.memory.store import MemoryStore
from tests.console.sites import Visitor, console, echo


def stream(site: Site, page: str = "/console/tasks", seen: str = "") -> Any:
    return site.http.stream("GET", f"/console/live?page={quote(page)}&seen={seen}")


async def test_a_stream_begins_with_what_the_page_has_not_and_goes_on_with_changes() -> None:
    async with console(echo()) as site, stream(site) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        events = frames(answer)
        first = await within(anext(events))
        assert (first.event, first.data["id"]) == ("fragment", "tasks")
        assert "No tasks yet" in first.data["html"]
        await site.send("hello there")
        second = await within(anext(events))
        assert "hello there" in second.data["html"]


async def test_no_part_of_a_page_carries_the_token_of_a_session() -> None:
    async with console(echo()) as site, stream(site) as answer:
        assert 'name="token"' not in (await within(anext(frames(answer)))).data["html"]


async def test_a_page_that_is_up_to_date_is_sent_nothing() -> None:
    async with console(echo()) as site:
        page = (await site.http.get("/console/tasks")).text
        digest = page.partition('id="tasks" data-live="')[2].partition('"')[0]
        async with stream(site, seen=f"tasks:{digest}") as answer:
            events = frames(answer)
            await site.send("hello there")
            assert "hello there" in (await within(anext(events))).data["html"]


async def test_a_stream_without_a_session_is_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[alice]\ntoken = "alice-token-0123456789abc"\n')
    tokens.chmod(0o600)
    async with console(echo(), auth_tokens=str(tokens)) as site:
        async with stream(site) as answer:
            assert answer.status_code == 401
        await Visitor(site.http).sign_in("alice-token-0123456789abc")
        async with stream(site) as answer:
            assert answer.status_code == 200
            events = frames(answer)
            assert "No tasks yet" in (await within(anext(events))).data["html"]
            # The right to read ends with the credential, also of what is open.
            tokens.write_text("")
            await within(_ended(events))


async def test_signing_out_ends_the_streams_of_that_session_and_no_other(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[alice]\ntoken = "alice-token-0123456789abc"\n')
    tokens.chmod(0o600)
    async with console(echo(), auth_tokens=str(tokens)) as site, client(site.url) as elsewhere:
        here, there = Visitor(site.http), Visitor(elsewhere)
        for visitor in (here, there):
            await visitor.sign_in("alice-token-0123456789abc")
        page = f"/console/live?page={quote('/console/tasks')}"
        async with stream(site) as one, elsewhere.stream("GET", page) as other:
            # Both look at one drawing, since they see the same.
            first, second = frames(one), frames(other)
            await within(anext(first))
            await within(anext(second))
            await here.submit("/console/logout", token=await here.token("/console/tasks"))
            await within(_ended(first))
            headers = {"Authorization": "Bearer alice-token-0123456789abc"}
            said = {"message": message("hello there")}
            await site.call("SendMessage", said, headers=headers)
            assert "hello there" in (await within(anext(second))).data["html"]


async def _ended(events: AsyncIterator[Frame]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("page", ["/console/none", "", "https://evil.example/tasks", "/api/v1"])
async def test_there_is_no_stream_of_what_is_no_page(page: str) -> None:
    async with console(echo()) as site, stream(site, page) as answer:
        assert answer.status_code == (200 if not page else 404)


async def test_a_reader_that_left_is_forgotten() -> None:
    async with console(echo()) as site:
        async with stream(site) as answer:
            await within(anext(frames(answer)))
            assert len(site.app.site.streams) >= 1
        await eventually(lambda: len(site.app.site.streams) == 0)


async def test_streams_end_when_the_server_stops() -> None:
    async with console(echo()) as site, stream(site) as answer:
        events = frames(answer)
        await within(anext(events))
        site.app.end_streams()
        with pytest.raises(StopAsyncIteration):
            await within(anext(events))


async def test_the_more_is_looked_at_the_less_often_it_is_drawn() -> None:
    async with console(echo()) as site:
        part = next(part for part in site.app.site.parts if isinstance(part, ConsolePart))
        alone = part.console.live.gap
        # One that is forgotten is closed.
        open_ones: list[AsyncIterator[Frame]] = []
        async with contextlib.AsyncExitStack() as stack:
            for number in range(20):
                page = f"/console/tasks?context={number}"
                answer = await stack.enter_async_context(stream(site, page))
                open_ones.append(frames(answer))
                await within(anext(open_ones[-1]))
            # All together draw for no more than a fiftieth of the time.
            assert part.console.live.draw_cost / part.console.live.gap <= 0.02
        assert alone <= 0.25


async def test_pages_are_drawn_one_after_the_other_with_time_for_callers_between() -> None:
    """However many of them have changed at the same moment."""
    pages, began = LivePages(), asyncio.get_running_loop().time()
    pages.draw_cost = 0.0003
    at: list[float] = []

    async def drawn() -> None:
        await pages.turn()
        at.append(time.monotonic())

    waiting = [asyncio.create_task(drawn()) for _ in range(20)]
    await asyncio.sleep(0)
    # One that is closed leaves its place to the others.
    waiting[3].cancel()
    await within(asyncio.gather(*waiting, return_exceptions=True))
    assert len(at) == 19
    assert all(later - before >= 0.009 for before, later in itertools.pairwise(at))
    assert asyncio.get_running_loop().time() - began >= 0.17


async def test_only_the_time_of_a_drawing_itself_counts() -> None:
    """Not that of others who have the processor while it waits, nor does it keep a cancellation."""
    turns = 0

    async def busy() -> None:
        nonlocal turns
        while True:
            _spin(0.002)
            turns += 1
            await asyncio.sleep(0)

    async def draw() -> tuple[list[Any], float]:
        for _ in range(10):
            await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return [], 7.0

    other = asyncio.create_task(busy())
    drawing = live._Timed(draw())  # pyright: ignore[reportPrivateUsage] # what the test is about

    async def waits() -> Any:
        return await drawing

    task = asyncio.create_task(waits())
    await eventually(lambda: turns >= 20)
    task.cancel()
    assert await within(task) == ([], 7.0)
    other.cancel()
    assert 0 < drawing.seconds < 0.02


def _spin(seconds: float) -> None:
    ends_at = time.thread_time() + seconds
    while time.thread_time() < ends_at:
        pass


async def test_a_page_counts_as_one_request_and_what_it_does_as_another(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[a]\ntoken = "a-0123456789abcdef01"\nscopes = ["dragoman:operator"]\n')
    tokens.chmod(0o600)
    settings: dict[str, Any] = {"auth_tokens": str(tokens), "rate_limit": "6/60s"}
    async with console(echo(), **settings) as site:
        visitor = Visitor(site.http)
        await visitor.sign_in("a-0123456789abcdef01")
        # Each reads the API a dozen times.
        for _ in range(2):
            assert (await visitor.get("/console")).status_code == 200
        token = await visitor.token("/console/agents/echo")
        codes = [
            (await visitor.submit("/console/agents/echo", token=token, words="hi")).status_code
            for _ in range(3)
        ]
        assert codes[0] == 200 and codes[-1] == 429


async def test_a_stream_that_is_left_unread_ends() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        # As the streams of the API: one that is cancelled after its reader left is over.
        with contextlib.suppress(asyncio.CancelledError):
            for number in itertools.count():
                body = b"event: change\ndata: %d\n\n" % number
                if number == 2:
                    # One is read and one is kept: this one waits.
                    filled.set()
                await send({"type": "http.response.body", "body": body, "more_body": True})

    filled = asyncio.Event()
    request: Any = _Request()
    async with asyncio.timeout(WAIT):
        async with VisitorApi(app, request, []).events("/changes") as changes:
            await anext(changes)
            await filled.wait()


# Sessions by values


def sessions_of(secret: bytes, now: Callable[[], float] = time.time) -> Sessions:
    return Sessions(lambda: secret, ended_sessions(MemoryStore()), now)


async def test_a_session_holds_for_eight_hours() -> None:
    clock = Clock()
    sessions = sessions_of(b"secret", clock)
    request = _Request()
    session = sessions.begin("authorization", "Bearer x")
    request.give(sessions.cookie(request, session))  # type: ignore[arg-type]
    assert await sessions.read(request) == session  # type: ignore[arg-type]
    clock.now += LASTS_SECONDS - 1
    assert await sessions.read(request) == session  # type: ignore[arg-type]
    clock.now += 1
    assert await sessions.read(request) is None  # type: ignore[arg-type]


async def test_a_session_of_another_store_is_none() -> None:
    request = _Request()
    theirs = sessions_of(b"theirs")
    request.give(theirs.cookie(request, theirs.begin()))  # type: ignore[arg-type]
    assert await theirs.read(request) is not None  # type: ignore[arg-type]
    assert await sessions_of(b"ours").read(request) is None  # type: ignore[arg-type]


def test_a_session_shows_no_credential_in_a_log() -> None:
    assert "hidden" not in repr(VisitorSession("id", 0.0, "authorization", "Bearer hidden"))


class _Request:
    """As much of a request as sessions read."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"scheme": "http", "headers": []}

    def header(self, name: bytes) -> str:
        return {b"host": "127.0.0.1:8000"}.get(name, "")

    def give(self, cookie: tuple[bytes, bytes]) -> None:
        self.scope["headers"] = [(b"cookie", cookie[1].partition(b";")[0])]


async def test_many_consoles_at_once_are_all_told() -> None:
    async with console(echo()) as site, asyncio.TaskGroup() as group:
        arrived = asyncio.Semaphore(0)

        async def look() -> None:
            async with stream(site) as answer:
                events = frames(answer)
                await anext(events)
                arrived.release()
                async for event in events:
                    if event.data and "the news" in event.data["html"]:
                        return

        looking = [group.create_task(look()) for _ in range(40)]
        for _ in looking:
            await within(arrived.acquire())
        await site.send("the news")
        await within(asyncio.gather(*looking))
