"""Sends on plain sockets, as fast as they are answered or at a rate, and what came of them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dragoman.testing.load import HOLE, Load, Request, Tally, fresh, rpc, run_on_connections
from proof.client import message

_TASK = re.compile(rb'"task":\{"id":"([^"]+)"')
OK, TOO_MANY, BUSY = 200, 429, 503
NO_TASK = -1


@dataclass
class SendTally(Tally):
    """What came of some sends."""

    # By status; 0 is a connection that ended first.
    answers: Counter[int] = field(default_factory=Counter[int])
    # Seconds that accepted ones took, and refused ones; and when accepted ones were answered.
    accepted: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])
    answered_at: list[float] = field(default_factory=list[float])
    tasks: list[bytes] = field(default_factory=list[bytes])
    # Accepted ones that were answered before the time was over.
    in_time: int = 0

    @property
    def goodput(self) -> float:
        """Accepted requests per second."""
        return self.in_time / self.seconds if self.seconds else 0.0

    @property
    def others(self) -> dict[int, int]:
        """Answers that are neither a result nor a refusal."""
        known = (OK, TOO_MANY, BUSY)
        return {status: n for status, n in self.answers.items() if status not in known}

    def within(self, spans: Sequence[tuple[float, float]]) -> "SendTally":
        """Return what was accepted in some spans of this time, and how much of it they are."""
        found = [
            took
            for took, at in zip(self.accepted, self.answered_at, strict=True)
            if any(begin <= at < end for begin, end in spans)
        ]
        seconds = sum(end - begin for begin, end in spans)
        return SendTally(accepted=found, began=self.began, seconds=seconds, in_time=len(found))

    def take(
        self, status: int, body: bytes, expected: bytes = b"", took: float = 0.0, at: float = 0.0
    ) -> None:
        """Count an answer."""
        task = _TASK.search(body) if status == OK else None
        # A result has a task in it.
        self.answers[NO_TASK if status == OK and task is None else status] += 1
        if task is not None:
            self.accepted.append(took)
            self.answered_at.append(at)
            self.tasks.append(task[1])
        elif status:
            self.refused.append(took)

    def end_window(self) -> None:
        """Count what was accepted in time."""
        self.in_time = len(self.accepted)


def sends(token: str = "", path: str = "/") -> Iterator[Request]:
    """Yield requests that each begin a task."""
    return fresh(rpc("SendMessage", message("echo", "hello", HOLE), path=path, token=token))


async def closed_loop(
    port: int, requests: Iterator[Request], callers: int, seconds: float, warmup: float = 0.0
) -> SendTally:
    """Let callers ask again as soon as they are answered; the warm-up is not counted."""
    load = Load(SendTally, seconds=seconds, warmup=warmup)
    return await run_on_connections(load, port, requests, callers)


async def open_loop(
    port: int,
    requests: Iterator[Request],
    rate: float,
    seconds: float,
    connections: int,
    warmup: float = 0.0,
) -> SendTally:
    """Send so many requests a second, whatever becomes of them.

    What is answered in the warm-up is not counted, but its tasks are among those of the tally.
    """
    load = Load(SendTally, seconds=seconds, rate=rate, warmup=warmup)
    tally = await run_on_connections(load, port, requests, connections)
    if warmup:
        tally.tasks += load.early.tasks
    return tally
