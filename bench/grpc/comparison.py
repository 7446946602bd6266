"""`python -m bench.grpc`: gRPC beside the gRPC server of a2a-sdk, our two ports side by side, and
sends over HTTP with gRPC on the same port and without.

Ours is durable (SQLite, `synchronous=FULL`), the peer's store is in memory. Rounds alternate; a
figure is the median of its rounds. The client is the same for all, in this process, and costs less
than a server. What sharing a port costs is told by the processor time of the server, which another
program disturbs least. On two cores that do nothing else it takes two minutes.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench import wire
from bench.calls import Calls, call
from bench.servers import HERE, START_LIMIT, UVICORN, answers
from dragoman.testing.processes import ServerProcess
from dragoman.testing.servers import free_port
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from proof.environments import python_with

from .connection import RpcConnection, messages

CALLS, STREAMS, CHUNKS = 64, 200, 50
SEND = f"/{tables.V1_0.service}/SendMessage"
STREAM = f"/{tables.V1_0.service}/SendStreamingMessage"
PEER = ("a2a-sdk[grpc,http-server,sqlite]==1.3.0", "aiosqlite==0.22.1", *UVICORN)
_REQUEST = shape_of(tables.V1_0, "SendMessageRequest")
_COMPLETED = tables.V1_0.enums["TaskState"].index("TASK_STATE_COMPLETED")
_numbers = itertools.count(1)


@dataclass
class Target:
    """A server and the port that it is asked at."""

    name: str
    process: ServerProcess
    port: int


@dataclass
class Round:
    """What one round came to: replies or chunks per second, and the server's time for each."""

    rate: float
    micros: float


def request(text: str, skill: str) -> bytes:
    said = {"messageId": f"b-{next(_numbers)}", "role": "ROLE_USER", "parts": [{"text": text}]}
    return _REQUEST.encode({"message": said | {"metadata": {"skillId": skill}}})


@asynccontextmanager
async def targets(folder: Path) -> AsyncGenerator[list[Target]]:
    """Start both servers; ours is asked at its two ports."""
    async with AsyncExitStack() as stack:
        port, alone, peer, peer_rpc = (free_port() for _ in range(4))
        ours = serving(stack, folder, "ours", port, "--grpc-listen", f"127.0.0.1:{alone}")
        script = str(HERE / "peers" / "a2a_sdk_server.py")
        command = [str(python_with(*PEER)), script, str(peer), f"grpc:{peer_rpc}"]
        theirs = stack.enter_context(
            ServerProcess(command, log=folder / "theirs.log", cwd=HERE.parent)
        )
        for one in (port, peer):
            await ready(one)
        yield [
            Target("a2a-sdk-memory", theirs, peer_rpc),
            Target("dragoman, common port", ours, port),
            Target("dragoman, own port", ours, alone),
        ]


def serving(
    stack: AsyncExitStack, folder: Path, name: str, port: int, *options: str
) -> ServerProcess:
    """Start a server of ours on a file of its own."""
    agent = str(HERE / "agents" / "dragoman_echo.py")
    command = [sys.executable, "-m", "dragoman", "serve", agent]
    command += ["--listen", f"127.0.0.1:{port}", "--store", str(folder / f"{name}.db"), *options]
    log = folder / f"{name}.log"
    return stack.enter_context(ServerProcess(command, log=log, cwd=HERE.parent))


async def ready(port: int) -> None:
    """Wait until a server answers."""
    async with asyncio.timeout(START_LIMIT):
        while not await answers(port):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def sends(connections: "Connections", seconds: float) -> int:
    """Make blocking sends, many at once; return how many were answered rightly."""
    reply = shape_of(tables.V1_0, "SendMessageResponse")
    until, done = time.perf_counter() + seconds, 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            (data,) = messages(await next(connections).call(SEND, request("hello", "echo")))
            if done % 50 == 0:
                message = reply.parse(data)
                assert message.task.status.state == _COMPLETED
                assert message.task.artifacts[0].parts[0].text == "hello"
            done += 1

    await asyncio.gather(*(caller() for _ in range(CALLS)))
    return done


