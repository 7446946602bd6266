"""Readers that never read: the task they hang on is not slower, the server's memory stays small.

Sockets with tiny buffers follow a task and are then left alone while it produces. The same task
without them, measured in turns with it, says what their presence costs.
"""

import asyncio
import contextlib
import socket
import statistics
import sys
import time
from collections.abc import Generator
from pathlib import Path

import msgspec

from dragoman.testing.load import HOST
from proof.client import RpcConnection, message
from proof.results import Json, Progress, Result, Row, silent, until, workplace
from proof.servers import Server, make_replicas

CHUNKS = 4000
CHUNK_BYTES = 4096
PER_SECOND = 500
TURNS = 3
# At most, with readers over without.
TIME_RATIO = 1.1
BYTES_PER_READER = 1_200_000
_RECEIVE_BUFFER = 2048
_ATTACHED_WITHIN = 60.0


class SlowReaderResult(Result, kw_only=True):
    """What stalled readers cost."""

    proof: str = "slow-reader"
    readers: int
    chunks: int
    chunk_bytes: int
    seconds_without: float
    seconds_with: float
    ratio: float
    # The same for a task that does not pause between chunks: what attaching costs is in it.
    flat_out_ratio: float
    # Resident bytes of the server at most, without and with them; None: unknown.
    memory_without: int | None
    memory_with: int | None

    @property
    def growth(self) -> int | None:
        """By how much the server grew."""
        if self.memory_without is None or self.memory_with is None:
            return None
        return max(0, self.memory_with - self.memory_without)

    def rows(self) -> list[Row]:
        """Return the promises."""
        growth = self.growth
        limit = self.readers * BYTES_PER_READER
        size = "not measured" if growth is None else f"{growth / 1e6:.1f} MB"
        return [
            Row(
                f"A task with {self.readers:,} readers that never read",
                f"{self.ratio:.2f} x the time without ({self.seconds_with:.2f} s)",
                self.ratio <= TIME_RATIO,
            ),
            Row(
                "Memory they cost the server",
                f"{size} (limit {limit / 1e6:.0f} MB)",
                growth is None or growth <= limit,
            ),
        ]


class _Stalled:
    """Sockets that ask for a stream and never read it."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def attach(self, port: int, method: str, params: Json) -> None:
        """Ask once more."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        head = (
            f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"A2A-Version: 1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        asking = socket.socket()
        # Before connecting, or the window is already offered.
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        asking.connect((HOST, port))
        asking.sendall(head.encode() + body)
        asking.setblocking(False)
        self._sockets.append(asking)

    def are_attached(self) -> bool:
        """Whether each has something to read, which it will not."""
        return all(_has_something(asking) for asking in self._sockets)

    def close(self) -> None:
        """Leave."""
        for asking in self._sockets:
            asking.close()
        self._sockets.clear()


def _has_something(asking: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(asking.recv(1, socket.MSG_PEEK))
    return False


@contextlib.contextmanager
def stalled() -> Generator[_Stalled]:
    """Hold sockets that never read, and close them in the end."""
    many = _Stalled()
    try:
        yield many
    finally:
        many.close()


class Trial:
    """One server and the tasks it is measured with."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._count = 0
        self.peak = 0

    async def time_of(self, text: str, readers: int) -> float:
        """Return the seconds a task takes while so many hang on it."""
        self._count += 1
        id = f"{self._seed}-{self._count}"
        connection = RpcConnection(self._server.port)
        try:
            waiting = (await connection.call("SendMessage", message("gate", text, id)))["task"]
            with stalled() as many:
                for number in range(readers):
                    many.attach(self._server.port, "SubscribeToTask", {"id": waiting["id"]})
                    if number % 50 == 0:
                        await asyncio.sleep(0)
                if not await until(many.are_attached, _ATTACHED_WITHIN):
                    raise TimeoutError("the readers were not all attached")
                watching = asyncio.ensure_future(self._watch_memory())
                began = time.monotonic()
                begin = message("gate", "begin", f"{id}-begin", task_id=waiting["id"])
                await self._read_to_the_end(begin)
                taken = time.monotonic() - began
                watching.cancel()
                return taken
        finally:
            connection.close()

    async def _read_to_the_end(self, begin: Json) -> None:
        """Be the one reader that reads, and see the task complete."""
        state = ""
        connection = RpcConnection(self._server.port)
        async with contextlib.aclosing(connection.stream("SendStreamingMessage", begin)) as frames:
            async for frame in frames:
                shown = frame.value.get("statusUpdate")
                if shown is not None:
                    state = shown["status"]["state"]
        if state != "TASK_STATE_COMPLETED":
            raise ValueError(f"the task ended as {state}")

    async def _watch_memory(self) -> None:
        while (size := self._server.memory()) is not None:
            self.peak = max(self.peak, size)
            await asyncio.sleep(0.05)


async def prove(
    readers: int,
    seed: int,
    *,
    folder: Path,
    progress: Progress = silent,
    chunks: int = CHUNKS,
    turns: int = TURNS,
) -> SlowReaderResult:
    """Run the proof in a folder."""
    began = time.monotonic()
    allow_sockets(readers)
    paced = f"{chunks} {CHUNK_BYTES} {PER_SECOND}"
    flat_out = f"{chunks} {CHUNK_BYTES}"
    async with make_replicas(folder / "tasks.db", 1) as replicas:
        trial = Trial(replicas.servers[0], seed)
        # What tasks alone take in memory is not the readers' doing.
        alone = await trial.time_of(flat_out, 0)
        without = [await trial.time_of(paced, 0)]
        memory_without = trial.peak or None
        with_readers: list[float] = []
        for turn in range(turns):
            progress(f"turn {turn + 1}/{turns} with {readers:,} readers")
            with_readers.append(await trial.time_of(paced, readers))
            if turn + 1 < turns:
                progress(f"turn {turn + 2}/{turns} without readers")
                without.append(await trial.time_of(paced, 0))
        beset = await trial.time_of(flat_out, readers)
    return SlowReaderResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        readers=readers,
        chunks=chunks,
        chunk_bytes=CHUNK_BYTES,
        seconds_without=round(statistics.median(without), 3),
        seconds_with=round(statistics.median(with_readers), 3),
        ratio=round(statistics.median(with_readers) / statistics.median(without), 3),
        flat_out_ratio=round(beset / alone, 3),
        memory_without=memory_without,
        memory_with=trial.peak or None,
    )


def allow_sockets(count: int) -> None:
    """Let this process and its children have so many sockets and some more."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count + 500
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def run(readers: int = 1000, seed: int = 1, *, progress: Progress = silent) -> SlowReaderResult:
    """Hang readers that never read on a task and measure what they cost."""
    with workplace() as folder:
        return asyncio.run(prove(readers, seed, folder=folder, progress=progress))
