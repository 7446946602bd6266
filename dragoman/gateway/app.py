"""The gateway as an ASGI app: registered agents at their addresses, its REST API, and agents of
this process beside them."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.worker import AgentCode
from dragoman.errors import A2AError
from dragoman.gateway.agent_keys import AgentKeyring, StoredKeys
from dragoman.gateway.agents import Registered
from dragoman.gateway.api.api import Api
from dragoman.gateway.catalog import Catalog
from dragoman.gateway.costs import Costs
from dragoman.gateway.front import PREFIX, RESERVED, Front, front_agent
from dragoman.gateway.gateway import Gateway, books_of, store_of
from dragoman.gateway.limited import Limited
from dragoman.gateway.own import OwnToken
from dragoman.gateway.registration import Changes, Registration, Secret
from dragoman.gateway.requesters import NamesRequester
from dragoman.gateway.workflow_runs import Runs
from dragoman.gateway.workflows import Workflows
from dragoman.model.identity import LOCAL
from dragoman.security.agent_keys import AgentKeys
from dragoman.security.authentication import recalling
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.request import Mount
from dragoman.server.routes import Access, Routes
from dragoman.server.scoped import ScopedService
from dragoman.stores.sqlite import SQLiteStore

logger = logging.getLogger("dragoman")


class GatewayApp(App):
    """A gateway, and agents of this process."""

    def __init__(
        self,
        *agents: Agent,
        settings: Settings | None = None,
        is_local: bool = False,
        hooks: Sequence[EventHooks] = (),
    ) -> None:
        settings = settings or Settings()
        self._books = books_of(settings)
        # Where callers have to say who they are, the gateway has to say so to its own agents.
        self._own = OwnToken() if agents and settings.ways() else None
        store = store_of(settings, self._books)
        self._agent_keys = _agent_keys(settings, store)
        given = [self._own, self._agent_keys]
        super().__init__(
            front_agent(),
            *agents,
            settings=settings,
            store=store,
            authenticators=[one for one in given if one is not None],
            is_local=is_local,
            hooks=hooks,
        )

    def _add_routes(self, routes: Routes) -> None:
        # Called while the app is made, once there is a store.
        store = self.store
        assert store is not None and hasattr(store, "change"), "made by store_of"
        self.gateway = Gateway(
            store,  # type: ignore[arg-type]  # the one that store_of made
            self._books,
            self.settings,
            self.audit,
            is_local=self._is_local,
        )
        self.gateway.keys = AgentKeyring(self.gateway.store, self._agent_keys)
        if self._agent_keys is not None and self._gatekeeper is not None:
            self._agent_keys.others = recalling(self._gatekeeper.authenticators)
        self.gateway.hooks.add_to(routes)
        self._limited = Limited(self.gateway.registry, lambda: self._mounts[self.agents[0].name])
        self._limited.add_to(routes)
        shown = Access.PUBLIC if self.settings.card_public else Access.CALLER
        Catalog(self.gateway.registry, self._discovery.base).add_to(routes, shown)
        Api(self.gateway, self._streams).add_to(routes)

    async def _code(self, agent: Agent, opened: contextlib.AsyncExitStack) -> AgentCode:
        if agent is not self.agents[0]:
            return agent
        opened.push_async_callback(self.gateway.close)
        return await self.gateway.open()

    async def _open(self, opened: contextlib.AsyncExitStack) -> None:
        await super()._open(opened)
        gateway = self.gateway
        gateway.service = self._engines[self.agents[0].name]
        ways = self._gatekeeper.authenticators if self._gatekeeper is not None else []
        own = self._mounts[self.agents[0].name]
        own.service = Costs(own.service, gateway.ledger)
        for mount in self._mounts.values():
            mount.service = ScopedService(NamesRequester(mount.service))
        signer = self._discovery.signer
        behind = ScopedService(NamesRequester(Costs(gateway.service, gateway.ledger)))
        self._front = Front(self.settings, ways, behind, signer)
        # Their cards are not for whoever keeps answers for others.
        private = msgspec.structs.replace(self.settings, card_public=False)
        self._limited_front = Front(private, ways, behind, signer)
        self._discovery.more_keys[:] = [self._receipt_keys]
        gateway.workflows = Workflows(gateway.store, gateway, shares=self.shares, hooks=self.hooks)
        opened.push_async_callback(gateway.workflows.stop)
        self._engines[Runs.name] = gateway.workflows.engine
        # For operators, who look after runs as after all tasks; nobody else gets there.
        front, rack = self.agents[0], self._discovery.racks[0]
        runs = Mount(front, gateway.workflows, rack, f"/agents/{Runs.name}", frozenset())
        self._mounts[Runs.name] = runs

    async def _receipt_keys(self) -> list[dict[str, Any]]:
        return [dict(key) for key in await self.gateway.ledger.receipt_keys()]

    def _route(self, path: str) -> tuple[Mount, str]:
        if path.startswith(PREFIX):
            name, slash, rest = path[len(PREFIX) :].partition("/")
            agent = None if name in RESERVED else self.gateway.registry.get(name)
            below = f"/{rest}" if slash else "/"
            if agent is not None and agent.callers:
                return self._limited_front.mount(agent), self._limited.place(below)
            if agent is not None:
                return self._front.mount(agent), below
        found, below = super()._route(path)
        if found is self._mounts.get(Runs.name):
            return next(iter(self._mounts.values())), path
        return found, below

    async def listening(self, urls: Sequence[str]) -> None:
        """Register the agents of this process with the gateway, by the address they are at."""
        hooks = self.gateway.hooks
        hooks.base = hooks.base or urls[0]
        if len(self.agents) > 1:
            self.gateway.allow(urls[0])
            self.gateway.own = f"{urls[0]}/agents/"
        for place, agent in enumerate(self.agents[1:]):
            url = f"{urls[0]}/agents/{agent.name}"
            try:
                await self._introduce(agent.name, url, is_default=place == 0)
            except A2AError as error:
                # The gateway is of use without it.
                logger.warning("%s is not registered: %s", agent.name, error)

    async def _introduce(self, name: str, url: str, *, is_default: bool) -> None:
        registry = self.gateway.registry
        secret = None
        if self._own is not None:
            secret = Secret(kind="header", header=self._own.header, value=self._own.token)
        # One that somebody else called so is not ours, and is not shown our token.
        named = [one for one in registry.all() if one.name == name or _is_second(one, name)]
        known = next((one for one in named if one.owner == LOCAL), None)
        if known is None:
            said = Registration(url=url, is_default=is_default, credential=secret)
            await registry.register(said)
        else:
            changes = Changes(url=url, credential=secret)
            await registry.update(known.id, changes, operator=True)

    def _status(self) -> dict[str, Any]:
        return {**super()._status(), "gateway": self.gateway.status()}


def _agent_keys(settings: Settings, store: SQLiteStore) -> AgentKeys | None:
    """Return the way in for agents; None where no caller has to prove anything."""
    if not settings.ways():
        return None
    is_declared = "api-key" not in settings.ways()
    source, header = StoredKeys(store), settings.api_key_header
    return AgentKeys(source, header=header, is_declared=is_declared)


def _is_second(agent: Registered, name: str) -> bool:
    """Tell whether an agent of this process got a number, since its name was somebody else's."""
    is_at = agent.url.rstrip("/").endswith(f"/agents/{name}")
    return is_at and agent.name.rpartition("-")[0] == name
