"""How long a caller may keep one connection waiting: for a request, for the rest of one, for taking
an answer. A connection says what it waits for next; `Connections` looks once a second whether it is
late, so that a good request arms no timer.
"""

import math
from typing import Protocol

# Seconds for a request's head, from its first byte; the first one's from the connection on.
HEAD_SECONDS = 10.0
# Seconds for a body; a longer one is read on while it comes at least this fast.
BODY_SECONDS = 30.0
BYTES_PER_SECOND = 4 * 1024
# Seconds without a request after which a connection is closed.
IDLE_SECONDS = 60.0
# Seconds a caller has to take a plain answer, besides what its size takes at the rate above.
WRITE_SECONDS = 60.0
# Seconds we go on reading after a refusal: closing at once would take the answer back.
LINGER_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
# Seconds in which a server that stops still takes a request of a connection that has none: one may
# be on its way, and to close then would take its answer away.
LAST_REQUEST_SECONDS = 0.25
NEVER = math.inf


class LoopClock(Protocol):
    """Tells the time in which this process was able to read."""

    now: float


class Deadlines:
    """The next deadlines of one connection."""

    __slots__ = ("_body_began", "_clock", "read_by", "write_by")

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._body_began = 0.0
        # By when the caller should have sent what we wait for, and taken what we wrote.
        self.read_by = self.write_by = NEVER

    def await_head(self) -> None:
        """The head of a request is to come."""
        self.read_by = self._clock.now + HEAD_SECONDS

    def await_body(self) -> None:
        """The body of a request is to come, or we were the ones who did not read it so far."""
        self._body_began = now = self._clock.now
        self.read_by = now + BODY_SECONDS

    def await_request(self) -> None:
        """Nothing is under way; another request may come."""
        self.read_by = self._clock.now + IDLE_SECONDS

    def linger(self) -> None:
        """The last answer is written; the caller has some time to stop sending and read it."""
        self.read_by = self._clock.now + LINGER_SECONDS

    def extend_body(self, received: int) -> bool:
        """Give a body more time if it comes fast enough, and tell whether it does."""
        by = self._body_began + max(BODY_SECONDS, received / BYTES_PER_SECOND)
        if self._clock.now >= by:
            return False
        self.read_by = by
        return True

    def bound_writing(self, unsent: int) -> None:
        """The caller has to take what was written; an earlier deadline for that stays."""
        by = self._clock.now + WRITE_SECONDS + unsent / BYTES_PER_SECOND
        self.write_by = min(self.write_by, by)

    def is_late(self) -> bool:
        """Tell whether a deadline has passed."""
        now = self._clock.now
        return self.read_by <= now or self.write_by <= now

    def is_late_to_take(self) -> bool:
        """Tell whether the caller should have taken what was written."""
        return self.write_by <= self._clock.now
