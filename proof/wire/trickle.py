"""Connections that trickle their head or their body, or do not read: they are cut off in time, and
callers who mean it do not notice.

A real server, attackers in a process of their own, and healthy callers on kept and on fresh
connections, measured with and without the attack.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from dragoman.http import deadlines as limits
from dragoman.testing.load import HOST
from proof.client import CallRefused, ConnectionGone, RpcConnection, message
from proof.results import Progress, Result, Row, Spread, silent, spread, until, workplace
from proof.servers import Server, make_replicas
from proof.wire import tricklers
from proof.wire.slow_reader import allow_sockets

RATIO = 2.0
CALLERS = 8
# A caller thinks between two calls, and now and then connects anew.
_PAUSE = 0.02
_CALLS_PER_LINE = 10
# An answer too large for the buffers on its way.
_CHUNKS, _CHUNK_BYTES = 32, 4096
# A deadline is looked at every second, and a busy machine is late.
_TOLERANCE = 5.0
_BORNE = {
    tricklers.HEAD: limits.HEAD_SECONDS,
    tricklers.BODY: limits.BODY_SECONDS,
    # What the answer has around its text is less than a tenth of it.
    tricklers.READ: limits.WRITE_SECONDS + 1.1 * _CHUNKS * _CHUNK_BYTES / limits.BYTES_PER_SECOND,
}
_NAMES = {
    tricklers.HEAD: "trickle their head",
    tricklers.BODY: "trickle their body",
    tricklers.READ: "do not read",
}


class Attack(msgspec.Struct, kw_only=True):
    """One kind of attack: what became of the attackers, and what healthy callers saw."""

    kind: str
    opened: int
    closed: int
    # Connections that had not been cut off when they should have been; None: unknown.
    left: int | None
    # Seconds the longest-lived one was borne, and how long it may have been.
    slowest: float | None
    limit: float
    without: Spread
    beset: Spread
    ratio: float
    # Calls of healthy callers that failed meanwhile.
    failed: int
    memory_growth: int | None


class TrickleResult(Result, kw_only=True):
    """What trickling connections cost others."""

    proof: str = "trickle"
    connections: int
    attacks: list[Attack]

    def rows(self) -> list[Row]:
        """Return the promises."""
        found: list[Row] = []
        for one in self.attacks:
            who = f"{self.connections:,} connections that {_NAMES[one.kind]}"
            found.append(
                Row(
                    f"Healthy callers beside {who}",
                    f"p99 {one.beset.p99:.1f} ms, {one.ratio:.2f} x that without "
                    f"(p50 {one.beset.p50:.1f} ms), {one.failed} failed",
                    one.ratio <= RATIO and not one.failed,
                )
            )
            late = one.slowest is not None and one.slowest > one.limit + _TOLERANCE
            shown = "not measured" if one.slowest is None else f"within {one.slowest:.1f} s"
            found.append(
                Row(
                    f"Cut off: {who}",
                    f"{one.closed:,} of {one.opened:,} {shown} (limit {one.limit:.0f} s)",
                    not one.left and not late,
                )
            )
        return found


class _Callers:
    """Healthy callers and how long their calls take."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._count = 0
        self.times: list[float] = []
        self.failed = 0

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncGenerator[None]:
        """Have them call for as long as this lasts, and forget what was before."""
        self.times, self.failed = [], 0
        tasks = [asyncio.ensure_future(self._call_on()) for _ in range(CALLERS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call_on(self) -> None:
        connection = RpcConnection(self._server.port)
        try:
            while True:
                for _ in range(_CALLS_PER_LINE):
                    await self._call(connection)
                    await asyncio.sleep(_PAUSE)
                connection.close()
        finally:
            connection.close()

    async def _call(self, connection: RpcConnection) -> None:
        self._count += 1
        params = message("echo", "hello", f"{self._seed}-{self._count}")
        began = time.monotonic()
        try:
            await connection.call("SendMessage", params)
        except (ConnectionGone, CallRefused):
            self.failed += 1
        else:
            self.times.append(1000 * (time.monotonic() - began))


class _Trial:
    """One server under attack."""

    def __init__(self, server: Server, connections: int, seconds: float, seed: int) -> None:
        self._server = server
        self._connections = connections
        self._seconds = seconds
        self._callers = _Callers(server, seed)

    async def attack(self, kind: str) -> Attack:
        """Measure without, with, and without again."""
        limit = _BORNE[kind]
        asks = await self._question() if kind == tricklers.READ else b""
        before = await self._alone()
        memory, files = self._server.memory(), _files(self._server)
        callers = self._callers
        async with callers.calling():
            fared, slowest, left, memory_beset = await self._beset(kind, limit, asks, files)
        beset, failed = callers.times, callers.failed
        without = before + await self._alone()
        tail = _p99(without)
        return Attack(
            kind=kind,
            opened=fared.opened,
            closed=fared.opened - (left or 0),
            left=left,
            slowest=None if slowest is None else round(slowest, 1),
            limit=limit,
            without=spread(without),
            beset=spread(beset),
            ratio=round(_p99(beset) / tail, 3) if tail else 0.0,
            failed=failed,
            memory_growth=None
            if memory is None or memory_beset is None
            else max(0, memory_beset - memory),
        )

    async def _alone(self) -> list[float]:
        async with self._callers.calling():
            await asyncio.sleep(self._seconds / 2)
        return self._callers.times

    async def _beset(
        self, kind: str, limit: float, asks: bytes, files: int | None
    ) -> tuple[tricklers.Fared, float | None, int | None, int | None]:
        """Attack; return how it went, the slowest end, who is left, and the memory meanwhile."""
        reads = kind == tricklers.READ
        lasts = limit + 2 * _TOLERANCE if reads else self._seconds
        words = [self._server.port, kind, self._connections, lasts, limit + _TOLERANCE]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            tricklers.__name__,
            *map(str, words),
            asks.decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            slowest, left = None, None
            if reads:
                async with asyncio.timeout(60):
                    await process.stdout.readline()
            began = time.monotonic()
            memory = await self._memory(min(self._seconds, lasts) * 0.8)
            if reads and files is not None:
                # Who does not read does not see that it was cut off: the server's files tell.
                allowed = files + 4 * CALLERS
                within = began + limit + _TOLERANCE - time.monotonic()
                await until(lambda: (_files(self._server) or 0) <= allowed, within)
                slowest = time.monotonic() - began
                left = max(0, (_files(self._server) or 0) - allowed)
            async with asyncio.timeout(lasts + limit + 60):
                fared = msgspec.json.decode(await process.stdout.read(), type=tricklers.Fared)
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if not reads:
            slowest, left = fared.slowest, fared.left
        return fared, slowest, left, memory

    async def _memory(self, seconds: float) -> int | None:
        await asyncio.sleep(seconds)
        return self._server.memory()

    async def _question(self) -> bytes:
        """Return a request whose answer is long."""
        connection = RpcConnection(self._server.port)
        text = f"{_CHUNKS} {_CHUNK_BYTES}"
        task = (await connection.call("SendMessage", message("flood", text, "long")))["task"]
        connection.close()
        call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task["id"]}}
        body = msgspec.json.encode(call)
        head = (
            f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"A2A-Version: 1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else 0.0


def _files(server: Server) -> int | None:
    """Return how many files the server has open, where the system tells."""
    try:
        return len(os.listdir(f"/proc/{server.pid}/fd"))
    except OSError:
        return None


async def prove(
    connections: int,
    seconds: int,
    seed: int,
    *,
    folder: Path,
    progress: Progress = silent,
    kinds: tuple[str, ...] = (tricklers.HEAD, tricklers.BODY, tricklers.READ),
) -> TrickleResult:
    """Run the proof in a folder."""
    began = time.monotonic()
    allow_sockets(connections)
    attacks: list[Attack] = []
    async with make_replicas(folder / "tasks.db", 1) as replicas:
        trial = _Trial(replicas.servers[0], connections, seconds, seed)
        for kind in kinds:
            progress(f"{connections:,} connections that {_NAMES[kind]}")
            attacks.append(await trial.attack(kind))
    return TrickleResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        connections=connections,
        attacks=attacks,
    )


def run(
    connections: int = 2000, seconds: int = 20, seed: int = 1, *, progress: Progress = silent
) -> TrickleResult:
    """Let connections trickle and measure what others notice."""
    with workplace() as folder:
        return asyncio.run(prove(connections, seconds, seed, folder=folder, progress=progress))
