"""One line of log for each task that rests and each refused login: what an operator who looks at a
terminal wants to see.

The event loop only notes them; a thread writes. However many there are, they cost little: of one
moment some are written, the rest is counted and told in one line. Nothing that callers or agents
said is in them.
"""

import logging
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue

logger = logging.getLogger("dragoman")

# Lines of one moment, and its seconds.
MOST = 20
_MOMENT = 0.5


_REFUSED = "refused logins"
# The state of a task, its agent, its id and the time in milliseconds; or of a refused login
# `_REFUSED`, the address, the reason and nothing.
_Note = tuple[Enum | str, str, str, int]


class Activity:
    """What happens in this process, as lines of its log."""

    def __init__(self) -> None:
        # Whether anything is noted: only a server that was started from a command line does.
        self.on = False
        # Written in C: every task passes here, on the loop.
        self._notes: SimpleQueue[_Note] = SimpleQueue()
        # By state, or `_REFUSED`.
        self._more: Counter[Enum | str] = Counter()

    def begin(self) -> None:
        """Log from now on."""
        self.on = True
        threading.Thread(target=self._write, name="activity", daemon=True).start()

    def rested(self, agent: str, task_id: str, state: Enum, at: int) -> None:
        """Note that a task ended, or waits for an answer, at a time in milliseconds."""
        if self._notes.qsize() < MOST:
            self._notes.put((state, agent, task_id, at))
        else:
            # Its word is looked up once for all.
            self._more[state] += 1

    def refused(self, address: str, reason: str) -> None:
        """Note that a caller was not let in, and why."""
        if self._notes.qsize() < MOST:
            self._notes.put((_REFUSED, address, reason, 0))
        else:
            self._more[_REFUSED] += 1

    def flush(self) -> None:
        """Log what was noted."""
        with suppress(Empty):
            while True:
                _log(self._notes.get_nowait())
        more, self._more = self._more, Counter()
        if more:
            kinds = ", ".join(f"{count:,} {_word(kind)}" for kind, count in more.most_common())
            logger.info("and in the same moment: %s", kinds)

    def _write(self) -> None:
        while True:
            _log(self._notes.get())
            self.flush()
            time.sleep(_MOMENT)


def _log(note: _Note) -> None:
    kind, subject, detail, at = note
    if kind == _REFUSED:
        logger.info("login refused for %s: %s", subject or "a local caller", detail)
        return
    facts = {"task_id": detail, "agent": subject}
    logger.info("task %s%s", _word(kind), _since(detail, at), extra=facts)


def _word(state: Enum | str) -> str:
    name = state.name if isinstance(state, Enum) else state
    return name.lower().replace("_", "-")


def _since(task_id: str, at: int) -> str:
    """Return how long a task took, by the time that its id has in it; ids of others have none."""
    digits = task_id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7" or set(digits) - set("0123456789abcdef"):
        return ""
    seconds = max(0, at - int(digits[:12], 16)) / 1000
    return f" after {seconds * 1000:.0f} ms" if seconds < 1 else f" after {seconds:,.1f} s"


activity = Activity()
