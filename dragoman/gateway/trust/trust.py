"""Trust: events recorded from what was observed, scores computed from them, and why.

Orders that ended become events soon after, recorded by the first process that looks. Scores for
routing are in memory and follow the events; the store's sums are all they are made of, and `verify`
checks these against the log. A score only ranks: it does not decide who may call an agent.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from dragoman.errors import ConfigError, StoreRefused
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.routing.performance import Performance
from dragoman.gateway.trust import export, recording
from dragoman.gateway.trust.counting import OUTCOMES
from dragoman.gateway.trust.export import TrustReport
from dragoman.gateway.trust.reputation import Reputation, facts_in, history_of, reputation_of
from dragoman.gateway.trust.scores import POLICIES, REGISTERED, TrustRules, decimal, score
from dragoman.model.identity import Principal
from dragoman.stores.interface.effects import AccountingStore
from dragoman.stores.interface.trust import DAY_MS, TrustEventRow

logger = logging.getLogger("dragoman")

_NOT_RECORDED = "trust: outcomes could not be recorded; trying again"
MOST_HISTORY = 100
# Orders in one transaction: other writes wait for it.
_STEP = 100
_READ = 5_000
# Events from which performance is learned at the start.
_REMEMBER = 20_000
# Seconds: between an end and its event, so that many share a write; and between looks for what
# other processes did.
_SOON = 1.0
_LOOK_EVERY = 2.0
_MOST_PAYERS = 100_000


class TrustedAgents(Protocol):
    """What is needed of a registry."""

    def get(self, ref: str, /) -> Registered | None:
        """Return an agent by id or name."""
        ...

    def all(self) -> Sequence[Registered]:
        """Return all agents."""
        ...


class Trust:
    """The gateway's view of how far agents can be trusted."""

    def __init__(
        self,
        accounting: AccountingStore,
        agents: TrustedAgents,
        *,
        rules: TrustRules = TrustRules(),  # noqa: B008 - immutable
        now: Callable[[], float] = time.time,
    ) -> None:
        if rules.policy not in POLICIES:
            raise ConfigError(f"trust_policy: must be one of {', '.join(sorted(POLICIES))}")
        self.rules = rules
        self.performance = Performance()
        self._accounting = accounting
        # What is recorded, for readers that need no decision.
        self.store = accounting.trust
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

    async def open(self, *, is_read_only: bool = False) -> None:
        """Catch up with what ended, and go on doing so; `is_read_only`: only with what was recorded
        of it."""
        last = await self.store.last_number()
        position = max(last - _REMEMBER, 0)
        while before := await self.store.after(position, _READ):
            self._learn(before)
            position = before[-1].number
        self._seen = max(last, self._seen)
        if is_read_only:
            async with self._turn:
                await self._follow()
            return
        try:
            await self.digest()
        except StoreRefused:
            # A connection that is lost while outcomes are recorded keeps no gateway from its start:
            # scores follow what is recorded, and the rest is tried again.
            logger.warning(_NOT_RECORDED)
            self._woken.set()
            async with self._turn:
                await self._follow()
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
                # The next look finds the same orders.
                logger.warning(_NOT_RECORDED)
            except Exception:
                # Whatever it was: scores depend on the next look.
                logger.exception(_NOT_RECORDED)

    async def digest(self) -> int:
        """Turn what ended into events, and have scores follow all events; return how many orders
        there were."""
        async with self._turn:
            count, step = 0, _STEP
            while step == _STEP:
                step = await recording.observe(self._accounting, _STEP)
                count += step
            await self._follow()
            return count

    async def _follow(self) -> None:
        changed: set[str] = set()
        while events := await self.store.after(self._seen, _READ):
            self._learn(events)
            changed.update(event.agent for event in events)
            # From their first payment on, all that a requester ever observed counts.
            for requester in {one.requester for one in events if one.charged} - self._payers:
                changed.update(await self.store.agents_of(requester))
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
        facts = await facts_in(
            self.store, created, self.rules.cap, self._at(), every=agents is None
        )
        computed = {id: score(one, self.rules.policy) for id, one in facts.items()}
        if agents is None:
            self._scores, self._components = {}, {}
        for id, one in computed.items():
            self._scores[id] = one.value
            self._components[id] = {part.name: decimal(part.value) for part in one.components}

    def _learn(self, events: Sequence[TrustEventRow]) -> None:
        for one in events:
            if one.type in OUTCOMES:
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

    async def reputation(self, ref: str) -> Reputation | None:
        """Return an agent's reputation at this moment; None: no such agent is registered."""
        agent = self._agents.get(ref)
        if agent is None:
            return None
        return await reputation_of(
            self.store, agent.id, agent.name, agent.created_at, self.rules, self._at()
        )

    async def history(
        self,
        agent_id: str,
        *,
        limit: int = 20,
        offset: int = 0,
        viewer: Principal | None = None,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a page of an agent's events, the latest first, and how many there are. Ids of
        tasks are shown to their requesters only; with None as viewer, all are."""
        limit, offset = min(max(limit, 1), MOST_HISTORY), max(offset, 0)
        return await history_of(self.store, agent_id, limit, offset, viewer)

    async def rate(
        self,
        agent_id: str,
        task: TaskReference,
        requester: Principal,
        rating: int,
        comment: str = "",
    ) -> None:
        """Record what the requester of a completed task says; raises `InvalidParams`, and
        `AmbiguousTask`."""
        at = self._at()
        await recording.rate(self._accounting, agent_id, task, requester, rating, comment, at)
        await self.digest()

    async def dispute(
        self, agent_id: str, task: TaskReference, requester: Principal, reason: str
    ) -> int:
        """Record that a completed task of an agent's was not done, says its requester; return its
        number."""
        at = self._at()
        number = await recording.dispute(self._accounting, agent_id, task, requester, reason, at)
        await self.digest()
        return number

    async def resolve(self, task: TaskReference, *, is_upheld: bool, note: str = "") -> int:
        """Decide on a dispute, as an operator; return the number of its task. Raises
        `NoOpenDispute`, and `AmbiguousTask`."""
        number = await recording.resolve(self._accounting, task, is_upheld, note, self._at())
        await self.digest()
        return number

    async def violation(self, agent_id: str, reason: str) -> None:
        """Record that the gateway saw an agent break the rules of security."""
        await recording.violate(self._accounting, agent_id, reason, self._at())
        await self.digest()

    async def verify(self) -> TrustReport:
        """Check sums and scores against the log, and the log against its hashes and the orders."""
        contents, created = await self.store.contents(), self._created()
        return await asyncio.to_thread(
            export.verify_contents, contents, created, self.rules, self._at()
        )

    async def export(self, path: Path) -> TrustReport:
        """Write the log to a file from which anyone computes the same scores."""
        contents, created = await self.store.contents(), self._created()
        return await asyncio.to_thread(
            export.export, contents, path, created, self.rules, self._at()
        )

    def _created(self) -> dict[str, int]:
        return {one.id: one.created_at for one in self._agents.all()}

    def _at(self) -> int:
        return int(self._now() * 1000)
