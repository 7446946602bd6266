"""The console as a part of an app: its paths, and who may see them.

Its routes are public, since a visitor without a session is shown the form to sign in. What answers
visitors is loaded soon after the start, or with the first request for it.
"""

import asyncio
import contextlib
import importlib.util
from functools import cached_property
from typing import TYPE_CHECKING

from dragoman.console.paths import DOCS, PATH, base
from dragoman.console.preloading import pieces
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access, Route
from dragoman.server.preloading import Preloading
from dragoman.server.site import AppPart, Site

if TYPE_CHECKING:
    # No start needs it.
    from dragoman.console.console import Console

_MISSING = b"The console needs its extra: pip install 'dragoman[console]'\n"


class ConsolePart(AppPart):
    """Serves the console where only this machine calls, or where callers authenticate."""

    # None: the console is off, or its extra is missing.
    preloading: Preloading | None = None

    def add_routes(self, site: Site) -> None:
        """Serve `/console`, and send people there who open the root."""
        is_safe = site.is_local or site.gatekeeper is not None
        if not site.settings.server.console or not is_safe:
            return
        self._site = site
        if site.settings.security.oidc_client_id:
            # A mistake in how people sign in at an issuer is reported by the start.
            _ = self.console
        has_extra = importlib.util.find_spec("jinja2") is not None
        self.preloading = Preloading(pieces) if has_extra else None
        answer = self._answer if has_extra else _say_what_is_missing
        site.routes.add(PATH, answer, Access.PUBLIC)
        site.routes.add(f"{PATH}/*", answer, Access.PUBLIC)
        site.routes.add(DOCS, self._send_to_docs, Access.PUBLIC)
        site.routes.welcome = Route(_welcome, Access.PUBLIC, "/")

    @cached_property
    def console(self) -> "Console":
        """What answers visitors."""
        from dragoman.console.console import Console

        return Console(self._site)

    async def start(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Load what draws pages, once the start is over."""
        if self.preloading is not None:
            opened.callback(asyncio.create_task(self.preloading.run()).cancel)

    async def _answer(self, request: HttpRequest) -> None:
        root: str = request.scope.get("root_path", "")
        if not request.scope["path"].startswith(root + PATH):
            # Below the address of an agent: what is there is the agent's.
            await self._site.routes.others.answer(request)
            return
        below = request.path.removeprefix(PATH).rstrip("/") or "/"
        if below.startswith("/static/"):
            from dragoman.console.assets import send_asset

            await send_asset(request, below)
            return
        if self.preloading is not None:
            await self.preloading.finish()
        await self.console.answer(request, below)

    async def _send_to_docs(self, request: HttpRequest) -> None:
        """Answer the address at which people look for the description of an API."""
        if request.scope["path"] != request.scope.get("root_path", "") + DOCS:
            # Below the address of an agent: what is there is the agent's.
            await self._site.routes.others.answer(request)
        elif request.verb in ("GET", "HEAD"):
            await self.console.redirect(request, DOCS)
        else:
            await request.refuse_verb("GET, HEAD")


async def _welcome(request: HttpRequest) -> None:
    """Send a person to the console."""
    location = (b"location", base(request).encode())
    await request.respond(303, [location, (b"vary", b"Accept"), (b"content-length", b"0")], b"")


async def _say_what_is_missing(request: HttpRequest) -> None:
    kind = (b"content-type", b"text/plain; charset=utf-8")
    length = (b"content-length", b"%d" % len(_MISSING))
    await request.respond(501, [kind, length], _MISSING)
