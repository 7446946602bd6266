"""A proxy that speaks TLS with clients of PostgreSQL, and plainly with the server."""

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit, urlunsplit

from harness.certificates import Files


class EncryptingProxy:
    """Lets in only who asks for TLS first, as the protocol has it."""

    def __init__(self, upstream: str, files: Files) -> None:
        self._parts = urlsplit(upstream)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Future[None]] = set()
        # Connections that were.
        self.encrypted = 0

    async def start(self) -> str:
        """Return the address of the database behind the proxy."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._parts._replace(netloc=f"postgres@127.0.0.1:{port}"))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in list(self._ways):
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        with contextlib.suppress(ssl.SSLError, OSError):
            await writer.start_tls(self._context)
            self.encrypted += 1
            up, down = await asyncio.open_connection("127.0.0.1", self._parts.port)
            ways = [
                asyncio.ensure_future(_pass(reader, down)),
                asyncio.ensure_future(_pass(up, writer)),
            ]
            self._ways.update(ways)
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._ways.difference_update(ways)
            down.close()
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
