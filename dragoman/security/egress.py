"""The one client for everything that dials out: webhooks, cards, keys, files, other agents.

It goes to public addresses unless the operator allows more: `dialling` opens sockets to addresses
that were checked and to nothing else, and redirects are followed here, so every hop passes the
same checks. Proxies and cookies there are none.

A person who calls agents from their own machine goes wherever they say: their client is made with
`Anywhere` for a policy, and no server's ever is.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from dragoman.errors import ConfigError
from dragoman.model.push import is_sendable
from dragoman.security import descriptors
from dragoman.security.dialling import (
    AddressInfo,
    Dial,
    NotAllowed,
    NotConnected,
    NotReached,
    Resolve,
)
from dragoman.security.names import Names
from dragoman.security.pool import Origin, Pool
from dragoman.security.targets import (
    USUAL_PORTS,
    NotCanonical,
    Policy,
    Target,
    read_location,
    read_target,
)
from dragoman.security.unpacking import Unpacker
from dragoman.security.wire import Connection, ConnectionBroke, HungUp, WireError, kind_of

MOST_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CONNECTIONS = 512
# One receiver that answers slowly holds no more than these.
CONNECTIONS_PER_HOST = 32
# After so much silence the system asks, every few seconds, and gives up after so many questions.
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# Seconds that an idle connection is kept: peers hang up after five or more, and a request that
# crosses their good-bye is lost.
IDLE = 2.0
# What decides where a request goes and where it ends is ours to write.
OUR_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The only headers another origin gets to see: a key may hide in any that we do not know.
HARMLESS_HEADERS = frozenset({"accept", "accept-language", "user-agent"})
# Requests that do not say so have no body, and may be made twice.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_REPEATABLE = _BODILESS | {"PUT", "DELETE"}
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class EgressError(Exception):
    """The address could not be reached."""

    # One sentence for whoever named the address: were a refusal told from a closed port or from
    # silence, we would scan our own network for them. The reason is for the operator's log.
    public = "The address could not be reached."

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.public)


class EgressRefused(EgressError):
    """We do not go there, whatever may be there: the URL itself says so. A name that leads where we
    do not go is one that could not be reached, like a name that does not exist."""


class EgressFailed(EgressError):
    """We went there and got no answer, or not all of it."""

    def __init__(self, reason: str, *, is_sent: bool = True) -> None:
        super().__init__(reason)
        # Whether the request may have arrived.
        self.is_sent = is_sent


class EgressClosed(EgressError, ConfigError):
    """The client was closed before it was asked: a mistake of whoever asks, so a setting's error
    to a caller, and no failure of the peer."""

    public = "The client is closed"

    def __init__(self) -> None:
        super().__init__("the client is closed")


_CLOSED = "the client was closed"


class Waits:
    """What is being waited for, on any loop, so that closing ends all of it."""

    def __init__(self) -> None:
        self.limits: dict[_UntilClosed, asyncio.AbstractEventLoop] = {}
        self.is_closed = False

    def until_closed(self, error: Callable[[], Exception]) -> "_UntilClosed":
        """Wait inside for as long as nobody closes; raises an error when somebody does."""
        return _UntilClosed(self, error)

    def close(self) -> None:
        """End every wait, and those to come."""
        self.is_closed = True
        for limit, loop in list(self.limits.items()):
            # A loop that has ended has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(limit.end)


class _UntilClosed:
    """A wait that may be ended from outside, as `asyncio.timeout` ends one: it is on the way of
    every request, several times, and has nothing of a timer."""

    __slots__ = ("_before", "_error", "_is_ended", "_task", "_waits")

    def __init__(self, waits: Waits, error: Callable[[], Exception]) -> None:
        self._waits = waits
        self._error = error
        self._is_ended = False
        self._task: asyncio.Task[Any] | None = None
        self._before = 0

    def __enter__(self) -> None:
        if self._waits.is_closed:
            raise self._error()
        task = asyncio.current_task()
        assert task is not None, "whoever waits is a task"
        self._task, self._before = task, task.cancelling()
        self._waits.limits[self] = task.get_loop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._waits.limits[self]
        if self._is_ended and self._task is not None:
            # The cancel was ours, unless somebody else wanted one too.
            is_ours = self._task.uncancel() <= self._before
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._error() from None

    def end(self) -> None:
        """End the wait, if it is still on."""
        if self in self._waits.limits and not self._is_ended and self._task is not None:
            self._is_ended = True
            self._task.cancel()


def _closed() -> EgressFailed:
    """Return what ends a wait that came before there was anything to send on."""
    return EgressFailed(_CLOSED, is_sent=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer answered: the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False  # there was more than we wanted


class Reply:
    """An answer whose head has come, and whose body is read as it comes."""

    __slots__ = ("_connection", "_origin", "_pool", "_unpacker", "_waits", "headers", "status")

    def __init__(self, connection: Connection, pool: Pool, origin: Origin, waits: Waits) -> None:
        self._connection: Connection | None = connection
        self._pool = pool
        self._origin = origin
        self._waits = waits
        self._unpacker: Unpacker | None = None
        self.status = connection.status
        self.headers = connection.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body piece by piece; raises EgressFailed when it breaks off."""
        connection = self._connection
        if connection is None:
            return
        is_packed = self.headers.get("content-encoding", "identity") not in ("identity", "")
        try:
            while piece := await connection.piece():
                if not is_packed:
                    yield piece
                    continue
                if self._unpacker is None:
                    self._unpacker = Unpacker(self.headers["content-encoding"])
                for unpacked in self._unpacker.unpack(piece):
                    yield unpacked
            if self._unpacker is not None:
                self._unpacker.finish()
        except WireError as error:
            raise EgressFailed(_CLOSED if self._waits.is_closed else kind_of(error)) from None
        self.done()

    def done(self) -> None:
        """Let go of the answer: what is left unread is of no use to anyone, and a body that was
        read leaves its connection for the next request."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(self._origin, connection)


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
    ) -> None:
        self._policy = policy or Policy(allow=allow, allow_private=allow_private, ports=ports)
        self._names = Names()
        self._resolve = resolver or self._names.resolve
        self._connect_timeout = connect_timeout
        self._tls = tls
        # A context may have a certificate, and an answer be for its owner alone.
        self.identity = os.urandom(8).hex() if tls else ""
        self._keep_alive = keep_alive
        self._per_host = per_host
        self._waits = Waits()
        # By their loop, and whether their connections serve more than one request.
        self._pools: dict[tuple[asyncio.AbstractEventLoop, bool], Pool] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what is open, for good: what is under way fails, and later requests are refused
        with `EgressClosed`."""
        self._waits.close()
        pools, self._pools = self._pools, {}
        here = asyncio.get_running_loop()
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
    ) -> Answer:
        """Return what a peer says to a body. A redirect is an answer like any other."""
        target = self._target(url)
        sent = checked_headers(headers)
        async with _at_most(timeout):
            return await self._ask("POST", target, sent, body, max_answer)

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        max_answer: int = 256 * 1024,
        redirects: int = 0,
    ) -> Answer:
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
        try:
            target = read_target(url)
        except NotCanonical as error:
            raise EgressRefused(str(error)) from None
        if reason := self._policy.refusal(target):
            raise EgressRefused(reason)
        return target

    def _following(self, target: Target, location: str) -> Target:
        try:
            following = self._target(read_location(target, location).url)
        except NotCanonical as error:
            raise EgressRefused(f"the redirect is of no use: {error}") from None
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
        an older connection is lost, and nobody can tell whether it arrived.
        """
        return _Exchange(self, method, url, headers, body, reuse)

    async def _ask(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None, most: int
    ) -> Answer:
        reply = await self._reply(method, target, headers, body, reuse=False)
        try:
            return await _read(reply, most)
        finally:
            reply.done()

    async def reach(self, url: str) -> None:
        """Open a connection and close it; raises `EgressRefused` where we do not go, `EgressFailed`
        where nobody accepts one."""
        target = self._target(url)
        if self._waits.is_closed:
            raise EgressClosed
        await self._prepare_tls(target)
        try:
            with self._waits.until_closed(_closed):
                connection = await self._dialled(target)
        except NotAllowed as error:
            raise EgressRefused(str(error)) from None
        except WireError as error:
            raise EgressFailed(_reason(error), is_sent=False) from None
        connection.close()

    async def begin(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, reuse: bool
    ) -> Reply:
        """Send a request; return the answer, which is to be told when it is `done` with."""
        target, sent = self._target(url), checked_headers(headers)
        return await self._reply(method, target, sent, body, reuse=reuse)

    async def _reply(
        self,
        method: str,
        target: Target,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        reuse: bool,
    ) -> Reply:
        if self._waits.is_closed:
            raise EgressClosed
        await self._prepare_tls(target)
        may_keep = self._keep_alive and (reuse or method != "POST")
        head = _head(method, target, headers, body, may_keep)
        pool = self._pool(may_keep)
        origin = target.scheme, target.host, target.port
        if not pool.enter(origin):
            with self._waits.until_closed(_closed):
                await pool.wait(origin)
        try:
            connection = await self._answered(pool, target, method, head, body)
        except BaseException as error:
            pool.leave(origin)
            # Without its cause: a trace of it would show the whole URL.
            if isinstance(error, NotAllowed):
                raise EgressRefused(str(error)) from None
            if isinstance(error, WireError):
                reason = _CLOSED if self._waits.is_closed else _reason(error)
                is_sent = not isinstance(error, NotConnected)
                raise EgressFailed(reason, is_sent=is_sent) from None
            raise
        return Reply(connection, pool, origin, self._waits)

    async def _prepare_tls(self, target: Target) -> None:
        if target.scheme == "https" and self._tls is None:
            # Reads the machine's certificates, which takes a while: not on the loop.
            self._tls = await asyncio.to_thread(default_tls)

    async def _answered(
        self, pool: Pool, target: Target, method: str, head: bytes, body: bytes | None
    ) -> Connection:
        """Return a connection on which a request was answered; it has a place already."""
        connection = pool.kept((target.scheme, target.host, target.port))
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
        with self._waits.until_closed(_closed):
            connection = await self._dialled(target)
        pool.hold(connection)
        try:
            await connection.ask(head, body, is_head_only=method == "HEAD")
            return connection
        except BaseException:
            pool.drop(connection)
            raise

    async def _dialled(self, target: Target) -> Connection:
        dial = Dial(target, self._policy, open_socket)
        tls = self._tls if target.scheme == "https" else None
        return await dial.connect(self._resolve, tls, self._connect_timeout)

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


@lru_cache(maxsize=1024)
def _opening(method: str, target: Target) -> str:
    """Return how a request to a target begins."""
    place = target.origin.partition("://")[2]
    return f"{method} {target.path} HTTP/1.1\r\nHost: {place}\r\n"


def _head(
    method: str, target: Target, headers: Mapping[str, str], body: bytes | None, may_keep: bool
) -> bytes:
    """Return the head of a request."""
    lines = [_opening(method, target)]
    for name, value in headers.items():
        lines.append(f"{name}: {value}\r\n")
    if "user-agent" not in headers:
        lines.append("User-Agent: dragoman\r\n")
    if "accept" not in headers:
        lines.append("Accept: */*\r\n")
    if body and "content-type" not in headers:
        lines.append("Content-Type: application/octet-stream\r\n")
    if body or method not in _BODILESS:
        lines.append(f"Content-Length: {len(body or b'')}\r\n")
    if not may_keep:
        lines.append("Connection: close\r\n")
    lines.append("Accept-Encoding: identity\r\n\r\n")
    return "".join(lines).encode()


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncGenerator[None]:
    """Bound the time a request may take in all."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as late:
        raise EgressFailed(f"no answer in {seconds:g} s") from late


