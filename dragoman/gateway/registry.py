"""The registry: all agents a gateway knows, in memory to be found and in the file to be kept.

Whoever owns an agent changes it, and operators do. What other processes change is noticed and
loaded. How cards are judged is in `pinning` and `card_review`, who is there in `attendance`, and
how memory and file are kept alike in `roster`.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dragoman.client.credentials import Credential
from dragoman.errors import (
    A2AError,
    InvalidParams,
    NoAgentAvailable,
    PermissionDenied,
    RateLimited,
    TimedOut,
    Unreachable,
)
from dragoman.gateway import pinning
from dragoman.gateway.agents import Registered, Status
from dragoman.gateway.attendance import Attendance
from dragoman.gateway.card_source import CardSource, is_card, no_card
from dragoman.gateway.probes import Probes
from dragoman.gateway.registration import (
    Changes,
    Registration,
    Secret,
    check_metadata,
    destinations,
    slug,
)
from dragoman.gateway.search import Found, Index, Search, may_see
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.identity import LOCAL, Principal, new_id
from dragoman.security.audit import DENIED, Audit, NoAudit
from dragoman.security.egress import Egress
from dragoman.stores.sqlite.store import SQLiteStore

logger = logging.getLogger("dragoman")

# What an agent is worth of which nothing is known.
NEUTRAL = 50
_UNKNOWN = "There is no such agent"


def _neutral(id: str) -> int:
    return NEUTRAL


def _nothing(id: str, origin: str) -> None:
    pass


class Registry:
    """The agents of a gateway."""

    def __init__(
        self,
        store: SQLiteStore,
        http: Egress,
        *,
        trust: Callable[[str], int] = _neutral,
        audit: Audit | None = None,
        strayed: Callable[[str, str], None] = _nothing,
        clock: Clock | None = None,
        heartbeat_interval: float = 60.0,
        watches: bool = True,
        most_per_owner: int = 10_000_000,
        noise: Callable[[], float] = random.random,
        is_local: bool = False,
    ) -> None:
        """`http` decides which addresses are called; `trust` returns the score of an agent's id;
        `strayed` hears of an agent's id whose card leads to another origin, and to which. Without
        `watches` nobody is looked at unless somebody asks. `is_local`: only this machine reaches
        us."""
        # The score of an agent, by its id; it ranks what is found.
        self.trust = trust
        self._audit = audit or NoAudit()
        self._clock = clock or SystemClock()
        self._index = Index()
        self._source = CardSource(http)
        self._attendance = Attendance(
            store,
            self._index,
            self._source,
            Probes(http),
            self._edit,
            self._told,
            strayed,
            clock=self._clock,
            interval=heartbeat_interval,
            noise=noise,
        )
        self._roster = self._attendance.roster
        self._watches = watches
        self._is_local = is_local
        self._most_per_owner = most_per_owner
        self._listeners: list[Callable[[Registered], None]] = []

    async def open(self) -> None:
        """Load all agents and begin to look after them."""
        await self._roster.open()
        if self._watches:
            self._attendance.watch.start()

    async def close(self) -> None:
        """Stop looking after them, and keep what was seen last."""
        await self._attendance.watch.stop()
        await self._roster.close()

    # Reading

    def get(self, ref: str) -> Registered | None:
        """Return an agent by its id or its name."""
        return self._index.get(ref)

    def all(self) -> Sequence[Registered]:
        """Return all agents, by name."""
        return list(self._index)

    def search(self, asked: Search) -> Found:
        """Return the agents that fit, the trusted first."""
        return self._index.search(asked, self.trust)

    def visible(self, ref: str, viewer: Principal | None) -> Registered:
        """Return an agent that somebody may know of (None: anybody); raises `NoAgentAvailable`,
        the same for one that does not exist."""
        agent = self._index.get(ref)
        if agent is None or not may_see(agent, viewer):
            raise NoAgentAvailable(_UNKNOWN)
        return agent

    def listen(self, changed: Callable[[Registered], None]) -> None:
        """Have a function called with every agent that changes."""
        self._listeners.append(changed)

    # Registering

    async def register(
        self, said: Registration, owner: Principal = LOCAL, *, dry_run: bool = False
    ) -> Registered:
        """Add an agent; return it. Raises `InvalidParams` for what is wrong with it.

        A card that cannot be had is no error for an agent that has a name: it gets one made of
        what was said. Nor is it for one of which nobody is there yet, if that is meant.
        """
        said = said.checked()
        # The local user is alone, and has the machine.
        is_local = owner == LOCAL
        if not is_local and self._count(owner) >= self._most_per_owner:
            raise RateLimited(f"{self._most_per_owner} agents are registered; remove one first")
        now = self._clock.now()
        agent = Registered(id=new_id(), name="", owner=owner, title="", url=said.url)
        agent = replace(agent, created_at=now, updated_at=now)
        if said.card is not None and not said.url:
            agent = replace(agent, url=pinning.address_of(said.card))
        agent = pinning.registered(agent, said)
        self._check_addresses(agent)
        absence = ""
        if said.card is not None:
            # Whether it is there, the watch finds out.
            agent = pinning.pinned(agent, said.card, "")
        else:
            agent, absence = await self._with_card(
                agent, is_needed=not said.name, may_be_away=said.may_be_away
            )
            agent = self._attendance.found(agent, absence)
        if dry_run:
            self._attendance.forget(agent.id)
            return replace(agent, name=slug(agent.title))
        asked_as = agent.id
        agent = await self._roster.add(agent, slug(agent.title), said.credential)
        if agent.id != asked_as:
            self._attendance.forget(asked_as)
        self._attendance.note(agent.id, absence)
        self._record("agent.register", agent, owner)
        self._attendance.watch.soon(agent.id)
        self._told(agent)
        return agent

    async def update(
        self, ref: str, said: Changes, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Change an agent; return it."""
        agent = self._owned(ref, owner, operator)
        said = said.checked()
        after = pinning.changed(agent, said)
        self._check_addresses(after)
        if agent.credential and said.credential is UNSET and _is_elsewhere(agent, after):
            # Whoever may change an agent need not be who gave it a credential.
            raise InvalidParams("is to be said anew for another address", field="credential")
        card: Registered | None = None
        absence = ""
        if after.url != agent.url:
            # Another place: what was pinned is of the place before.
            bare = replace(after, card=None, card_url="", card_digest="", pending=None)
            card, absence = await self._with_card(bare, is_needed=False)
        elif after.card is not None:
            # Origins may have been taken back.
            pinning.pinned(after, after.card, after.card_url)

        def edit(stored: Registered) -> Registered:
            edited = pinning.changed(stored, said)
            return edited if card is None else pinning.with_card_of(edited, card)

        edited = await self._edit(agent, edit, "agent.update", owner, said.credential)
        if card is None:
            return edited
        self._attendance.moved(agent.id, absence)
        await self._roster.settled()
        return self._index.get(agent.id) or edited

    async def accept(
        self, ref: str, digest: str, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Put the card in force that was held, if it is the one of this digest; return the
        agent."""
        agent = self._owned(ref, owner, operator)
        act = "agent.card.accept"
        try:
            return await self._edit(agent, lambda one: pinning.accepted(one, digest), act, owner)
        except A2AError as error:
            named = f"{agent.id} {agent.name}"
            self._audit.record(
                act, outcome=DENIED, who=owner.text, object=named, reason=error.public
            )
            raise

    async def remove(self, ref: str, owner: Principal = LOCAL, *, operator: bool = False) -> None:
        """Forget an agent, and what it was shown."""
        agent = self._owned(ref, owner, operator)
        await self._roster.remove(agent.id, self._clock.now())
        self._attendance.forget(agent.id)
        self._record("agent.remove", agent, owner)

    async def credential(self, ref: str) -> Credential | None:
        """Return what an agent is shown when it is called, if anything is."""
        agent = self._index.get(ref)
        if agent is None or not agent.credential:
            return None
        secret = await self._roster.credential(agent)
        return None if secret is None else secret.credential()

    # Being there

    async def heartbeat(
        self,
        ref: str,
        status: Status | None = None,
        metadata: dict[str, Any] | None = None,
        owner: Principal = LOCAL,
        *,
        operator: bool = False,
    ) -> Registered:
        """Hear from an agent; return it. Without a status it is online."""
        agent = self._owned(ref, owner, operator)
        if metadata is not None:
            check_metadata(metadata)
            if metadata != agent.metadata:
                agent = await self._edit(
                    agent, lambda stored: replace(stored, metadata=metadata), "", owner
                )
        self._attendance.beat(agent, status)
        await self._roster.settled()
        return self._index.get(agent.id) or agent

    async def probe(
        self, ref: str, owner: Principal = LOCAL, *, operator: bool = False
    ) -> Registered:
        """Look at an agent and its card at once; return it."""
        agent = self._owned(ref, owner, operator)
        await self._attendance.attend(agent, refresh=True)
        await self._roster.settled()
        return self._index.get(agent.id) or agent

    def saw(self, id: str) -> None:
        """Hear that an agent took a task."""
        self._attendance.saw(id)

    def missed(self, id: str) -> None:
        """Hear that nobody accepted a connection where an agent is."""
        self._attendance.missed(id)

    def doubted(self, id: str) -> None:
        """Hear that an agent did not answer a message."""
        self._attendance.doubted(id)

    def absence(self, id: str) -> str:
        """Return why an agent was not found when somebody last looked, in words for operators;
        empty: it was, or another process looked."""
        return self._attendance.absence(id)

    def retry_in(self, agent: Registered) -> float:
        """Return the seconds after which an agent that is offline may be back at the earliest."""
        return self._attendance.retry_in(agent)

    # Within

    def _count(self, owner: Principal) -> int:
        return sum(one.owner == owner for one in self._index)

    def _check_addresses(self, agent: Registered) -> None:
        self._source.check(agent.url, "url")
        for url in agent.replicas:
            self._source.check(url, "replicas")

    async def _with_card(
        self, agent: Registered, *, is_needed: bool, may_be_away: bool = False
    ) -> tuple[Registered, str]:
        """Return an agent with the card it shows, or without one if it shows none; and why nobody
        is there, if nobody is."""
        try:
            fetched = await self._source.fetch(agent.id, agent.url)
        except A2AError as error:
            self._source.forget(agent.id)
            # Whatever was answered, somebody did.
            is_away = isinstance(error, Unreachable | TimedOut) and error.code is None
            if is_needed and not (is_away and may_be_away):
                may_know = self._is_local and agent.owner == LOCAL
                raise no_card(error, may_know=may_know) from None
            logger.info("an agent is registered without a card: %s", error)
            absence = await self._attendance.meet(agent) if is_away else ""
            return replace(agent, title=agent.title or pinning.host_of(agent.url)), absence
        try:
            # Against what its owner named: a card does not choose where its credential goes.
            pinned = pinning.pinned(agent, fetched.raw, fetched.url)
            if is_card(agent.url):
                pinned = replace(pinned, url=fetched.card.supported_interfaces[0].url)
            agent = pinned
        except InvalidParams:
            self._source.forget(agent.id)
            raise
        return agent, ""

    def _owned(self, ref: str, owner: Principal, operator: bool) -> Registered:
        agent = self.visible(ref, None if operator else owner)
        if agent.owner != owner and not operator:
            raise PermissionDenied("The agent belongs to somebody else")
        return agent

    async def _edit(
        self,
        agent: Registered,
        edit: Callable[[Registered], Registered],
        act: str,
        who: Principal = LOCAL,
        credential: Secret | UnsetType | None = UNSET,
    ) -> Registered:
        after = await self._roster.edit(agent.id, edit, self._clock.now(), credential)
        if after is None:
            raise NoAgentAvailable(_UNKNOWN)
        if act:
            self._record(act, after, who)
        self._told(after)
        return after

    def _told(self, agent: Registered) -> None:
        for changed in self._listeners:
            changed(agent)

    def _record(self, act: str, agent: Registered, who: Principal) -> None:
        card = f"card {agent.card_digest[:16]}" if agent.card_digest else "no card"
        self._audit.record(
            act,
            outcome="held" if agent.pending is not None else "done",
            who=who.text,
            object=f"{agent.id} {agent.name}",
            reason=agent.pending_reason or card,
        )


def _is_elsewhere(before: Registered, after: Registered) -> bool:
    """Say whether something would go where nothing went before."""
    return not {*destinations(after)} <= {*destinations(before)}
