"""The gateway as an ASGI app: registered agents at their addresses, the REST API, and agents of
this process beside them. Here the gateway's rooms and the server are joined."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.config import Settings
from dragoman.config.formats import read_share
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.store_clock import StoreClock
from dragoman.errors import A2AError
from dragoman.gateway.api.api import Api
from dragoman.gateway.api.catalog import Catalog
from dragoman.gateway.delivery.requester import RequesterService
from dragoman.gateway.delivery.self_token import SelfToken
from dragoman.gateway.front import PREFIX, RESERVED, Front, front_agent
from dragoman.gateway.gateway import Gateway
from dragoman.gateway.join_endpoint import JoinEndpoint
from dragoman.gateway.money.costs import CostService
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.gateway.private_agents import PrivateAgents, is_known
from dragoman.gateway.registry.agent_keys import AgentKeyring, StoredKeys
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import AgentChanges, Registration, Secret
from dragoman.gateway.rollouts.rollouts import Rollouts
from dragoman.gateway.rollouts.shadows import Shadows
from dragoman.gateway.triggers.triggers import Triggers
from dragoman.gateway.triggers.webhook_endpoint import PATH as WEBHOOKS
from dragoman.gateway.triggers.webhook_endpoint import answer_webhook
from dragoman.gateway.workflows.runs import Runs
from dragoman.gateway.workflows.workflows import Workflows
from dragoman.http.mount import Mount
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Access
from dragoman.model.identity import LOCAL, Caller, Scope
from dragoman.model.money import Terms, micro_credits
from dragoman.model.request_metadata import claimed_hops
from dragoman.model.task import Task
from dragoman.security.authentication import recalling
from dragoman.security.keys.agent_keys import AgentKeys
from dragoman.security.vault import vault_of
from dragoman.server.app import App
from dragoman.server.mounts import AgentMount
from dragoman.server.scoped_service import ScopedService
from dragoman.server.site import AppPart, Site
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.opening import gateway_store_of

logger = logging.getLogger("dragoman")


def order_rules_of(settings: Settings) -> TaskOrderRules:
    """Return the rules of orders that the settings ask for."""
    given = settings.gateway
    fee, credits = read_share(given.platform_fee), micro_credits(given.initial_credits)
    return TaskOrderRules(Terms(fee, credits, round(given.escrow * 1000)))


def gateway_app(
    *agents: Agent,
    settings: Settings | None = None,
    is_local: bool = False,
    hooks: Sequence[EventHooks] = (),
    store: GatewayStore | None = None,
    parts: Sequence[AppPart] = (),
) -> App:
    """Return the app of a gateway, and of agents of this process beside it. `store` is used in
    place of the one that the settings name, such as one in memory for tests. `parts` are served
    besides."""
    settings = settings or Settings()
    rules = order_rules_of(settings)
    store = store or gateway_store_of(settings, vault_of, rules)
    # Where callers have to prove who they are, the gateway has to prove it to its own agents.
    self_token = SelfToken() if agents and settings.ways() else None
    agent_keys = _agent_keys(settings, store)
    part = GatewayPart(store, rules, agents, agent_keys, self_token)
    return App(
        front_agent(),
        *agents,
        settings=settings,
        store=store,
        authenticators=[one for one in (self_token, agent_keys) if one is not None],
        is_local=is_local,
        hooks=hooks,
        parts=[part, *parts],
    )


def gateway_of(app: App) -> Gateway:
    """Return the gateway that an app serves."""
    return next(part.gateway for part in app.site.parts if isinstance(part, GatewayPart))


class GatewayPart(AppPart):
    """A gateway as a part of an app, whose first agent is the gateway itself: registered agents at
    their addresses, and the REST API."""

    gateway: Gateway

    def __init__(
        self,
        store: GatewayStore,
        rules: TaskOrderRules,
        agents: Sequence[Agent],
        agent_keys: AgentKeys | None,
        self_token: SelfToken | None,
    ) -> None:
        """`agents` are those of this process."""
        self._store = store
        self._rules = rules
        self._agents = agents
        self._agent_keys = agent_keys
        self._self_token = self_token

    def add_routes(self, site: Site) -> None:
        """Serve the REST API, the catalog, posts of agents, and private agents."""
        self.gateway = gateway = Gateway(
            self._store, self._rules, site.settings, site.audit, is_local=site.is_local
        )
        gateway.keys = AgentKeyring(self._store, self._agent_keys, gateway.clock.seconds)
        if self._agent_keys is not None:
            self._agent_keys.others = recalling(site.authenticators)
        gateway.push_inbox.add_to(site.routes)
        self._private_agents = PrivateAgents(gateway.registry, lambda: _own_mount(site))
        self._private_agents.add_to(site.routes)
        access = Access.PUBLIC if site.settings.cards.public else Access.CALLER
        Catalog(gateway.registry, site.discovery.base).add_to(site.routes, access)
        JoinEndpoint(gateway.joined, self._store, site.streams).add_to(site.routes)
        site.routes.add(f"{WEBHOOKS}*", self._webhook, Access.PUBLIC)
        Api(gateway, site.streams).add_to(site.routes)

    async def open(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Open the gateway; it works on the tasks of the first agent."""
        opened.push_async_callback(self.gateway.close)
        site.codes[site.agents[0].name] = await self.gateway.open()

    async def start(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Put the gateway's services around those of the mounts, and start the workflows."""
        gateway, own = self.gateway, _own_mount(site)
        gateway.service = site.engines[own.name]
        own.service = CostService(own.service, gateway.ledger)
        for mount in site.mounts.values():
            mount.service = ScopedService(RequesterService(mount.service))
        site.costs = gateway.ledger.costs
        site.is_delivery = self._is_delivery(site)
        self._front = self._front_of(site, site.settings)
        # Shared caches must not keep the cards of private agents.
        private = msgspec.structs.replace(
            site.settings, cards=msgspec.structs.replace(site.settings.cards, public=False)
        )
        self._private_front = self._front_of(site, private)
        site.discovery.more_keys[:] = [self._receipt_keys]
        gateway.workflows = Workflows(
            gateway.store,
            gateway.registry.get,
            gateway.service,
            gateway.settings,
            clock=gateway.clock,
            shares=site.shares,
            hooks=site.hooks,
        )
        opened.push_async_callback(gateway.workflows.stop)
        gateway.triggers = Triggers(
            gateway.store,
            gateway.registry.get,
            gateway.service,
            gateway.settings,
            clock=gateway.clock,
        )
        is_read_only = site.settings.stores.read_only
        if not is_read_only:
            gateway.triggers.start()
        opened.push_async_callback(gateway.triggers.stop)
        gateway.rollouts = Rollouts(
            gateway.store,
            gateway.registry,
            gateway.delivery,
            gateway.audit,
            clock=gateway.clock,
            shares=site.shares,
            hooks=site.hooks,
        )
        opened.push_async_callback(gateway.rollouts.stop)
        if not is_read_only:
            await gateway.rollouts.start()
        site.engines[Shadows.name] = gateway.rollouts.engine
        # Operators look after copies of tasks as after all tasks.
        site.unlisted[Shadows.name] = gateway.rollouts.engine
        site.engines[Runs.name] = gateway.workflows.engine
        # Operators look after runs as after all tasks.
        site.unlisted[Runs.name] = gateway.workflows

    async def _webhook(self, request: HttpRequest) -> None:
        await answer_webhook(request, self.gateway.triggers)

    def _is_delivery(self, site: Site) -> Callable[[Scope, Task], bool]:
        """Return what tells the deliveries of this gateway. Callers claim which gateways a task
        passed: where they prove who they are, the gateway has to have proved it too."""
        is_proved, id = bool(site.settings.ways()), self.gateway.id
        return lambda scope, task: (
            claimed_hops(task.metadata)[-1:] == [id]
            and (scope.principal == SelfToken.principal or not is_proved)
        )

    def _front_of(self, site: Site, settings: Settings) -> Front:
        costs = CostService(self.gateway.service, self.gateway.ledger)
        service = ScopedService(RequesterService(costs))
        discovery = site.discovery
        return Front(settings, site.authenticators, service, discovery.signer, discovery.grpc)

    async def _receipt_keys(self) -> list[dict[str, Any]]:
        return [dict(key) for key in await self.gateway.ledger.receipt_keys()]

    def find(self, path: str) -> tuple[Mount, str] | None:
        """Return the mount of a registered agent, and the path below its address."""
        if not path.startswith(PREFIX):
            return None
        name, slash, rest = path[len(PREFIX) :].partition("/")
        agent = None if name in RESERVED else self.gateway.registry.get(name)
        if agent is None:
            return None
        below = f"/{rest}" if slash else "/"
        if agent.callers:
            below = self._private_agents.inner_path(below)
        return self._mount(agent), below

    def agents_for(self, caller: Caller) -> Iterable[AgentMount]:
        """Yield the registered agents that take tasks of a caller."""
        for agent in self.gateway.registry.all():
            if is_known(agent, caller) and not agent.is_paused:
                yield self._mount(agent)

    def agent_for(self, caller: Caller, name: str) -> AgentMount | None:
        """Return the registered agent of that name, if it serves the caller."""
        agent = self.gateway.registry.get(name)
        is_named = agent is not None and agent.name == name
        return self._mount(agent) if agent and is_named and is_known(agent, caller) else None

    def _mount(self, agent: Registered) -> AgentMount:
        return (self._private_front if agent.callers else self._front).mount(agent)

    async def listening(self, urls: Sequence[str]) -> None:
        """Register the agents of this process with the gateway, by the address they are at."""
        inbox = self.gateway.push_inbox
        inbox.base = inbox.base or urls[0]
        if self.gateway.settings.stores.read_only:
            return
        if self._agents:
            self.gateway.serve_agents_at(urls[0])
        for place, agent in enumerate(self._agents):
            url = f"{urls[0]}/agents/{agent.name}"
            try:
                await self._register(agent.name, url, is_default=place == 0)
            except A2AError as error:
                # The gateway is of use without it.
                logger.warning("%s is not registered: %s", agent.name, error)

    async def _register(self, name: str, url: str, *, is_default: bool) -> None:
        registry = self.gateway.registry
        secret = None
        if self._self_token is not None:
            token = self._self_token
            secret = Secret(kind="header", header=token.header, value=token.token)
        # An agent of that name with another owner is not ours and must not get our token.
        alike = [one for one in registry.all() if one.name == name or _is_second(one, name)]
        known = next((one for one in alike if one.owner == LOCAL), None)
        if known is None:
            registration = Registration(url=url, is_default=is_default, credential=secret)
            known = await registry.register(registration)
        else:
            changes = AgentChanges(url=url, credential=secret)
            known = await registry.update(known.id, changes, operator=True)
        credential = None if secret is None else secret.credential()
        self.gateway.serve_own(known.id, url, credential)

    def status(self) -> dict[str, Any]:
        """Return how many agents there are, and how many are online."""
        return {"gateway": self.gateway.status()}


def _own_mount(site: Site) -> Mount:
    """Return the mount of the gateway's own agent, which is the first."""
    return site.mounts[site.agents[0].name]


def _agent_keys(settings: Settings, store: GatewayStore) -> AgentKeys | None:
    """Return the authenticator of registered agents; None where callers are not authenticated."""
    if not settings.ways():
        return None
    is_declared = "api-key" not in settings.ways()
    source, header = StoredKeys(store), settings.security.api_key_header
    in_bearer = settings.server.openai
    now = StoreClock(store).seconds
    return AgentKeys(source, header=header, in_bearer=in_bearer, is_declared=is_declared, now=now)


def _is_second(agent: Registered, name: str) -> bool:
    """Tell whether an agent of this process was registered under its name with a number, since the
    plain name was taken."""
    is_at = agent.url.rstrip("/").endswith(f"/agents/{name}")
    return is_at and agent.name.rpartition("-")[0] == name
