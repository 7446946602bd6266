"""gRPC: one rpc, one message or a stream of them, in the dialect of its service.

Importing this module loads protobuf; `endpoints.py` does so with the first rpc.
"""

import asyncio
from functools import partial

import msgspec

from dragoman.dialects import errors, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError, ExtendedCardNotConfigured, Overloaded, Unauthenticated
from dragoman.http.grpc.exchange import RpcExchange, RpcStream
from dragoman.http.request import HttpRequest, read_body
from dragoman.model import operations as ops
from dragoman.model.card import RESUME_URI
from dragoman.model.message import Message
from dragoman.model.record import Recorded
from dragoman.server.endpoints import large_bodies
from dragoman.server.endpoints.event_stream import RESET
from dragoman.server.endpoints.responder import Responder, common_headers
from dragoman.service import LARGE_BYTES, Batch, Call, Opening, Reply, off_loop
from dragoman.transports.grpc.codec import CalledRpc, GrpcCodec, codec_of, find, positioned
from dragoman.transports.grpc.framing import PREFIX_BYTES, framed
from dragoman.transports.grpc.routing import inner_tenant

# The part of the time until a caller's deadline in which a blocking send waits: the rest is for the
# answer, which a caller past its deadline would not get.
_PATIENCE = 0.8
_MOST_RESERVED = 1.0


