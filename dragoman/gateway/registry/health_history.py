"""What was observed of each agent, and the status that follows from it.

Pure: it is given heartbeats, probes and what happened to forwarded tasks, with their times, and
returns a status. An agent that was missed several times within half a minute is ejected, even if it
answered in between: it stays offline until probes, not callers, have reached it several times in a
row.
"""

from collections import deque
from collections.abc import Callable

from dragoman.gateway.registry.registered import Registered, Status

# This many misses within this many milliseconds eject an agent.
MISSES, WITHIN = 3, 30_000
# This many probes in a row readmit it, this many milliseconds apart: longer than a flapping agent
# stays up. Each further ejection within `FORGIVEN_AFTER` doubles the number of probes.
PROBES, APART = 3, 5_000
MOST_PROBES = 24
FORGIVEN_AFTER = 600_000
# Heartbeats that may be missing before the status changes.
DEGRADED_AFTER, OFFLINE_AFTER = 1, 3


class _Record:
    __slots__ = ("ejected_at", "ejections", "is_ejected", "misses", "pause", "streak")

    def __init__(self) -> None:
        self.misses: deque[int] = deque(maxlen=MISSES)
        self.is_ejected = False
        self.ejected_at = 0
        self.ejections = 0
        # Probes in a row that reached it.
        self.streak = 0
        # Until the next probe while it is away.
        self.pause = APART


class HealthHistory:
    """What was observed of every agent. Times are milliseconds."""

    def __init__(self, interval: float) -> None:
        """`interval` is the time between two heartbeats, or two probes, in seconds."""
        self._interval = max(int(interval * 1000), 1)
        self._records: dict[str, _Record] = {}

    def saw(self, agent: Registered) -> Status:
        """Return the status of an agent after a caller's task reached it."""
        record = self._records.get(agent.id)
        if record is not None and record.is_ejected:
            return "offline"
        # The status that its last heartbeat gave holds until the next one.
        return "degraded" if agent.beat_at and agent.status == "degraded" else "online"

    def missed(self, agent: Registered, now: int) -> Status:
        """Return the status of an agent after a task or a probe did not reach it."""
        record = self._record(agent.id)
        record.streak = 0
        if record.is_ejected or agent.status == "offline":
            return "offline"
        record.misses.append(now)
        if len(record.misses) == MISSES and now - record.misses[0] <= WITHIN:
            self.eject(agent.id, now)
            return "offline"
        return "degraded"

    def probed(self, agent: Registered, now: int, *, is_there: bool) -> Status:
        """Return the status of an agent after a probe."""
        record = self._record(agent.id)
        if not is_there:
            record.pause = min(record.pause * 2, self._interval)
            # Probes of an agent that is away are far apart, and count all the same.
            return self.missed(agent, now)
        record.pause = APART
        if record.is_ejected:
            record.streak += 1
            if record.streak < self._needed(record):
                return "offline"
            self.admit(agent.id)
        return "online"

    def beat(self, agent: Registered, said: Status | None) -> Status:
        """Return the status of an agent after a heartbeat."""
        if self.is_ejected(agent.id):
            return "offline"
        return said or "online"

    def silent(self, agent: Registered, now: int) -> Status:
        """Return the status of an agent that sends heartbeats, by how long it has been silent."""
        intervals = (now - agent.beat_at) / self._interval
        if self.is_ejected(agent.id) or intervals > OFFLINE_AFTER:
            return "offline"
        # The status that a heartbeat gave counts as long as heartbeats come.
        return "degraded" if intervals > DEGRADED_AFTER else agent.status

    def eject(self, id: str, now: int) -> None:
        """Take an agent out until probes reach it again."""
        record = self._record(id)
        if record.is_ejected:
            return
        is_again = record.ejections and now - record.ejected_at < FORGIVEN_AFTER
        record.ejections = record.ejections + 1 if is_again else 1
        record.is_ejected, record.ejected_at = True, now
        record.streak, record.pause = 0, APART
        record.misses.clear()

    def admit(self, id: str) -> None:
        """Take an agent back."""
        record = self._record(id)
        record.is_ejected, record.streak = False, 0
        record.misses.clear()

    def is_ejected(self, id: str) -> bool:
        """Tell whether an agent is out until probes reach it."""
        record = self._records.get(id)
        return record is not None and record.is_ejected

    def forget(self, id: str) -> None:
        """Forget what was observed of an agent."""
        self._records.pop(id, None)

    def is_probed(self, agent: Registered) -> bool:
        """Tell whether an agent is probed, rather than judged by its heartbeats."""
        return agent.beat_at == 0 or self.is_ejected(agent.id)

    def back_at(self, agent: Registered, now: int, due_at: int | None) -> int:
        """Return when an agent that is offline may be back at the earliest. `due_at` is when it is
        checked next."""
        if not self.is_probed(agent):
            # Its next heartbeat is due within the interval.
            return now + self._interval
        at = now if due_at is None else max(due_at, now)
        record = self._records.get(agent.id)
        if record is None or not record.is_ejected:
            return at
        return at + max(0, self._needed(record) - record.streak - 1) * min(APART, self._interval)

    def next_at(self, agent: Registered, now: int, random: Callable[[], float]) -> int:
        """Return when an agent is to be checked next."""
        if not self.is_probed(agent):
            for intervals in (DEGRADED_AFTER, OFFLINE_AFTER):
                at = agent.beat_at + intervals * self._interval + 1
                if at > now:
                    return at
            return now + self._interval
        if agent.status == "online":
            # Spread, so that agents are not checked all at once.
            return now + int(self._interval * (0.8 + 0.4 * random()))
        record = self._records.get(agent.id)
        pause = APART if record is None or agent.status == "degraded" else record.pause
        return now + min(pause, self._interval)

    def _needed(self, record: _Record) -> int:
        """Return how many probes in a row readmit."""
        return min(PROBES << (record.ejections - 1), MOST_PROBES)

    def _record(self, id: str) -> _Record:
        return self._records.setdefault(id, _Record())
