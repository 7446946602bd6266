"""The one client for everything that dials out: webhooks, cards, keys, files, other agents.

It goes to public addresses unless the operator allows more. A name is resolved once, all its
addresses are checked, and a socket is opened to one of those and to nothing else; redirects are
followed by hand, so every hop passes the same checks. Proxies and cookies there are none.

A person who calls agents from their own machine goes wherever they say: their client is made with
`Anywhere` for a policy, and no server's ever is.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from dragoman.errors import ConfigError
from dragoman.model.push import is_sendable
from dragoman.security.addresses import Address
from dragoman.security.names import Names
from dragoman.security.targets import (
    USUAL_PORTS,
    NotCanonical,
    Policy,
    Target,
    read_address,
    read_location,
    read_target,
)

# From a name to its addresses, as text.
Resolve = Callable[[str], Awaitable[Sequence[str]]]
# Family, kind, protocol, canonical name; then the address and the port, which lead the last part.
AddressInfo = tuple[int, int, int, str, tuple[object, ...]]

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
LONGEST_HEADER = 8190
MOST_HEADERS = 128
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
    """We do not go there, whatever may be there."""


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
    return EgressFailed("the client was closed")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer answered: the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False  # there was more than we wanted


class Reply:
    """An answer whose head has come, and whose body is read as it comes."""

    def __init__(self, response: aiohttp.ClientResponse, waits: Waits) -> None:
        self._response = response
        self._waits = waits
        self.status = response.status
        self.headers: dict[str, str] = {}
        for name, value in response.headers.items():
            self.headers.setdefault(name.lower(), value)

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body piece by piece; raises EgressFailed when it breaks off."""
        while not self._response.content.at_eof():
            if piece := await self._piece():
                yield piece

    async def _piece(self) -> bytes:
        try:
            if here := self._response.content.read_nowait():
                # It came with the head: nobody has to wait for it.
                return here
            with self._waits.until_closed(_closed):
                return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if self._waits.is_closed:
                raise _closed() from None
            raise EgressFailed(kind_of(error)) from None


class _NotDialled(OSError):
    """Raised inside the client, where only an OSError counts as a failure to connect."""


@dataclass(slots=True)
class _Dial:
    """A request on its way, and the addresses that may be dialled for it."""

    target: Target
    policy: Policy
    addresses: set[Address] = field(default_factory=set[Address])
    refusal: str = ""

    def refuse(self, reason: str) -> _NotDialled:
        self.refusal = reason
        return _NotDialled(reason)

    def check(self, address: Address) -> None:
        if reason := self.policy.refusal_of(address, self.target):
            raise self.refuse(reason)


# The client opens sockets for names it was given; this tells the socket whom it is for.
_dial: ContextVar[_Dial] = ContextVar("dial")


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
        self._sessions: dict[tuple[asyncio.AbstractEventLoop, bool], aiohttp.ClientSession] = {}

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
        sessions, self._sessions = self._sessions, {}
        for (loop, _), session in sessions.items():
            if loop.is_closed() or loop is asyncio.get_running_loop():
                await session.close()
            else:
                # It ends there after us; a loop that ends meanwhile takes its connections along.
                with suppress(RuntimeError):
                    asyncio.run_coroutine_threadsafe(session.close(), loop)
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
        response = await self._head(method, target, headers, body, reuse=False)
        try:
            return await _read(Reply(response, self._waits), most)
        finally:
            done(response)

    async def begin(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, reuse: bool
    ) -> tuple[aiohttp.ClientResponse, Reply]:
        """Send a request; return the answer, which is to be closed by `done`."""
        target, sent = self._target(url), checked_headers(headers)
        response = await self._head(method, target, sent, body, reuse=reuse)
        return response, Reply(response, self._waits)

    async def _head(
        self,
        method: str,
        target: Target,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        reuse: bool,
    ) -> aiohttp.ClientResponse:
        if self._waits.is_closed:
            raise EgressClosed
        dial = _Dial(target, self._policy)
        if target.address is not None:
            dial.addresses.add(target.address)
        may_keep = self._keep_alive and (reuse or method != "POST")
        return await self._answered(dial, method, headers, body, may_keep)

    async def _answered(
        self,
        dial: _Dial,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None,
        may_keep: bool,
    ) -> aiohttp.ClientResponse:
        if dial.target.scheme == "https" and self._tls is None:
            # Reads the machine's certificates, which takes a while: not on the loop.
            self._tls = await asyncio.to_thread(default_tls)
        before = _dial.set(dial)
        try:
            with self._waits.until_closed(_closed):
                session = await self._session(may_keep)
                return await session.request(
                    method,
                    _url(dial.target),
                    data=body,
                    headers={"User-Agent": "dragoman", **headers, "Accept-Encoding": "identity"},
                    allow_redirects=False,
                    ssl=True if self._tls is None else self._tls,
                )
        except (aiohttp.ClientError, OSError) as error:
            # Without its cause: a trace of it would show the whole URL.
            if dial.refusal:
                raise EgressRefused(dial.refusal) from None
            is_sent = not _is_dial_failure(error)
            reason = _closed().reason if self._waits.is_closed else kind_of(error)
            raise EgressFailed(reason, is_sent=is_sent) from None
        finally:
            _dial.reset(before)

    async def _session(self, may_keep: bool) -> aiohttp.ClientSession:
        """Return what connects on this loop: a connection cannot move to another."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get((loop, may_keep))
        if session is None:
            for known in list(self._sessions):
                if known[0].is_closed():
                    await self._sessions.pop(known).close()
            session = self._sessions[loop, may_keep] = self._new_session(may_keep)
        return session

    def _new_session(self, may_keep: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedNames(self._resolve, self._connect_timeout),
            socket_factory=_checked_socket,
            use_dns_cache=False,
            limit=max(CONNECTIONS, self._per_host),
            limit_per_host=self._per_host,
            # Unless told otherwise each attempt is checked anew, and none meets a connection that
            # its peer just closed.
            force_close=not may_keep,
            keepalive_timeout=IDLE if may_keep else None,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # The whole request has a bound of its own, which covers redirects too.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            max_headers=MOST_HEADERS,
        )


@lru_cache(maxsize=1024)
def _url(target: Target) -> URL:
    """Return a target for the client: already canonical, a second reader must not improve on it."""
    return URL(target.url, encoded=True)


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncGenerator[None]:
    """Bound the time a request may take in all."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as late:
        raise EgressFailed(f"no answer in {seconds:g} s") from late


