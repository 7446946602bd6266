"""`python -m bench.grpc.floods`: what a caller of gRPC sees while another abuses HTTP/2.

One caller makes one blocking send after the other. Rounds in which nothing else happens alternate
with rounds in which another process floods the server over several connections, and connects again
whenever it is sent away. What counts is the caller's median latency beside a flood, as a multiple
of that in the quiet rounds before and behind it, and how the server's memory grew.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import uvloop

from dragoman.http.grpc import frames
from dragoman.http.grpc.front import PREFACE
from dragoman.http.grpc.header_blocks import written
from dragoman.testing.servers import free_port

from .comparison import SEND, ready, request, serving
from .connection import RpcConnection, request_head

# What neighbours of a flood may wait, and what memory it may take.
MOST_TIMES = 2.0
MOST_BYTES = 32 * 1024 * 1024
CONNECTIONS = 4
# Floods do not come from the address of the neighbour.
_ELSEWHERE = ("127.0.0.99", 0)
_HEAD = request_head(SEND)
_RESET = frames.CANCEL.to_bytes(4)


def _rapid_resets() -> bytes:
    return b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, stream, _HEAD)
        + frames.frame(frames.RST_STREAM, 0, stream, _RESET)
        for stream in range(1, 20_001, 2)
    )


def _header_bombs() -> bytes:
    # One large field that is put into the table, and named again and again.
    field = b"\x40\x04bomb" + b"\x7f\xa1\x1e" + b"x" * 4_000
    named = b"\xbe" * 16_000
    blocks = [_HEAD + field, *[_HEAD + named] * 200]
    return b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 2 * n + 1, block)
        for n, block in enumerate(blocks)
    )


def _endless_headers() -> bytes:
    block = written([(b"a", b"b" * 300)]) * 4
    return frames.frame(frames.HEADERS, 0, 1, _HEAD) + b"".join(
        frames.frame(frames.CONTINUATION, 0, 1, block) for _ in range(2_000)
    )


def _refused(*frames_of_stream: tuple[int, int, bytes]) -> bytes:
    """Return many streams that the server has to end itself."""
    return b"".join(
        frames.frame(kind, flags, stream, body)
        for stream in range(1, 10_001, 2)
        for kind, flags, body in frames_of_stream
    )


_BEGUN = (frames.HEADERS, frames.END_HEADERS, _HEAD)
_WHOLE = (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, request_head("/none/None"))
FLOODS = {
    "rapid resets": _rapid_resets(),
    "made to reset": _refused(_BEGUN, (frames.WINDOW_UPDATE, 0, bytes(4))),
    "unknown rpcs": _refused(_WHOLE),
    "full of settings": frames.frame(frames.SETTINGS, 0, 0, frames.SETTING.pack(4, 0) * 2_700) * 15,
    "crumbs of data": frames.frame(*_BEGUN[:2], 1, _HEAD)
    + frames.frame(frames.DATA, 0, 1, b"\0") * 20_000,
    "pings": frames.frame(frames.PING, 0, 0, bytes(8)) * 20_000,
    "settings": frames.settings_frame({}) * 20_000,
    "windows": frames.number_frame(frames.WINDOW_UPDATE, 0, 1) * 20_000,
    "header bombs": _header_bombs(),
    "endless headers": _endless_headers(),
    "frames by chance": random.Random(20).randbytes(200_000),
}


async def flood(name: str, port: int) -> None:
    """Flood a server until this process is ended."""

    async def one() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=_ELSEWHERE
                )
                writer.write(PREFACE + frames.settings_frame({}) + FLOODS[name])
                while await reader.read(1 << 16):
                    pass
                writer.close()
            except OSError:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


async def latency(port: int, seconds: float) -> float:
    """Return the median of the seconds that a send takes."""
    connection = await RpcConnection.to(port)
    found: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not found:
        began = time.perf_counter()
        await connection.call(SEND, request("hello", "echo"))
        found.append(time.perf_counter() - began)
    connection.close()
    return median(found)


async def run(rounds: int, seconds: float, chosen: list[str]) -> bool:
    """Measure each flood; tell whether all were borne."""
    are_borne = True
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as root:
        async with AsyncExitStack() as stack:
            port = free_port()
            server = serving(stack, Path(root), "flooded", port)
            await ready(port)
            await latency(port, 0.5)
            for name in chosen:
                before = server.memory() or 0
                times: list[float] = []
                quiet = await latency(port, seconds)
                for _ in range(rounds):
                    command = [
                        sys.executable,
                        "-m",
                        "bench.grpc.floods",
                        "--flood",
                        name,
                        str(port),
                    ]
                    with subprocess.Popen(command) as flooding:
                        # The floods are made first.
                        await asyncio.sleep(0.5)
                        beside = await latency(port, seconds)
                        flooding.kill()
                    behind = await latency(port, seconds)
                    times.append(beside / ((quiet + behind) / 2))
                    quiet = behind
                grew = (server.memory() or 0) - before
                print(
                    f"{name:17} neighbours wait {median(times):5.2f} x, a quiet send takes"
                    f" {quiet * 1e3:.1f} ms, memory {grew / 2**20:+.1f} MB"
                )
                are_borne &= median(times) <= MOST_TIMES and grew <= MOST_BYTES
    return are_borne


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grpc.floods", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", choices=FLOODS, action="append")
    parser.add_argument("--flood", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if chosen.flood:
            runner.run(flood(chosen.flood[0], int(chosen.flood[1])))
            return 0
        return not runner.run(run(chosen.rounds, chosen.seconds, chosen.only or [*FLOODS]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
