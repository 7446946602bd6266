"""Servers made of a function: one for raw connections on the loop, one for HTTP in a thread."""

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.waiting import WAIT

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
# Of a request: method, path, headers in lower case, body. Returned: status, headers, body.
Answer = tuple[int, dict[str, str], bytes]
Handle = Callable[[str, str, dict[str, str], bytes], Answer | None]


@asynccontextmanager
async def listening(
    talk: Talk,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limit: int = 1 << 16,
) -> AsyncGenerator[int]:
    """Let a coroutine talk on every connection; yields the port.

    A peer that hangs up ends the talk. Talks that are under way at the end are cancelled.
    """
    talking: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        task.add_done_callback(talking.discard)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, host, port, ssl=tls, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # What was accepted in this turn of the loop begins with the next, and what is closed in one
        # is gone after the next.
        for _ in range(3):
            await asyncio.sleep(0)
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)


@contextmanager
def answering(handle: Handle) -> Generator[int]:
    """Answer HTTP requests in a thread; yields the port. No answer closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = handle(self.command, self.path, headers, body)
            if answer is None:
                self.close_connection = True
                return
            status, more, content = answer
            self.send_response(status)
            for name, value in (more | {"content-length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _handle

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT)
