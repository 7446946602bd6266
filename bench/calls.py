"""Rounds of calls, each judged: only a 200 with the expected words and no error is a reply."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from dragoman.testing.load import Load, Request, Tally, percentile, run_on_connections

from .wire import TASK_ID

CONNECTIONS = 64
SAMPLE_EVERY = 61
MAX_SAMPLES = 40


@dataclass
class Outcome(Tally):
    """What one round saw."""

    words: bytes = b""
    ids_every: int = 0
    errors: int = 0
    latencies: list[float] = field(default_factory=list[float])
    # Looked at after the round, so that looking costs no throughput.
    samples: list[Request] = field(default_factory=list[Request])
    tasks: list[bytes] = field(default_factory=list[bytes])
    error: str = ""

    @property
    def replies(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Replies per second, until the last reply."""
        return self.replies / (self.last - self.began) if self.replies else 0.0

    def fail(self, reason: str) -> None:
        self.errors += 1
        self.error = self.error or reason

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the replies came."""
        return percentile(self.latencies, share) * 1000

    def take(self, status: int, body: bytes, expected: bytes, took: float, at: float) -> None:
        if status != 200 or self.words not in body or expected not in body or b'"error":' in body:
            self.fail(f"HTTP {status}: {body[:200]!r}")
            return
        self.latencies.append(took)
        number = len(self.latencies)
        if number % SAMPLE_EVERY == 1 and len(self.samples) < MAX_SAMPLES:
            self.samples.append((expected, body))
        if self.ids_every and number % self.ids_every == 0 and (found := TASK_ID.search(body)):
            self.tasks.append(found[1])


@dataclass
class Calls:
    """One round of calls: until a time or a number is reached."""

    requests: Iterator[Request]
    # What every reply has to contain.
    words: bytes
    window: float = math.inf
    count: int | None = None
    # Of how many replies one task is remembered; 0 is none.
    ids_every: int = 0


async def call(port: int, calls: Calls, connections: int = CONNECTIONS) -> Outcome:
    """Run one round and return what it saw. No call is left unanswered when it returns."""
    load = Load(
        lambda: Outcome(words=calls.words, ids_every=calls.ids_every),
        seconds=calls.window,
        count=calls.count,
    )
    return await run_on_connections(load, port, calls.requests, connections)
