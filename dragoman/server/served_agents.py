"""Agents as a part of an app: their engines and mounts, the protocol's endpoints, cards, and what
operators see and do."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from dragoman.authoring.agent import Agent
from dragoman.engine.running.author_code import AuthorThreads
from dragoman.errors import is_interruption
from dragoman.http.mount import Mount
from dragoman.http.routes import BY_REQUEST, Access
from dragoman.model.identity import Caller
from dragoman.server.endpoints.endpoints import Endpoints
from dragoman.server.mounts import AgentMount, agent_mount
from dragoman.server.operator.paths import OperatorPaths
from dragoman.server.push_service import PushService
from dragoman.server.site import AppPart, Site
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman")

PREFIX = "/agents/"


class ServedAgents(AppPart):
    """The agents of an app: each below `/agents/`, the first at the root too."""

    _mounts: dict[str, Mount]
    # The mount of the first agent.
    _first: Mount
    operators: OperatorPaths

    def add_routes(self, site: Site) -> None:
        """Serve every binding and version, cards, and the operators' paths."""
        self._mounts = site.mounts
        routes = site.routes
        endpoints = Endpoints(site.settings, site.discovery, site.streams, site.audit)
        endpoints.add_to(routes)
        site.discovery.add_to(routes, lambda: site.push, endpoints.answer_rest)
        self.operators = OperatorPaths(site)
        self.operators.add_to(routes)
        routes.add_others(endpoints.answer_rest, Access.CALLER, BY_REQUEST)

    async def start(self, site: Site, opened: contextlib.AsyncExitStack) -> None:
        """Start an engine for each agent, and mount it."""
        self.operators.start(opened)
        if site.settings.push.enabled and not site.settings.stores.read_only:
            if site.settings.push.tokens:
                # Their key is made of the store's secret.
                await site.store.prepare()
            site.push = PushService(site.store, site.settings, site.engines)
        for agent, cards in zip(site.agents, site.discovery.racks, strict=True):
            # Agents of other kinds find theirs when they are called.
            if not agent.skills and type(agent) is Agent:
                logger.warning(
                    "agent %s has no skill, so it refuses every message: put @agent.skill above a "
                    "function of its file",
                    agent.title,
                )
            agent.threads = AuthorThreads(site.settings.server.threads, f"agent-{agent.name}")
            opened.callback(_end_threads, agent)
            opened.push_async_callback(agent.delegation.close)
            for close in agent.closing:
                opened.push_async_callback(_close, agent.name, close)
            engine = site.engine(site.codes.get(agent.name, agent), opened)
            site.mounts[agent.name] = agent_mount(
                agent, engine, cards, PREFIX + agent.name, site.settings
            )
            site.audit.card(agent.name, cards.digest())
        self._first = site.mounts[site.agents[0].name]
        # After the engines, and so closed before them: it reads their logs.
        opened.push_async_callback(_stop_push, site)

    def find(self, path: str) -> tuple[Mount, str]:
        """Return the mount of a path and the path below it: the root is the first agent's."""
        if path.startswith(PREFIX):
            name, _, below = path[len(PREFIX) :].partition("/")
            mount = self._mounts.get(name)
            if mount is not None:
                return mount, f"/{below}"
        return self._first, path

    def agents_for(self, caller: Caller) -> Iterable[AgentMount]:
        """Return all: each decides about its callers by skill."""
        return [mount for mount in self._mounts.values() if isinstance(mount, AgentMount)]

    def agent_for(self, caller: Caller, name: str) -> AgentMount | None:
        """Return the one of that name."""
        mount = self._mounts.get(name)
        return mount if isinstance(mount, AgentMount) else None


def _end_threads(agent: Agent) -> None:
    if agent.threads is not None:
        agent.threads.shutdown(wait=False, cancel_futures=True)
        agent.threads = None


async def _stop_push(site: Site) -> None:
    if site.push is not None:
        await site.push.stop()
        site.push = None


async def _close(name: str, close: Callable[[], Awaitable[None]]) -> None:
    """Let an author's code close what it opened. Whatever it raises, the store is closed after."""
    try:
        await close()
    except BaseException as error:
        if is_interruption(error):
            raise
        logs.log_error(logger, "agent %s could not close what it had opened", name, error=error)
