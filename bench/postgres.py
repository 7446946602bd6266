"""`python -m bench.postgres`: Dragoman and a2a-sdk on the same PostgreSQL, in one run.

`fsync` and `synchronous_commit` are on. Rounds alternate between the servers, and a figure is the
median of its rounds. Processor time is that of the server and of PostgreSQL, each from `/proc`.
Two more compare Dragoman with itself: two replicas with one, by the sends for each processor
second of the busiest replica (on few cores the client and PostgreSQL take what a second one would
use), and a database of many stored tasks with one of few, by the processor time of a call.

The exit code is 1 if Dragoman answered a single call wrongly.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from dragoman.testing.processes import CannotStart
from dragoman.testing.servers import PostgresServer

from . import wire
from .calls import Calls, Outcome, call
from .judging import echoed, got
from .servers import A2A_SDK_ON_POSTGRES, HERE, OURS, Kind, Server, new_server, prepare
from .streams import connect, read

STREAMS, CHUNKS, CHUNK_SIZE = 200, 50, 32
# A peer that commits every chunk needs most of a minute for the full set.
SLOW_STREAMS = 50
SEEDED = 60
_BATCH = 50_000

# How many times a figure has to be that of a peer, at least.
GOALS = {
    "send/a2a-sdk-postgres": 12.0,
    "send/a2a-sdk-cluster": 15.0,
    "streams/a2a-sdk-postgres": 40.0,
    "get/a2a-sdk-postgres": 4.0,
}
# What two replicas have to do of what one does, at least, and many stored tasks may cost of what
# few do, at most.
MORE_BY_TWO, MORE_FOR_MANY = 1.3, 1.3

Figures = dict[str, Any]


@dataclass(frozen=True)
class OnPostgres(Kind):
    """A server program on a database."""

    mode: str = ""

    def command(self, port: int, store: Path) -> list[str]:
        if not self.requirements:
            return [*super().command(port, store)[:-1], self.url]
        words = [self.python, str(HERE / "peers" / self.script), str(port), self.url]
        return [*words, self.mode] if self.mode else words


_OURS = OnPostgres(OURS.name, OURS.dialect, OURS.module, durable=True)
_PLAIN = OnPostgres(
    "a2a-sdk-postgres", OURS.dialect, "a2a.server.routes", "a2a-sdk-1.3.0", A2A_SDK_ON_POSTGRES,
    "a2a_sdk_server.py", durable=True,
)  # fmt: skip
_CLUSTER = replace(_PLAIN, name="a2a-sdk-cluster", mode="cluster")


def cpu_of(server: PostgresServer) -> float:
    """Return the processor seconds of PostgreSQL: its processes, and those that ended."""
    ticks = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
            if int(name) == server.pid:
                ticks += sum(int(field) for field in fields[11:15])
            elif int(fields[1]) == server.pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class PostgresBench:
    """One run: PostgreSQL, the servers, and the figures as they come in."""

    def __init__(self, root: Path, *, rounds: int, window: float, limit: float) -> None:
        self.postgres = PostgresServer(root / "postgres", shared_buffers="256MB")
        self.figures: Figures = {}
        self.notes: list[str] = []
        self._root = root
        self._rounds = rounds
        self._window = window
        self._limit = limit

    def say(self, text: str) -> None:
        """Progress for a person who waits."""
        print(text, file=sys.stderr, flush=True)

    async def server(self, kind: OnPostgres, url: str = "") -> Server:
        """Start a server, on a database of its own if none is named."""
        url = url or await asyncio.to_thread(self.postgres.make_database)
        server = new_server(replace(kind, url=url), self._root)
        await asyncio.to_thread(prepare, server.kind)
        await server.start()
        return server

    @contextlib.asynccontextmanager
    async def running(
        self, *kinds: OnPostgres, is_seeded: bool = True
    ) -> AsyncGenerator[list[Server]]:
        """Run servers for a while, with some tasks; a peer that cannot run is left out, with a
        note."""
        servers: list[Server] = []
        try:
            for kind in kinds:
                try:
                    servers.append(await self.server(kind))
                    if is_seeded:
                        servers[-1].tasks = await seeded(servers[-1])
                except CannotStart as error:
                    if not kind.requirements:
                        raise
                    self.notes.append(str(error))
            yield servers
        finally:
            await asyncio.gather(*(server.stop() for server in servers))

    async def compare(self) -> None:
        """Sends, gets and streams of all."""
        async with self.running(_PLAIN, _CLUSTER, _OURS) as servers:
            for name, measure in (("send", self.send), ("get", self.get)):
                self.say(name)
                self.figures[name] = await self._alternating(servers, measure)
        # On servers of their own: rounds of calls ask for the server's health first, and beside one
        # who asked within half a minute a caller of Dragoman streams in smaller slices.
        async with self.running(_PLAIN, _CLUSTER, _OURS, is_seeded=False) as servers:
            self.say("streams")
            self.figures["streams"] = await self._alternating(servers, self.streams)

    async def _alternating(
        self, servers: list[Server], measure: "Callable[[Server], Awaitable[Figures]]"
    ) -> Figures:
        seen: dict[str, list[Figures]] = {}
        for _ in range(self._rounds):
            for server in servers:
                if not server.is_running and not await self._revived(server):
                    continue
                seen.setdefault(server.name, []).append(await measure(server))
        return {name: medians(rounds) for name, rounds in seen.items()}

    async def _revived(self, server: Server) -> bool:
        """Start a peer again that was ended in the middle of its work."""
        try:
            await server.start()
        except CannotStart as error:
            self.notes.append(str(error))
        return server.is_running

    async def send(self, server: Server) -> Figures:
        """Blocking sends that make a completed task."""
        dialect = server.kind.dialect
        calls = Calls(wire.sends(dialect, "echo"), dialect.completed, window=self._window)
        return await self._calls(server, calls, echoed)

    async def get(self, server: Server) -> Figures:
        """Gets over some tasks in turn."""
        dialect = server.kind.dialect
        calls = Calls(wire.gets(dialect, server.tasks), dialect.completed, window=self._window)
        return await self._calls(server, calls, got)

    async def _calls(
        self, server: Server, calls: Calls, sound: "Callable[[Server, Outcome], Awaitable[None]]"
    ) -> Figures:
        own, theirs = server.cpu(), cpu_of(self.postgres)
        outcome = await call(server.port, calls)
        own, theirs = server.cpu() - own, cpu_of(self.postgres) - theirs
        await sound(server, outcome)
        return {
            "per_second": outcome.rate,
            "p50_ms": outcome.percentile(0.5),
            "p99_ms": outcome.percentile(0.99),
            **shares(own, theirs, outcome.replies),
            "errors": outcome.errors,
            "error": outcome.error,
        }

    async def streams(self, server: Server) -> Figures:
        """Many streams at once; the rate is chunks delivered per second, over all streams."""
        dialect = server.kind.dialect
        number = STREAMS if server.kind.requirements == () else SLOW_STREAMS
        text = f"{CHUNKS} {CHUNK_SIZE}"
        readers = [
            await connect(server.port, wire.stream(dialect, "chunks", text), dialect.completed)
            for _ in range(number)
        ]
        own, theirs = server.cpu(), cpu_of(self.postgres)
        began = time.perf_counter()
        ended = await read(readers, self._limit)
        seconds = max(reader.now for reader in readers) - began if ended else self._limit
        own, theirs = server.cpu() - own, cpu_of(self.postgres) - theirs
        delivered = sum(len(reader.arrivals) for reader in readers)
        wrong = [r for r in readers if r.error or (ended and len(r.arrivals) != CHUNKS)]
        if not ended:
            # The agent goes on without a reader; its work would weigh on the next round.
            server.kill()
        return {
            "per_second": delivered / seconds,
            **shares(own, theirs, delivered),
            "streams": number,
            "errors": len(wrong),
            "error": wrong[0].error or "chunks missing" if wrong else "",
            "ended": ended,
        }

    async def replicas(self) -> None:
        """Two replicas with one, by the sends for each processor second of the busiest one."""
        self.say("replicas")
        url = await asyncio.to_thread(self.postgres.make_database)
        both = [await self.server(_OURS, url), await self.server(_OURS, url)]
        seen: dict[int, list[Figures]] = {1: [], 2: []}
        try:
            for _ in range(self._rounds):
                for count in seen:
                    seen[count].append(await self._together(both[:count]))
        finally:
            await asyncio.gather(*(server.stop() for server in both))
        one, two = medians(seen[1]), medians(seen[2])
        self.figures["replicas"] = {
            "one": one,
            "two": two,
            "ratio": two["per_busiest_second"] / one["per_busiest_second"],
        }

    async def _together(self, servers: list[Server]) -> Figures:
        used = [server.cpu() for server in servers]
        theirs = cpu_of(self.postgres)
        rounds = [
            call(
                server.port,
                Calls(
                    wire.sends(server.kind.dialect, "echo"),
                    server.kind.dialect.completed,
                    window=self._window,
                ),
            )
            for server in servers
        ]
        outcomes = await asyncio.gather(*rounds)
        own = [server.cpu() - before for server, before in zip(servers, used, strict=True)]
        replies = sum(outcome.replies for outcome in outcomes)
        return {
            "per_second": sum(outcome.rate for outcome in outcomes),
            "per_busiest_second": replies / max(own),
            **shares(sum(own), cpu_of(self.postgres) - theirs, replies),
            "errors": sum(outcome.errors for outcome in outcomes),
        }

    async def stored(self, few: int, many: int) -> None:
        """What a call costs with many stored tasks beside few."""
        costs: dict[int, Figures] = {}
        for count in (few, many):
            self.say(f"{count:,} stored tasks")
            server = await self.server(_OURS)
            try:
                server.tasks = await seeded(server)
                url = getattr(server.kind, "url", "")
                await asyncio.to_thread(fill, self.postgres, url.rpartition("/")[2], count)
                sends = [await self.send(server) for _ in range(self._rounds)]
                gets = [await self.get(server) for _ in range(self._rounds)]
            finally:
                await server.stop()
            costs[count] = {"send": medians(sends), "get": medians(gets)}
        self.figures["stored"] = {
            "few": few,
            "many": many,
            **{
                name: {
                    "few_us": costs[few][name]["whole_us"],
                    "many_us": costs[many][name]["whole_us"],
                    "ratio": costs[many][name]["whole_us"] / costs[few][name]["whole_us"],
                }
                for name in ("send", "get")
            },
        }


def shares(own: float, theirs: float, count: int) -> Figures:
    """Return the processor time of one call: the server's, PostgreSQL's, both."""
    each = 1e6 / count if count else float("nan")
    return {"cpu_us": own * each, "postgres_us": theirs * each, "whole_us": (own + theirs) * each}


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of each figure; the first of what is no number, all errors together."""
    figures: Figures = {}
    for name, first in rounds[0].items():
        values = [one[name] for one in rounds]
        if name == "errors":
            figures[name] = sum(values)
        elif isinstance(first, float):
            figures[name] = median(values)
        else:
            figures[name] = next((value for value in values if value), first)
    return figures


