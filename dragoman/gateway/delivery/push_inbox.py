"""Push notifications of agents that cannot stream: a post only wakes the poll of its task.

Each task has an address of its own that cannot be guessed. A post there makes the gateway poll the
task at once; its content is not read. A post that reaches another replica than the one that carries
the task is told to it by the bus. If a post is lost, or the store's bus has no content (processes
on one file), the task is polled a little later.
"""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Generator

from dragoman.errors import BodyTooLarge
from dragoman.http.request import HttpRequest, skip_body
from dragoman.http.routes import Access, Routes
from dragoman.model.identity import Scope
from dragoman.model.record import encode
from dragoman.stores.interface import Bus, Rung

PATH = "/api/v1/hooks/"
# Posts repeat the task: they are read to the end to be answered, and dropped.
_LARGEST = 16 * 1024 * 1024


class PushInbox:
    """Tasks that wait for a post."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._key = b""
        # By the digest of the task.
        self._waiting: dict[str, asyncio.Event] = {}
        # The URL at which agents reach this gateway; empty: unknown.
        self.base = ""

    def open(self, secret: bytes) -> None:
        """Derive the addresses from the store's secret: they are valid as long as the store is."""
        self._key = hashlib.sha256(b"hooks" + secret).digest()
        self._bus.listen(self._heard)

    def add_to(self, routes: Routes) -> None:
        """Receive posts."""
        routes.add(f"{PATH}*", self._answer, Access.PUBLIC)

    def url(self, scope: Scope, task_id: str) -> str:
        """Return the address for posts of a task; empty: none."""
        digest = self._digest(scope, task_id)
        return f"{self.base}{PATH}{digest}/{self._mac(digest)}" if self.base else ""

    def _digest(self, scope: Scope, task_id: str) -> str:
        """Return a digest of the task and its owner: two callers may have chosen the same id."""
        which = encode([scope.tenant, scope.owner, task_id])
        return hashlib.blake2b(which, key=self._key, digest_size=16).hexdigest()

    def _mac(self, digest: str) -> str:
        return hmac.new(self._key, digest.encode(), hashlib.sha256).hexdigest()[:32]

    @contextlib.contextmanager
    def expecting(self, scope: Scope, task_id: str) -> Generator["Pause"]:
        """Yield a pause that posts of the task end."""
        digest = self._digest(scope, task_id)
        event = self._waiting[digest] = asyncio.Event()
        try:
            yield Pause(event)
        finally:
            if self._waiting.get(digest) is event:
                del self._waiting[digest]

    async def _answer(self, request: HttpRequest) -> None:
        digest, _, mac = request.path.removeprefix(PATH).partition("/")
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        if not hmac.compare_digest(mac.encode(), self._mac(digest).encode()):
            await request.respond(404, [(b"content-length", b"0")], b"")
            return
        with contextlib.suppress(BodyTooLarge):
            await skip_body(request, _LARGEST)
        if not self._wake(digest):
            # Another replica may carry the task.
            self._bus.ring(Rung(posted=(digest,)))
        await request.respond(204, [], b"")

    def _heard(self, rung: Rung | None) -> None:
        # After a gap nothing is woken: to poll every agent at once would be worse than to be late.
        for digest in () if rung is None else rung.posted:
            self._wake(digest)

    def _wake(self, digest: str) -> bool:
        """End the pause of a task; tell whether this process carries it."""
        event = self._waiting.get(digest)
        if event is not None:
            event.set()
        return event is not None


class Pause:
    """A wait that a post ends."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def __call__(self, seconds: float) -> bool:
        """Wait for a post, at most so many seconds; say whether there was one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        is_posted = self._event.is_set()
        self._event.clear()
        return is_posted
