"""What every proof stands on: server processes that may be killed, a client for them, results.

The client is small on purpose: it talks to loopback only, and it must know exactly what it has
read of an answer at the moment its server dies.
"""

import asyncio
import contextlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

import msgspec

from dragoman.errors import ConfigError

HOST = "127.0.0.1"
AGENT = Path(__file__).parent / "agent.py"
START_WITHIN = 30.0
ANSWER_WITHIN = 30.0
# Readers of long streams need room for one frame, which is never larger than this.
_FRAME_BYTES = 4 * 1024 * 1024
_BUSY = 503
# Of its log, what an error message quotes.
_LAST_WORDS = 2000

Progress = Callable[[str], None]
Json = dict[str, Any]


def silent(text: str) -> None:
    """Show no progress."""


@contextlib.contextmanager
def workplace() -> Generator[Path]:
    """Make a folder for a run and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-proof-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def until(condition: Callable[[], bool], within: float) -> bool:
    """Wait until something is so; tell whether it came to be."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


# Results


class Row(msgspec.Struct):
    """One promise in plain words, the figure that was found, and whether it was kept."""

    promise: str
    figure: str
    kept: bool
    # With no failure in n trials the true rate is below this, at 95 %.
    bound: float | None = None


class Result(msgspec.Struct, kw_only=True):
    """What a proof found. Each proof adds its figures and says its promises as rows."""

    proof: str
    seed: int
    seconds: float = 0.0
    bound: float | None = None
    # What was wrong, with the ids that show it; the first few of each kind.
    findings: list[str] = []
    # The same probes on ours and on another runtime, if that was asked for.
    compare: Json | None = None

    def rows(self) -> list[Row]:
        """Return the promises this proof is about."""
        raise NotImplementedError

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(row.kept for row in self.rows())


def bound(trials: int) -> float | None:
    """Return the rule of three: below this at 95 %, if nothing failed in so many trials."""
    return 3 / trials if trials else None


class Spread(msgspec.Struct):
    """How a time was distributed, in milliseconds."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


def spread(times: Sequence[float]) -> Spread:
    """Return the distribution of times in milliseconds."""
    if not times:
        return Spread()
    ordered = sorted(times)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 1)

    return Spread(len(ordered), at(0.5), at(0.99), round(ordered[-1], 1))


# Servers


class CannotStart(ConfigError):
    """A server did not become ready; the message ends with what it printed."""


class Server:
    """One `dragoman serve` process on a store, started and ended as often as a proof likes."""

    def __init__(
        self,
        store: Path,
        *,
        agent: Path = AGENT,
        name: str = "server",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        self.port = 0
        self.ready_at = 0.0
        self.starting = 0.0
        self._agent = agent
        self._log = store.with_name(f"{name}.log")
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it said it is ready and has not been ended by us."""
        return self.port != 0

    @property
    def pid(self) -> int:
        """The process that serves."""
        assert self._process is not None, "the server was started"
        return self._process.pid

    def command(self) -> list[str]:
        """Return what is run; its first line on stdout must be `Ready: URL`."""
        serve = [sys.executable, "-m", "dragoman", "serve", str(self._agent)]
        return [*serve, "--listen", "127.0.0.1:0", "--store", str(self.store)]

    async def start(self) -> None:
        """Start and wait until it says that it is ready."""
        began = time.monotonic()
        self._process = self._spawned()
        assert self._process.stdout is not None
        try:
            reading = asyncio.to_thread(self._process.stdout.readline)
            line = (await asyncio.wait_for(reading, START_WITHIN)).decode()
        except TimeoutError:
            line = ""
        if not line.startswith("Ready: "):
            self.kill()
            said = self._log.read_text(errors="replace")[-_LAST_WORDS:]
            raise CannotStart(f"the server did not become ready:\n{said}")
        self.ready_at = time.monotonic()
        self.starting = self.ready_at - began
        self.port = int(line.strip().rpartition(":")[2].rstrip("/"))

    def _spawned(self) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            # Settings of the shell that started the proof are not the proof's.
            own = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=own | self._environment,
            )

    def kill(self) -> None:
        """End it as a crash would: no signal handler runs, nothing is flushed."""
        self._signal(signal.SIGKILL)
        self._reap()

    def freeze(self) -> None:
        """Stop its threads where they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    async def stop(self, within: float = 60.0) -> int | None:
        """Ask it to end; return its exit code, or None if it had to be killed."""
        process = self._process
        if process is None:
            return None
        # Whoever connects from here on goes elsewhere, as a balancer would have it.
        self.port = 0
        self._signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(process.wait, within)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._reap()
        return code

    def memory(self) -> int | None:
        """Return its resident bytes, where the system tells."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        return int(sizes[0]) * 1024 if sizes else None

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _reap(self) -> None:
        self.port = 0
        process, self._process = self._process, None
        if process is None:
            return
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class House:
    """Servers that share one store. Leaving it ends them all, whatever happened inside."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self._turns = itertools.count()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "House":
        try:
            for server in self.servers:
                await self.start(server)
        except BaseException:
            self.kill_all()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill_all()

    @property
    def store(self) -> Path:
        """The file they share."""
        return self.servers[0].store

    def kill_all(self) -> None:
        """End every one of them."""
        for server in self.servers:
            server.kill()

    async def start(self, server: Server) -> None:
        """Start one and tell whoever waits for any."""
        await server.start()
        self._changed.set()

    async def port(self) -> int:
        """Return the port of one that is up, each in turn; wait if none is."""
        async with asyncio.timeout(2 * START_WITHIN):
            while not (up := [server for server in self.servers if server.is_up]):
                self._changed.clear()
                await self._changed.wait()
        return up[next(self._turns) % len(up)].port


def make_house(store: Path, processes: int, environment: Mapping[str, str] | None = None) -> House:
    """Return so many servers on one store, not started yet."""
    return House(
        [Server(store, name=f"server-{n}", environment=environment) for n in range(processes)]
    )


# Clients


class Refused(Exception):
    """The server answered with an error; it did nothing."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message", error)))
        self.code: int = error.get("code", 0)