async def seeded(server: Server) -> list[bytes]:
    """Make some tasks to get."""
    dialect = server.kind.dialect
    calls = Calls(wire.sends(dialect, "echo"), dialect.completed, count=SEEDED, ids_every=1)
    return (await call(server.port, calls, connections=4)).tasks


# Copies of one task that was really made, with its log, its snapshot and its key.
_FILL = """
SET synchronous_commit = off;
SELECT make_place(n) FROM generate_series({first}, {last}, 4096) AS n;
WITH one AS (SELECT * FROM tasks WHERE state = 3 ORDER BY number LIMIT 1)
INSERT INTO tasks (number, id, scope, context, state, status_at, last_seq, fence, holder)
SELECT n, 'copy-' || n, scope, 'copy-' || n, state, status_at - n, last_seq, fence, 0
FROM one, generate_series({first}, {last}) AS n;
WITH one AS (SELECT * FROM events
    WHERE task = (SELECT number FROM tasks WHERE state = 3 ORDER BY number LIMIT 1))
INSERT INTO events SELECT copy, last, n, kind, bodies FROM one,
    generate_series({first}, {last}) AS copy;
WITH one AS (SELECT * FROM snapshots
    WHERE task = (SELECT number FROM tasks WHERE state = 3 ORDER BY number LIMIT 1))
INSERT INTO snapshots SELECT n, seq, head, artifacts FROM one,
    generate_series({first}, {last}) AS n;
INSERT INTO keys (scope, key, task, made_at)
SELECT (SELECT scope FROM tasks WHERE state = 3 ORDER BY number LIMIT 1),
    sha256(n::text::bytea), n, now_ms() FROM generate_series({first}, {last}) AS n;
INSERT INTO counts (scope, state, shard, n)
SELECT (SELECT scope FROM tasks WHERE state = 3 ORDER BY number LIMIT 1), 3, 0, {count}
ON CONFLICT (scope, state, shard) DO UPDATE SET n = counts.n + excluded.n;
"""


