"""What an operator does when one machine is too little: the file of a gateway that was used is
copied to PostgreSQL, three gateways serve it behind a proxy, and one of them is killed while it
streams and while a question of its own waits. Its callers may notice a reconnect, and nothing else.
"""

import asyncio
import contextlib
import itertools
import random
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from dragoman.testing.load import HOST
from dragoman.testing.processes import clean_environment
from dragoman.testing.servers import PostgresServer
from proof.client import ConnectionGone, Frame, RpcConnection, message
from proof.cluster.cable import Cable, Stream
from proof.cluster.money import Gateway
from proof.cluster.tally import Moved, Tally
from proof.crash.callers import rests
from proof.gateway import agent as behind
from proof.gateway.callers import Account
from proof.gateway.site import ask
from proof.results import Json, Progress
from proof.servers import Replicas, Server

TASKS = 10_000
# How many tasks each caller keeps under way while the file is filled, and how many callers.
_LANES, _CALLERS = 16, 4
_AGENTS = 3
_PRICE = 1.0
_GRANTED = 1_000_000
_GATEWAYS = 3
# A tale that is longer than any takeover: chunks, and milliseconds between them.
_TALE = "150 20"
_COMMAND_WITHIN = 300.0
_AGAIN = 0.05
_LOOKS_EVERY = 0.5
# Seconds that a caller tries to reconnect.
_RECONNECT_WITHIN = 30.0


class Balancer:
    """Spreads connections over the gateways that are up, one after the other."""

    def __init__(self, gateways: Replicas) -> None:
        self._gateways = gateways
        # Where the last connection went.
        self.last = 0
        self._cable = Cable(self._connect)

    @property
    def port(self) -> int:
        """Where callers find it."""
        return self._cable.port

    async def open(self) -> None:
        """Listen."""
        await self._cable.open()

    async def close(self) -> None:
        """End all connections."""
        await self._cable.close()

    async def _connect(self) -> Stream:
        for _ in self._gateways.servers:
            self.last = await self._gateways.port()
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(HOST, self.last)
        raise OSError("no gateway takes a connection")


