"""The registry: the agents that a gateway knows, and what their owners do with them.

Owners change their agents, and operators change all. The agents are in `agent_cache`, their health
in `health`, and how a card is judged in `card_pinning` and `card_review`; none of these knows the
registry.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.client.cards.interfaces import address_of
from dragoman.client.credentials.credentials import Credential
from dragoman.dialects import card_check
from dragoman.egress.egress import Egress
from dragoman.errors import (
    A2AError,
    InvalidParams,
    NoAgentAvailable,
    PermissionDenied,
    RateLimited,
    TimedOut,
    Unreachable,
)
from dragoman.gateway.registry import card_pinning
from dragoman.gateway.registry.agent_cache import UNKNOWN, AgentCache
from dragoman.gateway.registry.card_source import CardSource, is_card, no_card
from dragoman.gateway.registry.health import AgentHealth
from dragoman.gateway.registry.probes import Probes
from dragoman.gateway.registry.registered import Registered, Status, TunnelEnd
from dragoman.gateway.registry.registration import (
    AgentChanges,
    Registration,
    check_metadata,
    destinations,
    slug,
)
from dragoman.gateway.registry.search import Search, SearchPage, may_see
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.identity import LOCAL, Principal, new_id
from dragoman.security.audit.log import DENIED, Audit, NoAudit
from dragoman.stores.interface.agents import CircuitRow
from dragoman.stores.interface.gateway import GatewayStore

logger = logging.getLogger("dragoman")

# The score of an agent of which nothing was observed.
NEUTRAL = 50
# Cards whose findings are remembered, and findings of one card that are told.
_MOST_FINDINGS = 10_000
_FINDINGS_TOLD = 20


def _neutral(id: str) -> int:
    return NEUTRAL


class Registry:
    """The agents of a gateway."""

    def __init__(
        self,
        store: GatewayStore,
        http: Egress,
        *,
        audit: Audit | None = None,
        clock: Clock | None = None,
        heartbeat_interval: float = 60.0,
        watches: bool = True,
        most_per_owner: int = 10_000_000,
        noise: Callable[[], float] = random.random,
        is_local: bool = False,
    ) -> None:
        """`http` decides which addresses are called. Without `watches` an agent is checked only on
        request. `is_local`: only this machine reaches the gateway."""
        self._audit = audit or NoAudit()
        self._clock = clock or SystemClock()
        self._source = CardSource(http)
        self._probes = Probes(http)
        self._agents = AgentCache(store, self._clock, self._audit)
        # Returns an agent by its id or its name.
        self.get: Callable[[str], Registered | None] = self._agents.get
        self.health = AgentHealth(
            self._agents,
            self._source,
            self._probes,
            self._clock,
            interval=heartbeat_interval,
            noise=noise,
        )
        # What is wrong with cards, by their digests.
        self._findings: dict[str, list[str]] = {}
        self._watches = watches
        self._is_local = is_local
        self._most_per_owner = most_per_owner

    async def open(self) -> None:
        """Load all agents and begin to check them."""
        await self._agents.open()
        if self._watches:
            self.health.start()

    async def close(self) -> None:
        """Stop checking agents, and write what was observed last."""
        await self.health.stop()
        await self._agents.close()

    # Reading

    def all(self) -> Sequence[Registered]:
        """Return all agents, by name."""
        return self._agents.all()

    def search(self, asked: Search, score: Callable[[str], int] = _neutral) -> SearchPage:
        """Return the agents that fit, those with the highest score first."""
        return self._agents.index.search(asked, score)

    def card_findings(self, agent: Registered) -> list[str]:
        """Return what is wrong with the card of an agent by the letter of its version, the first
        few; none for one without a card."""
        if agent.card is None:
            return []
        found = self._findings.get(agent.card_digest)
        if found is None:
            if len(self._findings) >= _MOST_FINDINGS:
                self._findings.clear()
            found = [str(one) for one in card_check.findings(agent.card)[:_FINDINGS_TOLD]]
            self._findings[agent.card_digest] = found
        return found

    def visible(self, ref: str, viewer: Principal | None) -> Registered:
        """Return an agent that a viewer may know of (None: any viewer); raises `NoAgentAvailable`,
        the same for one that does not exist."""
        agent = self.get(ref)
        if agent is None or not may_see(agent, viewer):
            raise NoAgentAvailable(UNKNOWN)
        return agent

    def listen(self, changed: Callable[[Registered], None]) -> None:
        """Have a function called with every agent that changes."""
        self._agents.listen(changed)

    def listen_circuits(self, changed: Callable[[Registered, CircuitRow], None]) -> None:
        """Have a function called with every circuit that another process opens or closes."""
        self._agents.listen_circuits(changed)

    def share_circuit(self, row: CircuitRow) -> None:
        """Tell other processes of a circuit that opened or closed here."""
        self._agents.share_circuit(row)

    def serve_own(self, id: str, url: str) -> None:
        """Have an agent of this process probed at its address here, whichever process registered
        it."""
        self._probes.own[id] = url

    # Registering

    async def register(
        self,
        said: Registration,
        owner: Principal = LOCAL,
        *,
        name: str = "",
        dry_run: bool = False,
    ) -> Registered:
        """Add an agent; return it. Raises `InvalidParams` for what is wrong with it. `name` is the
        one in addresses, if it is not made of the title; a name that is taken gets a number.

        Without a card an agent that has a name gets one made of what its owner said. So does an
        agent that is not there yet, if `may_be_away` says so.
        """
        said = said.checked()
        # The local user has the whole machine: no cap.
        if owner != LOCAL and self._count(owner) >= self._most_per_owner:
            raise RateLimited(f"{self._most_per_owner} agents are registered; remove one first")
        now = self._clock.now()
        agent = Registered(id=new_id(), name="", owner=owner, title="", url=said.url)
        agent = replace(agent, created_at=now, updated_at=now)
        if said.card is not None and not said.url:
            agent = replace(agent, url=card_pinning.address_of(said.card))
        agent = card_pinning.registered(agent, said)
        self._check_addresses(agent)
        absence = ""
        if said.card is not None:
            # Its first check finds out whether it is there.
            agent = card_pinning.pinned(agent, said.card, "")
        else:
            agent, absence = await self._with_card(
                agent,
                is_needed=not said.name and said.known_card is None,
                may_be_away=said.may_be_away,
                known_card=said.known_card,
            )
            agent = self.health.first_seen(agent, absence)
        card_pinning.check_repeatable_skills(agent)
        if dry_run:
            self.health.forget(agent.id)
            return replace(agent, name=name or slug(agent.title))
        new = agent.id
        agent = await self._agents.add(agent, name or slug(agent.title), said.credential)
        if agent.id != new:
            self.health.forget(new)
        self.health.set_absence(agent.id, absence)
        self.health.schedule(agent.id)
        return agent

    async def update(
        self, ref: str, said: AgentChanges, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Change an agent; return it."""
        agent = self.owned(ref, owner, operator)
        said = said.checked()
        after = card_pinning.changed(agent, said)
        if said.repeatable_skills is not UNSET:
            card_pinning.check_repeatable_skills(after)
        self._check_addresses(after)
        if agent.credential and said.credential is UNSET and _is_elsewhere(agent, after):
            # The caller that changes an agent need not be the one that gave the credential.
            raise InvalidParams("is to be said anew for another address", field="credential")
        card: Registered | None = None
        absence = ""
        if after.url != agent.url:
            # The pinned card is of the address before.
            bare = replace(after, card=None, card_url="", card_digest="", pending=None)
            card, absence = await self._with_card(bare, is_needed=False)
        elif after.card is not None:
            # Origins may have been withdrawn.
            card_pinning.pinned(after, after.card, after.card_url)

        def edit(stored: Registered) -> Registered:
            edited = card_pinning.changed(stored, said)
            return edited if card is None else card_pinning.with_card_of(edited, card)

        edited = await self._agents.edit(
            agent.id, edit, secret=said.credential, act="agent.update", who=owner
        )
        if card is None:
            return edited
        self.health.moved(agent.id, absence)
        return await self._written(edited)

    async def add_replica(
        self, id: str, url: str, is_absent: Callable[[str], bool], most: int
    ) -> Registered:
        """Add an address to an agent; return it. Where it has too many, one that is not there makes
        room."""

        def edit(stored: Registered) -> Registered:
            if url in (stored.url, *stored.replicas):
                return stored
            replicas = [*stored.replicas, url]
            while len(replicas) >= most:
                absent = [one for one in replicas[:-1] if is_absent(one)]
                replicas.remove(absent[0] if absent else replicas[0])
            return replace(stored, replicas=replicas)

        return await self._agents.edit(id, edit, act="agent.update")

    async def set_tunnels(
        self, id: str, change: Callable[[list[TunnelEnd]], list[TunnelEnd]]
    ) -> None:
        """Change which processes of the gateway have tunnels of an agent that dialled out."""

        def edit(stored: Registered) -> Registered:
            return replace(stored, tunnels=change(stored.tunnels))

        await self._agents.edit(id, edit)

    async def adopt(self, id: str, other: str, who: Principal) -> Registered:
        """Put another agent of the same owner in an agent's place: its addresses, its card as it is
        pinned, and its credential. The agent keeps its id, its name, its price, and what was
        observed of it. Raises `NoAgentAvailable` if one of the two is gone."""
        candidate = self.get(other)
        if candidate is None:
            raise NoAgentAvailable(UNKNOWN)
        secret = await self._agents.credential(candidate) if candidate.credential else None

        def edit(stored: Registered) -> Registered:
            return card_pinning.in_place_of(stored, candidate)

        edited = await self._agents.edit(id, edit, secret=secret, act="agent.promote", who=who)
        self.health.moved(id, "")
        return await self._written(edited)

    async def accept(
        self, ref: str, digest: str, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Put the held card in force, if it is the one of this digest; return the agent."""
        agent = self.owned(ref, owner, operator)
        return await self._decided(agent, digest, owner, "agent.card.accept", card_pinning.accepted)

    async def refuse(
        self, ref: str, digest: str, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Drop the held card, if it is the one of this digest; return the agent."""
        agent = self.owned(ref, owner, operator)
        return await self._decided(agent, digest, owner, "agent.card.refuse", card_pinning.refused)

    async def _decided(
        self,
        agent: Registered,
        digest: str,
        owner: Principal,
        act: str,
        decide: Callable[[Registered, str], Registered],
    ) -> Registered:
        try:
            return await self._agents.edit(
                agent.id, lambda one: decide(one, digest), act=act, who=owner
            )
        except A2AError as error:
            object = f"{agent.id} {agent.name}"
            self._audit.record(
                act, outcome=DENIED, who=owner.text, object=object, reason=error.public
            )
            raise

    async def remove(self, ref: str, owner: Principal = LOCAL, *, operator: bool = False) -> None:
        """Remove an agent and its credential."""
        agent = self.owned(ref, owner, operator)
        await self._agents.remove(agent, owner)
        self.health.forget(agent.id)

    async def credential(self, ref: str) -> Credential | None:
        """Return the credential for calls to an agent, if there is one."""
        agent = self.get(ref)
        if agent is None or not agent.credential:
            return None
        secret = await self._agents.credential(agent)
        return None if secret is None else secret.credential()

    # Health

    async def heartbeat(
        self,
        ref: str,
        status: Status | None = None,
        metadata: dict[str, Any] | None = None,
        owner: Principal = LOCAL,
        *,
        operator: bool = False,
    ) -> Registered:
        """Record a heartbeat of an agent; return it. Without a status it is online."""
        agent = self.owned(ref, owner, operator)
        if metadata is not None:
            check_metadata(metadata)
            if metadata != agent.metadata:
                agent = await self._agents.edit(
                    agent.id, lambda stored: replace(stored, metadata=metadata)
                )
        self.health.heartbeat(agent, status)
        return await self._written(agent)

    async def probe(
        self, ref: str, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Check an agent and its card at once; return it."""
        agent = self.owned(ref, owner, operator)
        await self.health.check(agent, refresh=True)
        return await self._written(agent)

    async def _written(self, agent: Registered) -> Registered:
        """Return an agent as it is once its health is written."""
        await self._agents.settled()
        return self.get(agent.id) or agent

    def _count(self, owner: Principal) -> int:
        return sum(one.owner == owner for one in self._agents.index)

    def _check_addresses(self, agent: Registered) -> None:
        self._source.check(agent.url, "url")
        for url in agent.replicas:
            self._source.check(url, "replicas")

    async def _with_card(
        self,
        agent: Registered,
        *,
        is_needed: bool,
        may_be_away: bool = False,
        known_card: dict[str, Any] | None = None,
    ) -> tuple[Registered, str]:
        """Return an agent with its card, with the known one if it shows none, or without one; and
        why it could not be reached, if it could not."""
        try:
            fetched = await self._source.fetch(agent.id, agent.url)
        except A2AError as error:
            self._source.forget(agent.id)
            # Any status is an answer.
            is_away = isinstance(error, Unreachable | TimedOut) and error.code is None
            if is_needed and not (is_away and may_be_away):
                may_know = self._is_local and agent.owner == LOCAL
                raise no_card(error, may_know=may_know) from None
            if known_card is not None:
                agent = card_pinning.pinned(agent, known_card, "")
                return agent, await self._probes.absence(agent)
            logger.info("an agent is registered without a card: %s", error)
            absence = await self._probes.absence(agent) if is_away else ""
            return replace(agent, title=agent.title or card_pinning.host_of(agent.url)), absence
        try:
            # Checked against what its owner named: a card does not choose where the credential
            # goes.
            pinned = card_pinning.pinned(agent, fetched.raw, fetched.url)
            if is_card(agent.url):
                pinned = replace(pinned, url=address_of(fetched.card, agent.url))
            agent = pinned
        except InvalidParams:
            self._source.forget(agent.id)
            raise
        return agent, ""

    def owned(self, ref: str, owner: Principal, operator: bool) -> Registered:
        """Return an agent for its owner, or for an operator; raises `PermissionDenied`."""
        agent = self.visible(ref, None if operator else owner)
        if agent.owner != owner and not operator:
            raise PermissionDenied("The agent belongs to another owner")
        return agent


def _is_elsewhere(before: Registered, after: Registered) -> bool:
    """Tell whether calls would go to an address that was not named before."""
    return not {*destinations(after)} <= {*destinations(before)}
