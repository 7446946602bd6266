"""A gateway and the agents behind it as processes that may be killed: each has an address that it
keeps when it is started again, and a file.
"""

import asyncio
import os
import random
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dragoman.errors import ConfigError
from dragoman.testing.load import HOST
from proof.client import ANSWER_WITHIN
from proof.gateway import agent as gateway_agent
from proof.gateway.callers import Account
from proof.gateway.result import Takeovers
from proof.results import Json, Progress
from proof.servers import Replicas, Server

# Below the ports that systems give to callers: a call to an agent that is down must not get the
# agent's own port to call from, and thereby answer itself.
_PORTS = range(12_000, 30_000)
_GOOD = (200, 201)
# Here it is the proof that kills, and not what is worked on: tasks that were under way in two kills
# would run one at a time, and others wait.
_BLAMELESS = {"DRAGOMAN_MAX_ATTEMPTS": "1000", "DRAGOMAN_SUSPECT_SECONDS": "0.05"}
# The credential that the agent that works once asks for.
SECRET = "a-secret-between-gateway-and-agent"


class FixedServer(Server):
    """A server that keeps its address."""

    # What it serves.
    agent = Path(gateway_agent.__file__)

    def __init__(
        self, store: Path, chance: random.Random, *, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(store, agent=self.agent, name=store.stem, environment=environment)
        self.name = store.stem
        self.address = _free_port(chance)

    @property
    def url(self) -> str:
        """Where it is, while it is up."""
        return f"http://{HOST}:{self.address}"

    def command(self) -> list[str]:
        """Return what is run."""
        *words, _, _, _, store = super().command()
        return [*words, "--listen", f"{HOST}:{self.address}", "--store", store]

    def forget(self) -> None:
        """Lose the store, while it is down."""
        for path in self.store.parent.glob(f"{self.store.name}*"):
            path.unlink()


class GatewayServer(FixedServer):
    """The gateway."""

    def command(self) -> list[str]:
        """Return what is run."""
        serve = [sys.executable, "-m", "dragoman", "gateway"]
        return [*serve, "--listen", f"{HOST}:{self.address}", "--store", str(self.store)]


def _free_port(chance: random.Random) -> int:
    while True:
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


class GatewayProcesses:
    """All processes of a run."""

    # The agents: one that may be repeated, and one that works once.
    names: tuple[str, ...] = ("many", "once")
    # Seconds between two kills.
    lives = (0.05, 1.2)
    # Connections that are cut off on the way for each kill, at least.
    cuts_per_kill = 0

    def __init__(
        self,
        folder: Path,
        parties: list[Account],
        owners: Mapping[str, Account],
        seed: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`owners` are those of the agents, by name."""
        self.owners = owners
        # Apart from what is drawn for kills: how many are drawn depends on which ports are free.
        chance = random.Random(f"{seed}/ports")
        tokens = folder / "tokens.toml"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f'[{one.name}]\ntoken = "{one.token}"\n' for one in parties))
        self.runs = {name: folder / f"{name}.runs" for name in ("many", "once")}
        fast: dict[str, str] = {}
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            # Each is started many times, and must not translate its code anew every time.
            cache = str(folder / "cache")
            fast = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        settings = fast | {
            "DRAGOMAN_AUTH_TOKENS": str(tokens),
            "DRAGOMAN_ALLOW": HOST,
            "DRAGOMAN_INITIAL_CREDITS": "1000000",
            "DRAGOMAN_LEASE": "2",
            **_BLAMELESS,
            "DRAGOMAN_FORWARD_ATTEMPTS": "10",
            "DRAGOMAN_FORWARD_TIMEOUT": "5",
        }
        self.gateway = GatewayServer(
            folder / "gateway.db", chance, environment=settings | dict(environment or {})
        )
        self._chance = chance
        self.lasting = fast | {**_BLAMELESS, "DRAGOMAN_LEASE": "2"}
        of_many = self.lasting | {"PROOF_RUNS": str(self.runs["many"])}
        self.replicas = [self.agent("many", folder / f"many-{n}.db", of_many) for n in range(3)]
        of_once = self.lasting | {"PROOF_RUNS": str(self.runs["once"])}
        self.once = self.agent("once", folder / "once.db", of_once)
        # Processes that share a store, and replace each other.
        self.pair: list[FixedServer] = []
        self.gateways = Replicas([self.gateway])

    def agent(self, name: str, store: Path, environment: Mapping[str, str]) -> FixedServer:
        """Return a process of an agent."""
        secret = {"DRAGOMAN_AUTH_TOKEN": SECRET} if name == "once" else {}
        return FixedServer(store, self._chance, environment={**environment, **secret})

    async def start(self) -> None:
        """Start all of them."""
        # One before the others, which find its code translated.
        await self.gateways.start(self.gateway)
        async with asyncio.TaskGroup() as group:
            for server in [*self.replicas, self.once, *self.pair]:
                group.create_task(server.start())

    @property
    def cuts(self) -> int:
        """Connections that were cut off on the way."""
        return 0

    async def close(self) -> None:
        """End all of them."""
        for server in [self.gateway, *self.replicas, self.once, *self.pair]:
            server.kill()

    async def take_over(self, count: int, progress: Progress) -> Takeovers:
        """Time how long another process takes to go on with a task; there is none here."""
        return Takeovers()

    async def register(self, name: str, price: float) -> str:
        """Register an agent for its owner; return its id."""
        first, *others = self.replicas
        more: Json = {
            "endpoint": first.url,
            "replicas": [one.url for one in others],
            "repeatable": True,
        }
        if name == "once":
            more = {
                "endpoint": self.once.url,
                "credential": {"kind": "bearer", "value": SECRET},
            }
        body = {"name": name, "pricePerTask": price, **more}
        answer = await ask(self.gateway.port, "POST", "/api/v1/agents", self.owners[name], body)
        return answer["data"]["id"]


async def ask(
    port: int, verb: str, path: str, party: Account | None, body: Json | None = None
) -> Json:
    """Ask a gateway on behalf of one of its callers, if it wants to know which; return its
    answer."""
    content = b"" if body is None else msgspec.json.encode(body)
    credential = "" if party is None else f"Authorization: Bearer {party.token}\r\n"
    head = (
        f"{verb} {path} HTTP/1.1\r\nHost: {HOST}\r\n{credential}"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    async with asyncio.timeout(ANSWER_WITHIN):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(head.encode() + content)
            status = int((await reader.readline()).split()[1])
            answer = (await reader.read()).partition(b"\r\n\r\n")[2]
        finally:
            writer.close()
    if status not in _GOOD:
        raise ConfigError(f"the gateway answers {status}: {answer[:300].decode()}")
    return msgspec.json.decode(answer)
