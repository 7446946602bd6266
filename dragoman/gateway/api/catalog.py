"""The gateway's agents as an AI catalog: `dragoman send -a @name` finds them by it."""

from collections.abc import Callable
from typing import Any

from dragoman.gateway.front import PREFIX
from dragoman.gateway.registry.registry import Registry
from dragoman.http.documents import document
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access, Routes
from dragoman.server.discovery import CARD_PATH

PATH = "/.well-known/ai-catalog.json"
MEDIA_TYPE = "application/a2a-agent-card+json"
# Entries that readers accept; the rest is found by searching.
_MOST = 5_000


class Catalog:
    """Lists the public agents that are online."""

    def __init__(self, registry: Registry, base: Callable[[HttpRequest], str]) -> None:
        self._registry = registry
        self._base = base

    def add_to(self, routes: Routes, access: Access) -> None:
        """Serve it."""
        routes.add(PATH, self._answer, access, frozenset({"agents:read"}))

    async def _answer(self, request: HttpRequest) -> None:
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        base = self._base(request)
        online = [
            agent
            for agent in self._registry.all()
            if agent.status == "online" and not agent.callers
        ]
        entries: list[dict[str, Any]] = [
            {
                "identifier": f"urn:dragoman:agent:{agent.name}",
                "name": agent.name,
                "displayName": agent.title,
                "description": agent.description,
                "tags": agent.tags,
                "mediaType": MEDIA_TYPE,
                "url": f"{base}{PREFIX}{agent.name}{CARD_PATH}",
            }
            for agent in online[:_MOST]
        ]
        await document(request, {"specVersion": "1.0", "entries": entries})
