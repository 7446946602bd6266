"""What operators read of the process itself: `/admin/status`, and `/metrics`."""

import asyncio

from dragoman.dialects import errors
from dragoman.errors import A2AError
from dragoman.http.documents import PRIVATE, document
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Answer
from dragoman.server.operator.addresses import METRICS, STATUS
from dragoman.server.site import Site
from dragoman.telemetry import page


class Admin:
    """Answers operators."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def answers(self) -> dict[str, Answer]:
        """What answers each path."""
        return {STATUS: _reading(self._show_status), METRICS: _reading(_metrics)}

    async def _show_status(self, request: HttpRequest) -> None:
        troubles = await self._site.store.troubles()
        parts = [{"part": one.part, "reason": one.reason} for one in troubles]
        await document(request, self._site.status() | {"troubles": parts}, PRIVATE)


def _reading(answer: Answer) -> Answer:
    async def reading(request: HttpRequest) -> None:
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        try:
            await answer(request)
        except A2AError as error:
            status, content = errors.rest(error)
            await document(request, content, PRIVATE, status=status)

    return reading


async def _metrics(request: HttpRequest) -> None:
    # In a thread: it reads what other workers counted.
    body = await asyncio.to_thread(page.render)
    headers = [(b"content-type", page.CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
    await request.respond(200, [*headers, (b"content-length", b"%d" % len(body))], body)