def done(response: aiohttp.ClientResponse) -> None:
    """Let go of an answer: what is left unread is of no use to anyone, and a body that was read
    leaves its connection for the next request."""
    response.close() if not response.content.at_eof() else response.release()


class _Exchange:
    """A request and its answer, for as long as somebody reads it."""

    __slots__ = ("_asked", "_egress", "_response")

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
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> Reply:
        self._response, reply = await self._egress.begin(*self._asked)
        return reply

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._response is not None:
            done(self._response)


class _CheckedNames(AbstractResolver):
    """Resolves a name for the client, and checks each of its addresses."""

    def __init__(self, resolve: Resolve, timeout: float) -> None:
        self._resolve = resolve
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        dial = _dial.get()
        if (host, port) != (dial.target.host, dial.target.port):
            raise dial.refuse(f"the client asks for {host}:{port}")
        async with asyncio.timeout(self._timeout):
            texts = await self._resolve(host)
        try:
            found = [read_address(text) for text in texts]
        except NotCanonical as error:
            raise dial.refuse(str(error)) from None
        if not found:
            raise OSError(f"{host} has no address")
        # One address that is not public condemns the others: it is the mark of an attempt.
        for address in found:
            dial.check(address)
        dial.addresses.update(found)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        pass


def _checked_socket(info: AddressInfo) -> socket.socket:
    """Return a socket for an address, which is checked here whatever was checked before.

    Nothing the client does, with a literal, a redirect or a name, leads around this place.
    """
    dial = _dial.get()
    host, port = str(info[4][0]), info[4][1]
    address = read_address(host)
    dial.check(address)
    if address not in dial.addresses or port != dial.target.port:
        raise dial.refuse(f"{host} at port {port} is not what was resolved")
    return open_socket(info)


def default_tls() -> ssl.SSLContext:
    """Return a context that verifies peers by the certificates of this machine.

    The library has one of its own; ours is made when the first https address is dialled.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_socket(info: AddressInfo) -> socket.socket:
    """Return an unconnected socket; nothing else in the package makes one to dial with."""
    family, kind, protocol, _, _ = info
    opened = socket.socket(family=family, type=kind, proto=protocol)
    # A peer whose machine is gone never says so: without this a stream would wait for it for ever.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in KEEP_ALIVE.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return opened


def kind_of(error: Exception) -> str:
    """Return what kind of failure it was, in words of this machine alone: the client's own message
    has the URL, which may be a secret, or bytes that the peer chose."""
    kind = error.__class__.__name__
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error.__cause__, ssl.SSLError):
        # Its number is one of TLS, not of the system.
        cause = error.__cause__
    said = ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        said = cause.verify_message
    elif isinstance(cause, ssl.SSLError):
        said = cause.reason
    elif isinstance(cause, socket.gaierror):
        said = cause.strerror
    elif isinstance(cause, TimeoutError):
        said = "timed out"
    elif isinstance(cause, OSError) and cause.errno:
        said = os.strerror(cause.errno)
    said = "".join(c for c in str(said or "").partition("\n")[0] if c.isprintable())
    return f"{kind}: {said}" if said else kind


def _is_dial_failure(error: Exception) -> bool:
    """Say whether a failure came before there was a connection to send anything on."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


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
