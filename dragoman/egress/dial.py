"""From a target to a connection: the one place in the package that dials.

A name is resolved once and all its addresses are checked; a socket is opened to one of those and
to nothing else. Several addresses are tried one after the other, the next before a slow one failed.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv6Address
from typing import TypeVar

from dragoman.egress.addresses import Address
from dragoman.egress.http1 import WireError
from dragoman.egress.targets import NotCanonical, Policy, Target, read_address

P = TypeVar("P", bound=asyncio.BaseProtocol)
# From a name to its addresses, as text.
Resolve = Callable[[str], Awaitable[Sequence[str]]]
# Family, kind, protocol, canonical name; then the address and the port, which lead the last part.
AddressInfo = tuple[int, int, int, str, tuple[object, ...]]

# After so much silence the system asks, every few seconds, and gives up after so many questions.
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# Seconds after which the next address of a name is tried beside those before it.
HEAD_START = 0.25


class NotConnected(WireError):
    """There is no connection; the cause says why."""


class NotResolved(NotConnected):
    """The name has no address."""


class NotReached(NotConnected):
    """The name leads where we do not go; the cause says why."""


class NotSecured(NotConnected):
    """The peer and we did not agree on TLS, or its certificate is not good."""


class AddressNotAllowed(Exception):
    """We do not go there; says why."""


class Dial:
    """A way to a target, and the addresses that may be dialled for it."""

    def __init__(self, target: Target, policy: Policy) -> None:
        self.target = target
        self._policy = policy
        self._resolved: set[Address] = set()

    async def connect(
        self,
        resolve: Resolve,
        tls: ssl.SSLContext | None,
        timeout: float,
        make: Callable[[], P],
    ) -> P:
        """Return a connection, which `make` makes; raises NotConnected or NotAllowed. The time is
        for all of it.

        A name that has no address, and one that leads where we do not go, end alike and at the same
        instant, when the time is over: else a caller that names an address would learn which names
        exist in our network."""
        nowhere: NotConnected | None = None
        try:
            async with asyncio.timeout(timeout):
                try:
                    left = await self.addresses(resolve)
                except (NotResolved, NotReached) as error:
                    if not self._policy.hides_names:
                        raise
                    nowhere = error
                    await asyncio.get_running_loop().create_future()
                    raise
                while True:
                    address, opened = await self._first(left)
                    left.remove(address)
                    try:
                        return await self._speaking(opened, tls, make)
                    except OSError:
                        if not left:
                            raise
        except ssl.SSLError as error:
            raise NotSecured from error
        except OSError as error:
            if nowhere is not None:
                raise nowhere from nowhere.__cause__
            raise NotConnected from error

    async def addresses(self, resolve: Resolve) -> list[Address]:
        """Return the addresses of the target, checked; raises NotResolved, and NotAllowed, or
        NotReached for a name."""
        if self.target.address is not None:
            found = [self.target.address]
        else:
            try:
                found = [read_address(text) for text in await resolve(self.target.host)]
            except NotCanonical as error:
                raise NotReached from AddressNotAllowed(str(error))
            except OSError as error:
                raise NotResolved from error
            if not found:
                raise NotResolved
        # One address that is not public condemns the others: it is the mark of an attempt.
        for address in found:
            try:
                self.check(address)
            except AddressNotAllowed as error:
                if self.target.address is not None:
                    raise
                raise NotReached from error
        self._resolved.update(found)
        return list(dict.fromkeys(found))

    def check(self, address: Address) -> None:
        """Raise NotAllowed for an address that the policy refuses."""
        if reason := self._policy.refusal_of(address, self.target):
            raise AddressNotAllowed(reason)

    def socket_to(self, address: Address) -> socket.socket:
        """Return a socket for an address, which is checked here whatever was checked before."""
        self.check(address)
        if address not in self._resolved:
            raise AddressNotAllowed(f"{address} is not what was resolved")
        family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
        place = (str(address), self.target.port)
        return open_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place))

    async def _first(self, addresses: Sequence[Address]) -> tuple[Address, socket.socket]:
        """Return the first socket that leads somewhere, and its address."""
        if len(addresses) == 1:
            return await self._attempt(addresses[0])
        left = list(addresses)
        trying: set[asyncio.Task[tuple[Address, socket.socket]]] = set()
        found: list[tuple[Address, socket.socket]] = []
        try:
            while True:
                if left:
                    trying.add(asyncio.create_task(self._attempt(left.pop(0))))
                ended, _ = await asyncio.wait(
                    trying,
                    timeout=HEAD_START if left else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended:
                    trying.discard(task)
                    try:
                        found.append(task.result())
                    except OSError:
                        if not left and not trying and not found:
                            raise
                if found:
                    return found.pop(0)
        finally:
            for task in trying:
                task.cancel()
            late = await asyncio.gather(*trying, return_exceptions=True)
            found += [one for one in late if not isinstance(one, BaseException)]
            for _, unused in found:
                unused.close()

    async def _attempt(self, address: Address) -> tuple[Address, socket.socket]:
        opened = self.socket_to(address)
        try:
            opened.setblocking(False)
            place = (str(address), self.target.port)
            await asyncio.get_running_loop().sock_connect(opened, place)
        except BaseException:
            opened.close()
            raise
        return address, opened

    async def _speaking(
        self, opened: socket.socket, tls: ssl.SSLContext | None, make: Callable[[], P]
    ) -> P:
        loop = asyncio.get_running_loop()
        # From here on the socket is the loop's to close.
        _, connection = await loop.create_connection(
            make,
            sock=opened,
            ssl=tls,
            server_hostname=self.target.host if tls else None,
        )
        return connection


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
