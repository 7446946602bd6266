"""A small HTTP proxy that does `CONNECT`, and an end of TLS in front of a server."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    there, back = await asyncio.open_connection(host, port)
    await asyncio.gather(_pump(reader, back), _pump(there, writer))


class ConnectProxy:
    """Lets callers through that show the right words; with `answer` it says that to all."""

    def __init__(self, authorization: str = "", answer: bytes | None = None) -> None:
        self.connects: list[str] = []
        self._authorization = authorization
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> "ConnectProxy":
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            verb, place, _ = head.split(" ", 2)
            assert verb == "CONNECT"
            self.connects.append(place)
            is_known = f"Proxy-Authorization: {self._authorization}\r\n" in head
            if self._answer is not None:
                writer.write(self._answer)
            elif self._authorization and not is_known:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                host, _, port = place.rpartition(":")
                await _join(reader, writer, host, int(port))
        finally:
            writer.close()


@asynccontextmanager
async def tls_in_front(context: ssl.SSLContext, url: str) -> AsyncGenerator[str]:
    """Give an address with TLS that leads to a server without."""
    port = int(url.rpartition(":")[2])
    tasks: set[asyncio.Task[None]] = set()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await _join(reader, writer, "127.0.0.1", port)

    server = await asyncio.start_server(lead, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
