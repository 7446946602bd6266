"""Channels of gRPC, whose connections are dialled as all others are.

grpcio would resolve names and open sockets by itself. It is given a socket of this process instead,
and each connection it makes there is piped to one that `dial.py` opened: to an address that was
checked, with the same TLS and certificates. Importing this module loads grpcio.
"""

import asyncio
import contextlib
import shutil
import ssl
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from dragoman.egress.errors import EgressFailed, RpcFailed
from dragoman.egress.targets import Target

# Opens a connection to a target; raises `EgressRefused` or `EgressFailed`.
DialRpc = Callable[[Target, Callable[[], asyncio.Protocol]], Awaitable[asyncio.Transport]]

# The largest message of a peer.
MOST_BYTES = 64 * 1024 * 1024
_ASK_AFTER, _ANSWER_WITHIN = 30, 20
_DETAILS = "grpc-status-details-bin"
# What is not said of a request but by the library itself.
_OWN = ("content-type", "content-length", "accept", "connection", "te", "host", "user-agent")
_BROKEN = ("Received RST_STREAM", "Stream removed", "stream terminated by RST_STREAM")


class Http2Context(ssl.SSLContext):
    """A context that offers HTTP/2, and is in all else another one, which offers it to none."""

    _base: ssl.SSLContext

    def __new__(cls, base: ssl.SSLContext) -> "Http2Context":
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made._base = base
        return made

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """Begin TLS. What is offered is fixed from here on, so the other is as it was."""
        self._base.set_alpn_protocols(["h2"])
        try:
            return self._base.wrap_bio(*given, **named)
        finally:
            self._base.set_alpn_protocols(["http/1.1"])


