"""The router: which registered agents may do a task, by what is known of each at this moment.

It joins the registry, trust and the state of the connections to candidates; `routing.routing` makes
the choice, which is pure. Deliveries find agents, and report their health, by it.
"""

import math
from collections.abc import Sequence

import msgspec

from dragoman.config import Settings
from dragoman.errors import A2AError, AgentOffline, NoAgentAvailable
from dragoman.gateway.delivery.upstreams import Upstreams
from dragoman.gateway.money.ledger import Ledger
from dragoman.gateway.registry.registered import Registered, serves, spread
from dragoman.gateway.registry.registry import Registry
from dragoman.gateway.registry.search import LONGEST_TEXT, Search
from dragoman.gateway.routing import routing, routing_options
from dragoman.gateway.routing.canaries import Canaries
from dragoman.gateway.routing.routing import Candidate, Choice, RoutingRequest
from dragoman.gateway.routing.routing_options import RoutingOptions
from dragoman.gateway.routing.shortlist import Shortlist, described
from dragoman.gateway.trust.trust import Trust
from dragoman.model.identity import Caller, Principal
from dragoman.model.message import Json
from dragoman.model.money import credits_text
from dragoman.model.operations import SendMessage
from dragoman.stores.interface.orders import OrderRow

_PAUSED = "The agent is paused: it takes no tasks until its owner has it go on"
# Seconds after which a caller may ask again; only its owner knows better.
_PAUSED_FOR = 60


def _takes(agent: Registered, requester: Principal) -> bool:
    """Tell whether an agent may get a requester's task without being named."""
    return not agent.is_paused and serves(agent, requester)


class ChosenAgent(msgspec.Struct, frozen=True):
    """The agents that may do a task, best first, and the reason."""

    agents: Sequence[Registered]
    why: str = ""
    # The skill of the request, or the one that fits the text.
    skill: str = ""


