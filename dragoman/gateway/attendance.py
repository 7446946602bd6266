"""Looks at agents and keeps how they stand: whoever tells of them, and whoever changed them.

It joins what `liveness` judges, what `card_source` finds and what `pinning` makes of a card.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from dragoman.errors import A2AError, TimedOut, Unreachable
from dragoman.gateway import pinning
from dragoman.gateway.agents import Registered, Status
from dragoman.gateway.card_source import CardSource
from dragoman.gateway.liveness import Liveness
from dragoman.gateway.probes import Probes
from dragoman.gateway.roster import Roster
from dragoman.gateway.search import Index
from dragoman.gateway.watching import Watch
from dragoman.model.clock import Clock
from dragoman.stores.sqlite import agents as rows
from dragoman.stores.sqlite.store import SQLiteStore

logger = logging.getLogger("dragoman")

# Milliseconds in which seeing an agent again is no news.
_NO_NEWS = 10_000
# And in which nobody doubts it.
_A_MOMENT = 1_000


class Review(Protocol):
    """Changes an agent because of its card, and records that."""

    async def __call__(
        self, agent: Registered, edit: Callable[[Registered], Registered], act: str
    ) -> Registered:
        """Do it."""
        ...


class Attendance:
    """Who is there."""

    def __init__(
        self,
        store: SQLiteStore,
        index: Index,
        source: CardSource,
        probes: Probes,
        review: Review,
        changed: Callable[[Registered], None],
        strayed: Callable[[str, str], None],
        *,
        clock: Clock,
        interval: float,
        noise: Callable[[], float],
    ) -> None:
        """`strayed` hears of an agent, by its id, whose card leads where its owner let nothing go,
        and where that is."""
        self._store = store
        self._strayed = strayed
        self._index = index
        self._source = source
        self._probes = probes
        # Why agents were not found, by their ids, in words for operators.
        self._absences: dict[str, str] = {}
        self._review = review
        self._changed = changed
        self._clock = clock
        self._liveness = Liveness(interval)
        self.roster = Roster(store, index, self._learned)
        self.watch = Watch(index, self._liveness, clock, self.attend, self._may_watch, noise)

    def beat(self, agent: Registered, status: Status | None) -> None:
        """Hear from an agent itself."""
        now = self._clock.now()
        stands = self._liveness.beat(agent, status)
        self._stand(replace(agent, status=stands, last_seen_at=now, beat_at=now), is_urgent=True)
        self.watch.soon(agent.id, now if self._liveness.is_ejected(agent.id) else None)

    def saw(self, id: str) -> None:
        """Hear that an agent took a task."""
        agent = self._index.get(id)
        now = self._clock.now()
        if agent is None or (agent.status == "online" and now - agent.last_seen_at < _NO_NEWS):
            return
        self._stand(replace(agent, status=self._liveness.saw(agent), last_seen_at=now))

    def doubted(self, id: str) -> None:
        """Hear that an agent took a message and did not answer it: that may be the message's doing,
        so somebody looks, but not at one who was seen a moment ago."""
        agent = self._index.get(id)
        if agent is not None and agent.status == "online":
            self.watch.soon(id, max(self._clock.now(), agent.last_seen_at + _A_MOMENT))

    def missed(self, id: str) -> None:
        """Hear that nobody accepted a connection where an agent is."""
        agent = self._index.get(id)
        if agent is not None:
            self._stand(replace(agent, status=self._liveness.missed(agent, self._clock.now())))

    def forget(self, id: str) -> None:
        """Forget what was seen of an agent."""
        self._liveness.forget(id)
        self._source.forget(id)
        self._probes.forget(id)
        self._absences.pop(id, None)
        self.watch.forget(id)

    def absence(self, id: str) -> str:
        """Return why an agent was not found when somebody last looked, in words for operators;
        empty: it was, or another process looked."""
        return self._absences.get(id, "")

    def retry_in(self, agent: Registered) -> float:
        """Return the seconds after which an agent that is offline may be back at the earliest."""
        now = self._clock.now()
        due = self.watch.due_at(agent.id)
        return max(0, self._liveness.back_at(agent, now, due) - now) / 1000

    async def meet(self, agent: Registered) -> str:
        """Look at an agent that is new at its address; return why nobody is there, or nothing."""
        return await self._probes.absence(agent)

    def found(self, agent: Registered, absence: str) -> Registered:
        """Return an agent as it was met."""
        if absence:
            return replace(agent, status="offline")
        return replace(agent, status="online", last_seen_at=self._clock.now())

    def note(self, id: str, absence: str) -> None:
        """Remember why an agent was not found, or that it was."""
        if absence:
            self._absences[id] = absence
        else:
            self._absences.pop(id, None)

    def moved(self, id: str, absence: str) -> None:
        """Hear how an agent was met at another address: what was seen of it is of the one before.
        One that sends heartbeats goes on to be judged by those."""
        agent = self._index.get(id)
        if agent is None or agent.beat_at:
            return
        self._liveness.forget(id)
        self.note(id, absence)
        self._stand(self.found(agent, absence))

    async def attend(self, agent: Registered, *, refresh: bool) -> None:
        """Look whether an agent is there, and at its card if that is due."""
        is_there = await self._refreshed(agent) if refresh else None
        absence = ""
        if is_there is None and self._liveness.is_probed(agent):
            absence = await self._probes.absence(agent)
            is_there = not absence
            if is_there and agent.card is None and agent.status == "offline":
                # Nobody could ask it for its card before.
                await self._refreshed(agent)
        current = self._index.get(agent.id)
        if current is None:
            return
        self.note(agent.id, absence)
        now = self._clock.now()
        if not self._liveness.is_probed(current):
            self._stand(replace(current, status=self._liveness.silent(current, now)))
            return
        status = self._liveness.probed(current, now, is_there=bool(is_there))
        seen_at = now if is_there else current.last_seen_at
        self._stand(replace(current, status=status, last_seen_at=seen_at))

    async def _refreshed(self, agent: Registered) -> bool | None:
        """Fetch the card of an agent and look at it; tell whether anybody was there, unless that
        cannot be told."""
        try:
            fetched = await self._source.fetch(agent.id, agent.url, agent.card_url)
        except (Unreachable, TimedOut) as error:
            logger.debug("the card of %s was not to be had: %s", agent.name, error)
            return None
        except A2AError as error:
            # Somebody said so.
            logger.debug("the card of %s was not to be had: %s", agent.name, error)
            return True
        after = pinning.reviewed(agent, fetched)
        if after == agent:
            return True
        if after.pending is None:
            act = "agent.card.change"
        else:
            act = "agent.card.hold"
            logger.warning(
                "the card of %s changed and is held (%s); to look at it: dragoman agents show %s",
                *(agent.name, after.pending_reason, agent.name),
            )
        await self._review(agent, lambda stored: pinning.reviewed(stored, fetched), act)
        if where := pinning.strays(after):
            self._strayed(agent.id, where)
        return True

    async def _may_watch(self, until: int) -> bool:
        """Tell whether it is this process that looks after the agents."""
        if self._store.is_alone:
            return True
        worker, now = self._store.worker, self._clock.now()
        return await self._store.change(lambda c: rows.watch(c, worker, now, until))

    def _stand(self, agent: Registered, *, is_urgent: bool = False) -> None:
        before = self._index.get(agent.id)
        if before is None or before == agent:
            return
        is_news = before.status != agent.status
        self.roster.stand(agent, is_urgent=is_urgent or is_news)
        if is_news:
            logger.info("%s is %s", agent.name, agent.status)
            self.watch.soon(agent.id)
            self._changed(agent)

    def _learned(self, agent: Registered, before: Registered | None) -> None:
        """Take over what another process saw."""
        if before is not None and before.status != agent.status:
            if agent.status == "online":
                self._liveness.admit(agent.id)
            elif agent.status == "offline":
                self._liveness.eject(agent.id, self._clock.now())
        self.watch.soon(agent.id)
        self._changed(agent)