class Gone(Exception):
    """The connection ended before the answer: what became of the request is not known."""


class Busy(Gone):
    """The server cannot take the request now, or stops; the same one may be sent again."""


class Frame(NamedTuple):
    """One event of a stream: its position and what it says, as it came."""

    seq: int | None
    body: bytes

    @property
    def value(self) -> Any:
        """What it says."""
        return msgspec.json.decode(self.body)


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Json | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _opened(answer: bytes) -> bytes:
    try:
        envelope = _decode_answer(answer)
    except msgspec.DecodeError:
        raise Refused({"message": answer[:200].decode(errors="replace")}) from None
    if envelope.error is not None:
        raise Refused(envelope.error)
    return bytes(envelope.result)


class Line:
    """One connection that is kept for as long as both sides want it."""

    def __init__(self, port: int, *, path: str = "/", token: str = "") -> None:
        self.port = port
        self._path = path
        self._credential = f"Authorization: Bearer {token}\r\n" if token else ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def call(self, method: str, params: Json, *, within: float = ANSWER_WITHIN) -> Any:
        """Return the result of a call. Raises `Refused`, or `Gone` if the outcome is not known."""
        try:
            async with asyncio.timeout(within):
                reader, status, headers = await self._ask(method, params, None)
                answer = await reader.readexactly(int(headers[b"content-length"]))
        except (OSError, EOFError, KeyError, asyncio.LimitOverrunError, TimeoutError) as error:
            self.close()
            raise Gone(repr(error)) from None
        except BaseException:
            # Half an answer may be under way: the next one on this connection would be misread.
            self.close()
            raise
        if headers.get(b"connection") == b"close":
            self.close()
        if status == _BUSY:
            raise Busy(answer.decode(errors="replace"))
        return msgspec.json.decode(_opened(answer))

    async def stream(
        self, method: str, params: Json, *, after: int | None = None, within: float = ANSWER_WITHIN
    ) -> AsyncGenerator[Frame]:
        """Yield the events of a stream. Raises `Gone` if it is cut before its end."""
        try:
            async with asyncio.timeout(within):
                reader, status, headers = await self._ask(method, params, after)
            if status == _BUSY:
                raise Busy(method)
            if b"content-length" in headers:
                _opened(await reader.readexactly(int(headers[b"content-length"])))
                raise Gone("a plain answer to a request for a stream")
            rest = b""
            while True:
                async with asyncio.timeout(within):
                    size = int(await reader.readline() or b"x", 16)
                    chunk = (await reader.readexactly(size + 2))[:-2]
                if not size:
                    return
                # Some servers end lines with two characters; JSON has neither of them.
                *blocks, rest = (rest + chunk.replace(b"\r", b"")).split(b"\n\n")
                for block in blocks:
                    frame = _frame(block)
                    if frame is not None:
                        yield frame
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise Gone(repr(error)) from None
        finally:
            self.close()

    async def _ask(
        self, method: str, params: Json, after: int | None
    ) -> tuple[asyncio.StreamReader, int, dict[bytes, bytes]]:
        if self._reader is None or self._writer is None:
            opening = asyncio.open_connection(HOST, self.port, limit=_FRAME_BYTES)
            self._reader, self._writer = await opening
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        cursor = "" if after is None else f"Last-Event-ID: {after}\r\n"
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"A2A-Version: 1.0\r\n{self._credential}{cursor}Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        pairs = [line.partition(b":") for line in lines if line]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if not first.startswith(b"HTTP/1.1 "):
            raise OSError(f"not an answer: {first[:40]!r}")
        return self._reader, int(first.split(b" ")[1]), headers


def _frame(block: bytes) -> Frame | None:
    fields = dict(
        cast("tuple[bytes, bytes]", line.split(b": ", 1))
        for line in block.split(b"\n")
        if line and not line.startswith(b":")
    )
    if b"data" not in fields:
        return None
    body = _opened(fields[b"data"])
    return Frame(int(fields[b"id"]) if b"id" in fields else None, body)


def message(
    skill: str, text: str, message_id: str, *, task_id: str = "", immediately: bool = False
) -> Json:
    """Return the parameters of a send."""
    said: Json = {
        "messageId": message_id,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "metadata": {"skillId": skill},
    }
    if task_id:
        said["taskId"] = task_id
    params: Json = {"message": said}
    if immediately:
        params["configuration"] = {"returnImmediately": True}
    return params
