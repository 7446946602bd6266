"""Rpcs as bytes of our own codec, for tests of the wire; and a server to make them to."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx

from dragoman.dialects.reading import Object
from dragoman.testing.processes import ServerProcess
from dragoman.transports.grpc import statuses, tables
from dragoman.transports.grpc.plain_values import shape_of
from dragoman.transports.grpc.tables import ProtoSchema
from harness.processes import running
from harness.waiting import WAIT

AGENT = Path(__file__).parent / "grpc_agent.py"
# Connections of their own, lest two tests share one.
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
Metadata = Sequence[tuple[str, str | bytes]]


class Rpcs:
    """A channel to a server, spoken to in plain values."""

    def __init__(self, channel: grpc.aio.Channel, schema: ProtoSchema = tables.V1_0) -> None:
        self.channel: Any = channel
        self.schema = schema

    async def call(
        self, name: str, values: Object, metadata: Metadata = (), timeout: float = 60
    ) -> Object:
        """Return the reply of an rpc."""
        rpc = self.schema.rpcs[name]
        request = shape_of(self.schema, rpc.request).encode(values)
        method = self.channel.unary_unary(f"/{self.schema.service}/{name}")
        reply = await method(request, metadata=tuple(metadata), timeout=timeout)
        return shape_of(self.schema, rpc.reply).decode(reply)

    def stream(
        self, name: str, values: Object, metadata: Metadata = (), timeout: float = 60
    ) -> Any:
        """Begin an rpc that streams; its messages are bytes."""
        request = shape_of(self.schema, self.schema.rpcs[name].request).encode(values)
        method = self.channel.unary_stream(f"/{self.schema.service}/{name}")
        return method(request, metadata=tuple(metadata), timeout=timeout)

    async def events(self, name: str, values: Object, metadata: Metadata = ()) -> list[Object]:
        """Return all events of a stream that ends by itself."""
        return [self.event(data) async for data in self.stream(name, values, metadata)]

    def event(self, data: bytes) -> Object:
        """Return a message of a stream."""
        return shape_of(self.schema, "StreamResponse").decode(data)

    async def refusal(
        self, name: str, values: Object | bytes, metadata: Metadata = ()
    ) -> tuple[str, Any]:
        """Return the status that an rpc ends with, and the error that it means."""
        rpc = self.schema.rpcs[name]
        request = (
            values
            if isinstance(values, bytes)
            else shape_of(self.schema, rpc.request).encode(values)
        )
        method = self.channel.unary_stream(f"/{self.schema.service}/{name}")
        try:
            async for _ in method(request, metadata=tuple(metadata), timeout=60):
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, meaning(error)
        raise AssertionError("the rpc was answered")


def meaning(error: grpc.aio.AioRpcError) -> Any:
    """Return the error that a status means."""
    trailers: Any = error.trailing_metadata() or ()
    details = next((value for key, value in trailers if key == statuses.DETAILS), b"")
    return statuses.decode(error.code().name, error.details() or "", details)


def message(text: str, id: str, **more: Any) -> Object:
    """Return the request that sends a text in 1.0."""
    parts = [{"text": text}]
    return {"message": {"messageId": id, "role": "ROLE_USER", "parts": parts, **more}}


@asynccontextmanager
async def rpcs_to(address: str, schema: ProtoSchema = tables.V1_0) -> AsyncGenerator[Rpcs]:
    """Connect in clear."""
    place = address.removeprefix("http://")
    async with grpc.aio.insecure_channel(place, _OPTIONS) as channel:
        yield Rpcs(channel, schema)


def memory_of(server: ServerProcess) -> int:
    """Return the memory of a server once it has what it loads after its start."""
    shown = httpx.get(f"{server.url}/console/tasks", timeout=WAIT, trust_env=False)
    assert shown.status_code == 200, shown.text
    return server.memory() or 0


@contextmanager
def talking(folder: Path, *options: str) -> Generator[ServerProcess]:
    """Serve the agent in a process of its own."""
    store = folder / "tasks.db"
    with running(
        "serve", AGENT, "--listen", "127.0.0.1:0", "--store", store, *options, cwd=folder
    ) as one:
        yield one
