"""`python -m bench.gateway`: what a gateway adds to calling an agent directly.

One agent that answers at once and costs next to nothing (`bench.upstream`); a gateway before it, on
a SQLite file with `synchronous=FULL`, as one process and as one for each core. The same blocking
sends go to all, in rounds that alternate, and medians are reported: milliseconds with 1 and 16
connections, sends per second with 64. Beside it an agent of ours on a file, which is what
durability costs without a gateway. Then, in this process, what it takes to choose among ten
thousand registered agents.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import uvloop

from dragoman import Settings
from dragoman.config import StoreSettings
from dragoman.gateway.app import order_rules_of
from dragoman.gateway.gateway import Gateway
from dragoman.gateway.routing import routing_options
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.security.audit.log import NoAudit
from dragoman.security.vault import vault_of
from dragoman.stores.opening import gateway_store_of
from proof.servers import Server

from . import wire
from .calls import Calls, Outcome, call
from .gateways import registry

AGENT = Path(__file__).parent / "agents" / "instant.py"
LATENCY_CONNECTIONS = (1, 16)
RATE_CONNECTIONS = 64
# What is aimed at: milliseconds added with one connection, forwarded sends per second.
ADDED_MS, PER_SECOND = 3.0, 1_500
PROCESSES = os.cpu_count() or 1
# The gateway as one process for each core.
MANY = f"gateway×{PROCESSES}"
CHOOSE_MS = 5.0
_WITHIN = 300.0
Figures = dict[str, Any]


class Upstream(Server):
    """The agent by itself."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.upstream"]


class Fronting(Server):
    """The gateway."""

    processes = 1

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "dragoman", "gateway", "--listen", "127.0.0.1:0"]
        return [*words, "--store", str(self.store), "--workers", str(self.processes)]


async def register(gateway: Server, agent: Server) -> str:
    """Register the agent; return its path at the gateway."""
    url = f"http://127.0.0.1:{gateway.port}/api/v1/agents"
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(url, json={"endpoint": f"http://127.0.0.1:{agent.port}"})
        answer.raise_for_status()
    return f"/a2a/{answer.json()['data']['slug']}"


def work(server: Server) -> float:
    """Seconds of processor time a server and its processes have used."""
    return server.process.processor_seconds(with_children=True)


async def forwarded(folder: Path, rounds: int, seconds: float) -> Figures:
    """Return the figures of each way, by the number of connections."""
    agent = Upstream(folder / "agent.db", name="agent")
    durable = Server(folder / "durable.db", agent=AGENT, name="durable")
    gateway = Fronting(folder / "gateway.db", name="gateway")
    gateways = Fronting(folder / "gateways.db", name="gateways")
    gateways.processes = PROCESSES
    servers = {"direct": agent, "durable": durable, "gateway": gateway, MANY: gateways}
    found: dict[tuple[str, int], list[tuple[Outcome, float]]] = {}
    try:
        for server in servers.values():
            await server.start()
        paths = {"direct": "/", "durable": "/"}
        for way in ("gateway", MANY):
            paths[way] = await register(servers[way], agent)
        for number in range(rounds + 1):
            for connections in (*LATENCY_CONNECTIONS, RATE_CONNECTIONS):
                for way, server in servers.items():
                    calls = Calls(
                        wire.sends(wire.V1, "echo", paths[way]), wire.V1.completed, window=seconds
                    )
                    before = work(server)
                    outcome = await call(server.port, calls, connections)
                    if outcome.errors:
                        raise RuntimeError(f"{way}: {outcome.errors} errors: {outcome.error}")
                    used = (work(server) - before) / outcome.replies * 1e6
                    # The first round warms up.
                    if number:
                        found.setdefault((way, connections), []).append((outcome, used))
            print(f"round {number} of {rounds}", file=sys.stderr)
    finally:
        for server in servers.values():
            await server.stop()
    return {
        f"{way} {connections}": {
            "p50_ms": median(outcome.percentile(0.5) for outcome, _ in seen),
            "p99_ms": median(outcome.percentile(0.99) for outcome, _ in seen),
            "per_second": median(outcome.rate for outcome, _ in seen),
            "processor_us": median(used for _, used in seen),
        }
        for (way, connections), seen in found.items()
    }


