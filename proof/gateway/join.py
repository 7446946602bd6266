"""The same with agents that dial out: `kill -9` of the gateway and of agents, and connections
between them that are cut at random bytes.

The three processes of one agent have joined under one name, each with a store of its own; the agent
that works once has one process.
"""

import asyncio
import random
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from dragoman.testing.load import HOST
from dragoman.testing.processes import ServerProcess
from proof.gateway import gateway
from proof.gateway.callers import PAUSE, Account
from proof.gateway.result import GatewayResult
from proof.gateway.site import FixedServer, GatewayProcesses, ask
from proof.results import Progress, Row, silent, workplace

# Bytes and seconds after which a connection is cut, at most.
_LONGEST_LIFE = 30_000
_LONGEST_TIME = 4.0
_PIECE = 64 * 1024
# Seconds in which an agent has to be registered.
_JOINED_WITHIN = 60.0


class JoinResult(GatewayResult, kw_only=True):
    """What became of tasks of agents that dialled out."""

    proof: str = "join"

    def rows(self) -> list[Row]:
        """Return the promises."""
        found = [
            msgspec.structs.replace(row, promise=f"Agents that dial out: {row.promise}")
            for row in super().rows()
        ]
        return [*found, Row("Connections of such agents cut at a byte", f"{self.cuts:,}", True)]


class CuttingProxy:
    """Leads to a gateway, and cuts every connection off after some bytes, in the middle of
    whatever is on its way."""

    def __init__(self, target: int, chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.port = 0

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._lead, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut everything off."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            there, back = await asyncio.open_connection(HOST, self._target)
            ends.append(back)
            # Mostly short lives, and some that get far.
            left = [int(_LONGEST_LIFE * self._chance.random() ** 2) + 100]
            ways = [self._carry(reader, back, left), self._carry(there, writer, left)]
            running = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(
                    running,
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=_LONGEST_TIME * self._chance.random(),
                )
            finally:
                for way in running:
                    way.cancel()
                await asyncio.gather(*running, return_exceptions=True)
            self.cuts += left[0] <= 0 or not any(
                way.done() and not way.cancelled() for way in running
            )
        except (OSError, asyncio.CancelledError):
            # The gateway is down, or the run is over.
            pass
        finally:
            self._tasks.discard(task)
            for end in ends:
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]
    ) -> None:
        while data := await reader.read(_PIECE):
            piece = data[: left[0]]
            left[0] -= len(data)
            writer.write(piece)
            await writer.drain()
            if left[0] <= 0:
                return


class JoinedServer(FixedServer):
    """A process of an agent that dials out."""

    def __init__(
        self,
        store: Path,
        chance: random.Random,
        name: str,
        proxy: CuttingProxy,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(store, chance, environment=environment)
        self._joined_as = name
        self._proxy = proxy

    def command(self) -> list[str]:
        """Return what is run."""
        join = [sys.executable, "-m", "dragoman", "join", f"http://{HOST}:{self._proxy.port}"]
        named = ["--name", self._joined_as, "--store", str(self.store)]
        return [*join, str(self.agent), *named]

    async def start(self) -> None:
        """Start, and wait until it is let in; that takes as long as the gateway is down."""
        process = ServerProcess(self.command(), log=self._log, environment=self._environment)
        self._process = process
        await asyncio.to_thread(process.line, "Joined: ", _JOINED_WITHIN)


class JoinedProcesses(GatewayProcesses):
    """All processes of a run."""

    def __init__(
        self,
        folder: Path,
        parties: list[Account],
        owners: Mapping[str, Account],
        seed: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._seed = seed
        super().__init__(folder, parties, owners, seed, environment)

    def agent(self, name: str, store: Path, environment: Mapping[str, str]) -> FixedServer:
        """Return a process of an agent."""
        if not hasattr(self, "proxy"):
            self.proxy = CuttingProxy(self.gateway.address, random.Random(f"{self._seed}/cuts"))
        token = {"A2ACLI_BEARER": self.owners[name].token}
        more = {**environment, **token}
        return JoinedServer(store, self._chance, name, self.proxy, more)

    @property
    def cuts(self) -> int:
        """Connections that were cut off on the way."""
        return self.proxy.cuts

    async def start(self) -> None:
        """Start all of them."""
        await self.proxy.open()
        await super().start()

    async def close(self) -> None:
        """End all of them."""
        await super().close()
        await self.proxy.close()

    async def register(self, name: str, price: float) -> str:
        """Wait until an agent has registered itself, and say what it costs; return its id."""
        owner = self.owners[name]
        ask_gateway = partial(ask, self.gateway.port, party=owner)
        async with asyncio.timeout(_JOINED_WITHIN):
            while True:
                found = await ask_gateway("GET", "/api/v1/agents")
                mine = [one for one in found["data"]["agents"] if one["is_mine"]]
                if mine:
                    break
                await asyncio.sleep(0.1)
        id = mine[0]["id"]
        body = {"pricePerTask": price, "repeatable": name == "many"}
        await ask_gateway("PATCH", f"/api/v1/agents/{id}", body=body)
        return id


async def prove(
    kills: int,
    seed: int,
    *,
    folder: Path,
    progress: Progress = silent,
    pause: float = PAUSE,
    callers: int = gateway.CALLERS,
) -> JoinResult:
    """Run the proof in a folder."""
    found = await gateway.prove(
        kills,
        seed,
        folder=folder,
        progress=progress,
        pause=pause,
        callers=callers,
        make=JoinedProcesses,
    )
    facts = {name: getattr(found, name) for name in found.__struct_fields__ if name != "proof"}
    return JoinResult(**facts)


def run(
    kills: int = 100, seed: int = 1, *, progress: Progress = silent, pause: float = PAUSE
) -> JoinResult:
    """Kill a gateway and agents that dialled out to it, cut their connections, and check."""
    with workplace() as folder:
        return asyncio.run(prove(kills, seed, folder=folder, progress=progress, pause=pause))
