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
from dragoman.model.identity import Scope
from dragoman.model.record import encode
from dragoman.server.request import Request, skip_body
from dragoman.server.routes import Access, Routes

PATH = "/api/v1/hooks/"
# Posts repeat the task: they are read to be answered, and nothing of them is kept.
_LARGEST = 16 * 1024 * 1024


class Hooks:
    """Tasks that wait for a post."""

    def __init__(self) -> None:
        self._key = b""
        # By what stands for them.
        self._waiting: dict[str, asyncio.Event] = {}
        # Where agents reach us; empty: nobody said so.
        self.base = ""

    def open(self, secret: bytes) -> None:
        """Make addresses that hold for as long as the store does."""
        self._key = hashlib.sha256(b"hooks" + secret).digest()

    def add_to(self, routes: Routes) -> None:
        """Take posts."""
        routes.add(f"{PATH}*", self._answer, Access.PUBLIC)

    def url(self, scope: Scope, task_id: str) -> str:
        """Return where posts of a task go; empty: nowhere."""
        place = self._place(scope, task_id)
        return f"{self.base}{PATH}{place}/{self._mark(place)}" if self.base else ""

    def _place(self, scope: Scope, task_id: str) -> str:
        """Return what stands for a task: two callers may have given theirs one id."""
        which = encode([scope.tenant, scope.owner, task_id])
        return hashlib.blake2b(which, key=self._key, digest_size=16).hexdigest()

    def _mark(self, place: str) -> str:
        return hmac.new(self._key, place.encode(), hashlib.sha256).hexdigest()[:32]

    @contextlib.contextmanager
    def expecting(self, scope: Scope, task_id: str) -> Generator["Pause"]:
        """Be woken by the posts of a task."""
        place = self._place(scope, task_id)
        event = self._waiting[place] = asyncio.Event()
        try:
            yield Pause(event)
        finally:
            if self._waiting.get(place) is event:
                del self._waiting[place]

    async def _answer(self, request: Request) -> None:
        place, _, mark = request.path.removeprefix(PATH).partition("/")
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        if not hmac.compare_digest(mark.encode(), self._mark(place).encode()):
            await request.respond(404, [(b"content-length", b"0")], b"")
            return
        with contextlib.suppress(BodyTooLarge):
            await skip_body(request, _LARGEST)
        if (event := self._waiting.get(place)) is not None:
            event.set()
        await request.respond(204, [], b"")


class Pause:
    """A wait that a post ends."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def __call__(self, seconds: float) -> bool:
        """Wait for so long, or for a post; say whether there was one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        is_posted = self._event.is_set()
        self._event.clear()
        return is_posted