class _Exchange:
    """A request and its answer, for as long as somebody reads it."""

    __slots__ = ("_asked", "_egress", "_reply")

    def __init__(
        self,
        egress: Egress,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        reuse: bool,
    ) -> None:
        self._egress = egress
        self._asked = method, url, headers, body, reuse
        self._reply: Reply | None = None

    async def __aenter__(self) -> Reply:
        self._reply = reply = await self._egress.begin(*self._asked)
        return reply

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._reply is not None:
            self._reply.done()


def default_tls() -> ssl.SSLContext:
    """Return a context that verifies peers by the certificates of this machine."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_socket(info: AddressInfo) -> socket.socket:
    """Return an unconnected socket; nothing else in the package makes one to dial with."""
    family, kind, protocol, _, _ = info
    opened = socket.socket(family=family, type=kind, proto=protocol)
    # A peer whose machine is gone never says so: without this a stream would wait for it for ever.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A request that is written in two parts does not wait for the peer to have heard the first.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, seconds in KEEP_ALIVE.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return opened


async def _read(reply: Reply, most: int) -> Answer:
    body = bytearray()
    # A peer that packs its answer although asked not to is counted by what comes out.
    async for piece in reply.chunks():
        body += piece
        if len(body) > most:
            return Answer(reply.status, reply.headers, bytes(body[:most]), is_cut=True)
    return Answer(reply.status, reply.headers, bytes(body))


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by their names in lower case; raises EgressRefused for what is none."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not (lower := _header_name(name)):
            raise EgressRefused(f"the header {name!r} is not one to send")
        if not is_sendable(value):
            raise EgressRefused(f"the header {name!r} has a control in its value")
        checked[lower] = value
    return checked


@lru_cache(maxsize=1024)
def _header_name(name: str) -> str:
    """Return the name of a header as it is sent; empty if it is not one to send."""
    lower = name.lower()
    return lower if lower and set(lower) <= _TOKEN and lower not in OUR_HEADERS else ""