async def streams(connections: "Connections", _: float) -> int:
    """Read many streams at once; return how many chunks came."""

    async def reader() -> int:
        found = await next(connections).call(STREAM, request(f"{CHUNKS} 20", "chunks"))
        # The tag of an artifact's event: the rest is not worth the client's time.
        return sum(data[:1] == b"\x22" for data in messages(found))

    found = await asyncio.gather(*(reader() for _ in range(STREAMS)))
    assert {*found} == {CHUNKS}, {*found}
    return sum(found)


Connections = Iterator[RpcConnection]
Measure = Callable[[Connections, float], Coroutine[Any, Any, int]]


async def one_round(target: Target, measure: Measure, seconds: float) -> Round:
    # A server takes a hundred rpcs of one connection at once; streams have more.
    connections = [await RpcConnection.to(target.port) for _ in range(4)]
    began, used = time.perf_counter(), target.process.processor_seconds()
    done = await measure(itertools.cycle(connections), seconds)
    took = time.perf_counter() - began
    micros = (target.process.processor_seconds() - used) / done * 1e6
    for connection in connections:
        connection.close()
    return Round(done / took, micros)


async def http_round(process: ServerProcess, port: int, seconds: float) -> Round:
    """Make blocking sends over JSON-RPC."""
    used = process.processor_seconds()
    calls = Calls(wire.sends(wire.V1, "echo"), wire.V1.completed, window=seconds)
    seen = await call(port, calls)
    assert not seen.errors, seen.error
    micros = (process.processor_seconds() - used) / seen.replies * 1e6
    return Round(seen.rate, micros)


async def compare_http(folder: Path, rounds: int, seconds: float) -> None:
    """Show what a send over HTTP costs where gRPC is on the port, used by somebody, and where it
    is not."""
    async with AsyncExitStack() as stack:
        shared, plain = free_port(), free_port()
        servers = {
            "with gRPC": (serving(stack, folder, "shared", shared), shared),
            "without": (serving(stack, folder, "plain", plain, "--transport", "jsonrpc"), plain),
        }
        for _, port in servers.values():
            await ready(port)
        used = await RpcConnection.to(shared)
        await sends(itertools.repeat(used), 0.2)
        figures: dict[str, list[Round]] = {name: [] for name in servers}
        for number in range(2 * rounds + 1):
            for name, (process, port) in servers.items():
                found = await http_round(process, port, seconds)
                if number:
                    figures[name].append(found)
        used.close()
        for name, found in figures.items():
            rate = median(one.rate for one in found)
            micros = median(one.micros for one in found)
            print(f"http     {name:22} {rate:9.0f} /s {micros:8.0f} us of processor")
        tell_share("a send over HTTP", *figures.values())


def tell_share(what: str, shared: list[Round], alone: list[Round]) -> None:
    """Say what sharing the port costs, round by round: what slows one slows its neighbour too."""
    shares = [one.micros / other.micros - 1 for one, other in zip(shared, alone, strict=True)]
    least = min(one.micros for one in shared) / min(one.micros for one in alone) - 1
    print(f"sharing the port costs {what} {median(shares):+.1%} of processor, at best {least:+.1%}")


async def run(rounds: int, seconds: float) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as root:
        async with targets(Path(root)) as found:
            for name, measure in (("send", sends), ("streams", streams)):
                figures: dict[str, list[Round]] = {one.name: [] for one in found}
                for target in found:
                    await one_round(target, measure, 0.5)
                for _ in range(rounds):
                    for target in found:
                        figures[target.name].append(await one_round(target, measure, seconds))
                peer = median(one.rate for one in figures[found[0].name])
                cost = median(one.micros for one in figures[found[0].name])
                for target in found:
                    rate = median(one.rate for one in figures[target.name])
                    micros = median(one.micros for one in figures[target.name])
                    print(
                        f"{name:8} {target.name:22} {rate:9.0f} /s {micros:8.0f} us of processor"
                        f" {rate / peer:6.1f} x, by processor {cost / micros:.1f} x"
                    )
                tell_share(f"a {name} over gRPC", *(figures[one.name] for one in found[1:]))
        await compare_http(Path(root), rounds, seconds)
        print(f"took {time.perf_counter() - began:.0f} s")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.grpc", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args(words)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(chosen.rounds, chosen.seconds))
    return 0
