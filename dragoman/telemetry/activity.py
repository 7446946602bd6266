"""One line of log for each task that rests and each refused login: what an operator who looks at a
terminal wants to see.

However many there are, they cost little: beyond some lines in a second the rest is counted, and
told in one line. Nothing that callers or agents said is in them.
"""

import logging
import time
from collections import Counter

logger = logging.getLogger("dragoman")

# Lines in one second; more are summed up.
MOST = 20
_PERIOD = 1.0


class Activity:
    """What happens in this process, as lines of its log."""

    def __init__(self) -> None:
        # Whether anything is logged: only a server that was started from a command line does.
        self.on = False
        self._since = 0.0
        self._lines = 0
        self._more: Counter[str] = Counter()

    def rested(self, agent: str, task_id: str, state: str, seconds: float) -> None:
        """Log that a task ended, or waits for somebody."""
        if self._has_room(state):
            facts = {"task_id": task_id, "agent": agent}
            logger.info("task %s after %s", state, _duration(seconds), extra=facts)

    def refused(self, address: str, reason: str) -> None:
        """Log that a caller was not let in, and why."""
        if self._has_room("refused logins"):
            logger.info("login refused for %s: %s", address or "a local caller", reason)

    def _has_room(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._since >= _PERIOD:
            self.flush()
            self._since, self._lines = now, 0
        if self._lines < MOST:
            self._lines += 1
            return True
        self._more[kind] += 1
        return False

    def flush(self) -> None:
        """Log what was only counted."""
        if self._more:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._more.most_common())
            self._more.clear()
            logger.info("and within a second: %s", kinds)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


activity = Activity()
