"""What is measured and how. Every comparison is made in rounds in which everyone has a turn, and
is reported as a median with its spread, so that a slow moment of the machine favours none;
figures that only Dragoman promises (growth, the cost of a late chunk) are measured alone.
"""

import asyncio
import gc
import json
import math
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from dragoman.testing.processes import CannotStart
from dragoman.testing.servers import PostgresServer

from . import wire
from .calls import CONNECTIONS, Calls, Outcome, call
from .judging import PAGE, echoed, got, listed, replied
from .servers import OURS, Kind, Server, environment, new_server, prepare
from .streams import Reader, connect, read

SEEDED = 60
STREAMS, CHUNKS, CHUNK_SIZE = 200, 50, 32
LONG = 10_000
# Chunks are committed in groups, so one chunk alone has no cost; a thousand have.
SPAN = 1_000
EARLY, LATE = 100, LONG - SPAN - 1
# What a quick run needs after the stream at hand, in seconds.
STREAM_RESERVE = 10.0
ROW_RESERVE = 34.0
STALL_SIZE, STALL_PER_SECOND = 4096, 500
STALL_CEILING = 3_000_000
RATIOS = ("send", "one", "message", "get", "streams", "stream")
ALL = (
    "get", "list", "message", "send", "one", "streams", "stream", "idle", "cold", "growth", "stall",
)  # fmt: skip

Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How long and how often; the two plans differ in nothing else."""

    window: float
    rounds: int
    stream_rounds: int
    stream_limit: float
    # A peer that commits every chunk needs most of a minute for the full set of streams.
    slow_streams: int
    long_limit: float
    long_streams: int
    subscribers: int
    levels: tuple[int, ...]
    growth_rounds: int
    cold_starts: int
    stall: float
    # Seconds after a start in which a server may still load what it did not need for it.
    quiet: float
    # What is not compared with a peer is left out if it would not end by then.
    budget: float


FULL = Plan(2.0, 5, 2, 60.0, 50, 12.0, 15, 500, (1_000, 10_000, 100_000), 9, 5, 45.0, 6.0, math.inf)
QUICK = Plan(0.5, 1, 1, 8.0, 4, 1.5, 3, 200, (500, 2_000), 2, 1, 0.0, 0.0, 46.0)


class Bench:
    """One run: the servers, the plan, and the figures as they come in."""

    def __init__(self, plan: Plan, kinds: list[Kind], root: Path) -> None:
        self.plan = plan
        self.root = root
        self.ours = new_server(OURS, root)
        self.peers = [new_server(kind, root) for kind in kinds]
        self.postgres: PostgresServer | None = None
        self.figures: Figures = {}
        self.notes: list[str] = []
        self.began = time.perf_counter()

    async def run(self, wanted: list[str]) -> None:
        gc.freeze()
        rows = {
            "get": self.get,
            "list": self.page,
            "message": self.message,
            "send": self.send,
            "one": self.one,
            "streams": self.streams,
            "stream": self.stream,
        }
        # With the seconds each takes at most in a quick run.
        alone = {
            "cold": (self.cold, 4),
            "growth": (self.growth, 9),
            "idle": (self.idle, 8),
            "stall": (self.stall, 0),
        }
        try:
            if any(name in rows for name in wanted):
                await self.start()
            for name, measure in rows.items():
                if name in wanted and (self.left() > ROW_RESERVE or name in RATIOS):
                    self.say(name)
                    await measure()
        finally:
            await asyncio.gather(*(server.stop() for server in [self.ours, *self.peers]))
            if self.postgres is not None:
                await asyncio.to_thread(self.postgres.kill)
        for name, (measure, seconds) in alone.items():
            if name not in wanted:
                continue
            if seconds > self.left():
                self.notes.append(f"{name}: left out, the quick run has no time for it")
                continue
            self.say(name)
            await measure()

    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def left(self) -> float:
        return self.plan.budget - self.elapsed()

    def say(self, text: str) -> None:
        """Progress for a person who waits; stdout is for the table alone."""
        print(f"{self.elapsed():5.1f} s  {text}", file=sys.stderr, flush=True)

    async def start(self) -> None:
        """Start all servers together; a peer that cannot run is left out, with a note."""
        self.say("starting the servers")
        peers: list[Server] = []
        for peer in self.peers:
            try:
                await asyncio.to_thread(prepare, peer.kind)
                if peer.kind.on_postgres:
                    url = await asyncio.to_thread(self.database)
                    peer.kind = replace(peer.kind, url=url)
                peers.append(peer)
            except CannotStart as error:
                self.notes.append(str(error))
        self.peers = peers
        everyone = [self.ours, *peers]
        results = await asyncio.gather(*(s.start() for s in everyone), return_exceptions=True)
        for server, result in zip(everyone, results, strict=True):
            if isinstance(result, CannotStart) and server is not self.ours:
                self.notes.append(str(result))
                self.peers.remove(server)
            elif isinstance(result, BaseException):
                raise result
        await asyncio.gather(*(seed(server) for server in [self.ours, *self.peers]))

    def database(self) -> str:
        """A database of a PostgreSQL that is started for this run."""
        if self.postgres is None:
            self.postgres = PostgresServer(self.root / "postgres", shared_buffers="256MB")
            self.postgres.start()
        return self.postgres.make_database()

    def turns(self, operation: str, rounds: int) -> Iterator[Server]:
        """Everyone once, as often as the plan says, each time beginning with another one."""
        everyone = [self.ours, *(peer for peer in self.peers if operation in peer.kind.can)]
        for number in range(rounds):
            start = number % len(everyone)
            yield from everyone[start:]
            yield from everyone[:start]

    async def calls(
        self,
        operation: str,
        make: Callable[[Server], Calls],
        sound: "Check",
        connections: int = CONNECTIONS,
    ) -> None:
        """Rounds of calls against every server that can."""
        seen: dict[str, list[tuple[Outcome, float]]] = {}
        for server in self.turns(operation, self.plan.rounds):
            await revive(server)
            cpu = server.cpu()
            outcome = await call(server.port, make(server), connections)
            used = server.cpu() - cpu
            await sound(server, outcome)
            seen.setdefault(server.name, []).append((outcome, used))
        self.figures[operation] = {name: called(rounds) for name, rounds in seen.items()}

    async def send(self) -> None:
        await self.sends("send", CONNECTIONS)
        if any(not peer.kind.dialect.blocking for peer in self.peers):
            self.notes.append("send: fasta2a answers before the task has run; it cannot block")

    async def one(self) -> None:
        """A caller that sends the next message when it has the answer to the last."""
        await self.sends("one", 1)

    async def sends(self, operation: str, connections: int) -> None:
        def make(server: Server) -> Calls:
            dialect = server.kind.dialect
            words = dialect.completed if dialect.blocking else b'"task"'
            requests = wire.sends(dialect, "echo")
            every = 0 if dialect.blocking else 20
            return Calls(requests, words, window=self.plan.window, ids_every=every)

        await self.calls(operation, make, echoed, connections)

    async def message(self) -> None:
        def make(server: Server) -> Calls:
            requests = wire.sends(server.kind.dialect, "reply")
            return Calls(requests, b'"message"', window=self.plan.window)

        await self.calls("message", make, replied)

    async def get(self) -> None:
        def make(server: Server) -> Calls:
            dialect = server.kind.dialect
            requests = wire.gets(dialect, server.tasks)
            return Calls(requests, dialect.completed, window=self.plan.window)

        await self.calls("get", make, got)

    async def page(self) -> None:
        def make(server: Server) -> Calls:
            requests = wire.lists(server.kind.dialect, PAGE)
            return Calls(requests, server.kind.dialect.completed, window=self.plan.window)

        await self.calls("list", make, listed, connections=16)

    async def streams(self) -> None:
        """Many streams at once; the rate is chunks delivered per second, over all streams."""
        seen: dict[str, list[Figures]] = {}
        for server in self.turns("streams", self.plan.stream_rounds):
            slow = server.kind.durable and server is not self.ours
            number = self.plan.slow_streams if slow else STREAMS
            round_, _ = await self.streamed(server, number, CHUNKS, self.plan.stream_limit)
            seen.setdefault(server.name, []).append({**round_, "streams": number})
        self.figures["streams"] = {name: medians(rounds) for name, rounds in seen.items()}
        for name, rounds in seen.items():
            if rounds[0]["streams"] != STREAMS:
                self.notes.append(f"streams: {name} with {rounds[0]['streams']} streams only")

    async def stream(self) -> None:
        """One long stream, and what its last thousand chunks cost beside an early thousand."""
        seen: dict[str, list[Figures]] = {}
        whole: list[list[float]] = []
        for server in self.turns("stream", self.plan.stream_rounds):
            round_, readers = await self.streamed(server, 1, LONG, self.plan.long_limit)
            seen.setdefault(server.name, []).append(round_)
            if server is self.ours:
                whole.append(readers[0].arrivals)
        while len(whole) < self.plan.long_streams:
            _, readers = await self.streamed(self.ours, 1, LONG, self.plan.long_limit)
            whole.append(readers[0].arrivals)
        self.figures["stream"] = {name: medians(rounds) for name, rounds in seen.items()}
        complete = [arrivals for arrivals in whole if len(arrivals) == LONG]
        if complete:
            early = [arrivals[EARLY + SPAN] - arrivals[EARLY] for arrivals in complete]
            late = [arrivals[LATE + SPAN] - arrivals[LATE] for arrivals in complete]
            self.figures["stream_cost"] = {
                "early_chunk_us": median(early) / SPAN * 1e6,
                "late_chunk_us": median(late) / SPAN * 1e6,
                # Within one stream the machine has one mood, so each is its own comparison.
                "late_over_early": median(b / a for a, b in zip(early, late, strict=True)),
            }

    async def readers(
        self, server: Server, streams: int, chunks: int, size: int = CHUNK_SIZE
    ) -> list[Reader]:
        dialect = server.kind.dialect
        text = f"{chunks} {size}"
        return [
            await connect(server.port, wire.stream(dialect, "chunks", text), dialect.completed)
            for _ in range(streams)
        ]

    async def streamed(
        self, server: Server, streams: int, chunks: int, limit: float
    ) -> tuple[Figures, list[Reader]]:
        """One round of streams; a peer that needs too long is measured on what it delivered."""
        await revive(server)
        readers = await self.readers(server, streams, chunks)
        limit = 60.0 if server is self.ours else max(1.0, min(limit, self.left() - STREAM_RESERVE))
        cpu = server.cpu()
        began = time.perf_counter()
        ended = await read(readers, limit)
        seconds = max(reader.now for reader in readers) - began if ended else limit
        used = server.cpu() - cpu
        delivered = sum(len(reader.arrivals) for reader in readers)
        wrong = [r for r in readers if r.error or (ended and len(r.arrivals) != chunks)]
        firsts = [r.arrivals[0] - r.started for r in readers if r.arrivals]
        if not ended:
            # The agent goes on without a reader; its work would weigh on the next round.
            server.kill()
        figures: Figures = {
            "per_second": delivered / seconds,
            "first_chunk_ms": median(firsts) * 1000 if firsts else None,
            "cpu_us": used / delivered * 1e6 if delivered else None,
            "errors": len(wrong),
            "error": wrong[0].error or "chunks missing" if wrong else "",
            "ended": ended,
        }
        return figures, readers

    async def idle(self) -> None:
        """Subscribers that wait on one working task: resident memory for each."""
        self.figures["idle"] = {}
        for server in await self.fresh("idle"):
            async with running(server):
                await asyncio.sleep(self.plan.quiet)
                dialect = server.kind.dialect
                holder = await connect(
                    server.port, wire.stream(dialect, "hold", "wait"), dialect.completed
                )
                holder.start()
                await asyncio.wait_for(holder.opened.wait(), 10)
                before = await settled(server)
                request = wire.subscription(dialect, holder.task)
                readers = [
                    await connect(server.port, request, dialect.completed)
                    for _ in range(self.plan.subscribers)
                ]
                for reader in readers:
                    reader.start()
                async with asyncio.timeout(30):
                    for reader in readers:
                        await reader.opened.wait()
                grown = await settled(server) - before
                lost = sum(1 for reader in readers if reader.ended.is_set())
                self.figures["idle"][server.name] = {
                    "subscribers": self.plan.subscribers,
                    "kb_each": grown / self.plan.subscribers,
                    "errors": lost,
                    "error": next((reader.error for reader in readers if reader.error), ""),
                }
                for reader in [holder, *readers]:
                    reader.abandon()
                server.kill()

    async def cold(self) -> None:
        """From nothing to the first answer: import, start, memory."""
        servers = await self.fresh("cold")
        imports, starts, costs, sizes = (
            {server.name: list[float]() for server in servers} for _ in range(4)
        )
        for server in servers:
            # Not counted: it may be the first that finds no bytecode.
            async with running(server):
                pass
        for n in range(self.plan.cold_starts):
            for server in servers[n % len(servers) :] + servers[: n % len(servers)]:
                imports[server.name].append(await asyncio.to_thread(import_seconds, server))
                async with running(server):
                    starts[server.name].append(server.ready_after)
                    costs[server.name].append(server.cpu())
                    sizes[server.name].append(server.rss() / 1024)
        self.figures["cold"] = {
            server.name: {
                "import_s": median(imports[server.name]),
                "ready_s": median(starts[server.name]),
                "ready_cpu_s": median(costs[server.name]),
                "rss_mb": median(sizes[server.name]),
            }
            for server in servers
        }

    async def fresh(self, operation: str) -> list[Server]:
        """A new server of every kind that is not the same program twice."""
        servers = [new_server(OURS, self.root)]
        for peer in self.peers:
            if operation not in peer.kind.can or (peer.kind.durable and peer.kind.package):
                continue
            try:
                await asyncio.to_thread(prepare, peer.kind)
                servers.append(new_server(peer.kind, self.root))
            except CannotStart as error:
                self.notes.append(str(error))
        return servers

    async def growth(self) -> None:
        """Send and get with ever more stored tasks: one server per size, measured in turn."""
        servers = await self.grown()
        sends: dict[int, list[Outcome]] = {level: [] for level in servers}
        gets: dict[int, list[Outcome]] = {level: [] for level in servers}
        try:
            await asyncio.gather(*(server.start() for server in servers.values()))
            for number in range(-1, self.plan.growth_rounds):
                for level, server in servers.items():
                    dialect = server.kind.dialect
                    sent = await call(
                        server.port,
                        Calls(wire.sends(dialect, "echo"), dialect.completed, count=400),
                    )
                    got_ = await call(
                        server.port,
                        Calls(wire.gets(dialect, server.tasks), dialect.completed, count=1_000),
                    )
                    if number >= 0:  # the round before the first only warms caches
                        sends[level].append(sent)
                        gets[level].append(got_)
            stored = {level: await total(server) for level, server in servers.items()}
        finally:
            await asyncio.gather(*(server.stop() for server in servers.values()))
        small, large = min(servers), max(servers)
        figures: Figures = {
            str(level): {
                "send_us": median(1e6 / o.rate for o in sends[level] if o.rate),
                "get_us": median(1e6 / o.rate for o in gets[level] if o.rate),
                "stored_at_end": stored[level],
                "errors": sum(o.errors for o in [*sends[level], *gets[level]]),
                "error": next((o.error for o in [*sends[level], *gets[level]] if o.error), ""),
            }
            for level in servers
        }
        figures["ratio"] = {
            "from": small,
            "to": large,
            "send": figures[str(large)]["send_us"] / figures[str(small)]["send_us"],
            "get": figures[str(large)]["get_us"] / figures[str(small)]["get_us"],
        }
        self.figures["growth"] = figures

    async def grown(self) -> dict[int, Server]:
        """Servers, not started, over stores that hold the numbers of tasks of the plan."""
        servers: dict[int, Server] = {}
        filling = new_server(OURS, self.root)
        held = 0
        for level in self.plan.levels:
            await filling.start()
            dialect = filling.kind.dialect
            requests = wire.sends(dialect, "echo")
            every = max(1, level // 1_000)
            calls = Calls(requests, dialect.completed, count=level - held, ids_every=every)
            outcome = await asyncio.wait_for(fill(filling.port, calls), 300)
            await filling.stop()
            if outcome.errors:
                raise CannotStart(f"filling the store failed: {outcome.error}")
            filling.tasks.extend(outcome.tasks)
            held = level
            copy = new_server(OURS, self.root)
            for path in filling.folder.glob(f"{filling.store.name}*"):
                shutil.copy(path, copy.folder / path.name)
            copy.tasks = list(filling.tasks)
            servers[level] = copy
        return servers

    async def stall(self) -> None:
        """A reader that never reads while its task streams on: how far memory grows."""
        if not self.plan.stall:
            self.notes.append("stall: only in the full run")
            return
        servers = await self.fresh("streams")
        results = await asyncio.gather(*(self.stalled(server) for server in servers))
        self.figures["stall"] = {
            server.name: result for server, result in zip(servers, results, strict=True)
        }

    async def stalled(self, server: Server) -> Figures:
        async with running(server):
            await asyncio.sleep(self.plan.quiet)
            await seed(server)
            await read(await self.readers(server, 4, 500), 20)
            cold = await settled(server)
            # The same chunks to a reader that reads: what any such stream costs, the caches of
            # the store above all, is not the cost of a stalled one.
            await read(await self.readers(server, 1, SPAN, STALL_SIZE), 60)
            stored = server.stored_bytes()
            before = await settled(server)
            count = int(self.plan.stall * STALL_PER_SECOND * 2)
            text = f"{count} {STALL_SIZE} {STALL_PER_SECOND}"
            peak = before
            with socket.socket() as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(("127.0.0.1", server.port))
                reader.sendall(wire.stream(server.kind.dialect, "flood", text))
                began = time.perf_counter()
                while (elapsed := time.perf_counter() - began) < self.plan.stall:
                    await asyncio.sleep(0.2)
                    peak = max(peak, server.rss())
                    if peak > STALL_CEILING:
                        break
                written = server.stored_bytes() - stored
                server.kill()
        return {
            "seconds": elapsed,
            "grown_mb": (peak - before) / 1024,
            "grown_with_first_stream_mb": (peak - cold) / 1024,
            "stored_mb": written / 2**20 if server.kind.durable else None,
        }


Check = Callable[[Server, Outcome], Any]


async def seed(server: Server) -> None:
    """Give a fresh server its first tasks; their ids serve the gets, and the run warms it up."""
    dialect = server.kind.dialect
    words = dialect.completed if dialect.blocking else b'"task"'
    calls = Calls(wire.sends(dialect, "echo"), words, count=SEEDED, ids_every=1)
    outcome = await call(server.port, calls, connections=8)
    if outcome.errors or len(outcome.tasks) != SEEDED:
        raise CannotStart(f"{server.name} does not answer a send: {outcome.error}")
    server.tasks = outcome.tasks


async def fill(port: int, calls: Calls) -> Outcome:
    """A long round without the bound of a short one."""
    calls.window = 240.0
    return await call(port, calls)


async def revive(server: Server) -> None:
    """Start a server again that was killed while busy; its tasks begin anew."""
    if not server.is_running:
        await server.start()
        await seed(server)


@asynccontextmanager
async def running(server: Server) -> AsyncGenerator[None, None]:
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def settled(server: Server) -> int:
    """Resident kilobytes once they have stopped moving, or after two seconds."""
    size = server.rss()
    for _ in range(8):
        await asyncio.sleep(0.25)
        last, size = size, server.rss()
        if size == last:
            break
    return size


async def total(server: Server) -> int:
    """How many tasks the server says it holds."""
    request = wire.lists(server.kind.dialect, 1)
    outcome = await call(server.port, Calls(request, b"", count=1), connections=1)
    return json.loads(outcome.samples[0][1])["result"]["totalSize"] if outcome.samples else -1


def import_seconds(server: Server) -> float:
    """Seconds one fresh interpreter needs to import what a server needs."""
    module = server.kind.module
    timed = f"t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    done = subprocess.run(
        [server.kind.python, "-c", f"import time; {timed}"],
        env=environment(server.folder.parent),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def spread(values: list[float]) -> float:
    """How far the rounds lie apart, as a share of their median."""
    middle = median(values) if values else 0.0
    return (max(values) - min(values)) / middle if middle else 0.0


def called(rounds: list[tuple[Outcome, float]]) -> Figures:
    outcomes = [outcome for outcome, _ in rounds]
    costs = [used / (outcome.replies or 1) * 1e6 for outcome, used in rounds]
    return {
        "per_second": median(outcome.rate for outcome in outcomes),
        "p50_ms": median(outcome.percentile(0.5) for outcome in outcomes),
        "p99_ms": median(outcome.percentile(0.99) for outcome in outcomes),
        "cpu_us": median(costs),
        "cpu_spread": spread(costs),
        "spread": spread([outcome.rate for outcome in outcomes]),
        "replies": sum(outcome.replies for outcome in outcomes),
        "errors": sum(outcome.errors for outcome in outcomes),
        "error": next((outcome.error for outcome in outcomes if outcome.error), ""),
        "rounds": [round(outcome.rate, 1) for outcome in outcomes],
    }


def medians(rounds: list[Figures]) -> Figures:
    def middle(key: str) -> float | None:
        values = [each[key] for each in rounds if each[key] is not None]
        return median(values) if values else None

    return {
        "per_second": middle("per_second"),
        "first_chunk_ms": middle("first_chunk_ms"),
        "cpu_us": middle("cpu_us"),
        "cpu_spread": spread([each["cpu_us"] for each in rounds if each["cpu_us"]]),
        "spread": spread([each["per_second"] for each in rounds]),
        "errors": sum(each["errors"] for each in rounds),
        "error": next((each["error"] for each in rounds if each["error"]), ""),
        "ended": all(each["ended"] for each in rounds),
        "rounds": [round(each["per_second"], 1) for each in rounds],
    }