class GrpcEndpoint:
    """Answers the rpcs of both services."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        settings = responder.settings
        self._max_bytes = settings.http.max_body_bytes
        self._max_values = settings.http.max_json_values
        self._infers = settings.dialects.version_mode == "infer"

    async def answer(self, request: HttpRequest, exchange: RpcExchange) -> None:
        """Answer one rpc."""
        request.watched.binding = "grpc"
        called = find(request.path)
        request.watched.route = request.path
        try:
            await self._answer(request, exchange, called)
        except (Exception, asyncio.CancelledError) as error:
            # Not in a variable here: its traceback would keep this frame, and the body in it, alive
            # until the garbage collector runs.
            self._fail(request, exchange, self._responder.public_error(request, error))

    async def _answer(self, request: HttpRequest, exchange: RpcExchange, called: CalledRpc) -> None:
        body = await read_body(request, self._max_bytes)
        read = partial(self._read, request, called, body)
        codec, operation = await off_loop(read) if len(body) > LARGE_BYTES else read()
        dialect = codec.dialect
        call = self._responder.call(request, operation, dialect)
        if (seconds := exchange.context.time_remaining()) is not None:
            call = _patient(call, seconds)
        if operation.streams:
            # A stream may last for days: it does not keep the text of its request.
            del body, read
            writer = GrpcWriter(request, exchange, codec, operation)
            await self._responder.stream(request, call, dialect, writer)
            return
        reply = await self._reply(request, call, dialect)
        write = partial(codec.encode_reply, called.name, operation, reply)
        size = large_bodies.size_of(reply)
        message = await large_bodies.encoded(size, write) if size > LARGE_BYTES else write()
        if request.room is not None and len(message) > LARGE_BYTES:
            request.room.hold_answer(len(message))
        _responded(request, 200)
        exchange.finish(message, metadata_of(request, dialect.version))

    async def _reply(self, request: HttpRequest, call: Call, dialect: Dialect) -> Reply:
        """Return the one reply. 0.3 has one rpc for both cards, which "returns the agent card": of
        an agent without an extended card that is the public one."""
        try:
            return await self._responder.reply(request, call, dialect)
        except ExtendedCardNotConfigured:
            return self._responder.discovery.public_card(request)

    def _read(
        self, request: HttpRequest, called: CalledRpc, body: bytes
    ) -> tuple[GrpcCodec, ops.Operation]:
        """Return the operation of an rpc, and what speaks to its caller."""
        codec, name = called.codec, called.name
        is_new = codec.dialect.version == "1.0"
        verdict = request.verdict
        if verdict is None or name not in verdict.dialects:
            version = request.version[0]
            if is_new:
                official = negotiate.for_rest(version, None, infer=self._infers)
            else:
                official = negotiate.for_grpc_0_3(version)
            self._responder.discovery.offered(official, request)
            if verdict is not None:
                # Nothing but the head and the rpc decides.
                verdict.dialects[name] = official
        values = codec.request_values(name, body, self._max_values)
        if not is_new:
            agent = request.header(b"user-agent") or ""
            codec = codec_of(negotiate.for_grpc_library(agent, values))
        operation = codec.decode_request(name, values)
        inner = inner_tenant(operation.tenant)
        if inner != operation.tenant:
            operation = msgspec.structs.replace(operation, tenant=inner)
        return codec, operation

    def _fail(self, request: HttpRequest, exchange: RpcExchange, error: A2AError) -> None:
        request.watched.failed(error)
        self._responder.discovery.narrow(error)
        _responded(request, errors.http_status(error))
        metadata = [("www-authenticate", request.challenge)]
        exchange.fail(error, metadata if isinstance(error, Unauthenticated) else [])


class GrpcWriter:
    """Writes events as messages; those who asked for positions get them."""

    def __init__(
        self,
        request: HttpRequest,
        exchange: RpcExchange,
        codec: GrpcCodec,
        operation: ops.Operation,
    ) -> None:
        self.stream = RpcStream()
        self._request = request
        self._exchange = exchange
        self._codec = codec
        self._encoder = codec.stream_encoder()
        self._operation = operation
        self._has_positions = RESUME_URI in request.extensions
        self._error: A2AError | None = None

    async def open(self, first: Batch, *, is_large: bool) -> None:
        """Send what comes before the first message, and that."""
        metadata = metadata_of(self._request, self._codec.dialect.version)
        if isinstance(first, Opening) and first.is_reset:
            name, value = RESET
            metadata.append((name.decode(), value.decode()))
        await self._exchange.context.send_initial_metadata(tuple(metadata))
        if isinstance(first, Opening):
            encode = partial(self._codec.encode_opening, self._operation, first.reply)
            message = await off_loop(encode) if is_large else encode()
            await self._write(message, first.reply.reading.seq)
        else:
            await self.write(first)

    async def write(self, batch: Batch) -> int:
        """Write the events of a batch in one go."""
        if isinstance(batch, Opening):
            raise AssertionError("a stream has one opening, and it comes first")
        if isinstance(batch, Message):
            return await self._write(self._codec.encode_event(Recorded.of_event(0, batch)), 0)
        messages = self._encoder.encode(batch)
        if self._has_positions:
            messages = [
                framed(positioned(message[PREFIX_BYTES:], one.seq))
                for message, one in zip(messages, batch, strict=True)
            ]
        data = b"".join(messages)
        await self._exchange.context.write(data)
        return len(data)

    async def _write(self, message: bytes, position: int) -> int:
        if position and self._has_positions:
            message = positioned(message, position)
        await self._exchange.context.write(framed(message))
        return len(message)

    async def fail(self, error: A2AError, task_id: str) -> None:
        """End with an error."""
        self._error = error

    async def close(self) -> None:
        """End the rpc: with an error where its reader should come back."""
        error = Overloaded() if self.stream.is_stopped else self._error
        if error is not None:
            self._exchange.fail(error, [])
        else:
            self._exchange.finish(b"", [])


def metadata_of(request: HttpRequest, version: str) -> list[tuple[str, str]]:
    """Return the metadata of every answer in a version of the protocol."""
    wanted = (b"a2a-version", b"a2a-extensions", b"x-a2a-extensions")
    found = common_headers(request, version)
    return [(name.decode(), value.decode()) for name, value in found if name in wanted]


def _patient(call: Call, seconds: float) -> Call:
    """Return a call that is answered before its caller's deadline, with the task as it then is."""
    patience = max(0.05, seconds - _MOST_RESERVED, seconds * _PATIENCE)
    if call.patience:
        patience = min(patience, call.patience)
    return msgspec.structs.replace(call, patience=patience)


def _responded(request: HttpRequest, status: int) -> None:
    request.watched.responded(status)
    request.is_answered = True
