"""The gateway: its parts, joined. Each part is given those below it, and none knows the gateway.

Tasks arrive at the service, whose code is `delivery.forwarding`; it asks the router for agents,
which knows the registry, trust and the connections to agents.
"""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine
from typing import Any

from dragoman.client.credentials.credentials import Credential
from dragoman.config import Settings
from dragoman.egress.egress import Egress
from dragoman.engine.store_clock import StoreClock
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.forwarding import Forwarding
from dragoman.gateway.delivery.push_inbox import PushInbox
from dragoman.gateway.delivery.upstreams import Upstreams
from dragoman.gateway.joined_agents import JoinedAgents
from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.money.order_rules import TaskOrderRules
from dragoman.gateway.money.payments import FakeProvider
from dragoman.gateway.registry.agent_keys import AgentKeyring
from dragoman.gateway.registry.registry import Registry
from dragoman.gateway.repeating import Repeating
from dragoman.gateway.rollouts.rollouts import Rollouts
from dragoman.gateway.router import Router
from dragoman.gateway.triggers.triggers import Triggers
from dragoman.gateway.trust.scores import TrustRules
from dragoman.gateway.trust.trust import Trust
from dragoman.gateway.workflows.workflows import Workflows
from dragoman.model.identity import Caller
from dragoman.security.audit.log import Audit
from dragoman.service import Service
from dragoman.stores.interface.gateway import GatewayStore

logger = logging.getLogger("dragoman")

# Agents may listen on any port.
_PORTS = range(1, 65_536)
_PER_HOST = 4_000
# Seconds between two sweeps of the ledger.
_SWEEP_EVERY = 30.0
# Seconds within which agents are told of cancellations when the gateway stops.
_CANCEL_WITHIN = 2.0


class Gateway:
    """Registers agents and has them do tasks."""

    # What deliveries share; there once the gateway is open.
    delivery: DeliveryContext
    # Set by the app, which makes the engine and knows how callers are authenticated.
    service: Service
    workflows: Workflows
    triggers: Triggers
    rollouts: Rollouts
    keys: AgentKeyring

    def __init__(
        self,
        store: GatewayStore,
        rules: TaskOrderRules,
        settings: Settings,
        audit: Audit,
        *,
        is_local: bool,
    ) -> None:
        """`is_local`: only this machine reaches the gateway, so its own agents may be
        registered."""
        self.id = ""
        self.store = store
        self.settings = settings
        # That of all replicas: what one records another judges.
        self.clock = clock = StoreClock(store)
        self.audit = audit
        self._is_local = is_local
        self.joined = JoinedAgents(store, settings.gateway.heartbeat_interval)
        self._http = Egress(
            allow=settings.egress.allow,
            allow_private=settings.egress.allow_private or (is_local and not settings.ways()),
            ports=_PORTS,
            keep_alive=True,
            per_host=_PER_HOST,
            tunnels=self.joined,
        )
        self.registry = Registry(
            store,
            self._http,
            audit=audit,
            clock=clock,
            is_local=is_local,
            heartbeat_interval=settings.gateway.heartbeat_interval,
            most_per_owner=settings.gateway.max_agents_per_owner,
            watches=not settings.stores.read_only,
        )
        self.joined.registry = self.registry
        trust_rules = TrustRules(
            policy=settings.gateway.trust_policy, cap=settings.gateway.trust_cap
        )
        self.trust = Trust(store.accounting, self.registry, rules=trust_rules, now=clock.seconds)
        self.registry.health.listen_strays(self._note_stray)
        secret = settings.gateway.payment_secret.encode()
        self.ledger = Ledger(
            store.accounting,
            rules,
            store,
            provider=FakeProvider(secret) if secret else None,
            issuer=settings.cards.public_url or "dragoman",
            now=clock.seconds,
        )
        # What agents of this process are shown, by their ids.
        self._own_credentials: dict[str, Credential | None] = {}
        self.upstreams = Upstreams(
            self._http,
            self._credential,
            settings,
            self.registry.share_circuit,
            self.joined.is_absent,
        )
        self.registry.listen_circuits(self.upstreams.adopt)
        self.router = Router(self.registry, self.trust, self.ledger, self.upstreams, settings)
        self.push_inbox = PushInbox(self.store)
        self.push_inbox.base = settings.cards.public_url.rstrip("/")
        self._background: set[asyncio.Task[None]] = set()
        self._sweeping = Repeating(
            "the ledger could not be swept", self._sweep, lambda: asyncio.sleep(_SWEEP_EVERY)
        )

    async def open(self) -> Forwarding:
        """Load what is stored and start the parts; return the code that forwards tasks."""
        await self.store.prepare()
        self.id = hashlib.sha256(b"gateway" + self.store.secret).hexdigest()[:16]
        await self.registry.open()
        self.router.open()
        await self.trust.open(is_read_only=self.settings.stores.read_only)
        self.push_inbox.open(self.store.secret)
        self.delivery = context = DeliveryContext(
            self.id,
            self.store,
            self.settings,
            self.upstreams,
            self.router,
            self.push_inbox,
            self._spawn,
        )
        if not self.settings.stores.read_only:
            self._sweeping.start()
        return Forwarding(context, self.clock)

    async def close(self) -> None:
        """Stop the parts and close connections, also after an `open` that failed."""
        await self._sweeping.stop()
        if self._background:
            await asyncio.wait(self._background, timeout=_CANCEL_WITHIN)
        for task in self._background:
            task.cancel()
        await self.trust.close()
        await self.joined.close()
        await self.registry.close()
        await self._http.close()

    def serve_agents_at(self, url: str) -> None:
        """Have agents of this process at an address of our own, which may be private."""
        self._http.allow(url.partition("://")[2])
        self.router.own_base = f"{url}/agents/"

    def serve_own(self, id: str, url: str, credential: Credential | None) -> None:
        """Have an agent of this process called and probed here: other processes may serve it too,
        and the last of them is where it is registered."""
        self._own_credentials[id] = credential
        self.upstreams.serve_own(id, url)
        self.registry.serve_own(id, url)

    async def _credential(self, id: str) -> Credential | None:
        if id in self._own_credentials:
            return self._own_credentials[id]
        return await self.registry.credential(id)

    def may_know(self, caller: Caller) -> bool:
        """Tell whether a caller may learn what answers at the addresses that we call."""
        return caller.operates(is_local=self._is_local)

    def status(self) -> dict[str, Any]:
        """Return figures for operators."""
        agents = self.registry.all()
        return {
            "agents": len(agents),
            "online": sum(agent.status == "online" for agent in agents),
            "tunnels": len(self.joined),
        }

    def _note_stray(self, agent_id: str, origin: str) -> None:
        self._spawn(self.trust.violation(agent_id, f"its card leads to {origin}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _sweep(self) -> None:
        """Pay for what was delivered and not disputed in time, settle what another process left
        unsettled, and drop the connections to agents that are gone."""
        self.upstreams.keep({agent.id for agent in self.registry.all()})
        await self.ledger.sweep()