def fill(postgres: PostgresServer, database: str, count: int) -> None:
    """Put so many further tasks into a database that has some, as they would be."""
    # The numbers that workers will take are behind these.
    blocks = -(-count // 4096) + 1
    first = int(postgres.sql("SELECT max(nextval('blocks')) * 4096 FROM generate_series(1, 1)",
                             database))  # fmt: skip
    postgres.sql(f"SELECT setval('blocks', {first // 4096 + blocks})", database)
    while count:
        some = min(count, _BATCH)
        postgres.sql(_FILL.format(first=first, last=first + some - 1, count=some), database)
        first, count = first + some, count - some
    for text in ("VACUUM ANALYZE", "CHECKPOINT"):
        postgres.sql(text, database)


def ratios(figures: Figures) -> dict[str, float]:
    """Return how many times Dragoman does what each peer does."""
    found: dict[str, float] = {}
    for operation in ("send", "get", "streams"):
        rows = figures.get(operation, {})
        ours = rows.get(OURS.name)
        for name, row in rows.items():
            if ours and name != OURS.name and row["per_second"]:
                found[f"{operation}/{name}"] = ours["per_second"] / row["per_second"]
                # Others on the machine change this less: server and PostgreSQL together.
                found[f"{operation}/{name}/work"] = row["whole_us"] / ours["whole_us"]
    return found


def table(figures: Figures) -> str:
    """Return the figures as people read them."""
    lines: list[str] = []
    for operation in ("send", "get", "streams"):
        for name, row in figures.get(operation, {}).items():
            wrong = f"  {row['errors']} ERRORS: {row['error'][:80]}" if row["errors"] else ""
            cut = "" if row.get("ended", True) else "  cut off"
            used = f"server {row['cpu_us']:8.0f} us  PostgreSQL {row['postgres_us']:8.0f} us"
            rate = f"{row['per_second']:9.0f} /s"
            lines.append(f"{operation:8} {name:18} {rate}  {used}{cut}{wrong}")
    for name, ratio in ratios(figures).items():
        goal = GOALS.get(name)
        judged = "" if goal is None else _judged(f">= {goal:g}", is_met=ratio >= goal)
        lines.append(f"{name:30} {ratio:6.1f} x{judged}")
    if two := figures.get("replicas"):
        lines.append(
            f"two replicas: {two['ratio']:.2f} x the sends for a processor second of the busiest; "
            f"{two['one']['per_second']:.0f} and {two['two']['per_second']:.0f} /s by the clock"
            + _judged(f">= {MORE_BY_TWO:g}", is_met=two["ratio"] >= MORE_BY_TWO)
        )
    if stored := figures.get("stored"):
        for name in ("send", "get"):
            row = stored[name]
            lines.append(
                f"{name} at {stored['many']:,} stored tasks: {row['many_us']:.0f} us, at "
                f"{stored['few']:,}: {row['few_us']:.0f} us, {row['ratio']:.2f} x"
                + _judged(f"<= {MORE_FOR_MANY:g}", is_met=row["ratio"] <= MORE_FOR_MANY)
            )
    return "\n".join(lines)


def _judged(goal: str, *, is_met: bool) -> str:
    return f"  goal {goal}: {'met' if is_met else 'NOT MET'}"


async def measure(bench: PostgresBench, chosen: argparse.Namespace) -> None:
    """Run what was asked for."""
    await asyncio.to_thread(bench.postgres.start)
    try:
        if "compare" in chosen.only:
            await bench.compare()
        if "replicas" in chosen.only:
            await bench.replicas()
        if "stored" in chosen.only:
            await bench.stored(1_000, chosen.stored)
    finally:
        await asyncio.to_thread(bench.postgres.stop)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.postgres", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round of calls")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a round of streams")
    parser.add_argument("--stored", type=int, default=1_000_000, help="tasks that are many")
    parser.add_argument("--only", default="compare,replicas,stored", help="with commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    chosen = parser.parse_args(words)
    began = time.monotonic()
    chosen.only = chosen.only.split(",")
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as root:
        bench = PostgresBench(
            Path(root), rounds=chosen.rounds, window=chosen.seconds, limit=chosen.limit
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(bench, chosen))
    print(table(bench.figures))
    print(f"this run took {time.monotonic() - began:.0f} s")
    for note in bench.notes:
        print(note)
    if chosen.json:
        document = {"figures": bench.figures, "ratios": ratios(bench.figures)}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")
    wrong = [rows[OURS.name]["errors"] for name, rows in bench.figures.items()
             if name in ("send", "get", "streams")]  # fmt: skip
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
