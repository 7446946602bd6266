"""The servers under measurement: how each is started, where it lives, how much it uses.

A peer has an environment of its own under `.peers` (or `DRAGOMAN_PEERS_DIR`), made on first
use and keyed by its exact version; nothing of a peer enters the environment of Dragoman.
"""

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .wire import FASTA2A, V1, Dialect

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("DRAGOMAN_PEERS_DIR") or HERE.parent / ".peers")
START_LIMIT = 60.0
STOP_LIMIT = 8.0
# What uvicorn's own documentation calls its standard speed-ups, for every peer alike.
UVICORN = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
EVERYTHING = frozenset({"send", "message", "get", "list", "streams", "stream", "idle"})


@dataclass(frozen=True)
class Kind:
    """A server program: its name in the tables, its dialect and what it can do."""

    name: str
    dialect: Dialect
    module: str
    package: str = ""
    requirements: tuple[str, ...] = ()
    script: str = ""
    durable: bool = False
    can: frozenset[str] = EVERYTHING

    @property
    def environment(self) -> Path:
        return PEERS / f"bench-{self.package}"

    @property
    def python(self) -> str:
        return str(self.environment / "bin" / "python") if self.package else sys.executable

    def command(self, port: int, store: Path) -> list[str]:
        if not self.package:
            agent = str(HERE / "agents" / "dragoman_echo.py")
            address = ["--listen", f"127.0.0.1:{port}"]
            command = [self.python, "-m", "dragoman", "serve", agent, *address]
            return [*command, "--store", str(store)]
        command = [self.python, str(HERE / "peers" / self.script), str(port)]
        return [*command, str(store)] if self.durable else command


OURS = Kind("dragoman", V1, "dragoman", durable=True)
_A2A_SDK = ("a2a-sdk[http-server,sqlite]==1.3.0", "aiosqlite==0.22.1", *UVICORN)
PEER_KINDS = (
    Kind("a2a-sdk-memory", V1, "a2a.server.routes", "a2a-sdk-1.3.0", _A2A_SDK, "a2a_sdk_server.py"),
    Kind(
        "a2a-sdk-sqlite",
        V1,
        "a2a.server.routes",
        "a2a-sdk-1.3.0",
        _A2A_SDK,
        "a2a_sdk_server.py",
        durable=True,
    ),
    Kind(
        "fasta2a-memory",
        FASTA2A,
        "fasta2a",
        "fasta2a-2.1.1",
        ("fasta2a==2.1.1", *UVICORN),
        "fasta2a_server.py",
        # It has no answer without a task, and refuses to list.
        can=EVERYTHING - {"message", "list"},
    ),
)


class CannotStart(Exception):
    """A server could not be installed or did not become ready."""


def prepare(kind: Kind) -> None:
    """Make the peer's environment if it is not there; safe to call from several runs at once."""
    if not kind.package:
        return
    PEERS.mkdir(parents=True, exist_ok=True)
    mark = kind.environment / "ready.txt"
    wanted = "\n".join(kind.requirements)
    with open(PEERS / f"bench-{kind.package}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if mark.exists() and mark.read_text() == wanted:
            return
        print(f"installing {kind.package} into its own environment", file=sys.stderr)
        shutil.rmtree(kind.environment, ignore_errors=True)
        commands = (
            [sys.executable, "-m", "venv", str(kind.environment)],
            [kind.python, "-m", "pip", "install", "--quiet", *kind.requirements],
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise CannotStart(f"{kind.package} not installed: {done.stderr.strip()[-300:]}")
        mark.write_text(wanted)


@dataclass
class Server:
    """One running server; `folder` holds its store and its log."""

    kind: Kind
    folder: Path
    store: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    ready_after: float = 0.0
    tasks: list[bytes] = field(default_factory=list[bytes])

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start and wait for the first answered request; its time is `ready_after`."""
        self.port = free_port()
        began = time.perf_counter()
        command = self.kind.command(self.port, self.store)
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE.parent)
        while not await answers(self.port):
            if self.process.poll() is not None or time.perf_counter() - began > START_LIMIT:
                text = (self.folder / f"{self.name}.log").read_text(errors="replace")
                await self.stop()
                raise CannotStart(f"{self.name} did not start: {text.strip()[-500:]}")
            await asyncio.sleep(0.005)
        self.ready_after = time.perf_counter() - began

    async def stop(self) -> None:
        """Ask it to end, insist after a while; the store stays."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it at once; for a peer that is still busy with work nobody waits for."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def rss(self) -> int:
        """Resident kilobytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0

    def cpu(self) -> float:
        """Seconds of processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(f"{self.store.name}*"))


def new_server(kind: Kind, root: Path) -> Server:
    """A server with an empty store in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=root))
    return Server(kind, folder, folder / "tasks.db")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def answers(port: int) -> bool:
    """Whether the server answers a request for its card."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(
            b"GET /.well-known/agent-card.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Connection: close\r\n\r\n"
        )
        return b" 200 " in await asyncio.wait_for(reader.readline(), 5)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
