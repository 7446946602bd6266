"""What the machine takes: a virtual processor is given to others now and then, often for a tenth
of a second at a time, and what is timed meanwhile says nothing about a server.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

# Seconds between two looks, and what may be taken between them before it is noted.
_BETWEEN = 0.05
_TAKEN = 0.02
# Seconds until what queued up meanwhile is done with.
_AFTERMATH = 0.5

_STAT = Path("/proc/stat")
_STOLEN_FIELD = 8

# From when to when, on the clock of `time.perf_counter`.
Span = tuple[float, float]


def stolen() -> list[float]:
    """Return for each processor the seconds it was given to others; nothing where the system does
    not tell."""
    try:
        lines = [line.split() for line in _STAT.read_text().splitlines()]
        ticks = [int(line[_STOLEN_FIELD]) for line in lines if line[0][:3] == "cpu" and line[0][3:]]
    except (OSError, IndexError, ValueError):
        return []
    return [count / os.sysconf("SC_CLK_TCK") for count in ticks]


class Interruptions:
    """When a processor was given to others."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Note them for a while."""
        task = asyncio.create_task(self._watch(time.perf_counter(), stolen()))
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self, at: float, before: list[float]) -> None:
        while True:
            await asyncio.sleep(_BETWEEN)
            now, taken = time.perf_counter(), stolen()
            self.note((at, now), [b - a for a, b in zip(before, taken, strict=False)])
            at, before = now, taken

    def note(self, span: Span, taken: Sequence[float]) -> None:
        """Note what was taken of each processor in a span."""
        if not taken or max(taken) < _TAKEN:
            return
        begin, end = span[0], span[1] + _AFTERMATH
        if self._spans and begin <= self._spans[-1][1]:
            begin = self._spans.pop()[0]
        self._spans.append((begin, end))

    def quiet(self, begin: float, end: float) -> list[Span]:
        """Return what there was of a time without them."""
        spans: list[Span] = []
        for from_, to in self._spans:
            if to > begin and from_ < end:
                if from_ > begin:
                    spans.append((begin, from_))
                begin = to
        return [*spans, (begin, end)] if begin < end else spans
