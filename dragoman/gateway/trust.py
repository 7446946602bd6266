"""Trust: events recorded from what was observed, scores computed from them, and why.

Errands that ended become events soon after, by whichever process comes first. Scores for routing
are in memory and follow the events; the store's sums are all they are made of, and `verify` holds
these against the log. A score only ranks: whoever may call an agent may do so whatever its score.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw

from dragoman.errors import ConfigError, StoreRefused
from dragoman.gateway import ratings, trust_export
from dragoman.gateway.agents import Registered
from dragoman.gateway.performance import Performance
from dragoman.gateway.scores import POLICIES, REGISTERED, Score, decimal, score
from dragoman.gateway.standing import Rules, TrustStanding, facts_in, history_of, standing_of
from dragoman.gateway.task_reference import TaskReference
from dragoman.gateway.trust_export import Report
from dragoman.model.identity import Principal
from dragoman.stores.sqlite import outcomes, trust
from dragoman.stores.sqlite.trust import DAY_MS, Event

logger = logging.getLogger("dragoman")

T = TypeVar("T")

MOST_HISTORY = 100
# Errands in one transaction: others wait for it.
_STEP = 100
_READ = 5_000
# Events from which performance is learned at the start.
_REMEMBER = 20_000
# Seconds: between an end and its event, so that many share a write; and between looks for what
# other processes did.
_SOON = 1.0
_LOOK_EVERY = 2.0
_MOST_PAYERS = 100_000


class Store(Protocol):
    """What is needed of a store."""

    async def change(self, deed: Callable[[apsw.Connection], T]) -> T:
        """Do something in one transaction."""
        ...

    async def look(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read something."""
        ...


class Agents(Protocol):
    """What is needed of a registry."""

    def get(self, ref: str) -> Registered | None:
        """Return an agent by id or name."""
        ...

    def all(self) -> Sequence[Registered]:
        """Return all agents."""
        ...


