"""The servers under measurement: how each is started, where it lives, how much it uses.

A peer has an environment of its own under `.peers` (or `DRAGOMAN_PEERS_DIR`), made on first
use and keyed by its exact version; nothing of a peer enters the environment of Dragoman.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.testing.processes import CannotStart, ServerProcess, clean_environment
from dragoman.testing.servers import free_port
from proof.environments import EnvironmentFailed, python_with

from .wire import FASTA2A, V1, Dialect

HERE = Path(__file__).parent
START_LIMIT = 60.0
STOP_LIMIT = 8.0
# What uvicorn's own documentation calls its standard speed-ups, for every peer alike.
UVICORN = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
CALLS = frozenset({"send", "one", "message", "get"})
EVERYTHING = CALLS | {"list", "streams", "stream", "idle", "cold"}


@dataclass(frozen=True)
class Kind:
    """A server program: its name in the tables, its dialect and what it can do."""

    name: str
    dialect: Dialect
    module: str
    package: str = ""
    requirements: tuple[str, ...] = ()
    script: str = ""
    folder: str = "peers"
    durable: bool = False
    can: frozenset[str] = EVERYTHING
    # Whether its store is PostgreSQL, and where the database of this run is.
    on_postgres: bool = False
    url: str = ""

    @property
    def python(self) -> str:
        """The interpreter; that of a peer is made on first use."""
        return str(python_with(*self.requirements)) if self.requirements else sys.executable

    def command(self, port: int, store: Path) -> list[str]:
        if not self.script:
            agent = str(HERE / "agents" / "dragoman_echo.py")
            address = ["--listen", f"127.0.0.1:{port}"]
            command = [self.python, "-m", "dragoman", "serve", agent, *address]
            return [*command, "--store", str(store)]
        command = [self.python, str(HERE / self.folder / self.script), str(port)]
        return [*command, self.url or str(store)] if self.durable else command

    @property
    def is_limit(self) -> bool:
        """Whether it is no peer but what no runtime goes below."""
        return self.folder == "agents"


OURS = Kind("dragoman", V1, "dragoman", durable=True)
A2A_SDK_ON_POSTGRES = (
    "a2a-sdk[http-server,postgresql]==1.3.0", "asyncpg==0.32.0", *UVICORN
)  # fmt: skip
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
    Kind(
        "a2a-sdk-postgres",
        V1,
        "a2a.server.routes",
        "a2a-sdk-1.3.0",
        A2A_SDK_ON_POSTGRES,
        "a2a_sdk_server.py",
        durable=True,
        can=CALLS,
        on_postgres=True,
    ),
    # On our own interpreter and packages.
    Kind("bare-asgi", V1, "", script="limits.py", folder="agents", can=CALLS),
    Kind("bare-durable", V1, "", script="limits.py", folder="agents", durable=True, can=CALLS),
)


def prepare(kind: Kind) -> None:
    """Make the environment of a peer if it is not there."""
    try:
        _ = kind.python
    except EnvironmentFailed as error:
        raise CannotStart(f"{kind.name} not installed: {error}") from None


@dataclass
class Server:
    """One running server; `folder` holds its store and its log."""

    kind: Kind
    folder: Path
    store: Path
    port: int = 0
    ready_after: float = 0.0
    tasks: list[bytes] = field(default_factory=list[bytes])
    _process: ServerProcess | None = None

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Start and wait for the first answered request; its time is `ready_after`."""
        self.port = free_port()
        began = time.perf_counter()
        self._process = process = ServerProcess(
            self.kind.command(self.port, self.store),
            log=self.folder / f"{self.name}.log",
            cwd=HERE.parent,
            environment=environment(self.folder.parent),
        )
        while not await answers(self.port):
            if process.process.poll() is not None or time.perf_counter() - began > START_LIMIT:
                await self.stop()
                raise CannotStart(f"{self.name} did not start: {process.log.strip()[-500:]}")
            await asyncio.sleep(0.005)
        self.ready_after = time.perf_counter() - began

    async def stop(self) -> None:
        """Ask it to end, insist after a while; the store stays."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop, STOP_LIMIT)

    def kill(self) -> None:
        """End it at once: a peer may still be busy with work that no caller waits for."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def rss(self) -> int:
        """Resident kilobytes."""
        return (self.process.memory() or 0) // 1024

    def cpu(self) -> float:
        """Seconds of processor time used so far."""
        return self.process.processor_seconds()

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(f"{self.store.name}*"))


def new_server(kind: Kind, root: Path) -> Server:
    """A server with an empty store in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=root))
    return Server(kind, folder, folder / "tasks.db")


def environment(root: Path) -> dict[str, str]:
    """The environment of a server: it finds its bytecode as an installed one does, whatever the
    environment of the bench says about writing any."""
    ours = clean_environment()
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**ours, "PYTHONPYCACHEPREFIX": str(root / "bytecode")}


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
