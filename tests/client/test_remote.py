"""Raw HTTP that no good server speaks, over real sockets: an error of ours comes of it, in bounded
time and memory, nothing is followed and no credential goes astray."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from harness.stub_servers import listening

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.client import Client
from dragoman.errors import A2AError
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentCard, AgentInterface
from tests.client.stub import card

WITHIN = 60.0
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ZEROS = b"[" + b"0," * 40_000_000 + b"0]"


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


RAW: dict[str, bytes] = {
    "nothing": b"",
    "no http": b"hello\r\n\r\n",
    "0.9": b"<html></html>",
    "another protocol": b"SSH-2.0-OpenSSH_9\r\n",
    "http2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "odd status": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "no status": b"HTTP/1.1 \r\n\r\n",
    "negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "odd version": b"HTTP/9.9 200 OK\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "half a head with a type": SSE,
    "a header without a name": OK + b": x\r\n\r\n{}",
    "a header without a colon": OK + b"foo\r\n\r\n{}",
    "a nul in a header": OK + b"x: a\0b\r\n\r\n{}",
    "a folded header": OK + b"x: a\r\n b\r\n\r\n{}",
    "a huge header": OK + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "many headers": OK + b"x: y\r\n" * 10_000 + b"\r\n",
    "a length that is too long": OK + b"content-length: 100\r\n\r\n{}",
    "a length that is too short": OK + b'content-length: 1\r\n\r\n{"a":1}',
    "a length that is negative": OK + b"content-length: -1\r\n\r\n{}",
    "a length that is no number": OK + b"content-length: x\r\n\r\n{}",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
    "a huge length": OK + b"content-length: " + b"9" * 50 + b"\r\n\r\n{}",
    "both lengths": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that lie": OK + b"transfer-encoding: chunked\r\n\r\nff\r\n{}\r\n0\r\n\r\n",
    "a chunk of nonsense": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a negative chunk": OK + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a huge chunk": OK + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n",
    "chunks that end": OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "an unknown coding": OK + b"transfer-encoding: x\r\n\r\n{}",
    "1xx for ever": b"HTTP/1.1 102 Processing\r\n\r\n" * 5_000,
    "a switch": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    "no gzip": sized(OK + b"content-encoding: gzip\r\n", b"{}"),
    "br": sized(OK + b"content-encoding: br\r\n", b"\x0b\x01\x80{}\x03"),
    "zstd": sized(OK + b"content-encoding: zstd\r\n", b"\x28\xb5\x2f\xfd"),
    "half a gzip": sized(OK + b"content-encoding: gzip\r\n", gzip.compress(b"{}")[:-4]),
    "a stream that is cut": SSE + b"transfer-encoding: chunked\r\n\r\n8\r\ndata: {}",
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second tries come at once."""

    async def pause(self: AgentConnection, tries: int, error: A2AError) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(AgentConnection, "pause", pause)


class Far:
    """A server that says the same bytes to everyone."""

    def __init__(self, answer: bytes, trickle: float = 0.0) -> None:
        self.answer = answer
        self.trickle = trickle
        self.asked: list[bytes] = []
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        if self.trickle:
            for n in range(len(self.answer)):
                writer.write(self.answer[n : n + 1])
                await writer.drain()
                await asyncio.sleep(self.trickle)
        writer.write(self.answer)
        await writer.drain()


@asynccontextmanager
async def far(answer: bytes, trickle: float = 0.0) -> AsyncIterator[Far]:
    made = Far(answer, trickle)
    async with listening(made.connected) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


def at(url: str, binding: str) -> AgentCard:
    return msgspec.structs.replace(
        card(), supported_interfaces=[AgentInterface(url, binding, "1.0")]
    )


async def problems(client: Client) -> list[A2AError]:
    """Return what each kind of call ends with; anything but our errors is raised."""
    found: list[A2AError] = []
    async with asyncio.timeout(WITHIN):
        for deed in (client.get("t"), client.send("hi"), _followed(client)):
            try:
                await deed
            except A2AError as error:
                found.append(error)
    return found


async def _followed(client: Client) -> None:
    async with client.stream("hi") as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("binding", [JSONRPC, HTTP_JSON])
@pytest.mark.parametrize("name", RAW)
async def test_bytes_that_are_no_good_answer_are_an_error_of_ours(name: str, binding: str) -> None:
    async with far(RAW[name]) as peer, Client(at(peer.url, binding), timeout=2.0) as client:
        assert len(await problems(client)) == 3


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_and_no_credential_leaves(status: int) -> None:
    async with far(sized(OK, b"{}")) as other:
        head = b"HTTP/1.1 %d X\r\nlocation: %b/x\r\n" % (status, other.url.encode())
        async with far(sized(head, b"")) as peer:
            agent = msgspec.structs.replace(
                at(peer.url, JSONRPC),
                security_schemes={"k": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
                security_requirements=[{"schemes": {"k": {"list": []}}}],
            )
            async with Client(agent, bearer="secret", origins=[peer.url]) as client:
                assert len(await problems(client)) == 3
        assert other.asked == [] and all(b"Bearer secret" in asked for asked in peer.asked)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_an_answer_that_unfolds_to_more_than_we_take_is_left(coding: bytes) -> None:
    packed = gzip.compress(ZEROS, 9) if coding == b"gzip" else zlib.compress(ZEROS, 9)
    answer = sized(OK + b"content-encoding: " + coding + b"\r\n", packed)
    async with far(answer) as peer, Client(at(peer.url, JSONRPC)) as client:
        tracemalloc.start()
        try:
            async with asyncio.timeout(WITHIN):
                with pytest.raises(A2AError):
                    await client.get("t")
            assert tracemalloc.get_traced_memory()[1] < 256 << 20
        finally:
            tracemalloc.stop()


async def test_a_head_that_comes_byte_by_byte_is_given_up_in_time() -> None:
    async with (
        asyncio.timeout(WITHIN),
        far(sized(OK, b"{}"), trickle=0.05) as peer,
        Client(at(peer.url, JSONRPC), timeout=0.3) as client,
    ):
        with pytest.raises(A2AError):
            await client.get("t")
