"""`python -m bench.telemetry`: what watching costs a blocking send, in processor time.

Rounds alternate between four ways and the medians are compared, so that a busy machine favours
none: `bare`, with counting and traces taken out; `off`, as it is without a collector; `joined`, the
same with a `traceparent` in each request; `traced`, with spans sent to a collector on loopback.
"""

import argparse
import asyncio
import gc
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from dragoman import Agent, App, Settings
from dragoman.config import StoreSettings, TelemetrySettings
from dragoman.telemetry import exporting, metrics, observation, tracing

WAYS = ("bare", "off", "joined", "traced")
CALLERS = 32
_PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_numbers = itertools.count()


def echo() -> Agent:
    agent = Agent("Echo", "Echoes.")

    @agent.skill
    async def say(text: str) -> str:
        return text

    return agent


async def send(app: App, *, joined: bool) -> None:
    """Make one call and look at its answer."""
    said = {"messageId": f"m{next(_numbers)}", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
    body = json.dumps(rpc).encode()
    headers = [(b"host", b"127.0.0.1"), (b"a2a-version", b"1.0")]
    headers.append((b"content-type", b"application/json"))
    if joined:
        headers.append((b"traceparent", _PARENT))
    scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "POST"}
    scope |= {"scheme": "http", "path": "/", "raw_path": b"/", "query_string": b""}
    scope |= {"root_path": "", "headers": headers, "client": ("127.0.0.1", 1)}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def keep(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, keep)
    if sent[0]["status"] != 200 or b"TASK_STATE_COMPLETED" not in sent[1]["body"]:
        raise RuntimeError(f"a send was not answered: {sent}")


async def measured(app: App, calls: int, *, joined: bool) -> float:
    """Return the microseconds of processor time that a send takes."""

    async def caller() -> None:
        for _ in range(calls // CALLERS):
            await send(app, joined=joined)

    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return (time.process_time() - began) / (calls // CALLERS * CALLERS) * 1e6


class _Nowhere:
    """Where the code is, for code that is nowhere."""

    def get(self) -> None:
        """Return nothing."""

    def set(self, *_: Any) -> None:
        """Keep nothing."""

    def reset(self, *_: Any) -> None:
        """Forget nothing."""


@contextmanager
def unwatched() -> Generator[None]:
    """Take everything out that counts, times or traces."""

    def nothing(*_: Any, **__: Any) -> None:
        """Cost as little as a call can."""

    watched = ("__init__", "join", "is_for", "failed", "answered", "responded", "end")
    with ExitStack() as stack:
        for kind in (metrics.Counter, metrics.Histogram):
            stack.enter_context(patch.object(kind, "add", nothing))
        for name in watched:
            stack.enter_context(patch.object(observation.RequestObservation, name, nothing))
        stack.enter_context(patch.object(tracing, "here", _Nowhere()))
        yield


def collector() -> ThreadingHTTPServer:
    """Return a collector that takes everything and keeps nothing."""

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def run(app: App, endpoint: str, calls: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of every round, by way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    async with app.running():
        await measured(app, calls, joined=False)
        for number in range(rounds):
            for way in WAYS if number % 2 else reversed(WAYS):
                with unwatched() if way == "bare" else ExitStack():
                    # The app has opened it without a collector; a second one may name one.
                    if way == "traced":
                        exporting.open(
                            Settings(telemetry=TelemetrySettings(otlp_endpoint=endpoint))
                        )
                    found[way].append(await measured(app, calls, joined=way == "joined"))
                    if way == "traced":
                        await exporting.end()
                        await exporting.close()
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.telemetry", description=__doc__)
    parser.add_argument("--calls", type=int, default=640, help="sends in a round (640)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each way (15)")
    chosen = parser.parse_args(words)
    server = collector()
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        settings = Settings(stores=StoreSettings(location=str(Path(folder) / "tasks.db")))
        app = App(echo(), settings=settings, is_local=True)
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        found = asyncio.run(run(app, endpoint, chosen.calls, chosen.rounds))
    server.shutdown()
    server.server_close()
    bare = found["bare"]
    print(f"{'way':8} {'median µs':>10} {'least µs':>10} {'ratio':>7} {'of least':>9}")
    for way, times in found.items():
        ratio, least = median(times) / median(bare), min(times) / min(bare)
        print(f"{way:8} {median(times):10.1f} {min(times):10.1f} {ratio:7.3f} {least:9.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
