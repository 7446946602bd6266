"""A server that answers as it is told, and names that lead where a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from harness.stub_servers import listening
from harness.waiting import within

from dragoman.egress.egress import Egress, Resolve
from dragoman.egress.errors import EgressError

PUBLIC = "93.184.215.14"
SECRETS = {"Authorization": "Bearer s", "Cookie": "a=b", "X-Api-Key": "s", "Accept": "text/x"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Peer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A peer of few words: it keeps the heads and bodies it was sent and says what a test wants."""

    def __init__(self, answer: bytes | Peer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if isinstance(self.answer, bytes):
            writer.write(self.answer)
            await writer.drain()
        else:
            await self.answer(head, writer)

    def url(self, host: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(answer: bytes | Peer = OK) -> AsyncIterator[Server]:
    server = Server(answer)
    async with listening(server.talk) as server.port:
        yield server


def redirect(location: str, status: int = 302) -> bytes:
    head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    return head.encode("latin-1")


def answering(*addresses: str) -> Resolve:
    async def resolve(host: str) -> Sequence[str]:
        return addresses

    return resolve


async def silence(head: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


Dials = list[tuple[object, ...]]


async def surfaces(egress: Egress, url: str) -> list[type[EgressError] | None]:
    """Return how each way of dialling out ends."""
    outcomes: list[type[EgressError] | None] = []
    for attempt in (egress.post(url, b"{}", {}), egress.get(url), egress.get(url, redirects=3)):
        try:
            await within(attempt)
            outcomes.append(None)
        except EgressError as error:
            outcomes.append(type(error))
    return outcomes
