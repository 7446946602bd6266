"""The client of `client.py` over gRPC: it reads the same, as the JSON that messages stand for."""

from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio
import msgspec

from dragoman.model.card import RESUME_URI
from dragoman.testing.load import HOST
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.plain_values import shape_of
from proof.client import ANSWER_WITHIN, CallRefused, ConnectionGone, Frame, ServerBusy
from proof.results import Json

# A connection of its own each time, which ends when it is closed.
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
# What an rpc ends with whose connection is gone, or whose server cannot take it.
_GONE = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL"}
_SCHEMA = tables.V1_0


class GrpcConnection:
    """One connection, made with the first rpc."""

    def __init__(self, port: int) -> None:
        self._port = port

    def close(self) -> None:
        """There is nothing left open after a call."""

    async def call(self, method: str, params: Json, *, within: float = ANSWER_WITHIN) -> Any:
        """Return the reply of an rpc.

        Raises `CallRefused`, or `ConnectionGone` if the outcome is not known.
        """
        rpc = _SCHEMA.rpcs[method]
        request = shape_of(_SCHEMA, rpc.request).encode(params)
        async with grpc.aio.insecure_channel(f"{HOST}:{self._port}", _OPTIONS) as opened:
            # Its calls have no types for messages that are bytes.
            channel: Any = opened
            try:
                reply = await channel.unary_unary(_path(method))(request, timeout=within)
            except grpc.aio.AioRpcError as error:
                raise _meaning(error) from None
        return shape_of(_SCHEMA, rpc.reply).decode(reply)

    async def stream(
        self, method: str, params: Json, *, after: int | None = None, within: float = ANSWER_WITHIN
    ) -> AsyncGenerator[Frame]:
        """Yield the events of a stream, with their positions. Raises `ConnectionGone` if it is cut
        before its end."""
        request = shape_of(_SCHEMA, _SCHEMA.rpcs[method].request).encode(params)
        metadata = [("a2a-extensions", RESUME_URI)]
        if after is not None:
            metadata.append(("last-event-id", str(after)))
        shape = shape_of(_SCHEMA, "StreamResponse")
        async with grpc.aio.insecure_channel(f"{HOST}:{self._port}", _OPTIONS) as opened:
            channel: Any = opened
            call = channel.unary_stream(_path(method))(
                request, metadata=tuple(metadata), timeout=2 * within
            )
            try:
                async for data in call:
                    value = shape.decode(data)
                    yield Frame(value.pop("position", None), msgspec.json.encode(value))
            except grpc.aio.AioRpcError as error:
                raise _meaning(error) from None
            finally:
                call.cancel()


def _path(method: str) -> str:
    return f"/{_SCHEMA.service}/{method}"


def _meaning(error: grpc.aio.AioRpcError) -> Exception:
    """Return what an rpc that failed says of its request."""
    name, words = error.code().name, error.details() or ""
    if name in _GONE:
        return ConnectionGone(f"{name}: {words}")
    return ServerBusy(words) if name == "RESOURCE_EXHAUSTED" else CallRefused({"message": words})
