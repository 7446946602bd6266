"""The one load generator: callers that ask again as soon as they are answered, or at a rate.

`Load` says when a request begins; a caller makes it and says when it is answered. A time counts
from when the request was due: one that waited for a free caller has waited. `Connection` is the
caller of proofs and benches: finished bytes on a plain socket, several times cheaper than any
server it loads. `dragoman bench` brings callers of its own, on our client.
"""

import asyncio
import contextlib
import itertools
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import httptools
import msgspec

HOST = "127.0.0.1"
# Replaced by an id of the same length in each copy of a request.
HOLE = "HOLE-FOR-A-FRESHID"
# A connection that ended before its answer, or was given up.
NO_ANSWER = 0
_OPENED_AT_ONCE = 50
_TICK = 0.001
_DRAIN = 60.0
_PROBE = f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()

# A request, and what its answer has to contain.
Request = tuple[bytes, bytes]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def rpc(method: str, params: Any, *, path: str = "/", token: str = "") -> bytes:
    """Return a JSON-RPC call of A2A 1.0 as the bytes of an HTTP request."""
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: 1.0\r\n{bearer}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def fresh(request: bytes) -> Iterator[Request]:
    """Yield copies of a request without end, each with an id of its own for every `HOLE`."""
    parts = request.split(HOLE.encode())
    run = secrets.token_hex(4).encode()
    for number in itertools.count():
        id = b"%s%010d" % (run, number)
        yield id.join(parts), id


@dataclass
class Tally:
    """What became of the requests of a load; each use has its own idea of a good answer."""

    # When counting began, and for how long requests were begun.
    began: float = 0.0
    seconds: float = 0.0
    # When the last answer came.
    last: float = 0.0
    # Requests that were due and found no free caller until the end.
    unsent: int = 0
    # Seconds after which this process noticed that requests of a rate were due: it had other work,
    # or no processor. Answers that had come may have waited as long to be read.
    lateness: list[float] = field(default_factory=list[float])

    def take(self, status: int, body: bytes, expected: bytes, took: float, at: float) -> None:
        """Count an answer; a status of `NO_ANSWER` is none, and the body says why."""
        raise NotImplementedError

    def end_window(self) -> None:
        """The time is over: answers from here on come late."""


TallyT = TypeVar("TallyT", bound=Tally)


class LoadCaller(Protocol):
    """Makes one request at a time, and then calls `Load.free` or `Load.lose`."""

    def begin(self, due: float) -> None:
        """Begin a request that was due at this time of `time.perf_counter`."""
        ...

    def abandon(self) -> None:
        """Give the answer up that has not come."""
        ...


class Load(Generic[TallyT]):
    """Keeps callers busy for a time, or for a number of requests.

    Without a rate each asks again as soon as it was answered. With one, so many requests a second
    are due whatever becomes of them. What is answered in the warm-up is not in `tally`.
    """

    def __init__(
        self,
        make_tally: Callable[[], TallyT],
        *,
        seconds: float = math.inf,
        count: int | None = None,
        rate: float | None = None,
        warmup: float = 0.0,
        drain: float = _DRAIN,
    ) -> None:
        # What is counted, and what was in the warm-up.
        self.tally = self.early = make_tally()
        self._make_tally = make_tally
        self._seconds = seconds
        self._left = math.inf if count is None else count
        self._rate = rate
        self._warmup = warmup
        self._drain = drain
        self._ends = math.inf
        self._free: deque[LoadCaller] = deque()
        # When requests were due that wait for a free caller.
        self._late: deque[float] = deque()
        self._busy: set[LoadCaller] = set()
        self._is_idle = asyncio.Event()

    async def run(self, callers: Sequence[LoadCaller]) -> TallyT:
        """Run to the end; no request is under way any more when it returns."""
        began = self.tally.began = self.tally.last = time.perf_counter()
        self._ends = began + self._warmup + self._seconds
        warming = asyncio.create_task(self._warm_up(began + self._warmup))
        try:
            if self._rate is None:
                for caller in callers:
                    # Also where a busy machine lets the time pass before the last one has begun.
                    if self._left > 0:
                        self._left -= 1
                        self._begin(caller, time.perf_counter())
                await self._wait(self._drain if math.isinf(self._ends) else self._ends - began)
            else:
                self._free.extend(callers)
                await self._issue(began, self._rate)
            await warming
        finally:
            warming.cancel()
        tally = self.tally
        tally.seconds = time.perf_counter() - tally.began
        tally.unsent = len(self._late)
        self._late.clear()
        self._left = 0
        tally.end_window()
        await self._wait(self._drain)
        for caller in list(self._busy):
            caller.abandon()
        return tally

    def free(self, caller: LoadCaller) -> None:
        """Take a caller that was answered: it makes the next request, or has none to make."""
        self._busy.discard(caller)
        now = time.perf_counter()
        if self._rate is not None:
            if self._late:
                self._begin(caller, self._late.popleft())
            else:
                self._free.append(caller)
        elif now < self._ends and self._left > 0:
            self._left -= 1
            self._begin(caller, now)
        if not self._busy:
            self._is_idle.set()

    def lose(self, caller: LoadCaller) -> None:
        """Go on without a caller."""
        self._busy.discard(caller)
        if not self._busy:
            self._is_idle.set()

    def _begin(self, caller: LoadCaller, due: float) -> None:
        self._busy.add(caller)
        self._is_idle.clear()
        caller.begin(due)

    async def _warm_up(self, until: float) -> None:
        if self._warmup:
            await asyncio.sleep(until - time.perf_counter())
            self.early, self.tally = self.tally, self._make_tally()
            self.tally.began = self.tally.last = time.perf_counter()

    async def _issue(self, began: float, rate: float) -> None:
        number = 0
        while (now := time.perf_counter()) < self._ends and self._left > 0:
            while number < (now - began) * rate and self._left > 0:
                due = began + number / rate
                number += 1
                self._left -= 1
                self.tally.lateness.append(time.perf_counter() - due)
                if self._free:
                    self._begin(self._free.popleft(), due)
                else:
                    self._late.append(due)
            following = min(began + number / rate, self._ends)
            await asyncio.sleep(max(_TICK, following - time.perf_counter()))

    async def _wait(self, seconds: float) -> None:
        """Wait until no caller is busy, but not longer than this."""
        if not self._busy:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), None if math.isinf(seconds) else seconds)


