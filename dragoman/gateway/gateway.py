"""The gateway: its parts put together, and what each needs of the others."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Coroutine, Sequence
from typing import Any

from dragoman.config import Settings
from dragoman.errors import A2AError, AgentOffline, ConfigError, NoAgentAvailable, StoreRefused
from dragoman.gateway import routing, wishes
from dragoman.gateway.agent_keys import AgentKeyring
from dragoman.gateway.agents import Registered, serves, spread
from dragoman.gateway.forwarding import Chosen, Forwarding
from dragoman.gateway.hooks import Hooks
from dragoman.gateway.ledger import ErrandRow, Ledger
from dragoman.gateway.means import Means
from dragoman.gateway.payments import FakeProvider
from dragoman.gateway.registry import Registry
from dragoman.gateway.routing import Candidate, Choice, Wish
from dragoman.gateway.search import LONGEST_TEXT, Search
from dragoman.gateway.shortlist import Shortlist, described
from dragoman.gateway.trust import Rules, Trust
from dragoman.gateway.upstreams import Upstreams
from dragoman.gateway.wishes import Wishes
from dragoman.gateway.workflows import Workflows
from dragoman.model.identity import Caller, Principal
from dragoman.model.message import Json
from dragoman.model.money import Terms, credits_text
from dragoman.model.operations import SendMessage
from dragoman.security.audit import Audit
from dragoman.security.egress import Egress
from dragoman.security.vault import vault_of
from dragoman.service import Service
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.books import Books

logger = logging.getLogger("dragoman")

# Any of them: an agent is where its owner says.
_PORTS = range(1, 65_536)
_PER_HOST = 4_000
# Seconds between two looks for what nobody settled.
_SWEEP_EVERY = 30.0
# Seconds that agents have to be told of a cancel when the gateway stops.
_LAST_WORDS = 2.0


def books_of(settings: Settings) -> Books:
    """Return the books as the settings have them kept."""
    try:
        terms = Terms.read(settings.platform_fee, settings.initial_credits, settings.escrow)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Books(terms)


def store_of(settings: Settings, books: Books) -> SQLiteStore:
    """Return the store of a gateway: tasks and books in one file."""
    if settings.store == "memory:":
        raise ConfigError("store: a gateway keeps agents and a ledger; name a file for them")
    return SQLiteStore(
        settings.store_path(),
        lease=settings.lease,
        synchronous=settings.synchronous,
        sealing=vault_of(settings),
        books=books,
        makes_folder=settings.has_own_folder,
        is_new=settings.new_store,
    )


class Gateway:
    """Registers agents and has them do tasks."""

    def __init__(
        self,
        store: SQLiteStore,
        books: Books,
        settings: Settings,
        audit: Audit,
        *,
        is_local: bool,
    ) -> None:
        """`is_local`: only this machine reaches us, so its own agents may be registered."""
        self.store = store
        self.settings = settings
        self.audit = audit
        self._is_local = is_local
        self._http = Egress(
            allow=[entry for entry in settings.allow.split(",") if entry.strip()],
            allow_private=settings.allow_private or (is_local and not settings.ways()),
            ports=_PORTS,
            keep_alive=True,
            per_host=_PER_HOST,
        )
        self.registry = Registry(
            store,
            self._http,
            trust=self._score,
            audit=audit,
            strayed=self._strayed,
            is_local=is_local,
            heartbeat_interval=settings.heartbeat_interval,
            most_per_owner=settings.max_agents_per_owner,
        )
        self.trust = Trust(
            store, self.registry, rules=Rules(policy=settings.trust_policy, cap=settings.trust_cap)
        )
        secret = settings.payment_secret.encode()
        self.ledger = Ledger(
            store,
            books,
            provider=FakeProvider(secret) if secret else None,
            issuer=settings.public_url or "dragoman",
        )
        self.upstreams = Upstreams(self._http, self.registry.credential, settings)
        self._turns = routing.Memory()
        self.shortlist = Shortlist()
        self.registry.listen(self.shortlist.note)
        self.hooks = Hooks()
        self.hooks.base = settings.public_url.rstrip("/")
        self._beside: set[asyncio.Task[None]] = set()
        self.service: Service
        self.workflows: Workflows
        self.keys: AgentKeyring
        self.id = ""
        # Where agents of this process are; empty: there are none.
        self.own = ""

    def may_know(self, caller: Caller) -> bool:
        """Say whether a caller may learn what is at the addresses that we dial."""
        return caller.operates(is_local=self._is_local)

    def allow(self, url: str) -> None:
        """Let agents be at an address of our own, which may be private."""
        self._http.allow(url.partition("://")[2])

    def _score(self, agent_id: str) -> int:
        return self.trust.score(agent_id)

    def _strayed(self, agent_id: str, origin: str) -> None:
        self._soon(self.trust.violation(agent_id, f"its card leads to {origin}"))

    # Life

    async def open(self) -> Forwarding:
        """Load what there is; return the code that forwards."""
        await self.store.prepare()
        self.id = hashlib.sha256(b"gateway" + self.store.secret).hexdigest()[:16]
        await self.registry.open()
        self.shortlist.fill(self.registry.all())
        await self.trust.open()
        self.hooks.open(self.store.secret)
        means = Means(
            self.id, self.store, self.settings, self.upstreams, self, self.hooks, self._soon
        )
        self._sweeping = asyncio.get_running_loop().create_task(self._keep_books())
        return Forwarding(means, self)

    async def close(self) -> None:
        """Let go of everything."""
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._beside:
            await asyncio.wait(self._beside, timeout=_LAST_WORDS)
        for task in self._beside:
            task.cancel()
        await self.trust.close()
        await self.registry.close()
        await self._http.close()

    def _soon(self, deed: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(deed)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def errand(self, number: int) -> ErrandRow | None:
        """Return the errand of a task, by its number."""
        return await self.ledger.errand(number)

    # Who does what

    def get(self, ref: str) -> Registered | None:
        """Return an agent by its id or its name."""
        return self.registry.get(ref)

    def is_own(self, url: str) -> bool:
        """Tell whether an agent of this process is there."""
        return bool(self.own) and url.startswith(self.own)

    def saw(self, agent_id: str) -> None:
        """Note that an agent answered."""
        self.registry.saw(agent_id)

    def missed(self, agent_id: str) -> None:
        """Note that nobody accepted a connection where an agent is."""
        self.registry.missed(agent_id)

    def doubted(self, agent_id: str) -> None:
        """Note that an agent did not answer a message: it is looked at soon."""
        self.registry.doubted(agent_id)

    def choose(self, operation: SendMessage, wanted: Wishes, requester: Principal) -> Chosen:
        """Return who does a task for somebody, best first, and why."""
        wish = Wish(
            agent=wanted.agent,
            skill=wanted.skill,
            # Who is named needs no other reason.
            text="" if wanted.agent else operation.message.text,
            min_trust=wanted.min_trust,
            max_price=wanted.max_price,
            policy=wanted.policy or self.settings.routing,
            count=wanted.race,
        )
        named = self.registry.get(wanted.agent) if wanted.agent else None
        agents: Sequence[Registered] = []
        if not wanted.agent:
            agents = self._able(operation, wanted, requester)
        elif named is not None and serves(named, requester):
            agents = [named]
        choice = self._choice(wish, agents, requester)
        found = [agent for name in choice.order if (agent := self.registry.get(name)) is not None]
        if wanted.quorum > 1:
            found = spread(found, requester)
        if found and all(self.upstreams.of(agent).is_open(requester) for agent in found):
            wait = min(self.upstreams.of(agent).retry_in(requester) for agent in found)
            raise AgentOffline(retryAfter=max(1, math.ceil(wait)))
        return Chosen(found, choice.why, choice.skill)

    def _choice(self, wish: Wish, agents: Sequence[Registered], requester: Principal) -> Choice:
        candidates = [self._candidate(agent, wish.skill, requester) for agent in agents]
        try:
            return routing.choose(wish, candidates, memory=self._turns)
        except NoAgentAvailable:
            if wish.agent or wish.skill:
                raise
            # Only now: all agents are looked at.
            everyone = (one for one in self.registry.all() if serves(one, requester))
            candidates = routing.only(self._candidate(one, "", requester) for one in everyone)
            return routing.choose(wish, candidates, memory=self._turns)

    def find(self, text: str, caller: Caller) -> list[Json]:
        """Return agents by what they can do, as a caller may see them."""
        found = self.registry.search(Search(text=text[:LONGEST_TEXT], viewer=caller.principal))
        return [
            {
                "id": agent.id,
                "name": agent.name,
                "description": agent.description,
                "skills": [skill.id for skill in agent.skills],
                "trustScore": self.trust.score(agent.id),
                "price": credits_text(agent.price),
                "status": agent.status,
            }
            for agent in found.agents
        ]

    def ended(self) -> None:
        """Note that a task ended, or is about to."""
        self.trust.ended()

    async def _keep_books(self) -> None:
        """Pay for what was delivered and not disputed in time, and settle what should have been
        settled: there is nothing unless somebody else wrote. And let go of what was kept for
        agents that are gone."""
        while True:
            self.upstreams.keep({agent.id for agent in self.registry.all()})
            try:
                await self.ledger.sweep()
            except StoreRefused:
                logger.warning("the ledger could not be looked through; trying again")
            except Exception:
                # Whoever waits for a payment would wait for as long as this process lives.
                logger.exception("the ledger could not be looked through; trying again")
            await asyncio.sleep(_SWEEP_EVERY)

    def others(
        self, operation: SendMessage, tried: Sequence[str], most: int, requester: Principal
    ) -> list[str]:
        """Return who else could do a task that costs at most so much, best first."""
        wanted = wishes.read(operation)
        if wanted.agent:
            return []
        agents = [
            agent
            for agent in self._able(operation, wanted, requester)
            if agent.id not in tried and agent.price <= most and agent.repeatable
        ]
        wish = Wish(
            skill=wanted.skill,
            text=operation.message.text,
            min_trust=wanted.min_trust,
            max_price=wanted.max_price,
            policy=wanted.policy or self.settings.routing,
        )
        if not agents:
            return []
        candidates = [self._candidate(agent, wanted.skill, requester) for agent in agents]
        try:
            return routing.choose(wish, candidates, memory=self._turns).order
        except A2AError:
            # Nobody who is wanted: the failure that was met first is the one to tell of.
            return []

    def _able(
        self, operation: SendMessage, wanted: Wishes, requester: Principal
    ) -> list[Registered]:
        if wanted.skill:
            ids = self.shortlist.with_skill(wanted.skill)
        else:
            ids = self.shortlist.for_text(operation.message.text, self.trust.score)
        found: list[Registered] = []
        for id in ids:
            agent = self.registry.get(id)
            if agent is None:
                # Nobody says so when an agent is removed, here or in another process.
                self.shortlist.drop(id)
            elif serves(agent, requester):
                found.append(agent)
        return found

    def retry_in(self, agent: Registered, requester: Principal) -> float:
        """Return the seconds until an agent that is not called at present may be again."""
        upstream = self.upstreams.known(agent.id)
        wait = 0.0 if upstream is None else upstream.retry_in(requester)
        return max(wait, self.registry.retry_in(agent)) if agent.status == "offline" else wait

    def _candidate(self, agent: Registered, skill: str, requester: Principal) -> Candidate:
        upstream = self.upstreams.known(agent.id)
        is_open = upstream is not None and upstream.is_open(requester)
        is_away = is_open or agent.status == "offline"
        return Candidate(
            id=agent.id,
            name=agent.name,
            description=described(agent),
            skills=agent.skills,
            tags=agent.tags,
            status=agent.status,
            trust=self.trust.score(agent.id),
            price=agent.price,
            figures=self.trust.performance.figures(agent.id, skill),
            in_flight=0 if upstream is None else upstream.places.running,
            is_default=agent.is_default,
            is_open=is_open,
            retry_in=self.retry_in(agent, requester) if is_away else 0.0,
        )

    def status(self) -> dict[str, Any]:
        """Return how the gateway is, for operators."""
        agents = self.registry.all()
        return {
            "agents": len(agents),
            "online": sum(agent.status == "online" for agent in agents),
        }
