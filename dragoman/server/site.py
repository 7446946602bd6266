"""What the parts of an app share, and what a part is.

A part adds routes, mounts, things to open and a status to an app: agents are one part, the gateway,
MCP and the parity layers are others. Parts meet in the `Site` and do not know each other.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.authoring.agent import Agent
from dragoman.authoring.loading import load_hooks
from dragoman.config import Settings, refusal
from dragoman.engine.agent_code import AgentCode
from dragoman.engine.engine import Engine
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.running.isolation import Isolation
from dragoman.errors import StoreBroken
from dragoman.http.mount import Mount
from dragoman.http.open_streams import OpenStreams
from dragoman.http.rates import quota_of
from dragoman.http.request import Scope
from dragoman.http.routes import Routes
from dragoman.model.identity import Caller
from dragoman.model.identity import Scope as TaskScope
from dragoman.model.task import Task
from dragoman.security.audit.log import Audit, AuditLog, NoAudit
from dragoman.security.authentication import Authenticator
from dragoman.security.vault import vault_of
from dragoman.server.authenticators import gatekeeper
from dragoman.server.discovery import Discovery
from dragoman.server.mounts import AgentMount
from dragoman.server.push_service import PushService
from dragoman.service import Service
from dragoman.shares import Shares
from dragoman.stores.interface import Store
from dragoman.stores.interface.limits import SharedLimits
from dragoman.stores.opening import store_of
from dragoman.telemetry import figures
from dragoman.transports import sse

if TYPE_CHECKING:
    # Loaded where replicas share one store.
    from dragoman.http.sharing.shared_rates import SharedRates

Asgi = Callable[[Scope, sse.Receive, sse.Send], Awaitable[None]]


class AppPart(Protocol):
    """Something that an app serves. Inherit it and leave out what the part does not do; without
    agents one part needs `find` and a route for all other paths. The calls come in this order."""

    def add_routes(self, site: "Site") -> None:
        """Add routes to `site.routes`, when the app is made."""

    async def open(self, site: "Site", opened: contextlib.AsyncExitStack) -> None:
        """Prepare: the store is open, no engine runs yet. What `opened` is given is closed when the
        app stops, in reverse order."""

    async def start(self, site: "Site", opened: contextlib.AsyncExitStack) -> None:
        """Begin: every part is prepared, and the parts before this one have started."""

    async def listening(self, urls: Sequence[str]) -> None:
        """Callers can connect, at these addresses."""

    def find(self, path: str) -> tuple[Mount, str] | None:
        """Return the mount of a path and the path below it; None: the path is of another part."""
        return None

    def agents_for(self, caller: Caller) -> Iterable[AgentMount]:
        """Return the agents of the part that a caller may call."""
        return ()

    def agent_for(self, caller: Caller, name: str) -> AgentMount | None:
        """Return the one of that name; None: there is none for this caller."""
        return None

    def status(self) -> dict[str, Any]:
        """Return what operators see of the part."""
        return {}


class Site:
    """What the parts of an app share."""

    def __init__(
        self,
        agents: Sequence[Agent],
        parts: Sequence[AppPart],
        settings: Settings,
        store: Store | None,
        authenticators: Sequence[Authenticator],
        hooks: Sequence[EventHooks],
        *,
        is_local: bool,
    ) -> None:
        self.agents = agents
        self.parts = parts
        self.settings = settings
        self.is_local = is_local
        self.store = store or _store(settings)
        self.hooks = [*hooks, *load_hooks(settings.server.hooks)]
        path = settings.audit_path()
        self.audit: Audit = NoAudit() if path is None else AuditLog(path)
        # None: callers are not authenticated.
        self.gatekeeper = gatekeeper(settings, authenticators)
        # What all agents of this process share among their callers.
        limits, service = self.store.limits, " ".join(sorted(agent.name for agent in agents))
        # None: each process counts for itself.
        self.rates = _shared_rates(limits, service)
        self.shares = Shares(
            quota_of(settings, rates=self.rates),
            most_stored=settings.engine.max_stored_bytes,
            limits=limits,
            running=None
            if self.rates is None
            else self.rates.seats("running tasks", settings.engine.max_tasks_per_caller),
        )
        self.streams = OpenStreams(settings.http.max_streams, self.shares)
        self.discovery = Discovery(agents, settings, self.gatekeeper)
        self.routes = Routes()
        # Answers a request that is made inside this process as it answers one from outside: with
        # the same authentication, limits and audit. Set by the app.
        self.asgi: Asgi
        # The rest is there while the app runs. Mounts by the agent's name; the first has the root.
        self.mounts: dict[str, Mount] = {}
        # Services of agents that have no path, by the agent's name: only operators reach them.
        self.unlisted: dict[str, Service] = {}
        # Code that works on an agent's tasks in place of its skills, by the agent's name.
        self.codes: dict[str, AgentCode] = {}
        # By the name of their code.
        self.engines: dict[str, Engine] = {}
        # What tasks cost, in micro-credits by their numbers; None: nothing costs anything here.
        self.costs: Callable[[Sequence[int]], Awaitable[Mapping[int, int]]] | None = None
        # Whether a task, by its scope and its first event, is the delivery of a gateway's task to
        # an agent of this server; None: there is no gateway here.
        self.is_delivery: Callable[[TaskScope, Task], bool] | None = None
        self.push: PushService | None = None
        self._isolation: Isolation | None = None
        self.is_running = False
        # Why the store takes nothing more.
        self.fault: StoreBroken | None = None
        # Ends the process as a signal does; None: it is not ours to end.
        self.end_process: Callable[[], None] | None = None

    @property
    def authenticators(self) -> Sequence[Authenticator]:
        """The ways in which callers prove who they are."""
        return self.gatekeeper.authenticators if self.gatekeeper is not None else ()

    async def open_files(self, opened: contextlib.AsyncExitStack) -> None:
        """Open what the settings name: the store, the audit log, the keys of callers."""
        await self.store.open()
        opened.push_async_callback(self.store.close)
        if self.rates is not None:
            opened.push_async_callback(self.rates.close)
        # In a thread: it waits for the disk.
        opened.push_async_callback(asyncio.to_thread, self.audit.stop)
        self.settings.make_own_folder()
        self.audit.start()
        if self.gatekeeper is not None:
            opened.push_async_callback(self.gatekeeper.stop)
            await self.gatekeeper.start()

    async def open(self, opened: contextlib.AsyncExitStack) -> None:
        """Open everything: files first, then all parts."""
        opened.callback(self._clear)
        await self.open_files(opened)
        # Of this loop, as the engines are.
        self._isolation = Isolation(self.settings.engine.suspect_seconds)
        for part in self.parts:
            await part.open(self, opened)
        for part in self.parts:
            await part.start(self, opened)

    def _clear(self) -> None:
        for running in (self.mounts, self.unlisted, self.codes, self.engines):
            running.clear()

    def engine(self, code: AgentCode, opened: contextlib.AsyncExitStack) -> Engine:
        """Return the engine of some code, which is swept and stopped with the others."""
        engine = Engine(
            code,
            self.store,
            self.settings,
            postings=self.push,
            isolation=self._isolation,
            shares=self.shares,
            is_local=self.is_local,
            hooks=[code.hooks, *self.hooks] if isinstance(code, Agent) else self.hooks,
        )
        opened.push_async_callback(engine.stop)
        self.engines[code.name] = engine
        return engine

    def service_of(self, agent: str) -> Service | None:
        """Return what answers calls for an agent, whether or not it has a path."""
        mount = self.mounts.get(agent)
        return mount.service if mount is not None else self.unlisted.get(agent)

    def agents_for(self, caller: Caller) -> list[AgentMount]:
        """Return the agents that a caller may call, each name once: of two parts with an agent of
        one name, the later one has it."""
        found: dict[str, AgentMount] = {}
        for part in reversed(self.parts):
            for mount in part.agents_for(caller):
                found.setdefault(mount.name, mount)
        return list(found.values())

    def agent_for(self, caller: Caller, name: str) -> AgentMount | None:
        """Return the one of that name; None: there is none for this caller."""
        found = (part.agent_for(caller, name) for part in reversed(self.parts))
        return next((mount for mount in found if mount is not None), None)

    @property
    def health(self) -> str:
        """Whether to send requests here: ok, stopping or broken."""
        if self.fault is not None:
            return "broken"
        return "ok" if self.is_running and not self.streams.is_stopping else "stopping"

    async def is_ready(self) -> bool:
        """Tell whether to send requests here, as `/readyz` does."""
        if self.health != "ok":
            return False
        return not any(one.is_serious for one in await self.store.troubles())

    def status(self) -> dict[str, Any]:
        """Return what operators see of the app."""
        found: dict[str, Any] = {
            "version": figures.release(),
            "state": self.health,
            "agents": [agent.name for agent in self.agents],
            "authentication": [way.name for way in self.authenticators],
            "runningTasks": sum(engine.live_tasks for engine in self.engines.values()),
            "openStreams": len(self.streams),
            "worker": self.store.worker,
            "isAlone": self.store.knows_all,
            "auditLinesLost": self.audit.lost,
        }
        for part in self.parts:
            found |= part.status()
        return found


def _store(settings: Settings) -> Store:
    is_durable = settings.stores.location == "memory:" or settings.stores.synchronous == "full"
    if not is_durable and not settings.stores.accept_data_loss:
        reason = (
            "loses acknowledged tasks when the power fails; say --i-accept-data-loss if that is "
            "what you want"
        )
        raise refusal("synchronous", settings.stores.synchronous, reason)
    return store_of(settings, vault_of)


def _shared_rates(limits: SharedLimits | None, service: str) -> "SharedRates | None":
    if limits is None:
        return None
    from dragoman.http.sharing.shared_rates import SharedRates

    return SharedRates(limits, service)
