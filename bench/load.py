"""The client side: keep-alive connections that send prebuilt bytes and judge every reply.

It is a bare asyncio protocol over httptools, several times cheaper than any server it loads,
so that two cores measure the server. A reply counts only if it is a 200 with the expected
words in it and no error; all else is counted and shown as an error.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import httptools

from .wire import TASK_ID

CONNECTIONS = 64
DRAIN = 60.0
KEPT_EVERY = 61
KEPT_MOST = 40


@dataclass
class Outcome:
    """What one round saw. `seconds` ends with the last reply, not with the window."""

    replies: int = 0
    errors: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list[float])
    # Kept whole for a closer look after the round, so that looking costs no throughput.
    kept: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    tasks: list[bytes] = field(default_factory=list[bytes])
    error: str = ""

    @property
    def rate(self) -> float:
        return self.replies / self.seconds if self.seconds else 0.0

    def fail(self, reason: str) -> None:
        self.errors += 1
        self.error = self.error or reason

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the replies came."""
        if not self.latencies:
            return math.nan
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


class Calls:
    """One round of calls shared by all its connections: until a time or a number is reached."""

    def __init__(
        self,
        requests: Iterator[tuple[bytes, bytes]],
        words: bytes,
        *,
        window: float = math.inf,
        count: int | None = None,
        ids_every: int = 0,
    ) -> None:
        self.requests = requests
        self.words = words
        self.window = window
        self.left = count if count is not None else -1
        self.ids_every = ids_every
        self.outcome = Outcome()
        self.started = self.last = 0.0
        self.open = 0
        self.idle = asyncio.Event()

    def take(self, now: float) -> tuple[bytes, bytes] | None:
        if now - self.started >= self.window or self.left == 0:
            return None
        self.left -= 1
        return next(self.requests)

    def judge(self, status: int, body: bytes, token: bytes, latency: float) -> None:
        outcome = self.outcome
        if status != 200 or self.words not in body or token not in body or b'"error":' in body:
            outcome.fail(f"HTTP {status}: {body[:200]!r}")
            return
        outcome.replies += 1
        outcome.latencies.append(latency)
        number = outcome.replies
        if number % KEPT_EVERY == 1 and len(outcome.kept) < KEPT_MOST:
            outcome.kept.append((token, body))
        if self.ids_every and number % self.ids_every == 0 and (found := TASK_ID.search(body)):
            outcome.tasks.append(found[1])


class Caller(asyncio.Protocol):
    """One keep-alive connection: the next call leaves when the last is answered."""

    transport: asyncio.Transport

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.token = b""
        self.sent = 0.0
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, not the class.
        self.transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        self.busy = True
        self.calls.open += 1
        self.next(time.perf_counter())

    def next(self, now: float) -> None:
        taken = self.calls.take(now)
        if taken is None:
            self.stop()
            self.transport.close()
            return
        call, self.token = taken
        self.body = b""
        self.sent = now
        self.transport.write(call)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.calls.outcome.fail(f"not HTTP: {error}")
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        now = self.calls.last = time.perf_counter()
        status = self.parser.get_status_code()
        self.calls.judge(status, self.body, self.token, now - self.sent)
        self.next(now)

    def stop(self) -> None:
        self.busy = False
        self.calls.open -= 1
        if not self.calls.open:
            self.calls.idle.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy:
            self.calls.outcome.fail(f"connection lost: {exc}")
            self.stop()


async def call(port: int, calls: Calls, connections: int = CONNECTIONS) -> Outcome:
    """Run one round and return what it saw. No call is left unanswered when it returns."""
    loop = asyncio.get_running_loop()
    callers = [
        (await loop.create_connection(lambda: Caller(calls), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    calls.started = calls.last = time.perf_counter()
    for caller in callers:
        caller.start()
    window = 0.0 if math.isinf(calls.window) else calls.window
    try:
        await asyncio.wait_for(calls.idle.wait(), window + DRAIN)
    except TimeoutError:
        calls.outcome.fail(f"{calls.open} calls unanswered after {DRAIN:.0f} s")
        for caller in callers:
            caller.busy = False
            caller.transport.abort()
    calls.outcome.seconds = calls.last - calls.started
    return calls.outcome


class Reader(asyncio.Protocol):
    """One streaming call; counts artifact chunks and notes when each arrived."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, completed: bytes) -> None:
        self.request = request
        self.completed_words = completed
        self.parser = httptools.HttpResponseParser(self)
        self.tail = b""
        self.now = self.started = 0.0
        self.arrivals: list[float] = []
        self.completed = False
        self.error = ""
        self.task = b""
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, not the class.
        self.transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        self.started = self.now = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.now = time.perf_counter()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"not HTTP: {error}")

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            self.error = f"HTTP {self.parser.get_status_code()}"

    def on_body(self, body: bytes) -> None:
        data = self.tail + body if self.tail else body
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self.tail = data.split(b"\n\n")
        for event in events:
            if b'"artifactUpdate"' in event:
                self.arrivals.append(self.now)
            elif self.completed_words in event:
                self.completed = True
            elif b'"error":' in event:
                self.error = self.error or event[:200].decode(errors="replace")
            if not self.task and (found := TASK_ID.search(event)):
                self.task = found[1]
                self.opened.set()

    def on_message_complete(self) -> None:
        self.end("" if self.completed else f"ended without completion: {self.tail[:200]!r}")

    def end(self, error: str) -> None:
        self.error = self.error or error
        self.opened.set()
        self.ended.set()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.is_set():
            self.end(f"connection lost: {exc}")

    def abandon(self) -> None:
        self.ended.set()
        self.transport.abort()


async def connect(port: int, request: bytes, completed: bytes) -> Reader:
    """A connected reader that has not sent its request yet."""
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(request, completed), "127.0.0.1", port)
    return reader


async def read(readers: list[Reader], limit: float) -> bool:
    """Run the streams together to their ends; whether all ended within the limit."""
    for reader in readers:
        reader.start()
    try:
        async with asyncio.timeout(limit):
            for reader in readers:
                await reader.ended.wait()
    except TimeoutError:
        for reader in readers:
            reader.abandon()
        return False
    return True
