"""The one client for everything that dials out: webhooks, cards, keys, files, other agents.

It goes to public addresses unless the operator allows more: `dial.py` opens sockets to addresses
that were checked and to nothing else, and redirects are followed here, so every hop passes the
same checks. There are no proxies, unless a connection is asked for by one, and no cookies.

A person who calls agents from their own machine may call any address: that client is made with the
policy `Anywhere`, which no server uses.
"""

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from dragoman.egress import descriptors
from dragoman.egress.answers import EgressResponse, StreamedResponse, read_whole
from dragoman.egress.dial import (
    AddressNotAllowed,
    Dial,
    NotConnected,
    NotReached,
    Resolve,
    default_tls,
)
from dragoman.egress.errors import CLOSED, EgressClosed, EgressFailed, EgressRefused
from dragoman.egress.forward_proxy import ConnectRequest, ForwardProxy
from dragoman.egress.http1 import (
    ConnectionBroke,
    Http1Connection,
    HungUp,
    OnSent,
    WireError,
    kind_of,
)
from dragoman.egress.outgoing import BODILESS, checked_headers, request_head
from dragoman.egress.pool import Origin, Pool
from dragoman.egress.resolver import Names
from dragoman.egress.targets import (
    USUAL_PORTS,
    NotCanonical,
    Policy,
    Target,
    read_location,
    read_target,
)
from dragoman.egress.tunnels import Tunnels, is_joined
from dragoman.egress.waits import Waits

if TYPE_CHECKING:
    # Loads grpcio: with the first rpc.
    from dragoman.egress.grpc_channels import GrpcChannels, RpcResponse

MOST_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CONNECTIONS = 512
# One receiver that answers slowly holds no more than these.
CONNECTIONS_PER_HOST = 32
# Seconds that an idle connection is kept: peers hang up after five or more, and a request that
# crosses their good-bye is lost.
IDLE = 2.0
# The only headers another origin gets to see: a key may hide in any that we do not know.
HARMLESS_HEADERS = frozenset({"accept", "accept-language", "user-agent"})
_REPEATABLE = BODILESS | {"PUT", "DELETE"}
_MOST_TARGETS = 1024


def _closed_error() -> EgressFailed:
    """Return what ends a wait that came before there was anything to send on."""
    return EgressFailed(CLOSED, is_sent=False)


