"""Health probes: whether to start the process again, and whether to send it requests."""

from dragoman.http.documents import document
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access
from dragoman.server.site import Site


class HealthProbes:
    """Answers `/healthz` and `/readyz`, however busy the server is."""

    def __init__(self, site: Site) -> None:
        self._site = site
        site.routes.add("/healthz", self._alive, Access.PROBE)
        site.routes.add("/readyz", self._ready, Access.PROBE)

    async def _alive(self, request: HttpRequest) -> None:
        """A supervisor asks whether to start the process again: only a broken store needs that."""
        await self._answer(request, "ok" if self._site.fault is None else "broken")

    async def _ready(self, request: HttpRequest) -> None:
        """A load balancer asks whether to send requests."""
        health = self._site.health
        if health != "ok" or not (troubles := await self._site.store.troubles()):
            await self._answer(request, health)
            return
        is_serious = any(one.is_serious for one in troubles)
        status = {
            "status": "unavailable" if is_serious else "degraded",
            "parts": [{"part": one.part, "reason": one.reason} for one in troubles],
        }
        if is_serious:
            await document(request, status, (b"retry-after", b"1"), status=503)
        else:
            await document(request, status)

    async def _answer(self, request: HttpRequest, health: str) -> None:
        status = {"status": health}
        if health == "ok":
            await document(request, status)
            return
        if self._site.fault is not None:
            # The public text: where the store is concerns no caller.
            status["reason"] = self._site.fault.public
        await document(request, status, (b"retry-after", b"1"), status=503)
