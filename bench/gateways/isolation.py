"""`python -m bench.gateways.isolation`: what a dead agent behind a gateway costs the others.

Callers of one agent are timed while others send tasks, so many per second, to another agent of the
same gateway. In turn that one answers at once, takes calls and says nothing, hangs up, or says a
byte a second. The p99 of each is compared with the first within the same run: 1.2 is aimed at. Then
the circuit of the one that hangs up is open, and it is timed how soon its callers are told.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import uvloop

from dragoman.testing.load import HOLE, Load, Tally, fresh, percentile, rpc, run_on_connections

from .. import wire
from ..calls import Calls, call
from ..gateway import Fronting, Upstream, work

CONNECTIONS = 4
OFFERED = 50
REFUSED = 200
RATIO, OPEN_MS = 1.2, 10.0
DEATHS = ("silent", "hanging-up", "dripping")
Figures = dict[str, Any]


class Dead:
    """An agent that is dead in every way, by the first step of its path; counts its dials."""

    def __init__(self) -> None:
        self.url = ""
        self.dials = dict.fromkeys(DEATHS, 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            way = head.split(b" ")[1].decode().strip("/").partition("/")[0]
            if head.startswith(b"POST"):
                self.dials[way] = self.dials.get(way, 0) + 1
            if way == "silent":
                await reader.read()
            elif way == "dripping":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n")
                while not writer.is_closing():
                    writer.write(b"{")
                    await writer.drain()
                    await asyncio.sleep(1)
        writer.transport.abort()


@asynccontextmanager
async def dying() -> AsyncIterator[Dead]:
    """Serve agents that are dead."""
    dead = Dead()
    running: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(dead.serve(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1000)
    dead.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield dead
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def registered(http: httpx.AsyncClient, name: str, url: str) -> str:
    """Register an agent; return its path."""
    said: dict[str, Any] = {"endpoint": url, "name": name}
    answer = await http.post("/api/v1/agents", json=said)
    answer.raise_for_status()
    return f"/a2a/{answer.json()['data']['slug']}"


@dataclass
class Taken(Tally):
    """How many tasks were taken."""

    count: int = 0

    def take(self, status: int, body: bytes, expected: bytes, took: float, at: float) -> None:
        self.count += status == 200


async def offer(port: int, path: str, seconds: float) -> int:
    """Send tasks at a steady rate and wait for none; return how many were taken."""
    said = {"messageId": HOLE, "role": "ROLE_USER", "parts": [{"text": "x"}]}
    params = {"message": said, "configuration": {"returnImmediately": True}}
    load = Load(Taken, seconds=seconds, rate=OFFERED)
    requests = fresh(rpc("SendMessage", params, path=path))
    return (await run_on_connections(load, port, requests, OFFERED)).count


async def measured(folder: Path, rounds: int, seconds: float) -> Figures:
    """Return the figures."""
    agent = Upstream(folder / "agent.db", name="agent")
    gateway = Fronting(folder / "gateway.db", name="gateway")
    found: dict[str, list[tuple[float, float]]] = {}
    counted: dict[str, list[int]] = {}
    async with dying() as dead:
        try:
            await agent.start()
            await gateway.start()
            base = f"http://127.0.0.1:{gateway.port}"
            limits = httpx.Limits(max_connections=64)
            async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as http:
                here = f"http://127.0.0.1:{agent.port}"
                timed = await registered(http, "timed", here)
                ways = {"alive": await registered(http, "alive", here)}
                for way in DEATHS:
                    ways[way] = await registered(http, way, f"{dead.url}/{way}")
                for number in range(rounds + 1):
                    for way, path in ways.items():
                        before = dead.dials.get(way, 0)
                        calls = Calls(
                            wire.sends(wire.V1, "echo", timed), wire.V1.completed, window=seconds
                        )
                        offering = asyncio.create_task(offer(gateway.port, path, seconds))
                        outcome = await call(gateway.port, calls, CONNECTIONS)
                        taken = await offering
                        if outcome.errors:
                            raise RuntimeError(f"{outcome.errors} errors: {outcome.error}")
                        # The first round warms up.
                        if number:
                            spread = outcome.percentile(0.5), outcome.percentile(0.99)
                            found.setdefault(way, []).append(spread)
                        sums = counted.setdefault(way, [0, 0, 0])
                        sums[0] += int(seconds * OFFERED)
                        sums[1] += taken
                        sums[2] += dead.dials.get(way, 0) - before
                    print(f"round {number} of {rounds}", file=sys.stderr)
                before_all = work(gateway)
                refused = await refusals(http, ways["hanging-up"])
                # Can be read on a busy machine too.
                refused["processor_ms"] = (work(gateway) - before_all) * 1000 / REFUSED
        finally:
            await gateway.stop()
            await agent.stop()
    alive = median(p99 for _, p99 in found["alive"])
    return {
        "beside": {
            way: {
                "p50_ms": median(p50 for p50, _ in seen),
                "p99_ms": median(p99 for _, p99 in seen),
                "ratio": median(p99 for _, p99 in seen) / alive,
                "offered": counted[way][0],
                "taken": counted[way][1],
                "sent_to_it": counted[way][2] if way != "alive" else counted[way][1],
            }
            for way, seen in found.items()
        },
        "open": refused,
    }


async def refusals(http: httpx.AsyncClient, path: str) -> Figures:
    """Return how soon callers of an agent whose circuit is open are told."""
    times: list[float] = []
    refused = 0
    for number in range(REFUSED):
        said = {"messageId": f"open-{number}", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        began = time.perf_counter()
        answer = await http.post(f"{path}/message:send", json={"message": said})
        if answer.status_code == 503 and "retry-after" in answer.headers:
            times.append((time.perf_counter() - began) * 1000)
            refused += 1
    if not times:
        return {"refused": 0, "p50_ms": float("nan"), "p99_ms": float("nan")}
    return {"refused": refused, "p50_ms": median(times), "p99_ms": percentile(times, 0.99)}


def table(figures: Figures) -> str:
    """Return what a person reads."""
    lines = [
        "| the other agent is | p50 ms | p99 ms | of alive | offered | taken | sent to it |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, one in figures["beside"].items():
        lines.append(
            f"| {way} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} | {one['ratio']:.2f} "
            f"| {one['offered']} | {one['taken']} | {one['sent_to_it']} |"
        )
    opened = figures["open"]
    lines.append("")
    lines.append(
        f"open circuit: {opened['refused']} refused, p50 {opened['p50_ms']:.2f} ms, "
        f"p99 {opened['p99_ms']:.2f} ms, {opened['processor_ms']:.2f} ms of the processor"
    )
    lines.append("load average: " + " ".join(f"{one:.1f}" for one in os.getloadavg()))
    return "\n".join(lines)


def missed(figures: Figures) -> list[str]:
    """Return which aims were not reached."""
    found = [
        f"beside one that is {way}: {one['ratio']:.2f} x, {RATIO:g} is aimed at"
        for way, one in figures["beside"].items()
        if one["ratio"] > RATIO
    ]
    found += [
        f"{way} was sent {one['sent_to_it']} of {one['offered']} offered"
        for way, one in figures["beside"].items()
        if one["sent_to_it"] > 1.1 * one["offered"]
    ]
    if not figures["open"]["p50_ms"] <= OPEN_MS:
        found.append(f"an open circuit takes {figures['open']['p50_ms']:.1f} ms to say so")
    return found


def main(words: list[str]) -> int:
    """Measure and print one table; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateways.isolation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        figures = runner.run(measured(Path(name), chosen.rounds, chosen.seconds))
    print(json.dumps(figures, indent=2) if chosen.json else table(figures))
    for miss in missed(figures):
        print(miss, file=sys.stderr)
    return 1 if missed(figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
