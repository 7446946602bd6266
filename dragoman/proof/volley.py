"""Load that does not wait for its server: prebuilt requests on plain sockets, sent when they are
due whether or not the last ones were answered, and timed from when they were due.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec

from dragoman.proof.harness import HOST, message

_HOLE = "HOLE-FOR-AN-ID-X"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_TASK = re.compile(rb'"task":\{"id":"([^"]+)"')
_TICK = 0.001
# Connections opened before the first of them is used.
_AT_ONCE = 50
_HEALTH = f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
# Seconds for the last answers.
_LAST_WITHIN = 30.0
OK, TOO_MANY, BUSY = 200, 429, 503
NO_TASK = -1


class Tally(msgspec.Struct):
    """What came of some requests."""

    # By status; 0 is a connection that ended first.
    answers: Counter[int] = msgspec.field(default_factory=lambda: Counter[int]())
    # Seconds that accepted ones took, and refused ones; and when accepted ones were answered.
    accepted: list[float] = []
    refused: list[float] = []
    answered_at: list[float] = []
    tasks: list[bytes] = []
    # When it began, how long it lasted, and accepted ones that were answered by then.
    began: float = 0.0
    seconds: float = 0.0
    in_time: int = 0
    # Requests that were due and found no connection until the end.
    unsent: int = 0

    @property
    def goodput(self) -> float:
        """Accepted requests per second."""
        return self.in_time / self.seconds if self.seconds else 0.0

    @property
    def others(self) -> dict[int, int]:
        """Answers that are neither a result nor a refusal."""
        known = (OK, TOO_MANY, BUSY)
        return {status: n for status, n in self.answers.items() if status not in known}

    def within(self, spans: Sequence[tuple[float, float]]) -> "Tally":
        """Return what was accepted in some spans of this time, and how much of it they are."""
        found = [
            took
            for took, at in zip(self.accepted, self.answered_at, strict=True)
            if any(begin <= at < end for begin, end in spans)
        ]
        seconds = sum(end - begin for begin, end in spans)
        return Tally(accepted=found, began=self.began, seconds=seconds, in_time=len(found))

    def take(self, status: int, body: bytes, took: float, at: float = 0.0) -> None:
        """Count an answer."""
        task = _TASK.search(body) if status == OK else None
        # Whatever is called a result has a task in it.
        self.answers[NO_TASK if status == OK and task is None else status] += 1
        if task is not None:
            self.accepted.append(took)
            self.answered_at.append(at)
            self.tasks.append(task[1])
        else:
            self.refused.append(took)


def sends(token: str = "") -> Iterator[bytes]:
    """Yield requests that each begin a task."""
    params = message("echo", "hello", _HOLE)
    body = msgspec.json.encode(
        {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    )
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: 1.0\r\n{bearer}Content-Length: {len(body)}\r\n\r\n"
    )
    before, after = (head.encode() + body).split(_HOLE.encode())
    run = secrets.token_hex(4).encode()
    for number in itertools.count():
        yield b"%b%b%08x%b" % (before, run, number, after)


class Wire(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, tally: Tally, on_answer: "Callable[[Wire], None]") -> None:
        self.tally = tally
        self.on_answer = on_answer
        self._due: deque[float] = deque()
        self._held = b""

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._due)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        # uvloop's transports have the methods of asyncio's, not the class.
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, due: float) -> None:
        """Send a request that was due at some time."""
        self._due.append(due)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take whole answers."""
        data = self._held + data if self._held else data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(data, 0, end + 2)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(data) < size:
                break
            now = time.perf_counter()
            took = now - self._due.popleft()
            self.tally.take(int(data[9:12]), data[end + 4 : size], took, now)
            data = data[size:]
            self.on_answer(self)
        self._held = data

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with it the answers that had not come."""
        self.tally.answers[0] += len(self._due)
        self._due.clear()


async def _connected(
    port: int, count: int, tally: Tally, on_answer: Callable[[Wire], None]
) -> list[Wire]:
    loop = asyncio.get_running_loop()
    unnoticed = Tally()
    wires: list[Wire] = []
    while len(wires) < count:
        some = [
            (await loop.create_connection(lambda: Wire(unnoticed, _rest), HOST, port))[1]
            for _ in range(min(_AT_ONCE, count - len(wires)))
        ]
        # To be connected is not to be accepted: of those too many the system drops what they
        # send, and tries again seconds later.
        for wire in some:
            wire.send(_HEALTH, time.perf_counter())
        async with asyncio.timeout(_LAST_WITHIN):
            while any(wire.waiting for wire in some):  # noqa: ASYNC110  # as in `_finish`
                await asyncio.sleep(_TICK)
        wires += some
    for wire in wires:
        wire.tally, wire.on_answer = tally, on_answer
    return wires


def _rest(wire: Wire) -> None:
    """Do nothing."""


async def closed_loop(
    port: int, requests: Iterator[bytes], callers: int, seconds: float, warmup: float = 0.0
) -> Tally:
    """Let callers ask again as soon as they are answered; the warm-up is not counted."""
    begun = time.perf_counter()
    ends = begun + warmup + seconds

    def again(wire: Wire) -> None:
        now = time.perf_counter()
        if now < ends:
            wire.send(next(requests), now)

    wires = await _connected(port, callers, Tally(), again)
    counted = Tally()
    for wire in wires:
        wire.send(next(requests), time.perf_counter())
    await asyncio.sleep(warmup)
    started = time.perf_counter()
    for wire in wires:
        wire.tally = counted
    await asyncio.sleep(ends - started)
    counted.began, counted.seconds = started, time.perf_counter() - started
    counted.in_time = len(counted.accepted)
    await _finish(wires)
    return counted


async def open_loop(
    port: int,
    requests: Iterator[bytes],
    rate: float,
    seconds: float,
    connections: int,
    warmup: float = 0.0,
) -> Tally:
    """Send so many requests a second, whatever becomes of them. Those that are due in the warm-up
    are not counted; those that come to wait because of it are."""
    idle: deque[Wire] = deque()
    # When requests were due that wait for a connection.
    late: deque[float] = deque()

    def go_on(wire: Wire) -> None:
        if late:
            wire.send(next(requests), late.popleft())
        else:
            idle.append(wire)

    early, tally = Tally(), Tally()
    wires = await _connected(port, connections, early, go_on)
    idle.extend(wires)
    started = time.perf_counter()
    due = 0
    while (passed := time.perf_counter() - started) < warmup + seconds:
        if passed >= warmup and wires[0].tally is early:
            for wire in wires:
                wire.tally = tally
        while due < passed * rate:
            at = started + due / rate
            due += 1
            if idle:
                idle.popleft().send(next(requests), at)
            else:
                late.append(at)
        await asyncio.sleep(_TICK)
    tally.began, tally.seconds = started + warmup, time.perf_counter() - started - warmup
    tally.unsent = len(late)
    late.clear()
    # What comes later was not accepted in time, but it was accepted.
    tally.in_time = len(tally.accepted)
    await _finish(wires)
    tally.tasks += early.tasks
    return tally


async def _finish(wires: Sequence[Wire]) -> None:
    deadline = time.perf_counter() + _LAST_WITHIN
    # Answers come to each wire by itself; nobody else needs to know when the last one did.
    while any(wire.waiting for wire in wires) and time.perf_counter() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for wire in wires:
        wire.transport.abort()
