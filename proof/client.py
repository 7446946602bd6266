"""A client for servers that may die at any moment.

It is small on purpose: it talks to this machine only, and it must know exactly what it has read of
an answer when the server is gone.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, cast

import msgspec

from dragoman.testing.load import HOST
from proof.results import Json

ANSWER_WITHIN = 30.0
# A reader of a long stream needs room for one frame, which is never larger than this.
_FRAME_BYTES = 4 * 1024 * 1024
_BUSY = 503


class CallRefused(Exception):
    """The server answered with an error; it did nothing."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message", error)))
        self.code: int = error.get("code", 0)


class ConnectionGone(Exception):
    """The connection ended before the answer: what became of the request is not known."""


class ServerBusy(ConnectionGone):
    """The server cannot take the request now, or stops; the same one may be sent again."""


class Frame(NamedTuple):
    """One event of a stream: its position and what it says, as it came."""

    seq: int | None
    body: bytes

    @property
    def value(self) -> Any:
        """What it says."""
        return msgspec.json.decode(self.body)


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Json | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _opened(answer: bytes) -> bytes:
    try:
        envelope = _decode_answer(answer)
    except msgspec.DecodeError:
        raise CallRefused({"message": answer[:200].decode(errors="replace")}) from None
    if envelope.error is not None:
        raise CallRefused(envelope.error)
    return bytes(envelope.result)


class RpcConnection:
    """One connection that is kept for as long as both sides want it."""

    def __init__(self, port: int, *, path: str = "/", token: str = "") -> None:
        self.port = port
        self._path = path
        self._credential = f"Authorization: Bearer {token}\r\n" if token else ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Cut the connection."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def call(self, method: str, params: Json, *, within: float = ANSWER_WITHIN) -> Any:
        """Return the result of a call.

        Raises `CallRefused`, or `ConnectionGone` if the outcome is not known.
        """
        try:
            async with asyncio.timeout(within):
                reader, status, headers = await self._ask(method, params, None)
                answer = await reader.readexactly(int(headers[b"content-length"]))
        except (OSError, EOFError, KeyError, asyncio.LimitOverrunError, TimeoutError) as error:
            self.close()
            raise ConnectionGone(repr(error)) from None
        except BaseException:
            # Half an answer may be under way: the next one on this connection would be misread.
            self.close()
            raise
        if headers.get(b"connection") == b"close":
            self.close()
        if status == _BUSY:
            raise ServerBusy(answer.decode(errors="replace"))
        return msgspec.json.decode(_opened(answer))

    async def stream(
        self, method: str, params: Json, *, after: int | None = None, within: float = ANSWER_WITHIN
    ) -> AsyncGenerator[Frame]:
        """Yield the events of a stream. Raises `ConnectionGone` if it is cut before its end."""
        try:
            async with asyncio.timeout(within):
                reader, status, headers = await self._ask(method, params, after)
            if status == _BUSY:
                raise ServerBusy(method)
            if b"content-length" in headers:
                _opened(await reader.readexactly(int(headers[b"content-length"])))
                raise ConnectionGone("a plain answer to a request for a stream")
            rest = b""
            while True:
                async with asyncio.timeout(within):
                    size = int(await reader.readline() or b"x", 16)
                    chunk = (await reader.readexactly(size + 2))[:-2]
                if not size:
                    return
                # Some servers end lines with two characters; JSON has neither of them.
                *blocks, rest = (rest + chunk.replace(b"\r", b"")).split(b"\n\n")
                for block in blocks:
                    frame = _frame(block)
                    if frame is not None:
                        yield frame
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise ConnectionGone(repr(error)) from None
        finally:
            self.close()

    async def _ask(
        self, method: str, params: Json, after: int | None
    ) -> tuple[asyncio.StreamReader, int, dict[bytes, bytes]]:
        if self._reader is None or self._writer is None:
            opening = asyncio.open_connection(HOST, self.port, limit=_FRAME_BYTES)
            self._reader, self._writer = await opening
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        cursor = "" if after is None else f"Last-Event-ID: {after}\r\n"
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"A2A-Version: 1.0\r\n{self._credential}{cursor}Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        pairs = [line.partition(b":") for line in lines if line]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if not first.startswith(b"HTTP/1.1 "):
            raise OSError(f"not an answer: {first[:40]!r}")
        return self._reader, int(first.split(b" ")[1]), headers


def _frame(block: bytes) -> Frame | None:
    fields = dict(
        cast("tuple[bytes, bytes]", line.split(b": ", 1))
        for line in block.split(b"\n")
        if line and not line.startswith(b":")
    )
    if b"data" not in fields:
        return None
    body = _opened(fields[b"data"])
    return Frame(int(fields[b"id"]) if b"id" in fields else None, body)


def message(
    skill: str, text: str, message_id: str, *, task_id: str = "", immediately: bool = False
) -> Json:
    """Return the parameters of a send."""
    said: Json = {
        "messageId": message_id,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "metadata": {"skillId": skill},
    }
    if task_id:
        said["taskId"] = task_id
    params: Json = {"message": said}
    if immediately:
        params["configuration"] = {"returnImmediately": True}
    return params