class Move:
    """One gateway on a file, then three on a database, and what is behind them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.file = folder / "gateway.db"
        self.server = PostgresServer(folder / "postgres")
        self.callers = [
            Account(f"caller-{n}", f"{seed}-token-{n}-" + "x" * 24) for n in range(_CALLERS)
        ]
        self.seller = Account("seller", f"{seed}-token-of-the-seller-" + "x" * 24)
        self.agents: list[str] = []
        self._folder = folder
        tokens = folder / "tokens.toml"
        tokens.touch(mode=0o600)
        everyone = [*self.callers, self.seller]
        tokens.write_text("".join(f'[{one.name}]\ntoken = "{one.token}"\n' for one in everyone))
        self.environment = clean_environment() | {
            "DRAGOMAN_AUTH_TOKENS": str(tokens),
            "DRAGOMAN_ALLOW": HOST,
            "DRAGOMAN_INITIAL_CREDITS": str(_GRANTED),
            # The file is filled as fast as it takes tasks.
            "DRAGOMAN_RATE_LIMIT": "off",
            "DRAGOMAN_RATE_LIMIT_AGENT": "off",
            "DRAGOMAN_RATE_LIMIT_ADDRESS": "off",
            "DRAGOMAN_STORE_KEY": b64encode(random.Random(seed).randbytes(32)).decode(),
            "XDG_DATA_HOME": str(folder),
        }
        self._works = Server(
            folder / "agent.db",
            agent=Path(behind.__file__),
            name="agent",
            environment={"XDG_DATA_HOME": str(folder), "DRAGOMAN_RATE_LIMIT": "off"},
        )
        self.gateways = Replicas([])

    async def open(self) -> None:
        """Start a gateway on the file, with agents that cost something."""
        await self._works.start()
        first = Gateway(self._folder, "file", str(self.file), self.environment)
        self.gateways.servers = [first]
        await self.gateways.start(first)
        for n in range(_AGENTS):
            said = {
                "name": f"works-{n}",
                "pricePerTask": _PRICE,
                "endpoint": f"http://{HOST}:{self._works.port}",
            }
            answer = await ask(first.port, "POST", "/api/v1/agents", self.seller, said)
            self.agents.append(answer["data"]["id"])

    async def close(self) -> None:
        """End everything."""
        self.gateways.kill_all()
        self._works.kill()
        await asyncio.to_thread(self.server.kill)

    async def fill(self, count: int, progress: Progress) -> None:
        """Have tasks done for the callers, by all agents."""
        numbers = iter(range(count))
        port = self.gateways.servers[0].port

        async def lane(caller: Account) -> None:
            connection = RpcConnection(port, token=caller.token)
            for n in numbers:
                await connection.call("SendMessage", self.asking("short", f"{n}", n % _AGENTS))
                if n % 1000 == 0:
                    progress(f"{n:,} of {count:,} tasks in the file")
            connection.close()

        await asyncio.gather(*(lane(one) for one in self.callers for _ in range(_LANES)))

    def asking(self, skill: str, text: str, agent: int, **more: Any) -> Json:
        """Return the parameters of a message to one of the agents."""
        message_id = f"{self.seed}-{skill}-{text}".replace(" ", "-")
        params = message(skill, text, message_id, **more)
        params["metadata"] = {"agentId": self.agents[agent]}
        return params

    async def known(self, port: int) -> list[Any]:
        """Return what callers are told: how many tasks each has, what it owns, who is trusted."""
        found: list[Any] = []
        for caller in (*self.callers, self.seller):
            connection = RpcConnection(port, token=caller.token)
            found.append((await connection.call("ListTasks", {"pageSize": 1}))["totalSize"])
            connection.close()
            found.append(await ask(port, "GET", "/api/v1/billing/balance", caller))
        for agent in self.agents:
            trust = (await ask(port, "GET", f"/api/v1/trust/{agent}", self.seller))["data"]
            # How recent the past is goes into the score.
            found.append({name: value for name, value in trust.items() if "core" not in name})
            agents = await ask(port, "GET", f"/api/v1/agents/{agent}", self.seller)
            found.append(agents["data"]["name"])
        return found

    async def observed(self, count: int) -> None:
        """Wait until the outcomes of all tasks went into trust, which is done beside them."""
        port = self.gateways.servers[0].port
        async with asyncio.timeout(_COMMAND_WITHIN):
            while True:
                asked = [
                    ask(port, "GET", f"/api/v1/trust/{agent}", self.seller) for agent in self.agents
                ]
                stats = [one["data"]["taskStats"]["total"] for one in await asyncio.gather(*asked)]
                if sum(stats) >= count:
                    return
                await asyncio.sleep(_LOOKS_EVERY)

    async def move(self) -> tuple[int, float]:
        """Stop the gateway, copy its file and start three on the database; return the rows that
        were copied, and the seconds that took."""
        await self.gateways.servers[0].stop()
        await asyncio.to_thread(self.server.start)
        url = await asyncio.to_thread(self.server.make_database)
        began = time.monotonic()
        said = await asyncio.to_thread(
            self._run, "store", "copy", str(self.file), url, "-o", "json"
        )
        seconds = time.monotonic() - began
        await asyncio.to_thread(self._run, "store", "check", "--store", url)
        await asyncio.to_thread(self._run, "ledger", "verify", "--store", url)
        gateways = [
            Gateway(self._folder, f"gateway-{n}", url, self.environment) for n in range(_GATEWAYS)
        ]
        self.gateways.servers = gateways
        await asyncio.gather(*(self.gateways.start(one) for one in gateways))
        return _rows(said), seconds

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dragoman", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_WITHIN,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-400:]
            raise RuntimeError(f"dragoman {words[0]} {words[1]}: {said}")
        return done.stdout


def _rows(said: str) -> int:
    return sum(msgspec.json.decode(said)["rows"].values())


class Reader:
    """A caller that reads a stream through a proxy, and goes on by position when it is cut."""

    def __init__(self, port: int, caller: Account) -> None:
        self._port = port
        self._token = caller.token
        self.frames: list[Frame] = []
        self.begun = asyncio.Event()
        self.reconnects = 0
        # Milliseconds from the cut to the next event.
        self.silence = 0.0

    async def read(self, params: Json) -> None:
        """Read a task to its end."""
        try:
            await self._follow("SendStreamingMessage", params, None)
        except ConnectionGone:
            await self._go_on()

    async def _go_on(self) -> None:
        cut_at = time.monotonic()
        task_id = self.frames[0].value["task"]["id"]
        self.reconnects += 1
        while True:
            before = len(self.frames)
            try:
                await self._follow("SubscribeToTask", {"id": task_id}, self.frames[-1].seq, cut_at)
                return
            except ConnectionGone:
                if len(self.frames) > before:
                    self.reconnects += 1
                if time.monotonic() > cut_at + _RECONNECT_WITHIN:
                    raise
                await asyncio.sleep(_AGAIN)

    async def _follow(
        self, method: str, params: Json, after: int | None, cut_at: float = 0.0
    ) -> None:
        connection = RpcConnection(self._port, token=self._token)
        async with contextlib.aclosing(connection.stream(method, params, after=after)) as stream:
            is_opening = after is not None
            async for frame in stream:
                if is_opening:
                    # How the task stands at the position that the reader has.
                    is_opening = False
                    continue
                if cut_at and not self.silence:
                    self.silence = (time.monotonic() - cut_at) * 1000
                self.frames.append(frame)
                if len(self.frames) > 10:
                    self.begun.set()

    def torn(self, expected: str) -> int:
        """Return how many positions go back, and whether the text or the end is another one. A
        position that is left out is that of an event which no stream shows."""
        places = [frame.seq or 0 for frame in self.frames]
        back = sum(later <= earlier for earlier, later in itertools.pairwise(places))
        updates = [frame.value.get("artifactUpdate") for frame in self.frames]
        chunks = [update["artifact"]["parts"] for update in updates if update]
        text = "".join(part.get("text", "") for parts in chunks for part in parts)
        return back + (text != expected) + (not rests(self.frames[-1]))


async def _asked(move: Move, port: int, name: str) -> str:
    """Begin a task that asks; return its id once the question waits."""
    connection = RpcConnection(port, token=move.callers[0].token)
    try:
        task = (await connection.call("SendMessage", move.asking("order", name, 0)))["task"]
    finally:
        connection.close()
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task["status"]
    return task["id"]


async def _answers(move: Move, port: int, task_id: str, name: str) -> bool:
    """Answer a question, once more if the connection is lost; tell whether that ends its task."""
    params = move.asking("order", f"to {name}", 0, task_id=task_id)
    for is_last in (False, True):
        connection = RpcConnection(port, token=move.callers[0].token)
        try:
            task = (await connection.call("SendMessage", params))["task"]
            texts = [part["text"] for one in task["artifacts"] for part in one["parts"]]
            return "".join(texts) == behind.order_of(name, f"to {name}")
        except ConnectionGone:
            if is_last:
                raise
        finally:
            connection.close()
    return False


@contextlib.asynccontextmanager
async def _begun(folder: Path, seed: int) -> AsyncGenerator[Move]:
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    move = await asyncio.to_thread(Move, folder, seed)
    try:
        await move.open()
        yield move
    finally:
        await move.close()


async def move_file(
    folder: Path, seed: int, tally: Tally, progress: Progress, *, tasks: int = TASKS
) -> None:
    """Do all of it, and note what was seen."""
    async with _begun(folder, seed) as move:
        await move.fill(tasks, progress)
        old = "asked of the file"
        questions = {old: await _asked(move, move.gateways.servers[0].port, old)}
        await move.observed(tasks)
        before = await move.known(move.gateways.servers[0].port)
        progress("copying the file")
        rows, seconds = await move.move()
        balancer = Balancer(move.gateways)
        await balancer.open()
        try:
            after = await move.known(balancer.port)
            differences = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
            for was, now in differences:
                tally.find(f"copy: {was} is {now}")
            progress("killing a gateway that streams")
            for n in range(_GATEWAYS):
                questions[f"asked of {n}"] = await _asked(move, balancer.port, f"asked of {n}")
            reader = Reader(balancer.port, move.callers[1])
            told = f"{_TALE} tale"
            reading = asyncio.ensure_future(reader.read(move.asking("tale", told, 1)))
            await asyncio.wait_for(reader.begun.wait(), _RECONNECT_WITHIN)
            streams_from = balancer.last
            for victim in move.gateways.servers:
                if victim.port == streams_from:
                    victim.kill()
            unanswered = [
                name
                for name, task_id in questions.items()
                if not await _answers(move, balancer.port, task_id, name)
            ]
            await reading
        finally:
            await balancer.close()
        tally.moved = Moved(
            tasks=tasks,
            rows=rows,
            copy_seconds=round(seconds, 2),
            differences=len(differences),
            reconnects=reader.reconnects,
            silence=round(reader.silence, 1),
            torn=reader.torn(behind.tale_of(told)),
            questions=len(questions),
            unanswered=len(unanswered),
        )
        for name in unanswered:
            tally.find(f"question {name} was not answered")
