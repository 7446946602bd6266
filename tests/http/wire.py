"""A served app behind the guard, and bytes over a socket to it.

The server runs in the test's own loop, so its connections and their clock are at hand: time passes
when a test says so.
"""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, NamedTuple

from harness.waiting import WAIT, eventually, within

from dragoman import App
from dragoman.config import load_settings
from dragoman.http.connections import Connections
from dragoman.http.protocol import protocol
from tests.corpus.agent import agent

HOST = b"127.0.0.1"


class Answer(NamedTuple):
    """One answer as it stood on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One connection to the server; what it reads is parsed as answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write; a server that has hung up is not the writer's failure."""
        self._writer.write(data)
        try:
            await within(self._writer.drain())
        except ConnectionError:
            return

    async def answer(self) -> Answer:
        """Return the next whole answer, interim ones skipped."""
        while True:
            answer = await within(self._answer())
            if answer.status >= 200:
                return answer

    async def interim(self) -> int:
        """Return the status of the next answer, whatever it is."""
        return (await within(self._answer())).status

    async def _answer(self) -> Answer:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split(" ")[1])
        pairs = [line.partition(":") for line in lines if line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if status < 200:
            return Answer(status, headers, b"")
        if "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        else:
            body = await self._chunks()
        return Answer(status, headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return body

    async def rest(self) -> bytes:
        """Return all that comes until the server closes, which it has to."""
        try:
            return await within(self._reader.read())
        except ConnectionError:
            return b""

    async def line(self) -> bytes:
        return await within(self._reader.readline())

    def close(self) -> None:
        self._writer.close()


class Place:
    """The server: where it is, and what it knows of its connections."""

    def __init__(self, port: int, app: Any, connections: Connections) -> None:
        self.port = port
        self.app = app
        self.connections = connections

    @asynccontextmanager
    async def peer(self, **more: Any) -> AsyncGenerator[Peer]:
        """Connect."""
        reader, writer = await within(asyncio.open_connection("127.0.0.1", self.port, **more))
        try:
            yield Peer(reader, writer)
        finally:
            writer.transport.abort()

    async def exchange(self, data: bytes) -> Answer:
        """Return the answer to one request on a connection of its own."""
        async with self.peer() as peer:
            await peer.send(data)
            return await peer.answer()

    async def pass_time(self, seconds: float) -> None:
        """Let the guard's clock run, and what follows from it happen."""
        self.connections.pass_time(seconds)
        await asyncio.sleep(0)

    async def until(self, condition: Any) -> None:
        """Wait until something is so."""
        await eventually(condition)

    async def echo(self) -> None:
        """Assert that a good message is answered as it should be."""
        answer = await self.exchange(post(call("SendMessage", message("still here"))))
        assert answer.status == 200, answer
        assert answer.value["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"

    async def total(self) -> int:
        """Return how many tasks exist."""
        answer = await self.exchange(post(call("ListTasks", {"pageSize": 1})))
        return answer.value["result"]["totalSize"]


@asynccontextmanager
async def guarding(
    asgi: Any = None, *, tls: ssl.SSLContext | None = None, buffer: int = 0, **settings: Any
) -> AsyncGenerator[Place]:
    """Serve an app, ours unless told otherwise, as `dragoman serve` does."""
    chosen = load_settings({}, **{"store": "memory:"} | settings)
    app = App(agent, settings=chosen) if asgi is None else asgi
    connections = Connections(chosen, refusals=app.access.refusals if asgi is None else None)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if buffer:
        # What the kernel takes of an answer that nobody reads.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    listener.bind(("127.0.0.1", 0))
    # Without a server around it, which takes its time to end.
    loop = asyncio.get_running_loop()
    async with app.running() if asgi is None else nullcontext():
        server = await loop.create_server(protocol(app, connections), sock=listener, ssl=tls)
        try:
            yield Place(listener.getsockname()[1], app, connections)
        finally:
            server.close()
            if asgi is None:
                app.end_streams()
            for one in list(connections._open):
                one.drop()
            # The loop hears of each that it is gone.
            await eventually(lambda: not connections)
            for task in list(connections.tasks):
                task.cancel()
            if connections.tasks:
                await asyncio.wait(list(connections.tasks), timeout=WAIT)
            if connections._timer is not None:
                connections._timer.cancel()


def post(body: bytes | Any, *fields: bytes, path: bytes = b"/") -> bytes:
    """Return a good request, but for the fields that are added to it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        b"POST %b HTTP/1.1" % path,
        b"Host: %b" % HOST,
        b"Content-Type: application/json",
        b"A2A-Version: 1.0",
        b"Content-Length: %d" % len(content),
        *fields,
    ]
    return b"\r\n".join([*lines, b"", content])


def get(path: bytes = b"/.well-known/agent-card.json", *fields: bytes) -> bytes:
    """Return a good read."""
    return b"\r\n".join([b"GET %b HTTP/1.1" % path, b"Host: %b" % HOST, *fields, b"", b""])


def call(method: str, params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


_numbers = iter(range(1, 1_000_000))


def message(text: str, **more: Any) -> dict[str, Any]:
    """Return the parameters of a good send."""
    parts = [{"text": text}]
    said = {"messageId": f"guard-{next(_numbers)}", "role": "ROLE_USER", "parts": parts, **more}
    return {"message": said}


def is_problem(answer: Answer) -> bool:
    """Tell whether an answer is a problem of RFC 9457 that ends its connection."""
    if answer.headers.get("content-type") != "application/problem+json":
        return False
    value = answer.value
    words = {"type", "title", "status", "detail"}
    return (
        set(value) == words
        and value["status"] == answer.status
        and answer.headers.get("connection") == "close"
        and re.search(r"[Tt]raceback|\.py|python|uvicorn|httptools", value["detail"]) is None
    )
