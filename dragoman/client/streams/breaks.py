"""How often the streams of one task broke or ended, and when that is the end of streaming.

Failures are counted since something was shown; breaks in a row also where each shows something, for
a peer that is wrong again and again might do so for ever.
"""

import time

from dragoman.client.second_tries import TRIES
from dragoman.errors import A2AError, Overloaded, TimedOut, Unreachable

# A stream that was open for so many seconds worked.
LASTING = 5.0
# So many that broke sooner, one after another, are taken up at once; later ones after a pause.
BREAKS = 20


class Breaks:
    """The breaks of one task's streams. A task may be out of reach for `patience` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # Failures since something was shown.
        self.tries = 0
        # Streams since then that just ended, and breaks in a row.
        self._ends = self._breaks = 0
        self._broken_at = time.monotonic()

    def note_shown(self) -> None:
        """Note that a stream showed something."""
        self.tries = self._ends = 0

    def note(self, lasted: float) -> None:
        """Note that a stream broke or ended after so many seconds; 0: it showed no life."""
        if lasted > LASTING:
            # It worked for a while: this is not the failure from before.
            self.tries = self._breaks = 0
        self.tries += 1
        self._breaks += 1
        if self.tries == 1:
            self._broken_at = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether the task is out of reach for too long."""
        return time.monotonic() - self._broken_at > self._patience

    def is_hopeless(self, problem: A2AError) -> bool:
        """Tell whether no further stream is worth a try after this failure."""
        is_often = self.tries > TRIES or self._breaks > BREAKS
        return self.is_late or (is_often and is_wrong(problem))

    def ends_too_often(self, problem: A2AError | None) -> bool:
        """Count a stream that just ended; tell whether streams end while the task goes on."""
        self._ends = self._ends + 1 if problem is None else 0
        return self._ends > TRIES

    @property
    def needs_pause(self) -> bool:
        """Whether to wait before the next stream."""
        return self.tries > 1 or self._breaks > BREAKS


def is_wrong(problem: A2AError | None) -> bool:
    """Tell whether the peer is wrong, and not just away."""
    return problem is not None and not isinstance(problem, Unreachable | Overloaded | TimedOut)
