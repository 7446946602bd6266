"""Posts of agents that cannot stream: what they say is not read, only that there is something.

An agent that posts is given an address of its own for each task, which nobody else can guess. A
post there has the task asked for at once instead of at the next look; if it is lost, or comes to
another process, nothing is lost but a moment.
"""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Generator

from dragoman.errors import BodyTooLarge
from dragoman.server.request import Request, read_body
from dragoman.server.routes import Access, Routes

PATH = "/api/v1/hooks/"
# Posts repeat the task: they are read to be answered, and thrown away.
_LARGEST = 16 * 1024 * 1024


class Hooks:
    """Tasks that wait for a post."""

    def __init__(self) -> None:
        self._key = b""
        self._waiting: dict[str, asyncio.Event] = {}
        # Where agents reach us; empty: nobody said so.
        self.base = ""

    def open(self, secret: bytes) -> None:
        """Make addresses that hold for as long as the store does."""
        self._key = hashlib.sha256(b"hooks" + secret).digest()

    def add_to(self, routes: Routes) -> None:
        """Take posts."""
        routes.add(f"{PATH}*", self._answer, Access.PUBLIC)

    def url(self, task_id: str) -> str:
        """Return where posts of a task go; empty: nowhere."""
        return f"{self.base}{PATH}{task_id}/{self._mark(task_id)}" if self.base else ""

    def _mark(self, task_id: str) -> str:
        return hmac.new(self._key, task_id.encode(), hashlib.sha256).hexdigest()[:32]

    @contextlib.contextmanager
    def expecting(self, task_id: str) -> Generator["Pause"]:
        """Be woken by the posts of a task."""
        event = self._waiting[task_id] = asyncio.Event()
        try:
            yield Pause(event)
        finally:
            if self._waiting.get(task_id) is event:
                del self._waiting[task_id]

    async def _answer(self, request: Request) -> None:
        task_id, _, mark = request.path.removeprefix(PATH).partition("/")
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        if not hmac.compare_digest(mark.encode(), self._mark(task_id).encode()):
            await request.respond(404, [(b"content-length", b"0")], b"")
            return
        with contextlib.suppress(BodyTooLarge):
            await read_body(request, _LARGEST)
        if (event := self._waiting.get(task_id)) is not None:
            event.set()
        await request.respond(204, [], b"")


class Pause:
    """A wait that a post ends."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def __call__(self, seconds: float) -> None:
        """Wait for so long, or for a post."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
