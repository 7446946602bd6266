"""The same with agents that dial out: `kill -9` of the gateway and of agents, and connections
between them that are cut at random bytes.

Three agents: the three processes of one have joined under one name, each with a store of its own;
two of another share a store; the agent that works once has one process. In the end it is timed how
long a process takes to go on where another of its name was killed.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from dragoman.testing.load import HOST
from dragoman.testing.processes import ServerProcess
from proof.client import ConnectionGone, RpcConnection, message
from proof.cluster.neighbours import moment, share_of_others
from proof.gateway import gateway
from proof.gateway.callers import PAUSE, Account, text_of
from proof.gateway.result import GatewayResult, Takeovers
from proof.gateway.site import FixedServer, GatewayProcesses, ask
from proof.results import Progress, Row, silent, spread, workplace

# Bytes and seconds after which a connection is cut, at most.
_LONGEST_LIFE = 60_000
_LONGEST_TIME = 5.0
_PIECE = 64 * 1024
# Beats of a task that is taken over, and milliseconds between them; seconds until a takeover is
# none any more, and milliseconds within which it is promised.
_BEATS = "3000 20"
_TAKEN_WITHIN = 60.0
PROMISED = 2_000.0
# Share of the processors above which other programs spoil a time, and what they may cost then.
_CROWD, _PATIENCE = 0.2, 5
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
        hurt = (
            f"{self.cuts:,} cuts, {self.gateway_kills} kills of the gateway, {self.agent_kills} of"
        )
        more = Row("Connections of such agents cut at a byte", f"{hurt} agents", True)
        return [*found, more, *self._takeovers()]

    def _takeovers(self) -> list[Row]:
        """Return how long takeovers took; times taken beside other programs have a looser limit."""
        promise = "A task goes on in another process of the name"
        crowded = f"{promise}, while others used the machine"
        all_ = [(promise, self.takeovers.quiet, 1), (crowded, self.takeovers.crowded, _PATIENCE)]
        return [
            Row(
                said,
                f"p50 {times.p50:.0f} ms, max {times.max:.0f} ms of {times.count}",
                times.max <= looser * PROMISED,
            )
            for said, times, looser in all_
            if times.count
        ]


class CuttingProxy:
    """Leads to a gateway, and cuts every connection off after some bytes, in the middle of
    whatever is on its way."""

    def __init__(self, target: int, chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        # Whether nothing more is cut off.
        self.is_calm = False
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
                life = _LONGEST_TIME * self._chance.random()
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait(running, return_when=first, timeout=life)
                if self.is_calm:
                    await asyncio.wait(running, return_when=first)
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
            piece = data if self.is_calm else data[: left[0]]
            left[0] -= 0 if self.is_calm else len(data)
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
    """All processes of a run: three agents, of which one has a process, one several with stores of
    their own, and one two that share a store."""

    names = ("pair", *GatewayProcesses.names)
    lives = (0.2, 4.0)
    cuts_per_kill = 5

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
        self.runs["pair"] = folder / "pair.runs"
        of_pair = self.lasting | {"PROOF_RUNS": str(self.runs["pair"])}
        self.pair = [self.agent("pair", folder / "pair.db", of_pair) for _ in range(2)]
        # Of the agents, by name, once they are registered.
        self._ids: dict[str, str] = {}

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

    async def take_over(self, count: int, progress: Progress) -> Takeovers:
        """Kill the process that works on a task, and see after how long the other goes on: nothing
        else is hurt meanwhile."""
        self.proxy.is_calm = True
        quiet: list[float] = []
        crowded: list[float] = []
        for n in range(count):
            began = await asyncio.to_thread(moment)
            taken = await self._taken_over(f"takeover-{n}")
            is_crowded = share_of_others(began) > _CROWD
            (crowded if is_crowded else quiet).append(taken)
            progress(f"takeover {n + 1}/{count}")
        return Takeovers(spread(quiet), spread(crowded))

    async def _taken_over(self, name: str) -> float:
        """Return after how many milliseconds a caller saw a second attempt of a task."""
        party = self.owners["pair"]
        text = f"{_BEATS} {name}"
        params = message("beat", text, f"{self._seed}-{name}")
        params["metadata"] = {"agentId": self._ids["pair"]}
        connection = RpcConnection(await self.gateways.port(), token=party.token)
        victim: FixedServer | None = None
        killed_at = 0.0
        stream = connection.stream("SendStreamingMessage", params)
        try:
            async with asyncio.timeout(_TAKEN_WITHIN), contextlib.aclosing(stream):
                async for frame in stream:
                    update = frame.value.get("artifactUpdate")
                    said = text_of({"artifacts": [update["artifact"]]}) if update else ""
                    if said and victim is None:
                        victim = self._working_on(text)
                        killed_at = time.monotonic()
                        victim.kill()
                    elif said and not said.startswith("1."):
                        return (time.monotonic() - killed_at) * 1000
        except (TimeoutError, ConnectionGone):
            pass
        finally:
            connection.close()
            if victim is not None:
                await victim.start()
        return _TAKEN_WITHIN * 1000

    def _working_on(self, text: str) -> FixedServer:
        """Return the process that began a task."""
        lines = (line.split("\t") for line in self.runs["pair"].read_text().splitlines())
        pid = next(int(pid) for _, said, _, pid in lines if said == text)
        return next(one for one in self.pair if one.pid == pid)

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
        self._ids[name] = id = mine[0]["id"]
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
