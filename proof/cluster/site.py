"""A PostgreSQL server, its replicas, what lies between them, and callers that never stop."""

import asyncio
import contextlib
import random
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from dragoman.testing.processes import CannotStart, clean_environment
from dragoman.testing.servers import PostgresServer
from proof.client import CallRefused, ConnectionGone, Frame, RpcConnection, message
from proof.cluster.agent import NOTES
from proof.cluster.cable import Cable, to_port
from proof.cluster.database import Database
from proof.cluster.namespaces import Namespace
from proof.crash.callers import Caller, Load, finish, rests
from proof.crash.checker import RESTING, Verdict, held_against
from proof.results import Json
from proof.servers import Replicas, Server

AGENT = Path(__file__).parent / "agent.py"
REPLICAS = 3
# Seconds until a replica that is frozen loses its tasks.
LEASE = 2.0
CALLERS = 6
READERS = 2
# Seconds a caller thinks between two requests, at most.
PAUSE = 0.15
# Everything acknowledged has to rest by then: a lease, a grace, and a busy machine.
REST_WITHIN = 90.0
_START_WITHIN = 60.0
_BETWEEN_TRIES = 0.2
_TOO_OLD = 40.0
_LOOKS_EVERY = 0.02


class Replica(Server):
    """One `dragoman serve` whose way to PostgreSQL is a cable of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        store: str,
        cable: Cable,
        environment: Mapping[str, str],
        namespace: Namespace | None = None,
    ) -> None:
        super().__init__(folder / "tasks.db", agent=AGENT, name=name, environment=environment)
        self.url = store
        self.cable = cable
        self.namespace = namespace
        # In a namespace of its own callers reach it by a way that no cut concerns.
        self._entrance: Cable | None = None
        self.options: list[str] = []

    def command(self) -> list[str]:
        """Return what is run."""
        words = [*super().command()[:-1], self.url, *self.options]
        return words if self.namespace is None else self.namespace.command(words)

    async def start(self) -> None:
        """Start and wait until it says that it is ready."""
        await super().start()
        if self.namespace is not None:
            if self._entrance is None:
                self._entrance = Cable(to_port(0))
                await self._entrance.open()
            self._entrance.connect = self.namespace.to_port(self.port)
            self.port = self._entrance.port

    def kill(self) -> None:
        """End it as a crash would."""
        super().kill()
        if self._entrance is not None:
            self._entrance.cut()

    async def close(self) -> None:
        """Close the way by which callers reach it."""
        if self._entrance is not None:
            await self._entrance.close()


class Site:
    """What a section hurts. Made by `open_site`, which ends everything on the way out."""

    def __init__(self, folder: Path, seed: int, server: PostgresServer) -> None:
        self.folder = folder
        self.seed = seed
        self.chance = random.Random(seed)
        self.server = server
        self.database = Database(server, "")
        self.cables: list[Cable] = []
        self.replicas = Replicas([])
        self.load = Load(self.replicas, seed, PAUSE)
        self.notes = folder / "notes"
        self._count = 0
        self._running: list[asyncio.Task[None]] = []

    @property
    def servers(self) -> list[Replica]:
        """The replicas."""
        return [server for server in self.replicas.servers if isinstance(server, Replica)]

    async def open(
        self,
        *,
        replicas: int,
        environments: list[dict[str, str]],
        namespaces: list[Namespace],
        lease: float,
        options: list[str],
    ) -> None:
        """Start the replicas and the callers."""
        url = await asyncio.to_thread(self.server.make_database)
        self.database.name = url.rpartition("/")[2]
        base = {
            "DRAGOMAN_LEASE": f"{lease:g}",
            # Being killed often is not the code's fault.
            "DRAGOMAN_MAX_ATTEMPTS": "1000",
            # Tasks that were under way in two kills run one at a time, and others wait for them
            # for up to 32 times as long, as a task survives one kill after the other: that is no
            # part of a takeover.
            "DRAGOMAN_SUSPECT_SECONDS": "0.001",
            # Replicas share the key that seals secrets in their store.
            "DRAGOMAN_STORE_KEY": b64encode(random.Random(self.seed).randbytes(32)).decode(),
            "XDG_DATA_HOME": str(self.folder),
            NOTES: str(self.notes),
        }
        servers: list[Replica] = []
        for n in range(replicas):
            cable = Cable(to_port(self.server.port))
            await cable.open()
            self.cables.append(cable)
            namespace = namespaces[n] if namespaces else None
            own = environments[n] if environments else {}
            to = namespace.host if namespace else "127.0.0.1"
            port = self.server.port if namespace else cable.port
            store = f"postgresql://postgres@{to}:{port}/{self.database.name}"
            environment = clean_environment() | base | own
            replica = Replica(self.folder, f"replica-{n}", store, cable, environment, namespace)
            replica.options = options
            servers.append(replica)
        self.replicas.servers = servers
        # The first makes the schema.
        await self.replicas.start(servers[0])
        await asyncio.gather(*(self.replicas.start(server) for server in servers[1:]))
        self.resume()

    def resume(self) -> None:
        """Begin the load."""
        callers = [Caller(self.load, n).run() for n in range(CALLERS)]
        readers = [Reader(self, n).run() for n in range(READERS)]
        self._running = [asyncio.ensure_future(one) for one in (*callers, *readers)]

    async def settle(self) -> Verdict:
        """End the load, wait until everything rests, and hold it against what was told."""
        await finish(self.load)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.database.at_rest(REST_WITHIN)
        verdict = held_against(self.load.history, await self.database.tasks())
        verdict.torn += self.load.history.told.torn
        self.check_executions(verdict)
        return verdict

    def check_executions(self, verdict: Verdict) -> None:
        """An attempt of a task is made in one process. The same one may begin it again, after the
        store refused what it said."""
        if not self.notes.exists():
            return
        made: dict[tuple[str, str], set[str]] = {}
        for line in self.notes.read_text().splitlines():
            task_id, attempt, pid = line.split()
            made.setdefault((task_id, attempt), set()).add(pid)
        for (task_id, attempt), pids in made.items():
            if len(pids) > 1:
                fact = f"attempt {attempt} of task {task_id} was made in {len(pids)} processes"
                verdict.add("doubled", fact)

    async def close(self) -> None:
        """End everything."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.replicas.kill_all()
        for server in self.servers:
            await server.close()
        for cable in self.cables:
            await cable.close()

    # What sections share

    async def begin_at(self, server: Server, text: str) -> str:
        """Begin a task at a replica; return its id."""
        self._count += 1
        said = message("steps", text, f"{self.seed}-site-{self._count}", immediately=True)
        sent = self.load.history.invoke("SendMessage", said)
        connection = RpcConnection(server.port)
        try:
            task: Json = (await connection.call("SendMessage", said))["task"]
        finally:
            connection.close()
        self.load.history.ack(sent, task)
        return task["id"]

    async def begin_at_last(self, server: Server, text: str, within: float = REST_WITHIN) -> str:
        """Begin a task at a replica as soon as it takes one; messages it refused are not sent."""
        until = time.monotonic() + within
        while True:
            try:
                return await self.begin_at(server, text)
            except (ConnectionGone, CallRefused):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_BETWEEN_TRIES)

    async def taken_over(self, task_id: str, asked: Server, since: float) -> float | None:
        """Return after how many milliseconds a task went on in its second attempt, as another
        replica tells; None if it ended before it had to."""
        connection = RpcConnection(asked.port)
        try:
            while time.monotonic() - since < _TOO_OLD:
                with contextlib.suppress(ConnectionGone, CallRefused):
                    task = await connection.call("GetTask", {"id": task_id})
                    if attempts(task) > 1:
                        return (time.monotonic() - since) * 1000
                    if task["status"]["state"] in RESTING:
                        return None
                await asyncio.sleep(_LOOKS_EVERY)
        finally:
            connection.close()
        return _TOO_OLD * 1000

    async def restart_server(self, within: float = _START_WITHIN) -> None:
        """Start PostgreSQL again: what is left of the one that was killed may take a moment."""
        until = time.monotonic() + within
        while True:
            try:
                await asyncio.to_thread(self.server.start)
                return
            except CannotStart:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_BETWEEN_TRIES)