def timed(what: Callable[[], object], rounds: int) -> float:
    """Return the median of the milliseconds of processor time that something takes."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        what()
        times.append((time.process_time() - began) * 1000)
    return median(times)


async def choosing(folder: Path, rounds: int) -> Figures:
    """Return how many milliseconds it takes to choose among many agents."""
    settings = Settings(stores=StoreSettings(location=str(folder / "choosing.db")))
    rules = order_rules_of(settings)
    store = gateway_store_of(settings, vault_of, rules)
    gateway = Gateway(store, rules, settings, NoAudit(), is_local=True)
    async with asyncio.timeout(_WITHIN):
        await store.open()
        await gateway.open()
        try:
            # As if they had been registered, which would take a while.
            many = registry.agents(random.Random(7))
            gateway.registry._agents.index.fill(many)  # pyright: ignore[reportPrivateUsage]
            gateway.router.shortlist.fill(many)
            wanted = {
                "an agent by its name": {"agentId": "agent-77"},
                "a skill": {"skillId": "skill-77"},
                "the best match": {},
                "the best match, learning": {"policy": "learning"},
            }
            return {name: _chosen(gateway, said, rounds) for name, said in wanted.items()}
        finally:
            await gateway.close()
            await store.close()


def _chosen(gateway: Gateway, metadata: dict[str, Any], rounds: int) -> float:
    parts = [Part(text="Who does word0007 and word0042 for me?")]
    message = Message(MessageId("m"), Role.USER, parts)
    operation = SendMessage(message=message, metadata=metadata)
    return timed(
        lambda: gateway.router.choose(operation, routing_options.read(operation), ""), rounds
    )


def table(figures: Figures) -> str:
    """Return what a person reads."""
    lines = [
        "| way | connections | p50 ms | p99 ms | sends/s | processor µs |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in figures["sends"].items():
        way, connections = name.split()
        lines.append(
            f"| {way} | {connections} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} "
            f"| {one['per_second']:,.0f} | {one['processor_us']:.0f} |"
        )
    lines.append("")
    for connections, added in figures["added"].items():
        lines.append(
            f"added with {connections} connections: p50 {added['p50_ms']:.2f} ms, "
            f"p99 {added['p99_ms']:.2f} ms"
        )
    lines.append(f"of the rate of a durable agent without a gateway: {figures['ratio']:.2f}")
    for name, milliseconds in figures["choosing"].items():
        lines.append(f"{registry.AGENTS:,} agents, {name}: {milliseconds:.2f} ms")
    lines.append("load average: " + " ".join(f"{one:.1f}" for one in os.getloadavg()))
    return "\n".join(lines)


def document(found: Figures, chosen: Figures) -> Figures:
    """Return all figures, with what the gateway adds."""
    added = {
        str(connections): {
            name: found[f"gateway {connections}"][name] - found[f"direct {connections}"][name]
            for name in ("p50_ms", "p99_ms")
        }
        for connections in LATENCY_CONNECTIONS
    }
    rates = [found[f"{way} {RATE_CONNECTIONS}"]["per_second"] for way in (MANY, "durable")]
    return {"sends": found, "added": added, "ratio": rates[0] / rates[1], "choosing": chosen}


def measure(rounds: int, seconds: float) -> Figures:
    """Return all figures."""
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as name:
        folder = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(forwarded(folder, rounds, seconds))
            chosen = runner.run(choosing(folder, max(3, rounds * 5)))
    return document(found, chosen)


def missed(figures: Figures) -> list[str]:
    """Return which aims were not reached."""
    found: list[str] = []
    if (added := figures["added"]["1"]["p50_ms"]) > ADDED_MS:
        found.append(f"{added:.2f} ms are added, {ADDED_MS:g} are aimed at")
    rate = figures["sends"][f"{MANY} {RATE_CONNECTIONS}"]["per_second"]
    if rate < PER_SECOND:
        found.append(f"{rate:,.0f} sends per second, {PER_SECOND:,} are aimed at")
    found += [
        f"{name} among {registry.AGENTS:,} agents takes {one:.1f} ms, {CHOOSE_MS:g} are aimed at"
        for name, one in figures["choosing"].items()
        if one > CHOOSE_MS
    ]
    return found


def main(words: list[str]) -> int:
    """Measure and print one table; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(words)
    figures = measure(chosen.rounds, chosen.seconds)
    print(json.dumps(figures, indent=2) if chosen.json else table(figures))
    for miss in missed(figures):
        print(miss, file=sys.stderr)
    return 1 if missed(figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