class Egress:
    """Dials out, to public addresses unless the operator allows more."""

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        allow_private: bool = False,
        ports: Collection[int] = USUAL_PORTS,
        policy: Policy | None = None,
        resolver: Resolve | None = None,
        connect_timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        keep_alive: bool = False,
        per_host: int = CONNECTIONS_PER_HOST,
        tunnels: Tunnels | None = None,
        on_sent: OnSent | None = None,
    ) -> None:
        """`tunnels` lead to agents that dialled out to this process; `on_sent` is told of the
        bytes of a long body as they go out."""
        self._on_sent = on_sent
        self._policy = policy or Policy(allow=allow, allow_private=allow_private, ports=ports)
        self._names = Names()
        self._resolve = resolver or self._names.resolve
        self._connect_timeout = connect_timeout
        self._tls = tls
        # A context may have a certificate, and an answer be for its owner alone.
        self.identity = os.urandom(8).hex() if tls else ""
        self._keep_alive = keep_alive
        self._per_host = per_host
        self._tunnels = tunnels
        # Where URLs lead that are not refused, of those that were asked for lately.
        self._targets: dict[str, Target] = {}
        self._waits = Waits()
        # By their loop, and whether their connections serve more than one request.
        self._pools: dict[tuple[asyncio.AbstractEventLoop, bool], Pool] = {}
        # Channels of gRPC, by their loop too.
        self._channels: dict[asyncio.AbstractEventLoop, GrpcChannels] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what is open, for good: what is under way fails, and later requests are refused
        with `EgressClosed`."""
        self._waits.close()
        pools, self._pools = self._pools, {}
        channels, self._channels = self._channels, {}
        here = asyncio.get_running_loop()
        if (own := channels.pop(here, None)) is not None:
            await own.close()
        for (loop, _), pool in pools.items():
            if loop is here:
                pool.close()
            else:
                # It ends there after us; a loop that has ended took its connections along.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(pool.close)
        # The loop closes sockets when it is back from us.
        await asyncio.sleep(0)
        self._names.close()

    def allow(self, entry: str) -> None:
        """Dial one more target: a host, a host with a port, or a network."""
        self._policy.admit(entry)

    def check(self, url: str) -> None:
        """Raise EgressRefused for a URL that can be refused without resolving its name."""
        self._target(url)

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        timeout: float = 15.0,
        max_answer: int = 64 * 1024,
    ) -> EgressResponse:
        """Return what a peer says to a body. A redirect is an answer like any other."""
        target = self._target(url)
        async with _at_most(timeout):
            return await self._ask("POST", target, headers, body, max_answer)

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        max_answer: int = 256 * 1024,
        redirects: int = 0,
    ) -> EgressResponse:
        """Return what is at a URL, after at most so many redirects; one more is the answer.

        From https no redirect leads to http, and to another origin none takes credentials along.
        """
        if not 0 <= redirects <= MOST_REDIRECTS:
            raise ValueError(f"between 0 and {MOST_REDIRECTS} redirects are followed")
        target = self._target(url)
        sent = checked_headers(headers or {})
        async with _at_most(timeout):
            answer = await self._ask("GET", target, sent, None, max_answer)
            for _ in range(redirects):
                if answer.status not in REDIRECTS or "location" not in answer.headers:
                    break
                following = self._following(target, answer.headers["location"])
                if following.origin != target.origin:
                    sent = {name: sent[name] for name in sent.keys() & HARMLESS_HEADERS}
                target = following
                answer = await self._ask("GET", target, sent, None, max_answer)
            return answer

    def _target(self, url: str) -> Target:
        """Return where a URL leads; raises EgressRefused. One that is not refused never will be:
        the policy only ever admits more."""
        found = self._targets.get(url)
        if found is None:
            if len(self._targets) >= _MOST_TARGETS:
                self._targets.clear()
            found = self._targets[url] = self._judged_target(url)
        return found

    def _judged_target(self, url: str) -> Target:
        try:
            target = read_target(url)
        except NotCanonical as error:
            raise EgressRefused(str(error)) from None
        if self._tunnels is not None and is_joined(target.host):
            # It has no address that a policy could be about.
            return target
        if reason := self._policy.refusal(target):
            raise EgressRefused(reason)
        return target

    def _following(self, target: Target, location: str) -> Target:
        try:
            following = self._target(read_location(target, location).url)
        except NotCanonical as error:
            raise EgressRefused(f"the redirect is of no use: {error}") from None
        if is_joined(following.host) and following.origin != target.origin:
            raise EgressRefused("the redirect leads to an agent that dialled out")
        if target.scheme == "https" and following.scheme != "https":
            raise EgressRefused("the redirect leads from https to http")
        return following

    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> "_Exchange":
        """Send a request and wait for the head of the answer, which is closed with the context.

        Only connecting has a limit of time: a stream may last for days. A POST has a connection of
        its own unless `reuse` says that it may be made twice: one that meets a peer's good-bye on
        an older connection is lost, and it is not known whether it arrived.
        """
        return _Exchange(self, method, self._target(url), headers, body, reuse)

    async def _ask(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None, most: int
    ) -> EgressResponse:
        reply = await self.begin(method, target, headers, body, reuse=False)
        try:
            return await read_whole(reply, most)
        finally:
            reply.done()

    async def reach(self, url: str) -> None:
        """Open a connection and close it; raises `EgressRefused` where we do not go, `EgressFailed`
        where none is accepted."""
        target = self._target(url)
        if self._waits.is_closed:
            raise EgressClosed
        await self._prepare_tls(target)
        try:
            with self._waits.until_closed(_closed_error):
                connection = await self._dialled(target)
        except AddressNotAllowed as error:
            raise EgressRefused(str(error)) from None
        except WireError as error:
            raise EgressFailed(_reason(error), is_sent=False) from None
        connection.close()

    async def connect(
        self, url: str, make: Callable[[], asyncio.Protocol], proxy: ForwardProxy | None = None
    ) -> None:
        """Open a connection for a protocol that is not HTTP, or not only, by a proxy if one is
        named; raises `EgressRefused` or `EgressFailed`."""
        target = self._target(url)
        await self._prepare_tls(target)
        tls = self._tls if target.scheme == "https" else None
        if proxy is None:
            await self._dial(target, tls, make)
        else:
            await self._dial_by(proxy, target, tls, make)

    async def _dial_by(
        self,
        proxy: ForwardProxy,
        target: Target,
        tls: ssl.SSLContext | None,
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        request = await self._dial(proxy.target, None, lambda: ConnectRequest(target, proxy))
        assert isinstance(request, ConnectRequest)
        protocol, transport = make(), None
        try:
            async with asyncio.timeout(self._connect_timeout):
                transport = await request.opened()
                if tls is not None:
                    loop = asyncio.get_running_loop()
                    transport.resume_reading()
                    host = target.host
                    secured = await loop.start_tls(transport, protocol, tls, server_hostname=host)
                    assert secured is not None, "it was not closed meanwhile"
                    transport = secured
        except BaseException as error:
            if transport is not None:
                transport.abort()
            if not isinstance(error, OSError):
                raise
            raise EgressFailed(str(error) or type(error).__name__, is_sent=False) from None
        if tls is None:
            transport.set_protocol(protocol)
            transport.resume_reading()
        protocol.connection_made(transport)

    async def begin(
        self,
        method: str,
        target: Target,
        headers: Mapping[str, str],
        body: bytes | None,
        reuse: bool,
    ) -> StreamedResponse:
        """Send a request to where we may go; return the answer, which is to be told when it is
        `done` with."""
        may_keep = self._keep_alive and (reuse or method != "POST")
        head = request_head(method, target, headers, body, may_keep)
        if self._waits.is_closed:
            raise EgressClosed
        if target.scheme == "https":
            await self._prepare_tls(target)
        pool = self._pool(may_keep)
        origin = target.scheme, target.host, target.port
        if not pool.enter(origin):
            with self._waits.until_closed(_closed_error):
                await pool.wait(origin)
        try:
            connection = await self._exchange(pool, origin, target, method, head, body)
        except BaseException as error:
            pool.leave(origin)
            # Without its cause: a trace of it would show the whole URL.
            if isinstance(error, AddressNotAllowed):
                raise EgressRefused(str(error)) from None
            if isinstance(error, WireError):
                reason = CLOSED if self._waits.is_closed else _reason(error)
                is_sent = not isinstance(error, NotConnected)
                raise EgressFailed(reason, is_sent=is_sent) from None
            raise
        return StreamedResponse(connection, pool, origin, self._waits)

    async def _prepare_tls(self, target: Target) -> None:
        if target.scheme == "https" and self._tls is None:
            # Reads the machine's certificates, which takes a while: not on the loop.
            self._tls = await asyncio.to_thread(default_tls)

    async def _exchange(
        self,
        pool: Pool,
        origin: Origin,
        target: Target,
        method: str,
        head: bytes,
        body: bytes | None,
    ) -> Http1Connection:
        """Return a connection on which a request was answered; it has a place already."""
        connection = pool.take_idle(origin)
        if connection is not None:
            try:
                await connection.ask(head, body, is_head_only=method == "HEAD")
                return connection
            except BaseException as error:
                pool.drop(connection)
                is_good_bye = isinstance(error, HungUp | ConnectionBroke)
                if not is_good_bye or method not in _REPEATABLE or self._waits.is_closed:
                    raise
                # The peer's good-bye crossed with our request.
        with self._waits.until_closed(_closed_error):
            connection = await self._dialled(target)
        pool.hold(connection)
        try:
            await connection.ask(head, body, is_head_only=method == "HEAD")
            return connection
        except BaseException:
            pool.drop(connection)
            raise

    async def _dialled(self, target: Target) -> Http1Connection:
        tls = self._tls if target.scheme == "https" else None
        loop = asyncio.get_running_loop()
        if self._tunnels is not None and is_joined(target.host):
            connection = Http1Connection(loop, self._on_sent)
            if not await self._tunnels.connect(target.host, connection, self._connect_timeout):
                raise NotConnected from ConnectionRefusedError(errno.ECONNREFUSED, "not joined")
            return connection
        return await Dial(target, self._policy).connect(
            self._resolve, tls, self._connect_timeout, lambda: Http1Connection(loop, self._on_sent)
        )

    # gRPC

    def open_rpc(self, url: str, *, headers: Mapping[str, str], body: bytes) -> "_RpcExchange":
        """Begin an rpc, whose path is that of the URL, and wait until its answer begins; it is
        ended with the context. Each chunk of the answer is one message."""
        return _RpcExchange(self, url, headers, body)

    async def begin_rpc(self, url: str, headers: Mapping[str, str], body: bytes) -> "RpcResponse":
        """Begin an rpc; the answer is to be told when it is `done` with."""
        target, sent = self._target(url), checked_headers(headers)
        if self._waits.is_closed:
            raise EgressClosed
        with self._waits.until_closed(_closed_error):
            response = await self._rpc_channels().call(target, sent, body)
            await response.begin()
        return response

    def _rpc_channels(self) -> "GrpcChannels":
        """Return the channels of this loop: none can move to another."""
        from dragoman.egress.grpc_channels import GrpcChannels

        loop = asyncio.get_running_loop()
        channels = self._channels.get(loop)
        if channels is None:
            channels = self._channels[loop] = GrpcChannels(self._dial_rpc, "dragoman")
        return channels

    async def _dial_rpc(
        self, target: Target, make: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        from dragoman.egress.grpc_channels import Http2Context

        await self._prepare_tls(target)
        tls = None
        if target.scheme == "https":
            assert self._tls is not None, "prepared"
            tls = Http2Context(self._tls)
        protocol: Any = await self._dial(target, tls, make)
        return protocol.transport

    async def _dial(
        self, target: Target, tls: ssl.SSLContext | None, make: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol:
        try:
            return await Dial(target, self._policy).connect(
                self._resolve, tls, self._connect_timeout, make
            )
        except AddressNotAllowed as error:
            raise EgressRefused(str(error)) from None
        except WireError as error:
            raise EgressFailed(_reason(error), is_sent=False) from None

    def _pool(self, may_keep: bool) -> Pool:
        """Return the connections of this loop: none can move to another."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get((loop, may_keep))
        if pool is None:
            for known in [known for known in self._pools if known[0].is_closed()]:
                del self._pools[known]
            pool = self._pools[loop, may_keep] = Pool(
                most=descriptors.for_peers(max(CONNECTIONS, self._per_host)),
                per_origin=self._per_host,
                # Unless told otherwise each attempt is checked anew, and none meets a connection
                # that its peer just closed.
                idle=IDLE if may_keep else None,
            )
        return pool


