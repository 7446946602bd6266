"""The part that makes an app behave like selectools' server: its card at the old path, and a limit
of tasks. Everything else is served as for any agent, in every version."""

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from dragoman.authoring.agent import Agent
from dragoman.config import Settings
from dragoman.errors import StoreRefused
from dragoman.model.record import encode
from dragoman.security.authentication import Authenticator
from dragoman.server.cards import CardRack
from dragoman.server.site import AppPart, Site
from dragoman.service import Batch, Call, Reply, Service
from dragoman.stores.interface import Store

# The name of selectools' shape of a card, beside those of the versions.
_SHAPE = "selectools"
# Returns the card for the address of a request.
Card = Callable[[str], dict[str, Any]]


class SelectoolsPart(AppPart):
    """The part of an app with one agent. `card` is served at `/.well-known/agent.json`; the last
    `max_tasks` ended tasks are kept."""

    def __init__(self, card: Card, max_tasks: int) -> None:
        self._card = card
        self._max_tasks = max_tasks

    def add_routes(self, site: Site) -> None:
        """Serve selectools' card at the old path."""
        rack = _Rack(site.agents[0], site.settings, self._card, site.authenticators)
        site.discovery.racks[:] = [rack]

    async def start(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Limit the number of ended tasks."""
        for mount in site.mounts.values():
            mount.service = _BoundedService(mount.service, site.store, self._max_tasks)


class _BoundedService:
    """A service that prunes the oldest ended tasks before it answers a call."""

    def __init__(self, service: Service, store: Store, max_tasks: int) -> None:
        self._service = service
        self._store = store
        self._max_tasks = max_tasks
        self._calls = 0

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        await self._prune()
        return await self._service.answer(call)

    async def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Yield the stream of a call."""
        await self._prune()
        async with contextlib.aclosing(self._service.follow(call)) as batches:
            async for batch in batches:
                yield batch

    async def _prune(self) -> None:
        self._calls += 1
        # Pruning scans all tasks: with many of them it is done seldom.
        if self._calls % max(1, self._max_tasks // 100) == 0:
            # A store that takes no writes can still be read.
            with contextlib.suppress(StoreRefused):
                await self._store.prune(ended_before=0, keep=self._max_tasks)


class _Rack(CardRack):
    """Cards of one agent, with one more shape."""

    def __init__(
        self, agent: Agent, settings: Settings, card: Card, ways: Sequence[Authenticator]
    ) -> None:
        super().__init__(agent, settings, time.time(), ways=ways)
        self._selectools_card = card

    def shape(self, header: str | None, query: str | None, *, is_old_path: bool) -> str | None:
        """Return the shape for a request: the old path has selectools' own."""
        if is_old_path:
            return _SHAPE
        return super().shape(header, query, is_old_path=False)

    def _body(self, base: str, shape: str) -> tuple[bytes, bytes]:
        if shape != _SHAPE:
            return super()._body(base, shape)
        # Not cached: the agent's tools may change.
        card = self._selectools_card(f"{base}/a2a")
        if self._ways:
            card |= {
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "security": [{"bearer": []}],
            }
        body = encode(card)
        return body, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
