"""A proxy that speaks TLS with clients of PostgreSQL, and plainly with the server."""

import asyncio
import contextlib
import ssl

from harness.certificates import Files

from tests.stores.postgres.proxy import Proxy


class EncryptingProxy(Proxy):
    """Lets in only who asks for TLS first, as the protocol has it."""

    def __init__(self, upstream: str, files: Files) -> None:
        super().__init__(upstream)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        # Connections that were.
        self.encrypted = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        with contextlib.suppress(ssl.SSLError, OSError):
            await writer.start_tls(self._context)
            self.encrypted += 1
            up, down = await asyncio.open_connection("127.0.0.1", self._parts.port)
            await self._until_one_ends(_pass(reader, down), _pass(up, writer))
            down.close()
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
