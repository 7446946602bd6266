"""The server processes that a proof hurts: started and ended as often as it likes."""

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dragoman.testing.load import HOST
from dragoman.testing.processes import (
    START_WITHIN,
    STOP_WITHIN,
    ServerProcess,
    clean_environment,
)

AGENT = Path(__file__).parent / "crash" / "agent.py"


class Server:
    """One `dragoman serve` on a store, started and ended as often as a proof likes."""

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
        self._environment = clean_environment() | dict(environment or {})
        self._process: ServerProcess | None = None

    @property
    def is_up(self) -> bool:
        """Whether it said it is ready and has not been ended by us."""
        return self.port != 0

    @property
    def process(self) -> ServerProcess:
        """The process that serves."""
        assert self._process is not None, "the server was started"
        return self._process

    @property
    def pid(self) -> int:
        """The id of the process that serves."""
        return self.process.pid

    def command(self) -> list[str]:
        """Return what is run."""
        serve = [sys.executable, "-m", "dragoman", "serve", str(self._agent)]
        return [*serve, "--listen", f"{HOST}:0", "--store", str(self.store)]

    async def start(self) -> None:
        """Start and wait until it says that it is ready."""
        began = time.monotonic()
        self._process = ServerProcess(self.command(), log=self._log, environment=self._environment)
        try:
            await asyncio.to_thread(self._process.ready)
        except BaseException:
            self.kill()
            raise
        self.ready_at = time.monotonic()
        self.starting = self.ready_at - began
        self.port = self._process.port

    def kill(self) -> None:
        """End it as a crash would: no signal handler runs, nothing is flushed."""
        self.port = 0
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def freeze(self) -> None:
        """Stop its threads where they are."""
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.signal(signal.SIGCONT)

    async def stop(self, within: float = STOP_WITHIN) -> int | None:
        """Ask it to end; return its exit code, or None if it had to be killed."""
        # New connections go to other servers from here on, as behind a load balancer.
        self.port = 0
        process, self._process = self._process, None
        return None if process is None else await asyncio.to_thread(process.stop, within)

    def memory(self) -> int | None:
        """Return its resident bytes, where the system tells."""
        return self.process.memory()


class Replicas:
    """Servers that share one store. Leaving it ends them all, whatever happened inside."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self._turns = itertools.count()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Replicas":
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
        """Start one, and wake the callers that wait for any."""
        await server.start()
        self._changed.set()

    async def port(self) -> int:
        """Return the port of one that is up, each in turn; wait if none is."""
        async with asyncio.timeout(2 * START_WITHIN):
            while not (up := [server for server in self.servers if server.is_up]):
                self._changed.clear()
                await self._changed.wait()
        return up[next(self._turns) % len(up)].port


def make_replicas(
    store: Path, processes: int, environment: Mapping[str, str] | None = None
) -> Replicas:
    """Return so many servers on one store, not started yet."""
    return Replicas(
        [Server(store, name=f"server-{n}", environment=environment) for n in range(processes)]
    )