class GrpcChannels:
    """The channels of one client, one for each origin."""

    def __init__(self, dial: DialRpc, user_agent: str) -> None:
        self._dial = dial
        self._user_agent = user_agent
        self._channels: dict[str, _Channel] = {}
        self._opening = asyncio.Lock()

    async def call(self, target: Target, headers: Mapping[str, str], body: bytes) -> "RpcResponse":
        """Begin an rpc at the path of a target; raises `EgressRefused` or `EgressFailed`."""
        async with self._opening:
            channel = self._channels.get(target.origin)
            if channel is None or channel.is_broken:
                if channel is not None:
                    await channel.close()
                channel = _Channel(target, self._dial, self._user_agent)
                self._channels[target.origin] = channel
                await channel.open()
        await channel.connect()
        return channel.begin(target.path, headers, body)

    async def close(self) -> None:
        """Close all of them."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


class _Channel:
    """A channel to one origin, and the socket that its connections are made to."""

    def __init__(self, target: Target, dial: DialRpc, user_agent: str) -> None:
        self._target = target
        self._dial = dial
        self._user_agent = user_agent
        self._folder = Path(tempfile.mkdtemp(prefix="dragoman-grpc-"))
        self._server: asyncio.Server | None = None
        self._channel: grpc.aio.Channel | None = None
        # A connection that the next one of the channel is given.
        self._spare: _OuterEnd | None = None
        self._live: set[_OuterEnd] = set()
        self._dialling = asyncio.Lock()
        self.is_broken = False

    async def open(self) -> None:
        """Listen, and make the channel; it connects when it is used."""
        loop = asyncio.get_running_loop()
        path = str(self._folder / "channel")
        self._server = await loop.create_unix_server(lambda: _InnerEnd(self), path)
        self._channel = grpc.aio.insecure_channel(
            f"unix:{path}",
            options=[
                ("grpc.default_authority", self._target.origin.partition("://")[2]),
                ("grpc.primary_user_agent", self._user_agent),
                ("grpc.max_receive_message_length", MOST_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 32 * 1024),
                ("grpc.enable_retries", 0),
                ("grpc.enable_http_proxy", 0),
                ("grpc.keepalive_time_ms", _ASK_AFTER * 1000),
                ("grpc.keepalive_timeout_ms", _ANSWER_WITHIN * 1000),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                # One channel may have been closed when another of the same socket is made.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    async def connect(self) -> None:
        """Have a connection; raises why there is none before anything is sent."""
        async with self._dialling:
            if not self._live and self._spare is None:
                self._spare = await self._dialled()

    def begin(self, path: str, headers: Mapping[str, str], body: bytes) -> "RpcResponse":
        """Begin an rpc."""
        assert self._channel is not None, "opened before"
        metadata = [(name, value) for name, value in headers.items() if name not in _OWN]
        method = cast("Any", self._channel).unary_stream(path)
        return RpcResponse(method(body, metadata=tuple(metadata)), self._failed)

    def _failed(self) -> None:
        # What is left of it is not worth waiting for; others under way on it go on or fail.
        if not self._live:
            self.is_broken = True

    async def _dialled(self) -> "_OuterEnd":
        end = _OuterEnd(self._live)
        await self._dial(self._target, lambda: end)
        return end

    async def other_end(self) -> "_OuterEnd":
        """Return the connection that one of the channel leads to."""
        spare, self._spare = self._spare, None
        if spare is not None and not spare.transport.is_closing():
            return spare
        return await self._dialled()

    async def close(self) -> None:
        """Close all of it."""
        if self._channel is not None:
            await self._channel.close()
        if self._server is not None:
            self._server.close()
        for end in [*self._live, *([self._spare] if self._spare else [])]:
            end.transport.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _OuterEnd(asyncio.Protocol):
    """The connection to a peer."""

    transport: asyncio.Transport

    def __init__(self, live: "set[_OuterEnd]") -> None:
        self._live = live
        self._inner: asyncio.Transport | None = None
        # What TLS hands over in the turn of its handshake.
        self._early = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        _pause_at_first(transport)

    def join(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._live.add(self)
        inner.write(self._early)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._early += data
        elif not self._inner.is_closing():
            self._inner.write(data)

    def pause_writing(self) -> None:
        if self._inner is not None and not self._inner.is_closing():
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None and not self._inner.is_closing():
            self._inner.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._live.discard(self)
        if self._inner is not None:
            self._inner.close()


class _InnerEnd(asyncio.Protocol):
    """A connection that the channel made."""

    _transport: asyncio.Transport

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._outer: _OuterEnd | None = None
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        _pause_at_first(transport)
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        try:
            outer = await self._channel.other_end()
        except BaseException as error:
            self._transport.abort()
            if not isinstance(error, Exception):
                raise
            return
        if self._transport.is_closing():
            outer.transport.close()
            return
        self._outer = outer
        outer.join(self._transport)
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._outer is not None and not self._outer.transport.is_closing():
            self._outer.transport.write(data)

    def pause_writing(self) -> None:
        if self._outer is not None and not self._outer.transport.is_closing():
            self._outer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._outer is not None and not self._outer.transport.is_closing():
            self._outer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._outer is not None:
            self._outer.transport.close()


def _pause_at_first(transport: asyncio.Transport) -> None:
    """Read nothing of a new connection until it has another end. Not at once: Python 3.11.2 begins
    to read after `connection_made`, paused or not."""
    asyncio.get_running_loop().call_soon(transport.pause_reading)


class RpcResponse:
    """An rpc under way: its messages as they come."""

    status = 200

    def __init__(self, call: Any, failed: Callable[[], None]) -> None:
        self._call = call
        self._failed = failed
        self.headers: dict[str, str] = {}

    async def begin(self) -> None:
        """Wait for what comes before the first message, or for the end."""
        try:
            metadata = await self._call.initial_metadata()
        except grpc.aio.AioRpcError:
            # The end says why.
            return
        self.headers = _texts(metadata)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield each message; raises `RpcFailed` for an error of the peer's, `EgressFailed` when
        the connection breaks."""
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None

    def _error(self, error: grpc.aio.AioRpcError) -> Exception:
        name, words = error.code().name, error.details() or ""
        trailers = list(error.trailing_metadata() or ())
        found = [value for key, value in trailers if key == _DETAILS]
        details = found[0] if found and isinstance(found[0], bytes) else b""
        is_broken = not details and (
            name in ("UNAVAILABLE", "CANCELLED") or words.startswith(_BROKEN)
        )
        if is_broken:
            self._failed()
            return EgressFailed("the connection broke", is_sent=True)
        return RpcFailed(name, words, details, _texts(trailers))

    def done(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(Exception):
            self._call.cancel()


def _texts(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}
