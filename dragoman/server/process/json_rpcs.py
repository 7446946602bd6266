"""gRPC for apps that know JSON alone, such as scripts and recordings.

Each rpc is a POST of JSON to its path, with its metadata as headers; the answer, one or a stream of
events, becomes messages again. What JSON says and protobuf has no field for is left out.
"""

from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.dialects import errors
from dragoman.dialects.reading import Object
from dragoman.errors import A2AError, InternalError, Overloaded
from dragoman.http.grpc.exchange import App, RpcExchange
from dragoman.http.grpc.front import GrpcFront, RpcServer
from dragoman.http.request import Scope
from dragoman.model.card import RESUME_URI
from dragoman.security.json_values import MAX_VALUES
from dragoman.server.process.grpc_serving import load_server
from dragoman.transports import sse

_LARGEST_EVENT = 64 * 1024 * 1024


class JsonRpcs:
    """Takes the connections of gRPC to the port of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        # Takes the connections that speak HTTP/2.
        self.front = GrpcFront(self._load)

    async def stop(self) -> None:
        """End all rpcs and connections."""
        await self.front.stop(0)

    async def _load(self) -> RpcServer:
        return await load_server(self._answer, Settings(), None, _always, reflects=False)

    async def _answer(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        exchange: RpcExchange = scope["state"]["exchange"]
        # What comes before the service is a tenant that is the path of an agent; it is said in the
        # request as well.
        service, name = scope["path"].rsplit("/", 2)[-2:]
        scope = scope | {"path": f"/{service}/{name}", "state": {}}
        answer = _JsonAnswer(exchange, scope, send)
        request = (await receive())["body"]
        try:
            body = msgspec.json.encode(answer.values_of(request))
        except A2AError as error:
            exchange.fail(error, [])
            return
        is_read = False

        async def read() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        headers = [
            *(header for header in scope["headers"] if header[0] != b"content-type"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        try:
            await self._app(scope | {"headers": headers}, read, answer.send)
        except ConnectionError:
            # Broken off on purpose: an rpc has no other way to break alone.
            exchange.fail(Overloaded(), [])
        else:
            answer.end()


class _JsonAnswer:
    """The answer of an app to one rpc."""

    def __init__(self, exchange: RpcExchange, scope: Scope, refuse: sse.Send) -> None:
        # Loads protobuf, which an rpc has loaded already.
        from dragoman.transports.grpc.codec import find, positioned
        from dragoman.transports.grpc.framing import framed
        from dragoman.transports.grpc.plain_values import shape_of

        self._called = find(scope["path"])
        self._exchange = exchange
        self._refuse = refuse
        self._shape_of = shape_of
        self._positioned = positioned
        self._framed = framed
        asked = b", ".join(v for name, v in scope["headers"] if name == b"a2a-extensions")
        self._has_positions = RESUME_URI.encode() in asked
        self._status = 0
        self._events: sse.SseReader | None = None
        self._body = b""

    def values_of(self, request: bytes) -> Object:
        """Return a request as plain values; raises `ParseFailed` or `InvalidParams`."""
        return self._called.codec.request_values(self._called.name, request, MAX_VALUES)

    async def send(self, message: Any) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            if self._status == 200 and kind.startswith(b"text/event-stream"):
                self._events = sse.SseReader(_LARGEST_EVENT)
                await self._exchange.context.send_initial_metadata(())
        elif self._events is not None:
            for event in self._events.feed(message.get("body", b"")):
                await self._show(event)
        elif self._status == 200:
            self._body += message.get("body", b"")
        if self._status != 200:
            # Read as the error that it says.
            await self._refuse(message)

    async def _show(self, event: sse.ServerSentEvent) -> None:
        value = msgspec.json.decode(event.data)
        if event.kind == "error":
            self._exchange.fail(errors.decode_rest(500, value), [])
            return
        data = self._shape_of(self._called.codec.schema, "StreamResponse").encode(value)
        if self._has_positions and event.id:
            data = self._positioned(data, int(event.id))
        await self._exchange.context.write(self._framed(data))

    def end(self) -> None:
        """End the rpc, unless it has failed."""
        if self._exchange.outcome is not None or self._status != 200:
            return
        if self._events is not None:
            self._exchange.finish(b"", [])
            return
        try:
            value = msgspec.json.decode(self._body or b"{}")
            shape = self._shape_of(self._called.codec.schema, self._called.rpc.reply)
            self._exchange.finish(shape.encode(value), [])
        except (msgspec.DecodeError, TypeError, ValueError, AttributeError):
            self._exchange.fail(InternalError("The answer is no message of gRPC"), [])


async def _always() -> bool:
    return True
