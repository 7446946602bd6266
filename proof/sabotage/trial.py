"""What a check of `sabotage` stands on: one run of it, what it saw, and the guard it is for."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from proof.client import RpcConnection, message
from proof.crash.checker import History, Verdict, check
from proof.results import Json
from proof.servers import AGENT, Replicas, Server


class Finding(NamedTuple):
    """What a check saw, in words, and whether that is as promised."""

    is_kept: bool
    figure: str


class Trial:
    """One run of a check: where, with which seed, and without which guard."""

    def __init__(self, folder: Path, seed: int, guard: str = "") -> None:
        self.folder = folder
        self.seed = seed
        self.guard = guard
        self.history = History()
        self._count = 0

    @property
    def store(self) -> Path:
        """The file of the servers."""
        return self.folder / "tasks.db"

    def replicas(self, *, agent: Path = AGENT, **environment: str) -> Replicas:
        """Return one server."""
        return Replicas([Server(self.store, agent=agent, environment=environment)])

    def said(self, skill: str, text: str, *, immediately: bool = False) -> Json:
        """Return the parameters of a message that was not sent before."""
        self._count += 1
        return message(skill, text, f"{self.seed}-{self._count}", immediately=immediately)

    async def send(self, port: int, params: Json) -> Json:
        """Send a message and note what was answered."""
        sent = self.history.invoke("SendMessage", params)
        connection = RpcConnection(port)
        try:
            task: Json = (await connection.call("SendMessage", params))["task"]
        finally:
            connection.close()
        self.history.ack(sent, task)
        return task

    async def call(self, port: int, method: str, params: Json) -> Json:
        """Call an operation."""
        connection = RpcConnection(port)
        try:
            return await connection.call(method, params)
        finally:
            connection.close()

    def verdict(self) -> Verdict:
        """Hold what was told against what is stored."""
        return check(self.history, self.store)


Check = Callable[[Trial], Awaitable[Finding]]


class Guard(msgspec.Struct, frozen=True):
    """A guard, what it is for, how it is removed, and the check that has to notice."""

    # As `saboteur` knows it.
    name: str
    # The promise, by its number.
    protects: str
    removed: str
    check: Check
    # Whether it is removed from this process and not from servers.
    is_here: bool = False

    @property
    def check_name(self) -> str:
        """The check in words."""
        return getattr(self.check, "__name__", "").replace("_", " ")