class Trust:
    """The gateway's view of how far agents can be trusted."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        *,
        rules: Rules = Rules(),  # noqa: B008 - immutable
        now: Callable[[], float] = time.time,
    ) -> None:
        if rules.policy not in POLICIES:
            raise ConfigError(f"trust_policy: must be one of {', '.join(sorted(POLICIES))}")
        self.rules = rules
        self.performance = Performance()
        self._store = store
        self._agents = agents
        self._now = now
        self._scores: dict[str, int] = {}
        # What they are made of.
        self._components: dict[str, dict[str, float]] = {}
        # The last event that the scores follow, and the day they were computed on.
        self._seen = 0
        self._today = -1
        self._payers: set[str] = set()
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Catch up with what ended, and go on doing so."""
        ((last, _), before) = await self._store.look(
            lambda c: (trust.head(c), trust.after(c, max(trust.head(c)[0] - _REMEMBER, 0), _READ))
        )
        while before:
            self._learn(before)
            position = before[-1].number
            before = await self._store.look(lambda c, at=position: trust.after(c, at, _READ))
        self._seen = max(last, self._seen)
        await self.digest()
        self._loop = asyncio.get_running_loop().create_task(self._keep_up())

    async def close(self) -> None:
        """Stop. What ended meanwhile is found at the next start."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    def ended(self) -> None:
        """Say that a task ended."""
        self._woken.set()

    async def _keep_up(self) -> None:
        while True:
            # Not `wait_for`, which may swallow a cancel that comes at the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._woken.wait()
                await asyncio.sleep(_SOON)
            self._woken.clear()
            try:
                await self.digest()
            except StoreRefused:
                # The next look finds the same errands.
                logger.warning("trust: outcomes could not be recorded; trying again")
            except Exception:
                logger.exception("trust: outcomes could not be recorded; trying again")

    async def digest(self) -> int:
        """Turn what ended into events, and have scores follow all events; return how many errands
        there were."""
        async with self._turn:
            done, step = 0, _STEP
            # A look is free, a write is not.
            is_waiting = await self._store.look(outcomes.waiting) > 0
            while is_waiting and step == _STEP:
                step = await self._store.change(lambda c: ratings.observe(c, _STEP))
                done += step
            await self._follow()
            return done

    async def _follow(self) -> None:
        changed: set[str] = set()
        while events := await self._store.look(lambda c: trust.after(c, self._seen, _READ)):
            self._learn(events)
            changed.update(event.agent for event in events)
            # Whoever pays for the first time counts from then on with all they ever observed.
            for requester in {one.requester for one in events if one.charged} - self._payers:
                agents = await self._store.look(lambda c, who=requester: trust.agents_of(c, who))
                changed.update(agents)
                self._payers.add(requester)
            if len(self._payers) > _MOST_PAYERS:
                self._payers.clear()
            self._seen = events[-1].number
        today = self._at() // DAY_MS
        if today != self._today:
            await self._compute(None)
            self._today = today
        elif changed:
            await self._compute(changed)

    async def _compute(self, agents: Collection[str] | None) -> None:
        found = {one.id: one.created_at for one in self._agents.all()}
        created = found if agents is None else {id: found.get(id, 0) for id in agents}
        at = self._at()
        cap, policy = self.rules.cap, self.rules.policy

        def compute(connection: apsw.Connection) -> dict[str, Score]:
            facts = facts_in(connection, created, cap, at, every=agents is None)
            return {id: score(one, policy) for id, one in facts.items()}

        computed = await self._store.look(compute)
        if agents is None:
            self._scores, self._components = {}, {}
        for id, one in computed.items():
            self._scores[id] = one.value
            self._components[id] = {part.name: decimal(part.value) for part in one.components}

    def _learn(self, events: Sequence[Event]) -> None:
        for one in events:
            if one.type in ("task_completed", "task_failed", "task_timeout"):
                self.performance.observe(
                    one.agent,
                    one.skill,
                    is_success=one.type == "task_completed",
                    ms=one.response_ms,
                    cost=one.charged,
                    at=one.at,
                )

    def score(self, agent_id: str) -> int:
        """Return an agent's score, from memory."""
        return self._scores.get(agent_id, REGISTERED)

    def components(self, agent_id: str) -> dict[str, float]:
        """Return what an agent's score is made of, each from 0 to 100, from memory; empty: it was
        not computed yet."""
        return self._components.get(agent_id, {})

    async def standing(self, ref: str) -> TrustStanding | None:
        """Return how an agent stands at this moment; None: nobody is registered so."""
        agent = self._agents.get(ref)
        if agent is None:
            return None
        rules, at = self.rules, self._at()
        return await self._store.look(
            lambda c: standing_of(c, agent.id, agent.name, agent.created_at, rules, at)
        )

    async def explain(self, ref: str) -> list[str]:
        """Return in sentences how an agent's score came about."""
        found = await self.standing(ref)
        return [] if found is None else found.sentences()

    async def history(
        self,
        agent_id: str,
        *,
        limit: int = 20,
        offset: int = 0,
        viewer: Principal | None = None,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a page of an agent's events, the latest first, and how many there are. Ids of
        tasks are shown to whoever asked for them; None: to whoever may know them all."""
        limit, offset = min(max(limit, 1), MOST_HISTORY), max(offset, 0)
        return await self._store.look(lambda c: history_of(c, agent_id, limit, offset, viewer))

    async def rate(
        self,
        agent_id: str,
        task: TaskReference,
        requester: Principal,
        rating: int,
        comment: str = "",
    ) -> None:
        """Take in what the requester of a completed task says; raises `InvalidParams`, and
        `AmbiguousTask`."""
        at = self._at()
        await self._store.change(
            lambda c: ratings.rate(c, agent_id, task, requester, rating, comment, at)
        )
        await self.digest()

    async def dispute(
        self, agent_id: str, task: TaskReference, requester: Principal, reason: str
    ) -> int:
        """Take in that a completed task of an agent's was not done, says its requester; return its
        number."""
        at = self._at()
        number = await self._store.change(
            lambda c: ratings.dispute(c, agent_id, task, requester, reason, at)
        )
        await self.digest()
        return number

    async def resolve(self, task: TaskReference, *, is_upheld: bool, note: str = "") -> int:
        """Decide on a dispute, as an operator; return the number of its task. Raises
        `NoOpenDispute`, and `AmbiguousTask`."""
        at = self._at()
        number = await self._store.change(lambda c: ratings.resolve(c, task, is_upheld, note, at))
        await self.digest()
        return number

    async def violation(self, agent_id: str, reason: str) -> None:
        """Record that the gateway saw an agent break the rules of security."""
        at = self._at()
        await self._store.change(lambda c: ratings.violate(c, agent_id, reason, at))
        await self.digest()

    async def verify(self) -> Report:
        """Hold sums and scores against the log, and the log against its hashes and the errands."""
        created, at = self._created(), self._at()
        return await self._store.look(
            lambda c: trust_export.verify_store(c, created, **self.rules._asdict(), at=at)
        )

    async def export(self, path: Path) -> Report:
        """Write the log to a file from which anybody computes the same scores."""
        created, at = self._created(), self._at()
        return await self._store.look(
            lambda c: trust_export.export(c, path, created, **self.rules._asdict(), at=at)
        )

    def _created(self) -> dict[str, int]:
        return {one.id: one.created_at for one in self._agents.all()}

    def _at(self) -> int:
        return int(self._now() * 1000)