class Router:
    """Chooses agents for tasks."""

    def __init__(
        self,
        registry: Registry,
        trust: Trust,
        ledger: Ledger,
        upstreams: Upstreams,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._trust = trust
        self._ledger = ledger
        self._upstreams = upstreams
        self._settings = settings
        self._memory = routing.RoutingMemory()
        self.shortlist = Shortlist()
        # New versions of agents that do some of their tasks.
        self.canaries = Canaries()
        # What the addresses of agents of this process begin with; empty: there are none.
        self.own_base = ""
        self.get = registry.get
        self.saw = registry.health.saw
        self.missed = registry.health.missed
        self.doubted = registry.health.doubted
        self.ended = trust.ended
        registry.listen(self.shortlist.note)

    def open(self) -> None:
        """Begin with the agents that are registered."""
        self.shortlist.fill(self._registry.all())

    def is_own(self, url: str) -> bool:
        """Tell whether an agent of this process is at an address."""
        return bool(self.own_base) and url.startswith(self.own_base)

    async def order(self, number: int) -> OrderRow | None:
        """Return the order of a task, by the task's number."""
        return await self._ledger.store.order(number)

    def choose(
        self, operation: SendMessage, wanted: RoutingOptions, requester: Principal
    ) -> ChosenAgent:
        """Return the agents for a requester's task, best first, and why; raises `NoAgentAvailable`,
        `AgentOffline`, `TrustTooLow` or `InsufficientCredits`."""
        if wanted.agent:
            return self._named_agent(wanted, requester)
        request = self._request(operation, wanted)
        agents = self._shortlisted(operation, wanted, requester)
        choice = self._choice(request, agents, requester)
        found = [agent for id in choice.order if (agent := self.get(id)) is not None]
        if wanted.quorum > 1:
            found = spread(found, requester)
        if found and all(self._upstreams.of(agent).is_open(requester) for agent in found):
            wait = min(self._upstreams.of(agent).retry_in(requester) for agent in found)
            raise AgentOffline(retryAfter=max(1, math.ceil(wait)))
        return ChosenAgent(found, choice.why, choice.skill)

    def _named_agent(self, wanted: RoutingOptions, requester: Principal) -> ChosenAgent:
        """Return the agent that a request names, as most do: no other is looked at."""
        agent = self.get(wanted.agent)
        if agent is None or not serves(agent, requester):
            raise NoAgentAvailable(f"No agent available: {wanted.agent} is not registered")
        if agent.is_paused:
            raise AgentOffline(_PAUSED, retryAfter=_PAUSED_FOR)
        wait = self._upstreams.of(agent).retry_in(requester)
        candidate = Candidate(
            agent.id,
            agent.name,
            status=agent.status,
            trust=self._trust.score(agent.id),
            price=agent.price,
            figures=self._trust.performance.figures(agent.id, wanted.skill),
            is_open=wait > 0,
        )
        request = RoutingRequest(
            agent=wanted.agent,
            skill=wanted.skill,
            min_trust=wanted.min_trust,
            max_price=wanted.max_price,
        )
        choice = routing.choose_named(request, candidate)
        if wait > 0:
            raise AgentOffline(retryAfter=max(1, math.ceil(wait)))
        return ChosenAgent([agent], choice.why, choice.skill)

    def _request(self, operation: SendMessage, options: RoutingOptions) -> RoutingRequest:
        return RoutingRequest(
            skill=options.skill,
            text=operation.message.text,
            min_trust=options.min_trust,
            max_price=options.max_price,
            policy=options.policy or self._settings.gateway.routing,
        )

    def _choice(
        self, request: RoutingRequest, agents: Sequence[Registered], requester: Principal
    ) -> Choice:
        candidates = [self._candidate(agent, request.skill, requester) for agent in agents]
        try:
            return routing.choose(request, candidates, memory=self._memory)
        except NoAgentAvailable:
            if request.skill:
                raise
            # Only now: this looks at all agents.
            everyone = (one for one in self._registry.all() if _takes(one, requester))
            candidates = routing.only(self._candidate(one, "", requester) for one in everyone)
            return routing.choose(request, candidates, memory=self._memory)

    def canary(self, agent_id: str, skill: str, task_id: str, requester: Principal) -> str:
        """Return the id of the new version that does a task in an agent's place; empty: none does,
        or it cannot be called. Only tasks that are safe to repeat are given to one."""
        if not self.canaries.has(agent_id):
            return ""
        candidate = self.get(self.canaries.candidate(agent_id, task_id))
        agent = self.get(agent_id)
        if candidate is None or agent is None or not agent.is_repeatable(skill):
            return ""
        is_open = self._upstreams.of(candidate).is_open(requester)
        return "" if is_open or candidate.status == "offline" else candidate.id

    def others(
        self, operation: SendMessage, tried: Sequence[str], most: int, requester: Principal
    ) -> list[str]:
        """Return the ids of further agents for a task that cost at most so much, best first."""
        options = routing_options.read(operation)
        if options.agent:
            return []
        agents = [
            agent
            for agent in self._shortlisted(operation, options, requester)
            if agent.id not in tried and agent.price <= most and agent.is_repeatable(options.skill)
        ]
        if not agents:
            return []
        request = self._request(operation, options)
        candidates = [self._candidate(agent, options.skill, requester) for agent in agents]
        try:
            return routing.choose(request, candidates, memory=self._memory).order
        except A2AError:
            # None fits: the caller is told of the failure that came first.
            return []

    def find(self, text: str, caller: Caller) -> list[Json]:
        """Return agents by what they can do, as a caller may see them."""
        search = Search(text=text[:LONGEST_TEXT], viewer=caller.principal)
        return [
            {
                "id": agent.id,
                "name": agent.name,
                "description": agent.description,
                "skills": [skill.id for skill in agent.skills],
                "trustScore": self._trust.score(agent.id),
                "price": credits_text(agent.price),
                "status": agent.status,
            }
            for agent in self._registry.search(search, self._trust.score).agents
        ]

    def retry_in(self, agent: Registered, requester: Principal) -> float:
        """Return the seconds until an agent that is not called at present may be again."""
        upstream = self._upstreams.find(agent.id)
        wait = 0.0 if upstream is None else upstream.retry_in(requester)
        if agent.status != "offline":
            return wait
        return max(wait, self._registry.health.retry_in(agent))

    def _shortlisted(
        self, operation: SendMessage, options: RoutingOptions, requester: Principal
    ) -> list[Registered]:
        if options.skill:
            ids = self.shortlist.with_skill(options.skill)
        else:
            ids = self.shortlist.for_text(operation.message.text, self._trust.score)
        found: list[Registered] = []
        for id in ids:
            agent = self.get(id)
            if agent is None:
                # Removals are not told to listeners, here or in another process.
                self.shortlist.drop(id)
            elif _takes(agent, requester):
                found.append(agent)
        return found

    def _candidate(self, agent: Registered, skill: str, requester: Principal) -> Candidate:
        upstream = self._upstreams.find(agent.id)
        is_open = upstream is not None and upstream.is_open(requester)
        is_away = is_open or agent.status == "offline"
        return Candidate(
            id=agent.id,
            name=agent.name,
            description=described(agent),
            skills=agent.skills,
            tags=agent.tags,
            status=agent.status,
            trust=self._trust.score(agent.id),
            price=agent.price,
            figures=self._trust.performance.figures(agent.id, skill),
            in_flight=0 if upstream is None else upstream.bulkhead.running,
            is_default=agent.is_default,
            is_open=is_open,
            retry_in=self.retry_in(agent, requester) if is_away else 0.0,
        )
