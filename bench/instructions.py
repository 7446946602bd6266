"""`python -m bench.instructions`: how many bytecode instructions an operation takes on the loop.

A count does not depend on how busy the machine is, so a test can hold it to a ceiling
(`ceilings.toml`). The server is the one that users run, on a SQLite file, in this process; its main
thread is traced. A caller in another thread makes one call at a time and waits until the server is
idle again, so what is done after the answer counts as well. A function counts as in the call in
which it did least: what timers do in between falls on some calls and not on all.
"""

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import dragoman.http
from dragoman.config import load_settings
from dragoman.gateway.app import gateway_app
from dragoman.http.admission import Admission
from dragoman.http.grpc import frames
from dragoman.http.grpc.front import PREFACE
from dragoman.server.process import run as serving
from dragoman.server.process.run import Ready, run
from dragoman.stores.sqlite import writer
from dragoman.testing.load import HOST, Request, rpc

from . import wire
from .agents.dragoman_echo import agent

CEILINGS = Path(__file__).with_name("ceilings.toml")
CHUNKS = 200
_CALLS = 15
_WARM_UP = 5
_SHOWN = 10
# Seconds without an instruction after which the server is idle.
_QUIET = 0.004
_WITHIN = 60.0
_OTHER_PYTHONS = 1.3
# What HTTP may take more where gRPC shares its port.
MOST_SHARE = 0.02
# Where a request meets what looks for gRPC: the rest of a call varies by more than that.
_HTTP = str(Path(dragoman.http.__file__).parent)
# Looks at how late the loop is while requests are under way: how often depends on the machine.
_TIMED = tuple(f"Admission.{name}" for name in ("_turn", "_sample", "_detect_overload"))


class Count(NamedTuple):
    """What one operation takes."""

    instructions: float
    # Instructions of each function, the most first.
    functions: list[tuple[str, int]]