def _reason(error: WireError) -> str:
    """Return why there is no answer, for the operator."""
    return str(error.__cause__) if isinstance(error, NotReached) else kind_of(error)


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncGenerator[None]:
    """Bound the time a request may take in all."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as late:
        raise EgressFailed(f"no answer in {seconds:g} s") from late


class _Exchange:
    """A request and its answer, for as long as the answer is read."""

    __slots__ = ("_egress", "_reply", "_request")

    def __init__(
        self,
        egress: Egress,
        method: str,
        target: Target,
        headers: Mapping[str, str],
        body: bytes | None,
        reuse: bool,
    ) -> None:
        self._egress = egress
        self._request = method, target, headers, body, reuse
        self._reply: StreamedResponse | None = None

    async def __aenter__(self) -> StreamedResponse:
        self._reply = reply = await self._egress.begin(*self._request)
        return reply

    async def __aexit__(self, *_: object) -> None:
        if self._reply is not None:
            self._reply.done()


class _RpcExchange:
    """An rpc and its answer, for as long as the answer is read."""

    __slots__ = ("_egress", "_request", "_response")

    def __init__(self, egress: Egress, url: str, headers: Mapping[str, str], body: bytes) -> None:
        self._egress = egress
        self._request = url, headers, body
        self._response: RpcResponse | None = None

    async def __aenter__(self) -> "RpcResponse":
        self._response = response = await self._egress.begin_rpc(*self._request)
        return response

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None:
            self._response.done()
