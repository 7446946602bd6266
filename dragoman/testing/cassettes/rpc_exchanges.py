"""Rpcs of a conversation as requests of JSON, so that a cassette holds them as it does all others.

A request is its values as JSON, posted to the path of the rpc; the answer is one object or a stream
of events; a status is the error that REST would have sent. `json_rpcs.py` of the server makes rpcs
of them again. Importing this module loads protobuf.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from dragoman.client.http import Http, RpcHttp
from dragoman.dialects import errors
from dragoman.dialects.reading import Object
from dragoman.egress.errors import EgressFailed, EgressRefused, RpcFailed
from dragoman.errors import A2AError, ParseFailed
from dragoman.security.json_values import MAX_VALUES
from dragoman.transports import sse
from dragoman.transports.grpc import statuses
from dragoman.transports.grpc.codec import CalledRpc, find
from dragoman.transports.grpc.field_count import check_fields
from dragoman.transports.grpc.plain_values import shape_of

T = TypeVar("T")


class RpcExchangeOfJson:
    """The answer of an rpc, as HTTP would have it."""

    def __init__(self, called: CalledRpc, messages: AsyncIterator[bytes]) -> None:
        self._called = called
        self._messages = messages
        self._first: bytes | None = None
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": "application/json"}

    async def begin(self) -> None:
        """Wait for the first message, or for the error instead of it."""
        try:
            self._first = await anext(self._messages, None)
        except RpcFailed as failed:
            error = _meaning(failed)
            self.status, body = errors.rest(error)
            self._first = msgspec.json.encode(body)
            if wait := error.facts.get("retryAfter"):
                self.headers = {**self.headers, "retry-after": wait}
            return
        if self._called.rpc.operation.streams:
            self.headers = {"content-type": "text/event-stream"}

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the answer; raises `EgressFailed` when it breaks off."""
        if self.status != 200:
            yield self._first or b""
        elif not self._called.rpc.operation.streams:
            if self._first is None:
                raise EgressFailed("the agent answered with nothing", is_sent=True)
            yield msgspec.json.encode(_read(self._reply, self._first))
        else:
            async for event in self._events():
                yield event

    async def _events(self) -> AsyncGenerator[bytes]:
        if self._first is not None:
            yield self._event(self._first)
        try:
            async for message in self._messages:
                yield self._event(message)
        except RpcFailed as failed:
            yield sse.error_frame(msgspec.json.encode(errors.rest(_meaning(failed)).body))

    def _reply(self, message: bytes) -> Object:
        shape = shape_of(self._called.codec.schema, self._called.rpc.reply)
        check_fields(message, shape.make, MAX_VALUES)
        return shape.decode(message)

    def _event(self, message: bytes) -> bytes:
        codec = self._called.codec
        value, position = _read(partial(codec.event_values, most_fields=MAX_VALUES), message)
        return sse.frame(msgspec.json.encode(value), position or None)


@contextlib.asynccontextmanager
async def open_as_json(
    http: Http, url: str, path: str, headers: Mapping[str, str], body: bytes
) -> AsyncGenerator[RpcExchangeOfJson]:
    """Make the rpc that JSON is, at the address of a gRPC interface; raises what `Http.open`
    does, and `A2AError` for JSON that is no such rpc."""
    if not isinstance(http, RpcHttp):
        raise EgressRefused("gRPC needs a connection")
    called = find(path)
    shape = shape_of(called.codec.schema, called.rpc.request)
    try:
        request = shape.encode(msgspec.json.decode(body or b"{}"))
    except (msgspec.DecodeError, TypeError, ValueError, AttributeError):
        raise ParseFailed("The request is no message of gRPC") from None
    sent = {name: value for name, value in headers.items() if name != "content-type"}
    async with http.open_rpc(url.rstrip("/") + path, headers=sent, body=request) as answer:
        exchange = RpcExchangeOfJson(called, answer.chunks())
        await exchange.begin()
        yield exchange


def _meaning(failed: RpcFailed) -> A2AError:
    error = statuses.decode(failed.status, failed.words, failed.details)
    if wait := failed.trailers.get("retry-after"):
        error.facts.setdefault("retryAfter", wait)
    return error


def _read(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except A2AError as error:
        raise EgressFailed(f"the agent's message cannot be read: {error}", is_sent=True) from None