class Tracer:
    """Counts the instructions of the thread that starts it, by function."""

    def __init__(self, folder: str = "") -> None:
        """`folder`: count what is in files of a folder, and nothing else."""
        self.by_code: Counter[CodeType] = Counter()
        self._folder = folder

    def start(self) -> None:
        """Count from here on, in every function that is called or resumed."""
        sys.settrace(self._call)

    @property
    def total(self) -> int:
        """All that were counted."""
        return sum(list(self.by_code.values()))

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return partial(self._step, frame.f_code)

    def _step(self, code: CodeType, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.by_code[code] += 1
        # The same object again: a new one would be made for every instruction.
        return frame.f_trace

    def count(self, calls: Iterator[Callable[[], object]]) -> Count:
        """Return what one of the calls takes, which are made in this thread."""
        taken: list[Counter[CodeType]] = []
        for n, call in enumerate(calls):
            before = self._idle()
            call()
            if n >= _WARM_UP:
                taken.append(self._idle() - before)
            if len(taken) == _CALLS:
                break
        functions = {
            code
            for one in taken
            for code in one
            if code.co_filename.startswith(self._folder) and not code.co_qualname.startswith(_TIMED)
        }
        least = Counter({code: min(one[code] for one in taken) for code in functions})
        named = [(f"{Path(code.co_filename).name}:{code.co_qualname}", count)
                 for code, count in least.most_common(_SHOWN)]  # fmt: skip
        return Count(least.total(), named)

    def _idle(self) -> Counter[CodeType]:
        """Wait until the server does nothing; return what it has done so far."""
        until = time.monotonic() + _WITHIN
        before = -1
        while (now := self.total) != before and time.monotonic() < until:
            before = now
            time.sleep(_QUIET)
        return self.by_code.copy()


class FullAdmission(Admission):
    """An overload in which there is never room."""

    def __init__(self) -> None:
        super().__init__()
        self.is_overloaded = True
        self.most = 0.0
        self.at_once = math.inf


class Caller:
    """One connection to the server, from another thread."""

    def __init__(self, port: int, tracer: Tracer) -> None:
        self._address = HOST, port
        self._socket = socket.create_connection(self._address, timeout=_WITHIN)
        self._tracer = tracer
        self._place = f"{HOST}:{port}"

    def count(self, requests: Iterator[Request], is_whole: Callable[[bytes], bool]) -> Count:
        """Return what one of the calls takes."""

        def call(request: bytes, expected: bytes) -> None:
            answer = self.call(request, is_whole)
            if expected not in answer or b'"error":' in answer:
                raise SystemExit(f"a wrong answer: {answer[:400]!r}")

        return self._tracer.count(partial(call, *one) for one in requests)

    def call(self, request: bytes, is_whole: Callable[[bytes], bool]) -> bytes:
        """Return the whole answer."""
        self._socket.sendall(request)
        answer = b""
        while not is_whole(answer):
            read = self._socket.recv(1 << 20)
            if not read:
                raise SystemExit(f"the server hung up after {answer[-400:]!r}")
            answer += read
        return answer

    def greet(self) -> bytes:
        """Begin HTTP/2 on a connection that stays open; return what the server says to that."""
        self._greeted = socket.create_connection(self._address, timeout=_WITHIN)
        self._greeted.sendall(PREFACE + frames.settings_frame({}))
        return self._greeted.recv(1 << 16)

    def of_rpcs(self) -> dict[str, Count]:
        """Return what the same calls take over gRPC, on the same port."""
        # Not at the top: the gateway is counted as one that has not loaded it.
        import grpc

        from .grpc.comparison import SEND, STREAM, request

        def stream(chunks: int) -> None:
            events = list(streaming(request(f"{chunks} 20", "chunks"), timeout=_WITHIN))
            assert len(events) > chunks

        with grpc.insecure_channel(self._place) as opened:
            # Its calls have no types for messages that are bytes.
            channel: Any = opened
            sending, streaming = channel.unary_unary(SEND), channel.unary_stream(STREAM)
            send = self._tracer.count(
                partial(sending, request("hello", "echo"), timeout=_WITHIN) for _ in repeat(None)
            )
            few, many = (
                self._tracer.count(repeat(partial(stream, chunks))).instructions
                for chunks in (CHUNKS, 2 * CHUNKS)
            )
        return {"rpc": send, "rpc_chunk": Count((many - few) / CHUNKS, [])}


def _has_body(answer: bytes) -> bool:
    """Tell whether an answer with a length is there."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    (length,) = (
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    return len(body) >= length


def _has_ended(answer: bytes) -> bool:
    """Tell whether a chunked answer is there."""
    return answer.endswith(b"0\r\n\r\n")


# What is counted


def _of_an_agent(caller: Caller) -> dict[str, Count]:
    sends = partial(wire.sends, wire.V1)
    kept: list[bytes] = []

    def told(answer: bytes) -> bool:
        if not _has_body(answer):
            return False
        if found := wire.TASK_ID.search(answer.rpartition(b'"task":')[2]):
            kept.append(found[1])
        return True

    send = caller.count(sends("echo"), told)
    gets = cycle((rpc(wire.V1.get, {"id": id.decode()}), id) for id in kept[-3:])
    few, many = (
        caller.count(_streams(chunks), _has_ended).instructions for chunks in (CHUNKS, 2 * CHUNKS)
    )
    return {
        "send": send,
        "get": caller.count(gets, _has_body),
        "message": caller.count(sends("reply"), _has_body),
        "chunk": Count((many - few) / CHUNKS, []),
        **caller.of_rpcs(),
    }


def _of_a_full_server(caller: Caller) -> dict[str, Count]:
    requests = ((request, b"HTTP/1.1 503") for request, _ in wire.sends(wire.V1, "echo"))
    return {"refusal": caller.count(requests, _has_body)}


def _of_http(caller: Caller, *, has_grpc: bool) -> dict[str, Count]:
    # Somebody uses gRPC where it is served.
    assert caller.greet().startswith(b"HTTP/1") != has_grpc
    return {"send": caller.count(wire.sends(wire.V1, "echo"), _has_body)}


def _streams(chunks: int) -> Iterator[Request]:
    while True:
        yield wire.stream(wire.V1, "chunks", f"{chunks} 20"), b"TASK_STATE_COMPLETED"


def _of_a_gateway(upstream: str, caller: Caller) -> dict[str, Count]:
    body = json.dumps({"endpoint": upstream}).encode()
    head = f"POST /api/v1/agents HTTP/1.1\r\nHost: {HOST}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = caller.call(head.encode() + body, _has_body)
    slug = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]["slug"]
    return {"hop": caller.count(wire.sends(wire.V1, "echo", f"/a2a/{slug}"), _has_body)}


# Serving


def _serve(
    counting: Callable[[Caller], dict[str, Count]],
    *,
    transport: str = "",
    folder: str = "",
    **how: Any,
) -> None:
    """Serve until another thread has called, counted and printed; ends the process. `transport`
    names the bindings that are served; empty: all."""
    tracer = Tracer(folder)

    def call(port: int) -> None:
        try:
            counted = counting(Caller(port, tracer))
            print(json.dumps({name: count._asdict() for name, count in counted.items()}))
            sys.stdout.flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def ready(served: Ready) -> None:
        tracer.start()
        port = int(served.urls[0].rpartition(":")[2].rstrip("/"))
        threading.Thread(target=call, args=[port], daemon=True).start()

    # After its first commit the loop commits every write that is alone, and is traced. Otherwise
    # the disk decides by how quick it is, and a commit of the thread is not seen.
    writer._SHORT, writer._FADING = 3600.0, 0.0  # pyright: ignore[reportPrivateUsage]
    writer._MOST_ON_LOOP = sys.maxsize  # pyright: ignore[reportPrivateUsage]
    writer._PAUSE = 0.0  # pyright: ignore[reportPrivateUsage]
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            {},
            listen=[f"{HOST}:0"],
            store=f"{folder}/tasks.db",
            loop_blocked_after=0,
            transport=transport,
        )
        run(settings=settings, public=False, on_ready=ready, **how)


def _serve_agent() -> None:
    _serve(_of_an_agent, agents=[agent])


def _serve_beside_grpc() -> None:
    _serve(partial(_of_http, has_grpc=True), folder=_HTTP, agents=[agent])


def _serve_without_grpc() -> None:
    counting = partial(_of_http, has_grpc=False)
    _serve(counting, transport="jsonrpc", folder=_HTTP, agents=[agent])


def _serve_full() -> None:
    serving.Admission = FullAdmission
    _serve(_of_a_full_server, agents=[agent])


def _serve_gateway() -> None:
    upstream = subprocess.Popen(
        [sys.executable, "-m", "bench.upstream"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert upstream.stdout is not None
        url = upstream.stdout.readline().split()[-1]
        _serve(partial(_of_a_gateway, url), agents=[], make=gateway_app)
    finally:
        upstream.kill()
        upstream.wait()


_COUNTED = ("agent", "full", "gateway")
_SERVED = {
    "agent": _serve_agent,
    "full": _serve_full,
    "gateway": _serve_gateway,
    "beside": _serve_beside_grpc,
    "without": _serve_without_grpc,
}


def counts() -> dict[str, Count]:
    """Count each operation, in processes of their own."""
    counted: dict[str, Count] = {}
    for served in _COUNTED:
        counted |= _counted(served)
    return counted


def share() -> float:
    """Return how much more a send over HTTP takes where gRPC is on its port, as a part of all that
    it takes."""
    beside, without = (_counted(served)["send"].instructions for served in ("beside", "without"))
    return (beside - without) / ceilings()["send"]


def _counted(served: str) -> dict[str, Count]:
    command = [sys.executable, "-m", "bench.instructions", "--serve", served]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=10 * _WITHIN
    )
    if done.returncode or not done.stdout:
        raise SystemExit(f"{served}: {done.stderr[-2000:]}")
    counted = json.loads(done.stdout)
    return {operation: Count(**count) for operation, count in counted.items()}


def ceilings() -> dict[str, float]:
    """Return what each operation may take; other releases of Python have other instructions."""
    slack = 1.0 if sys.version_info[:2] == (3, 11) else _OTHER_PYTHONS
    allowed = tomllib.loads(CEILINGS.read_text())["instructions"]
    return {name: count * slack for name, count in allowed.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, and say what is above its ceiling."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--functions", action="store_true", help="show where they are")
    parser.add_argument("--serve", choices=_SERVED, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        _SERVED[given.serve]()
        return 0
    is_above = False
    allowed = ceilings()
    for name, count in counts().items():
        print(f"{name:8} {count.instructions:8,.0f} of at most {allowed[name]:,.0f}")
        is_above |= count.instructions > allowed[name]
        if given.functions or count.instructions > allowed[name]:
            for function, instructions in count.functions:
                print(f"    {instructions:8,.0f} {function}")
    more = share()
    print(f"sharing the port with gRPC costs a send {more:+.2%} of at most {MOST_SHARE:+.0%}")
    is_above |= more > MOST_SHARE
    return is_above


if __name__ == "__main__":
    sys.exit(main())
