"""The health of registered agents: the status of each, and when each is checked.

`AgentHealth` hears of heartbeats and of forwarded tasks, and checks each agent when that is due: a
few at a time, in one of the processes that share a store. What follows from what was observed is
decided in `health_history`; how an agent is asked is in `probes`. Health writes through
`agent_cache`, and nothing below it knows it.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from dragoman.errors import A2AError, TimedOut, Unreachable
from dragoman.gateway.registry import card_pinning
from dragoman.gateway.registry.agent_cache import AgentCache
from dragoman.gateway.registry.card_source import CardSource
from dragoman.gateway.registry.health_history import HealthHistory
from dragoman.gateway.registry.probes import Probes
from dragoman.gateway.registry.registered import Registered, Status
from dragoman.model.clock import Clock

logger = logging.getLogger("dragoman")

# Checks at the same time.
AT_ONCE = 32
# Milliseconds for which a process claims the duty to check, and after which it claims it anew.
# After three times that without a claim another process takes the duty over.
TERM = 5_000
# Milliseconds for which an agent that answered is not recorded as seen once more.
_SEEN_FOR = 10_000
# Milliseconds for which an agent that answered is not checked because of one lost message.
_TRUSTED_FOR = 1_000
# Milliseconds after which the card of an agent is read again while people look at it, and how many
# cards are read within that time: a card that did not change costs an agent a 304.
LOOK_EVERY = 5_000
MOST_LOOKS = 100


class AgentHealth:
    """Which agents are there. Times are milliseconds."""

    def __init__(
        self,
        agents: AgentCache,
        source: CardSource,
        probes: Probes,
        clock: Clock,
        *,
        interval: float,
        noise: Callable[[], float] = random.random,
    ) -> None:
        """`interval` is the time between two heartbeats, or two checks, in seconds."""
        self._agents = agents
        self._source = source
        self._probes = probes
        self._clock = clock
        self._noise = noise
        self._history = HealthHistory(interval)
        # Why agents were not reached, by their ids, in words for operators.
        self._absences: dict[str, str] = {}
        self._stray_listeners: list[Callable[[str, str], None]] = []
        # When each agent is due; an entry of the heap that differs is outdated.
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._refreshed: dict[str, int] = {}
        # When cards began to be read because people look, and how many were since.
        self._looks_since = 0
        self._looks = 0
        self._schedule_changed = asyncio.Event()
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._on_duty_until = 0
        agents.listen_elsewhere(self._adopt)

    def listen_strays(self, strayed: Callable[[str, str], None]) -> None:
        """Have a function called with the id of an agent whose card leads to origins that its
        owner did not name, and with those origins."""
        self._stray_listeners.append(strayed)

    # Observations

    def heartbeat(self, agent: Registered, status: Status | None) -> None:
        """Record a heartbeat of an agent; without a status it is online."""
        now = self._clock.now()
        found = self._history.beat(agent, status)
        self._set(replace(agent, status=found, last_seen_at=now, beat_at=now), is_urgent=True)
        self.schedule(agent.id, now if self._history.is_ejected(agent.id) else None)

    def saw(self, agent_id: str) -> None:
        """Record that an agent took a task."""
        agent = self._agents.get(agent_id)
        now = self._clock.now()
        if agent is None or (agent.status == "online" and now - agent.last_seen_at < _SEEN_FOR):
            return
        self._set(replace(agent, status=self._history.saw(agent), last_seen_at=now))

    def missed(self, agent_id: str) -> None:
        """Record that an agent accepted no connection."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            self._set(replace(agent, status=self._history.missed(agent, self._clock.now())))

    def doubted(self, agent_id: str) -> None:
        """Check soon an agent that did not answer a message. The message may be the cause, so an
        agent that answered a moment ago is not checked."""
        agent = self._agents.get(agent_id)
        if agent is None or agent.status != "online":
            return
        now = self._clock.now()
        if now < self._on_duty_until or self._task is None:
            self.schedule(agent_id, max(now, agent.last_seen_at + _TRUSTED_FOR))
        elif now >= agent.last_seen_at + _TRUSTED_FOR and self._may_begin(agent_id):
            # The process that has the duty does not know of the doubt; it learns the answer.
            self._begin(agent_id, now)

    def _may_begin(self, agent_id: str) -> bool:
        return agent_id not in self._checks and len(self._checks) < AT_ONCE

    def first_seen(self, agent: Registered, absence: str) -> Registered:
        """Return an agent with the status that follows from its first check at an address."""
        if absence:
            return replace(agent, status="offline")
        return replace(agent, status="online", last_seen_at=self._clock.now())

    def moved(self, id: str, absence: str) -> None:
        """Begin anew with an agent at another address: what was observed is of the one before.
        An agent that sends heartbeats is still judged by those."""
        agent = self._agents.get(id)
        if agent is None or agent.beat_at:
            return
        self._history.forget(id)
        self.set_absence(id, absence)
        self._set(self.first_seen(agent, absence))

    def set_absence(self, id: str, absence: str) -> None:
        """Record why an agent was not reached; empty: it was."""
        if absence:
            self._absences[id] = absence
        else:
            self._absences.pop(id, None)

    def forget(self, id: str) -> None:
        """Forget what was observed of an agent."""
        self._history.forget(id)
        self._source.forget(id)
        self._probes.forget(id)
        self._absences.pop(id, None)
        self._due.pop(id, None)
        self._refreshed.pop(id, None)

    # Reading

    def absence(self, id: str) -> str:
        """Return why the last check did not reach an agent, in words for operators; empty: it did,
        or another process checked."""
        return self._absences.get(id, "")

    def retry_in(self, agent: Registered) -> float:
        """Return the seconds after which an agent that is offline may be back at the earliest."""
        now = self._clock.now()
        return max(0, self._history.back_at(agent, now, self._due.get(agent.id)) - now) / 1000

    @property
    def checks(self) -> int:
        """How many checks are under way."""
        return len(self._checks)

    # One check

    async def check(self, agent: Registered, *, refresh: bool) -> None:
        """Find out whether an agent is there; with `refresh` read its card as well."""
        is_there = await self._refresh(agent) if refresh else None
        if self._probes.is_by_rpc(agent):
            # Who shows the card need not be who is called.
            is_there = None
        absence = ""
        if is_there is None and self._history.is_probed(agent):
            absence = await self._probes.absence(agent)
            is_there = not absence
            if is_there and agent.card is None and agent.status == "offline":
                # Its card could not be read before.
                await self._refresh(agent)
        current = self._agents.get(agent.id)
        if current is None:
            return
        self.set_absence(agent.id, absence)
        now = self._clock.now()
        if not self._history.is_probed(current):
            self._set(replace(current, status=self._history.silent(current, now)))
            return
        status = self._history.probed(current, now, is_there=bool(is_there))
        seen_at = now if is_there else current.last_seen_at
        self._set(replace(current, status=status, last_seen_at=seen_at))

    async def _refresh(self, agent: Registered) -> bool | None:
        """Read the card of an agent and review it; return whether the agent answered, or None if
        that cannot be told."""
        try:
            fetched = await self._source.fetch(agent.id, agent.url, agent.card_url)
        except A2AError as error:
            logger.debug("the card of %s could not be fetched: %s", agent.name, error)
            # Any other error is an answer.
            return None if isinstance(error, Unreachable | TimedOut) else True
        after = card_pinning.reviewed(agent, fetched)
        if after == agent:
            return True
        now = self._clock.now()

        def edited(stored: Registered) -> Registered:
            found = card_pinning.reviewed(stored, fetched)
            is_other = (found.card, found.pending) != (stored.card, stored.pending)
            return replace(found, card_changed_at=now) if is_other else found

        act = "agent.card.change" if after.pending is None else "agent.card.hold"
        if after.pending is not None:
            logger.warning(
                "the card of %s changed and is held (%s); to look at it: dragoman agents show %s",
                *(agent.name, after.pending_reason, agent.name),
            )
        await self._agents.edit(agent.id, edited, act=act)
        if where := card_pinning.strays(after):
            for strayed in self._stray_listeners:
                strayed(agent.id, where)
        return True

    def look(self, agents: Sequence[Registered]) -> None:
        """Read the cards of agents that people look at, unless that was done a moment ago. This
        says nothing of their health."""
        if self._task is None:
            return
        now = self._clock.now()
        if now - self._looks_since >= LOOK_EVERY:
            self._looks_since, self._looks = now, 0
        for agent in agents:
            is_due = now - self._refreshed.get(agent.id, 0) >= LOOK_EVERY
            if agent.card is None or agent.status == "offline" or not is_due:
                continue
            if self._looks >= MOST_LOOKS or not self._may_begin(agent.id):
                continue
            self._looks += 1
            self._refreshed[agent.id] = now
            self._checks[agent.id] = asyncio.get_running_loop().create_task(
                self._concluded(agent, self._refresh(agent))
            )

    def _set(self, agent: Registered, *, is_urgent: bool = False) -> None:
        if self._agents.set_health(agent, is_urgent=is_urgent):
            logger.info("%s is %s", agent.name, agent.status)
            self.schedule(agent.id)

    def _adopt(self, agent: Registered, before: Registered | None) -> None:
        """Take over what another process observed."""
        if before is not None and before.status != agent.status:
            if agent.status == "online":
                self._history.admit(agent.id)
            elif agent.status == "offline":
                self._history.eject(agent.id, self._clock.now())
        self.schedule(agent.id)

    # When each agent is checked

    def start(self) -> None:
        """Begin to check agents."""
        now = self._clock.now()
        for agent in self._agents.all():
            # Their cards were read at some time within the last period.
            self._refreshed[agent.id] = now - int(agent.refresh * 1000 * self._noise())
            self._plan(agent, now)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; checks under way are abandoned."""
        if self._task is None:
            return
        tasks = [self._task, *self._checks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    def schedule(self, id: str, at: int | None = None) -> None:
        """Check an agent at a time, or when its status makes it due."""
        agent = self._agents.get(id)
        if agent is not None and self._task is not None and id not in self._checks:
            self._plan(agent, self._clock.now(), at)

    def _plan(self, agent: Registered, now: int, at: int | None = None) -> None:
        refresh_at = self._refreshed.setdefault(agent.id, now) + int(agent.refresh * 1000)
        if at is None:
            at = min(self._history.next_at(agent, now, self._noise), refresh_at)
        # Never later than planned: an agent that changes often would never be checked.
        if at < self._due.get(agent.id, at + 1):
            self._due[agent.id] = at
            heapq.heappush(self._heap, (at, agent.id))
            self._schedule_changed.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except Exception:
                # Whatever it was: without the next step no agent is checked any more.
                logger.exception("agents could not be checked; trying again")
                await self._pause(self._clock.now() + TERM)

    async def _step(self) -> None:
        """Check the agents that are due, then wait for the next one."""
        now = self._clock.now()
        if now >= self._on_duty_until:
            if not await self._agents.has_duty():
                await self._clock.wait_until(now + TERM)
                return
            self._on_duty_until = now + TERM
        while self._heap and self._heap[0][0] <= now and len(self._checks) < AT_ONCE:
            at, id = heapq.heappop(self._heap)
            if self._due.get(id) == at:
                del self._due[id]
                self._begin(id, now)
        if len(self._checks) >= AT_ONCE:
            await asyncio.wait(self._checks.values(), return_when=asyncio.FIRST_COMPLETED)
            return
        await self._pause(min(self._heap[0][0], now + TERM) if self._heap else now + TERM)

    def _begin(self, id: str, now: int) -> None:
        agent = self._agents.get(id)
        if agent is None:
            self._refreshed.pop(id, None)
            return
        if id in self._checks:
            # Its card is being read.
            self._plan(agent, now, now + _TRUSTED_FOR)
            return
        refresh = now >= self._refreshed.get(id, now) + int(agent.refresh * 1000)
        if refresh:
            self._refreshed[id] = now
        self._checks[id] = asyncio.get_running_loop().create_task(
            self._concluded(agent, self.check(agent, refresh=refresh))
        )

    async def _concluded(self, agent: Registered, checking: Awaitable[object]) -> None:
        try:
            await checking
        except Exception:
            # The next check is planned below, whatever this one met.
            logger.exception("%s could not be checked", agent.name)
        finally:
            del self._checks[agent.id]
            current = self._agents.get(agent.id)
            if current is not None:
                self._plan(current, self._clock.now())

    async def _pause(self, until: int) -> None:
        """Wait for a time, or until an agent is due sooner."""
        self._schedule_changed.clear()
        waits = [
            asyncio.ensure_future(self._clock.wait_until(until)),
            asyncio.ensure_future(self._schedule_changed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
