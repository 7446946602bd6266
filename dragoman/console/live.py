"""Pages that change while they are looked at: one stream per page, which carries the parts of it
that became others.

What a console costs is bounded: all of them together may draw for a small share of the time, and
the more of them are open, the less often each is drawn. A console that reads slowly costs a place
in this loop and nothing more.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dragoman.console.api import ApiFailed, VisitorApi
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import HttpRequest
from dragoman.transports import sse

if TYPE_CHECKING:
    from dragoman.console.rendering import Fragment

Found = tuple[Sequence["Fragment"], float]
Draw = Callable[[], Awaitable[Found]]

# Of the time of the loop, for all consoles together.
_SHARE = 0.03
_LEAST_PAUSE = 0.25
_LONGEST_PAUSE = 30.0
# What ends a stream that no change comes to: its credential is looked at again when it reconnects.
_LASTS_SECONDS = 600.0


class LivePages:
    """The pages that are looked at now."""

    def __init__(self) -> None:
        # How many look at the same page as the same caller: they are shown one drawing.
        self._open: Counter[str] = Counter()
        # Seconds that drawing a page took lately.
        self._cost = 0.005
        self._drawings: dict[str, _Drawing] = {}

    @property
    def pause(self) -> float:
        """Seconds between two drawings of a page."""
        return min(max(_LEAST_PAUSE, len(self._open) * self._cost / _SHARE), _LONGEST_PAUSE)

    async def follow(
        self,
        request: HttpRequest,
        streams: OpenStreams,
        api: VisitorApi,
        draw: Draw,
        seen: str,
        key: str,
    ) -> None:
        """Answer a request by the parts of its page that change from now on."""
        stream = sse.SseStream(request.send, request.receive)
        streams.add(stream, request.pass_)
        self._open[key] += 1
        request.is_answered = True
        try:
            await stream.open([*sse.HEADERS, *request.extra])
            async with asyncio.timeout(_LASTS_SECONDS):
                await self._run(stream, api, draw, dict(_pairs(seen)), key)
        except (TimeoutError, ApiFailed):
            # The reader comes back, and is then told what there is to tell.
            pass
        except asyncio.CancelledError:
            if not stream.is_closed:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        finally:
            self._leave(key)
            streams.discard(stream)
            if not stream.is_left:
                with contextlib.suppress(OSError):
                    await stream.close()

    async def _run(
        self, stream: sse.SseStream, api: VisitorApi, draw: Draw, seen: dict[str, str], key: str
    ) -> None:
        async with api.events("/changes") as changes:
            waiting = asyncio.ensure_future(anext(changes, None))
            try:
                while True:
                    fragments, every = await self._draw(draw, key)
                    for one in fragments:
                        if seen.get(one.id) != one.digest:
                            seen[one.id] = one.digest
                            data = msgspec.json.encode({"id": one.id, "html": one.html})
                            await stream.write(b"event: fragment\ndata: %b\n\n" % data)
                    await asyncio.sleep(self.pause)
                    await asyncio.wait({waiting}, timeout=every or None)
                    if waiting.done():
                        if waiting.result() is None:
                            return
                        waiting = asyncio.ensure_future(anext(changes, None))
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    def _leave(self, key: str) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self._drawings.pop(key, None)

    async def _draw(self, draw: Draw, key: str) -> Found:
        """Return the page as it is drawn now, or was a moment ago for another reader."""
        known = self._drawings.get(key)
        if known is None or time.monotonic() - known.began_at >= _LEAST_PAUSE:
            task = asyncio.get_running_loop().create_task(self._timed(draw))
            known = self._drawings[key] = _Drawing(time.monotonic(), task)
        # A reader that leaves ends nothing for those who look at the same.
        return await asyncio.shield(known.task)

    async def _timed(self, draw: Draw) -> Found:
        began = time.monotonic()
        found = await draw()
        self._cost += (time.monotonic() - began - self._cost) / 16
        return found


class _Drawing(NamedTuple):
    """A page that is drawn, or was."""

    began_at: float
    task: asyncio.Task[Found]


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return the names and digests of the parts that a reader has."""
    found = [one.partition(":") for one in text.split(",")[:20] if one]
    return [(name, digest) for name, _, digest in found]
