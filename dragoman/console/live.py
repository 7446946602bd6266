"""Pages that change while they are looked at: one stream per page, which carries the parts of it
that became others.

Those who look at the same page with the same rights share one drawing of it. What consoles cost is
bounded: all of them together may draw and send for a small share of the time, spread over it, and
the more are open, the less often each is drawn. A reader that is slow costs a place in a loop and
nothing more.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.console.api import ApiFailed, VisitorApi
from dragoman.errors import StoreUnavailable
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.transports import sse

if TYPE_CHECKING:
    from dragoman.console.rendering import Fragment

logger = logging.getLogger("dragoman")

Found = tuple[Sequence["Fragment"], float]
Draw = Callable[[], Coroutine[Any, Any, Found]]
MayRead = Callable[[], Coroutine[Any, Any, bool]]

# Of the time of the loop, for all consoles together.
_SHARE = 0.02
# Seconds that sending one drawing to one reader takes, about; and drawing, before one was timed.
_SEND_COST = 0.0003
_DRAW_COST = 0.005
# Seconds between two drawings of a page: at least, and if all of them change all the time.
_LEAST_PAUSE = 0.25
_LONGEST_PAUSE = 60.0
# What ends a stream: its reader comes back, and is then known or not.
_LASTS_SECONDS = 600.0


class LivePages:
    """The pages that are looked at now, each by what it shows to whom."""

    def __init__(self) -> None:
        self._pages: dict[str, _LivePage] = {}
        # Seconds of processor that drawing a page took lately.
        self.draw_cost = _DRAW_COST
        # How many drawings there were.
        self.drawings = 0
        # Pages that are to be drawn wait here, the first that came first.
        self._order = asyncio.Lock()
        self._next_at = 0.0

    @property
    def gap(self) -> float:
        """Seconds between the drawings of any two pages."""
        pages = max(1, len(self._pages))
        readers = sum(page.readers for page in self._pages.values())
        cost = self.draw_cost + readers / pages * _SEND_COST
        return min(cost / _SHARE, _LONGEST_PAUSE / pages)

    async def turn(self) -> None:
        """Wait until one more page may be drawn. Drawings at once would add up to seconds in which
        callers get next to nothing."""
        async with self._order:
            await asyncio.sleep(self._next_at - time.monotonic())
            self._next_at = time.monotonic() + self.gap

    async def follow(
        self,
        request: HttpRequest,
        streams: OpenStreams,
        api: VisitorApi,
        draw: Draw,
        seen: str,
        key: str,
        may_read: MayRead,
    ) -> None:
        """Answer a request by the parts of its page that change from now on, for as long as its
        reader may have them."""
        stream = request.sse_stream()
        streams.add(stream, request.pass_)
        request.is_answered = True
        page = self._join(key, api, draw)
        try:
            await stream.open([*sse.HEADERS, *request.extra])
            async with asyncio.timeout(_LASTS_SECONDS):
                await page.send_to(stream, dict(_pairs(seen)), may_read)
        except (TimeoutError, StoreUnavailable):
            # The reader comes back, and is then told what there is to tell.
            pass
        except asyncio.CancelledError:
            if not stream.is_closed:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        finally:
            streams.discard(stream)
            await self._leave(key, page)
            if not stream.is_left:
                with contextlib.suppress(OSError):
                    await stream.close()

    def ask_again(self) -> None:
        """Ask of every reader whether it may read on: somebody signed out."""
        for page in self._pages.values():
            page.wake()

    def _join(self, key: str, api: VisitorApi, draw: Draw) -> "_LivePage":
        page = self._pages.get(key)
        if page is None or page.is_over:
            page = self._pages[key] = _LivePage(self, api, draw)
        page.readers += 1
        return page

    async def _leave(self, key: str, page: "_LivePage") -> None:
        page.readers -= 1
        if not page.readers:
            if self._pages.get(key) is page:
                del self._pages[key]
            await page.stop()


class _Part(msgspec.Struct, frozen=True):
    """A part of a page as readers are sent it."""

    id: str
    digest: str
    frame: bytes


class _LivePage:
    """One page, drawn again when something changes, for all who look at it."""

    def __init__(self, pages: LivePages, api: VisitorApi, draw: Draw) -> None:
        self._pages = pages
        self._api = api
        self._draw = draw
        self._parts: Sequence[_Part] = ()
        # Set when the page was drawn again, and then replaced.
        self._news = asyncio.Event()
        self.readers = 0
        # Whether it is drawn no more: its readers have to come back.
        self.is_over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def send_to(self, stream: sse.SseStream, seen: dict[str, str], may_read: MayRead) -> None:
        """Send a reader the parts that it has not seen, until the page is drawn no more or the
        reader may not have it."""
        while True:
            news = self._news
            if not await may_read():
                return
            for part in self._parts:
                if seen.get(part.id) != part.digest:
                    seen[part.id] = part.digest
                    await stream.write(part.frame)
            if self.is_over:
                return
            await news.wait()

    def wake(self) -> None:
        """Have every reader look what there is."""
        self._news.set()
        self._news = asyncio.Event()

    async def stop(self) -> None:
        """Draw it no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with self._api.events("/changes") as changes:
                waiting = asyncio.ensure_future(anext(changes, None))
                try:
                    while True:
                        every = await self._draw_again()
                        await asyncio.sleep(_LEAST_PAUSE)
                        await asyncio.wait({waiting}, timeout=every or None)
                        if waiting.done():
                            if waiting.result() is None:
                                return
                            waiting = asyncio.ensure_future(anext(changes, None))
                finally:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
        except ApiFailed:
            # The right to see it ended, or the server does: its readers find out which.
            pass
        except Exception:
            logger.exception("a page of the console could not be drawn again")
        finally:
            self.is_over = True
            self._news.set()

    async def _draw_again(self) -> float:
        """Draw the page and tell its readers; return the seconds that a drawing holds at most."""
        await self._pages.turn()
        drawing = _Timed(self._draw())
        fragments, every = await drawing
        self._parts = [_Part(one.id, one.digest, _frame(one.id, one.html)) for one in fragments]
        self._pages.drawings += 1
        self._pages.draw_cost += (drawing.seconds - self._pages.draw_cost) / 16
        self.wake()
        return every


class _Timed:
    """Counts the processor time of a coroutine: without that of others while it waits."""

    def __init__(self, work: Coroutine[Any, Any, Found]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Found]:
        step: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            began = time.thread_time()
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            finally:
                self.seconds += time.thread_time() - began
            try:
                given = yield waits_for
                step = functools.partial(self._work.send, given)
            except BaseException as error:
                # A cancellation, most likely: it is the work's to handle.
                step = functools.partial(self._work.throw, error)


def _frame(id: str, html: str) -> bytes:
    return b"event: fragment\ndata: %b\n\n" % msgspec.json.encode({"id": id, "html": html})


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return the names and digests of the parts that a reader has."""
    found = [one.partition(":") for one in text.split(",")[:20] if one]
    return [(name, digest) for name, _, digest in found]
