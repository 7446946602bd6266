"""Which paths are the operators', and to whom they are open. What answers them is loaded soon after
the start, or with the first request: no start waits for it."""

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access, Answer, Routes
from dragoman.server.operator.addresses import API, DESCRIPTION, METRICS, STATUS
from dragoman.server.operator.live import LiveFigures
from dragoman.server.preloading import Preloading
from dragoman.server.site import Site
from dragoman.stores.interface import Survey

if TYPE_CHECKING:
    from dragoman.server.operator.api import OperatorApi


class OperatorPaths:
    """What operators may see and do with one app."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.live = LiveFigures(site.store, self._share)
        self.preloading = Preloading(self._load)
        self._api: OperatorApi
        self._admin: dict[str, Answer] = {}

    def add_to(self, routes: Routes) -> None:
        """Serve all of it."""
        settings = self._site.settings
        admin = {STATUS: Access.OPERATOR}
        if settings.telemetry.metrics:
            # Without authentication, figures are open where only this machine can call.
            is_open = self._site.is_local and self._site.gatekeeper is None
            admin[METRICS] = Access.PUBLIC if is_open else Access.OPERATOR
        for path, access in admin.items():
            routes.add(path, partial(self._answer_admin, path), access)
        routes.add(DESCRIPTION, self._answer_api, Access.PUBLIC, BY_REQUEST)
        routes.add(f"{API}/*", self._answer_api, Access.CALLER, BY_REQUEST)

    def start(self, opened: contextlib.AsyncExitStack) -> None:
        """Begin to take samples, and to load the rest."""
        self.live.start()
        opened.push_async_callback(self.live.stop)
        opened.callback(asyncio.create_task(self.preloading.run()).cancel)

    async def _answer_api(self, request: HttpRequest) -> None:
        await self.preloading.finish()
        await self._api.answer(request)

    async def _answer_admin(self, path: str, request: HttpRequest) -> None:
        await self.preloading.finish()
        await self._admin[path](request)

    async def _share(self, survey: Survey) -> float:
        # Loaded with the first sample at the latest, which is some seconds after the start.
        from dragoman.server.operator.tasks.deliveries import share_but_deliveries

        return await share_but_deliveries(self._site, survey)

    def _load(self) -> Iterator[None]:
        from dragoman.server.operator import events

        assert events, "loaded"
        yield
        from dragoman.server.operator.admin import Admin

        self._admin = Admin(self._site).answers
        yield
        from dragoman.server.operator.api import OperatorApi

        self._api = OperatorApi(self._site, self.live)
