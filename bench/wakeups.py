"""`python -m bench.wakeups`: how long after an event happened in one replica a reader at another
replica has it, with LISTEN/NOTIFY and with NATS as the bus.

Replicas are processes on one PostgreSQL that is started here (`fsync` and `synchronous_commit` on).
Each event carries the time at which the agent's code made it; a reader's time is that at which its
bytes arrived. So a figure has the commit, the wake-up, the read and the stream in it. Beside it
stands what readers see at the replica that made the event, which needs no wake-up. Times mean
little while other programs use the machine: the load at the end is told.

The exit code is 1 if a reader missed an event.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from dragoman.testing.load import HOST, percentile, rpc
from dragoman.testing.servers import NatsServer, PostgresServer

from .servers import HERE, OURS, Kind, Server, new_server
from .streams import Reader
from .wire import V1, subscription

BUSES = ("notify", "nats")
SHARES = (0.5, 0.9, 0.99, 1.0)
_STAMP = re.compile(rb'"text":\s*"(\d{19})"')
_TASK_ID = re.compile(rb'"id":\s*"([0-9a-f-]{36})"')
# Events that each task makes in a second, and of how many tasks one is read where it runs.
_PER_TASK = 5
_EVERY_OWN = 5
# Seconds for the first readers to be there, and beyond the last event for all to have ended.
_LEAD, _GRACE = 3.0, 30.0


@dataclass(frozen=True)
class Replica(Kind):
    """A server on a database and a bus."""

    url: str = ""
    bus: str = ""

    def command(self, port: int, store: Path) -> list[str]:
        words = [self.python, "-m", "dragoman", "serve", str(HERE / "agents" / "ticking.py")]
        words += ["--listen", f"{HOST}:{port}", "--store", self.url]
        return [*words, "--bus", self.bus] if self.bus else words


class Latecomer(Reader):
    """Notes by how much each event came after it was made, from when it was subscribed on."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request, V1.completed)
        self.delays: list[float] = []
        self.seen: set[bytes] = set()
        self._since = 0

    def on_body(self, body: bytes) -> None:
        now = time.time_ns()
        data = self.tail + body
        *events, self.tail = data.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            stamps = _STAMP.findall(event)
            self.seen.update(stamps)
            if not self._since:
                # The task as it is, with what it said before.
                self._since = now
            elif stamps and int(stamps[-1]) > self._since:
                self.delays.append((now - int(stamps[-1])) / 1e6)
            self.completed |= self.completed_words in event


@dataclass
class Figures:
    """What readers saw: at other replicas, and at the same."""

    bus: str
    elsewhere: list[float] = field(default_factory=list[float])
    here: list[float] = field(default_factory=list[float])
    missed: int = 0
    per_second: float = 0.0
    load: float = 0.0

    def document(self) -> dict[str, Any]:
        return {
            "bus": self.bus,
            "events": len(self.elsewhere),
            "per_second": round(self.per_second),
            "elsewhere": {f"p{s * 100:g}": round(percentile(self.elsewhere, s), 1) for s in SHARES},
            "here": {f"p{s * 100:g}": round(percentile(self.here, s), 1) for s in SHARES},
            "missed": self.missed,
            "load": round(self.load, 2),
        }


@contextlib.asynccontextmanager
async def cluster(root: Path, bus: str, count: int) -> AsyncGenerator[list[Server]]:
    """Run replicas on a database of their own."""
    postgres = PostgresServer(root / f"postgres-{bus}")
    nats = NatsServer(root) if bus == "nats" else None
    servers: list[Server] = []
    try:
        await asyncio.to_thread(postgres.start)
        url = await asyncio.to_thread(postgres.make_database)
        if nats is not None:
            await asyncio.to_thread(nats.start)
        kind = Replica(
            OURS.name, V1, OURS.module, durable=True, url=url, bus="" if nats is None else nats.url
        )
        for _ in range(count):
            servers.append(new_server(kind, root))
            await servers[-1].start()
        yield servers
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        if nats is not None:
            await asyncio.to_thread(nats.stop)
        await asyncio.to_thread(postgres.stop)


async def begun(server: Server, text: str) -> bytes:
    """Begin a task; return its id."""
    said = {"messageId": secrets.token_hex(8), "role": V1.role, "parts": [{"text": text}]}
    params = {"message": said, "configuration": {"returnImmediately": True}}
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        writer.write(rpc(V1.send, params))
        answer = b""
        while (found := _TASK_ID.search(answer)) is None:
            piece = await reader.read(1 << 16)
            assert piece, answer
            answer += piece
        return found[1]
    finally:
        writer.close()


async def measured(servers: list[Server], bus: str, per_second: int, seconds: float) -> Figures:
    """Have tasks tick at every replica, each read at one."""
    tasks = max(len(servers), per_second // _PER_TASK)
    count = int((seconds + _LEAD) * _PER_TASK)
    figures = Figures(bus)
    readers: list[tuple[Latecomer, bool]] = []
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for n in range(tasks):
        place = n % len(servers)
        is_own = n % _EVERY_OWN == 0
        task = await begun(servers[place], f"{count} {1 / _PER_TASK}")
        # Each of the others in turn.
        away = 0 if is_own else 1 + n // len(servers) % (len(servers) - 1)
        port = servers[(place + away) % len(servers)].port
        request = subscription(V1, task)
        _, reader = await loop.create_connection(lambda r=request: Latecomer(r), HOST, port)
        reader.start()
        readers.append((reader, is_own))
    async with asyncio.timeout(seconds + _LEAD + _GRACE):
        for reader, _ in readers:
            await reader.ended.wait()
    figures.per_second = tasks * count / (time.perf_counter() - began)
    figures.load = os.getloadavg()[0]
    for reader, is_own in readers:
        (figures.here if is_own else figures.elsewhere).extend(reader.delays)
        figures.missed += count - len(reader.seen)
    return figures


def table(found: list[Figures]) -> str:
    """Return the figures as a page has them."""
    lines = ["| bus | read | events | p50 | p90 | p99 | max |", "|---|---|---|---|---|---|---|"]
    for one in found:
        for name, times in (("at another replica", one.elsewhere), ("where it ran", one.here)):
            shares = " | ".join(f"{percentile(times, share):.1f} ms" for share in SHARES)
            lines.append(f"| {one.bus} | {name} | {len(times):,} | {shares} |")
    lines += [
        f"{one.bus}: {one.per_second:.0f} events/s, {one.missed} missed, load {one.load:.1f}"
        for one in found
    ]
    return "\n".join(lines)


async def measure(root: Path, chosen: argparse.Namespace) -> list[Figures]:
    found: list[Figures] = []
    for bus in chosen.bus.split(","):
        print(f"{bus} ...", file=sys.stderr, flush=True)
        async with cluster(root, bus, chosen.replicas) as servers:
            found.append(await measured(servers, bus, chosen.rate, chosen.seconds))
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.wakeups", description=__doc__)
    parser.add_argument("--rate", type=int, default=500, help="events a second, of all replicas")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--bus", default=",".join(BUSES), help="with commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        # PostgreSQL may run as another user.
        Path(folder).chmod(0o755)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(measure(Path(folder), chosen))
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps([one.document() for one in found], indent=2) + "\n")
    return 1 if any(one.missed for one in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
