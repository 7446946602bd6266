"""A way through an HTTP proxy of the user's network: `CONNECT`, and then the connection is ours.

Servers use none. A person whose machine may dial nothing but a proxy says so in `HTTPS_PROXY`, as
to other programs.
"""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote

from dragoman.egress.targets import NotCanonical, Target, read_target

# The longest head of an answer that is read.
LONGEST_HEAD = 16 * 1024
_END = b"\r\n\r\n"


class ProxyRefused(OSError):
    """The proxy does not let us through; says what it answers."""


@dataclass(frozen=True)
class ForwardProxy:
    """A proxy that is asked for a connection."""

    target: Target
    # What it is shown, if anything.
    authorization: str = field(default="", repr=False)


def read_proxy(url: str) -> ForwardProxy:
    """Return the proxy that a URL names; raises `NotCanonical`."""
    scheme, _, rest = url.rpartition("://")
    user, at, place = rest.rpartition("@")
    target = read_target(f"{scheme or 'http'}://{place}")
    if target.scheme != "http":
        raise NotCanonical("a proxy is spoken to by http")
    if not at:
        return ForwardProxy(target)
    shown = base64.b64encode(unquote(user).encode()).decode()
    return ForwardProxy(target, f"Basic {shown}")


def proxy_of(environment: Mapping[str, str], target: Target) -> ForwardProxy | None:
    """Return the proxy that the environment names for a target; None: there is none. Raises
    `NotCanonical`."""
    scheme = target.scheme
    # HTTP_PROXY in capitals is a header of a request where programs are run as CGI.
    names = [f"{scheme}_proxy", *(["HTTPS_PROXY"] if scheme == "https" else [])]
    names += ["all_proxy", "ALL_PROXY"]
    url = next((environment[name] for name in names if environment.get(name)), "")
    without = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if not url or _is_excepted(target, without):
        return None
    return read_proxy(url)


def _is_excepted(target: Target, without: str) -> bool:
    for entry in without.lower().split(","):
        host, _, port = entry.strip().rpartition(":")
        if not (host and port.isdecimal()):
            host, port = entry.strip(), ""
        if port and int(port) != target.port:
            continue
        name = host.lstrip(".")
        if name and (name in ("*", target.host) or target.host.endswith(f".{name}")):
            return True
    return False


class ConnectRequest(asyncio.Protocol):
    """Asks a proxy for a connection to a target."""

    def __init__(self, target: Target, proxy: ForwardProxy) -> None:
        host = f"[{target.host}]" if ":" in target.host else target.host
        place = f"{host}:{target.port}"
        shown = proxy.authorization
        more = f"Proxy-Authorization: {shown}\r\n" if shown else ""
        self._head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{more}\r\n".encode("ascii")
        self._answer = b""
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    async def opened(self) -> asyncio.Transport:
        """Wait until the connection leads to the target; raises `OSError`."""
        try:
            return await self._opened
        except BaseException:
            if self._transport is not None:
                self._transport.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, rest = self._answer.partition(_END)
        if not end and len(self._answer) <= LONGEST_HEAD:
            return
        if self._opened.done():
            return
        status = head.split(b"\r\n", 1)[0].split(b" ", 2)[1:2]
        assert self._transport is not None
        # The target speaks when it was spoken to: what comes with the head is not its word.
        if end and not rest and status and status[0].startswith(b"2"):
            self._transport.pause_reading()
            self._opened.set_result(self._transport)
        else:
            said = status[0][:3].decode("ascii", "replace") if status else "no HTTP"
            self._opened.set_exception(ProxyRefused(f"the proxy answers {said}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionResetError("the proxy hung up"))
