"""Our app as selectools' server looks from outside: its card at the path of old, and no more tasks
than were asked for. Everything else is served as for any agent, in every version."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from dragoman.config import Settings
from dragoman.model.record import encode
from dragoman.security.authentication import Authenticator
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.cards import CardRack
from dragoman.server.request import Scope
from dragoman.transports import sse

# The shape of the card that selectools writes, among those of the versions.
_SHAPE = "selectools"
# From the address at which we are called to the card.
Card = Callable[[str], dict[str, Any]]


class SelectoolsApp(App):
    """Serves one agent. `card` is what is shown at `/.well-known/agent.json`; of the tasks that
    ended, the last `max_tasks` are kept."""

    def __init__(
        self,
        agent: Agent,
        *,
        settings: Settings,
        authenticators: Sequence[Authenticator],
        is_local: bool,
        card: Card,
        max_tasks: int,
    ) -> None:
        super().__init__(agent, settings=settings, authenticators=authenticators, is_local=is_local)
        self._max_tasks = max_tasks
        self._posts = 0
        self._discovery.racks[:] = [_Rack(agent, settings, card, authenticators)]

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        """Answer one ASGI connection, and forget the oldest tasks beyond what is kept."""
        await super().__call__(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "POST" and self.is_running:
            self._posts += 1
            # To look through all of them takes a while, so for many it is done seldom.
            if self._posts % max(1, self._max_tasks // 100) == 0:
                await self.store.prune(ended_before=0, keep=self._max_tasks)


class _Rack(CardRack):
    """Cards of one agent, with one more shape."""

    def __init__(
        self, agent: Agent, settings: Settings, card: Card, ways: Sequence[Authenticator]
    ) -> None:
        super().__init__(agent, settings, time.time(), ways=ways)
        self._theirs = card

    def shape(self, header: str | None, query: str | None, *, is_old_path: bool) -> str | None:
        """Return the shape for a request: the old path has selectools' own."""
        if is_old_path:
            return _SHAPE
        return super().shape(header, query, is_old_path=False)

    def _body(self, base: str, shape: str) -> tuple[bytes, bytes]:
        if shape != _SHAPE:
            return super()._body(base, shape)
        # Not kept: the agent's tools may be others by now.
        card = self._theirs(f"{base}/a2a")
        if self._ways:
            card |= {
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "security": [{"bearer": []}],
            }
        body = encode(card)
        return body, b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