class Connection(asyncio.Protocol):
    """A caller on one keep-alive connection; every answer goes to the tally of its load."""

    transport: asyncio.Transport

    def __init__(self, load: Load[Any], requests: Iterator[Request]) -> None:
        self._load = load
        self._requests = requests
        self._parser = httptools.HttpResponseParser(self)
        self._body = self._expected = b""
        self._due = 0.0
        self._is_waiting = self._is_lost = False
        self._probe: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the methods of asyncio's, not the class.
        self.transport = cast(asyncio.Transport, transport)

    async def probe(self) -> None:
        """Return once the server answers on this connection, whatever it says."""
        self._probe = asyncio.get_running_loop().create_future()
        self.transport.write(_PROBE)
        await self._probe
        self._probe = None

    def begin(self, due: float) -> None:
        """Send the next request."""
        request, self._expected = next(self._requests)
        self._body = b""
        self._due = due
        self._is_waiting = True
        if self._is_lost:
            self._fail(b"the connection was lost")
        else:
            self.transport.write(request)

    def abandon(self) -> None:
        """Give the answer up that has not come."""
        self._fail(b"not answered in time")
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}".encode())
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the answer."""
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """Count the answer."""
        if self._probe is not None:
            self._probe.set_result(None)
            self._body = b""
            return
        now = time.perf_counter()
        self._is_waiting = False
        tally = self._load.tally
        tally.last = now
        status = self._parser.get_status_code()
        tally.take(status, self._body, self._expected, now - self._due, now)
        self._load.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a request that is not answered any more."""
        self._is_lost = True
        if self._probe is not None and not self._probe.done():
            self._probe.set_exception(exc or ConnectionResetError("closed"))
        self._fail(f"connection lost: {exc}".encode())

    def _fail(self, reason: bytes) -> None:
        if self._is_waiting:
            self._is_waiting = False
            now = time.perf_counter()
            self._load.tally.take(NO_ANSWER, reason, self._expected, now - self._due, now)
            self._load.lose(self)


async def run_on_connections(
    load: Load[TallyT], port: int, requests: Iterator[Request], connections: int
) -> TallyT:
    """Run a load on so many connections to a server of this machine."""
    loop = asyncio.get_running_loop()
    callers: list[Connection] = []
    try:
        while len(callers) < connections:
            some: list[Connection] = []
            for _ in range(min(_OPENED_AT_ONCE, connections - len(callers))):
                opened = await loop.create_connection(
                    lambda: Connection(load, requests), HOST, port
                )
                some.append(opened[1])
            callers += some
            # A connection that is open need not be accepted: where too many wait for that, the
            # system drops what they send and tries again seconds later.
            async with asyncio.timeout(_DRAIN):
                for caller in some:
                    await caller.probe()
        return await load.run(callers)
    finally:
        for caller in callers:
            caller.transport.abort()
