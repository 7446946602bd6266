"""Streams that are read to their end: each chunk is noted with the time it arrived."""

import asyncio
import time
from typing import cast

import httptools

from dragoman.testing.load import HOST

from .wire import TASK_ID


class Reader(asyncio.Protocol):
    """One streaming call; counts artifact chunks and notes when each arrived."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, completed: bytes) -> None:
        self.request = request
        self.completed_words = completed
        self.parser = httptools.HttpResponseParser(self)
        self.tail = b""
        self.now = self.started = 0.0
        self.arrivals: list[float] = []
        self.completed = False
        self.error = ""
        self.task = b""
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, not the class.
        self.transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        self.started = self.now = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.now = time.perf_counter()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"not HTTP: {error}")

    def on_headers_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            self.error = f"HTTP {self.parser.get_status_code()}"

    def on_body(self, body: bytes) -> None:
        data = self.tail + body if self.tail else body
        if b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self.tail = data.split(b"\n\n")
        for event in events:
            if b'"artifactUpdate"' in event:
                self.arrivals.append(self.now)
            elif self.completed_words in event:
                self.completed = True
            elif b'"error":' in event:
                self.error = self.error or event[:200].decode(errors="replace")
            if not self.task and (found := TASK_ID.search(event)):
                self.task = found[1]
                self.opened.set()

    def on_message_complete(self) -> None:
        self.end("" if self.completed else f"ended without completion: {self.tail[:200]!r}")

    def end(self, error: str) -> None:
        self.error = self.error or error
        self.opened.set()
        self.ended.set()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.is_set():
            self.end(f"connection lost: {exc}")

    def abandon(self) -> None:
        self.ended.set()
        self.transport.abort()


async def connect(port: int, request: bytes, completed: bytes) -> Reader:
    """A connected reader that has not sent its request yet."""
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(request, completed), HOST, port)
    return reader


async def read(readers: list[Reader], limit: float) -> bool:
    """Run the streams together to their ends; whether all ended within the limit."""
    for reader in readers:
        reader.start()
    try:
        async with asyncio.timeout(limit):
            for reader in readers:
                await reader.ended.wait()
    except TimeoutError:
        for reader in readers:
            reader.abandon()
        return False
    return True
