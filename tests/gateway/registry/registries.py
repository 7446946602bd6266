"""Agents to register, whose cards change when a test says so, and registries on real files."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from harness.waiting import WAIT, eventually

from dragoman.config import Settings, StoreSettings
from dragoman.egress.egress import Egress
from dragoman.gateway.registry.registry import Registry
from dragoman.security.audit.log import NoAudit
from dragoman.security.vault import vault_of
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from dragoman.testing.clock import ManualClock

CARD_PATH, OLDER_PATH = "/.well-known/agent-card.json", "/.well-known/agent.json"


class Peer:
    """Serves a card, and answers whatever else is asked with 404; down, nobody listens there."""

    def __init__(self) -> None:
        self.url = ""
        self.cards: dict[str, Any] = {}
        # What was asked: the verb, the path and the status it got.
        self.asked: list[tuple[str, str, int]] = []
        self.seen: list[dict[str, str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._listener: socket.socket | None = None
        self._talks: set[asyncio.Task[None]] = set()

    def card(self, name: str = "Maps", path: str = "", **members: Any) -> dict[str, Any]:
        """Return a card of 1.0 whose interface is at a path here."""
        interface = {
            "url": f"{self.url}{path}",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        skill = {"id": "route", "name": "Route", "description": "Finds a way.", "tags": ["geo"]}
        return {
            "name": name,
            "description": "Finds ways.",
            "version": "1",
            "supportedInterfaces": [interface],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [skill],
            **members,
        }

    def shows(self, card: Any, path: str = CARD_PATH) -> Any:
        """Show a card from here on; return it."""
        self.cards[path] = card
        return card

    @property
    def is_up(self) -> bool:
        return self._listener is not None

    @is_up.setter
    def is_up(self, is_up: bool) -> None:
        """Listen, or let nobody in."""
        if is_up == self.is_up:
            return
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            return
        self._listener = _bound(self._port)
        self._listener.listen(128)
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            return
        self._talks.add(talk := asyncio.get_running_loop().create_task(self._talk(accepted)))
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(*await asyncio.open_connection(sock=accepted))

    async def __aenter__(self) -> "Peer":
        # Bound and not listening: while it is down whoever dials is refused, and nobody else gets
        # the port.
        self._holder = _bound(0)
        self._port: int = self._holder.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.is_up = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_up = False
        self._holder.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; the server of the tests takes a while to end, and there are many."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.split("\r\n")
        verb, path, _ = line.split(" ")
        pairs = [one.partition(": ") for one in rest if one]
        headers = {name.lower(): value for name, _, value in pairs}
        self.seen.append(headers)
        await self.may_answer.wait()
        status, body, etag = self._answer(path, headers)
        self.asked.append((verb, path, status))
        length = 0 if verb == "HEAD" else len(body)
        sent = f"content-length: {length}\r\netag: {etag}\r\nconnection: close"
        writer.write(f"HTTP/1.1 {status} X\r\n{sent}\r\n\r\n".encode() + body[:length])
        await writer.drain()
        writer.close()

    def _answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, str]:
        if path not in self.cards:
            return 404, b"", '""'
        card = self.cards[path]
        body = card if isinstance(card, bytes) else json.dumps(card).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        return (304, b"", etag) if headers.get("if-none-match") == etag else (200, body, etag)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class Acts(NoAudit):
    """Remembers what was recorded."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def record(self, act: str, **facts: Any) -> None:
        """Remember it."""
        self.all.append({"act": act, **facts})

    @property
    def names(self) -> list[str]:
        return [one["act"] for one in self.all]


class Desk:
    """A folder with registries on one file, and peers to register."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.path = folder / "tasks.db"
        self.clock = ManualClock()
        self.audit = Acts()
        self._stack = stack
        # More to one host than are looked at at once.
        self._http = Egress(allow_private=True, ports=range(1, 65_536), per_host=64)
        stack.push_async_callback(self._http.close)

    async def peer(self, **members: Any) -> Peer:
        """Return an agent that shows a card, if it has a name."""
        peer = await self._stack.enter_async_context(Peer())
        if members:
            peer.shows(peer.card(**members))
        return peer

    async def store(self) -> SQLiteGatewayStore:
        store = SQLiteGatewayStore(
            self.path, sealing=vault_of(Settings(stores=StoreSettings(location=str(self.path))))
        )
        await asyncio.wait_for(store.open(), WAIT)
        self._stack.push_async_callback(store.close)
        return store

    async def registry(self, **options: Any) -> Registry:
        """Return a registry with a store of its own, as another process would have."""
        given: dict[str, Any] = {
            "clock": self.clock,
            "audit": self.audit,
            "watches": False,
            "noise": lambda: 0.5,
        }
        registry = Registry(await self.store(), self._http, **given | options)
        await registry.open()
        self._stack.push_async_callback(registry.close)
        return registry

    async def tick(self, registry: Registry, until: Callable[[], bool]) -> None:
        """Let the time pass, from one thing that waits for it to the next, until something is
        so."""
        async with asyncio.timeout(WAIT):
            while not until():
                await self.clock.leap()
                # A check asks an agent over a socket; then the schedule waits again.
                await eventually(lambda: not registry.health.checks and self.clock.waiting > 0)


@asynccontextmanager
async def desk(folder: Path) -> AsyncGenerator[Desk]:
    async with AsyncExitStack() as stack:
        yield Desk(folder, stack)