def attempts(task: Json) -> int:
    """Return the highest attempt that has said something in a task of steps."""
    texts = [part.get("text", "") for a in task.get("artifacts", []) for part in a["parts"]]
    said = [word for text in texts for word in text.split()]
    return max((int(word.partition(".")[0]) for word in said if word[:1].isdigit()), default=0)


class Reader:
    """Begins tasks at one replica and reads them at another, by position through every cut."""

    def __init__(self, site: Site, number: int) -> None:
        self._site = site
        self._name = f"reader-{number}"
        self._chance = random.Random(f"{site.seed}/{self._name}")
        self._count = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self._site.load.act(self._once)
            await asyncio.sleep(self._chance.uniform(0, PAUSE))

    async def _once(self) -> None:
        load = self._site.load
        self._count += 1
        text = f"{self._chance.randint(3, 12)} {self._chance.randint(10, 60)}"
        said = message("steps", text, f"{self._site.seed}-{self._name}-{self._count}",
                       immediately=True)  # fmt: skip
        sent = load.history.invoke("SendMessage", said)
        port = await load.replicas.port()
        connection = RpcConnection(port)
        try:
            load.history.ack(sent, (await connection.call("SendMessage", said))["task"])
        except ConnectionGone:
            load.again.append(sent)
            raise
        finally:
            connection.close()
        others = [one.port for one in load.replicas.servers if one.is_up and one.port != port]
        await self._read(sent.task_id, self._chance.choice(others) if others else port)

    async def _read(self, task_id: str, port: int) -> None:
        connection = RpcConnection(port)
        frames = connection.stream("SubscribeToTask", {"id": task_id})
        seen: list[Frame] = []
        try:
            async with contextlib.aclosing(frames) as stream:
                async for frame in stream:
                    seen.append(frame)
        finally:
            connection.close()
            if seen:
                self._site.load.history.saw_frames(task_id, seen)
                if not rests(seen[-1]):
                    # One of the callers goes on with it.
                    self._site.load.cut.append((task_id, seen[-1].seq or 0))


@contextlib.asynccontextmanager
async def open_site(
    folder: Path,
    seed: int,
    *,
    replicas: int = REPLICAS,
    server: PostgresServer | None = None,
    environments: list[dict[str, str]] | None = None,
    namespaces: list[Namespace] | None = None,
    lease: float = LEASE,
    options: list[str] | None = None,
) -> AsyncGenerator[Site]:
    """Start a site in a folder; a server that is given runs already, and is ended too."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    own = server or PostgresServer(folder / "postgres")
    site = Site(folder, seed, own)
    try:
        if server is None:
            await asyncio.to_thread(own.start)
        await site.open(
            replicas=replicas,
            environments=environments or [],
            namespaces=namespaces or [],
            lease=lease,
            options=options or [],
        )
        yield site
    finally:
        await site.close()
        # It may be another one by now.
        await asyncio.to_thread(site.server.kill)
