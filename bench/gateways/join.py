"""`python -m bench.gateways.join`: an agent that dialled out beside the same at an address, behind
one gateway both.

What is compared is the processor time of gateway and agent together for one blocking send. Rounds
alternate; a figure is the median of its rounds.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from dragoman.client.client import Client
from dragoman.testing.processes import ServerProcess
from proof.gateway.site import ask as ask_gateway

from ..servers import HERE

CALLS = 32
_numbers = itertools.count(1)


@dataclass
class Target:
    """An agent behind the gateway, and the processes that take part in a call."""

    name: str
    url: str
    processes: list[ServerProcess]

    @property
    def used(self) -> float:
        """Processor seconds so far."""
        return sum(one.processor_seconds() for one in self.processes)


@asynccontextmanager
async def targets(folder: Path) -> AsyncGenerator[list[Target]]:
    """Start a gateway and two processes of one agent."""
    dragoman = [sys.executable, "-m", "dragoman"]
    agent = str(HERE / "agents" / "dragoman_echo.py")
    async with AsyncExitStack() as stack:

        def started(*words: str) -> ServerProcess:
            name = words[0]
            command = [*dragoman, *words, "--store", str(folder / f"{name}.db")]
            log = folder / f"{name}.log"
            return stack.enter_context(ServerProcess(command, log=log, cwd=HERE.parent))

        gateway = started("gateway", "--listen", "127.0.0.1:0")
        url = gateway.ready()
        joined = started("join", url, agent, "--name", "joined")
        address = joined.line("Joined: ").removeprefix("Joined: ").strip()
        served = started("serve", agent, "--listen", "127.0.0.1:0")
        body = {"endpoint": served.ready(), "name": "served"}
        await ask_gateway(gateway.port, "POST", "/api/v1/agents", None, body)
        yield [
            Target("at an address", f"{url}/a2a/served", [gateway, served]),
            Target("dialled out", address, [gateway, joined]),
        ]


async def one_round(target: Target, seconds: float) -> float:
    """Return the microseconds of processor time for one send."""
    async with Client(target.url) as client:
        used, until, done = target.used, time.perf_counter() + seconds, 0

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < until:
                answer = await client.send("hello", message_id=f"b-{next(_numbers)}")
                assert answer.text == "hello", answer
                done += 1

        await asyncio.gather(*(caller() for _ in range(CALLS)))
        return (target.used - used) / done * 1e6


async def run(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as root:
        async with targets(Path(root)) as found:
            figures: dict[str, list[float]] = {one.name: [] for one in found}
            for target in found:
                await one_round(target, 0.5)
            for _ in range(rounds):
                for target in found:
                    figures[target.name].append(await one_round(target, seconds))
            first = median(figures[found[0].name])
            for target in found:
                micros = median(figures[target.name])
                low, high = min(figures[target.name]), max(figures[target.name])
                print(
                    f"{target.name:14} {micros:7.0f} us of processor for a send"
                    f" ({low:.0f} to {high:.0f}) {micros / first:5.2f} x"
                )


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.gateways.join", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args(words)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(chosen.rounds, chosen.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
