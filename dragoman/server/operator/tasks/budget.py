"""How long one answer may go on reading: what is left is for the next page."""

import time

# Seconds by the clock, and of the processor.
_SECONDS = 0.5
_PROCESSOR = 0.05


class ReadBudget:
    """The time of one answer, from now on."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.thread_time()

    @property
    def is_spent(self) -> bool:
        """Whether the answer should end with what it has."""
        clock, processor = self._began
        return time.monotonic() - clock > _SECONDS or time.thread_time() - processor > _PROCESSOR
