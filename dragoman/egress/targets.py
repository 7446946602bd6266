"""Where a URL leads, and whether we go there.

A URL has one canonical form or is refused: two readers of one text must not see two hosts.
`Policy` is asked twice, about the target before its name is resolved and about every address that
the name turned out to have.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import quote, urldefrag, urljoin

from dragoman.config.hosts import (
    AUTHORITY,
    Address,
    Network,
    NotCanonical,
    is_unseen,
    read_allowed,
    read_host,
)
from dragoman.egress.addresses import embedded, is_private, is_public
from dragoman.errors import ConfigError

LONGEST_URL = 2048
DEFAULT_PORTS = {"https": 443, "http": 80}
USUAL_PORTS = frozenset({80, 443, *range(8000, 9001)})

# Names of services that hand out a machine's credentials. They are ordinary names, or have an
# ordinary ending, so a developer's permission does not cover them.
METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
    }
)
# Endings that no public name has.
PRIVATE_ENDINGS = (
    ".arpa",
    ".corp",
    ".home",
    ".internal",
    ".intranet",
    ".lan",
    ".local",
    ".localdomain",
    ".localhost",
    ".onion",
    ".private",
    ".svc",
)

_URL = re.compile(r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?]*)(?P<path>/[^?]*)?(?P<query>\?.*)?")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in canonical form."""

    scheme: str
    host: str  # a lower-case ASCII name without a last dot, or an address as text
    port: int
    path: str  # with the query, in ASCII
    address: Address | None = field(compare=False)  # of a host that is one

    @property
    def origin(self) -> str:
        """Scheme, host and port in their one spelling."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def url(self) -> str:
        """The whole of it in its one spelling."""
        return self.origin + self.path


@lru_cache(maxsize=1024)
def read_target(url: str) -> Target:
    """Return where a URL leads; raises NotCanonical. Cached: an agent is called often."""
    if len(url) > LONGEST_URL:
        raise NotCanonical("the URL is too long")
    if any(character in "\\#" or is_unseen(character) for character in url):
        raise NotCanonical("the URL has a space, a control, a backslash or a fragment")
    found = _URL.fullmatch(url)
    if found is None:
        raise NotCanonical("this is no absolute URL")
    scheme = found["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise NotCanonical("the scheme is neither https nor http")
    if "@" in found["authority"]:
        raise NotCanonical("the URL has user information")
    authority = AUTHORITY.fullmatch(found["authority"])
    if authority is None:
        raise NotCanonical("host and port cannot be told apart")
    port = int(authority["port"] or DEFAULT_PORTS[scheme])
    if port > 65535:
        raise NotCanonical("there is no such port")
    host, address = read_host(authority["host"])
    path = quote((found["path"] or "/") + (found["query"] or ""), safe=_PRINTABLE)
    return Target(scheme, host, port, path, address)


def read_location(base: Target, location: str) -> Target:
    """Return where a URL leads that may be relative to another; raises NotCanonical."""
    # Joining drops some characters without a word, so they are looked for before.
    if "\\" in location or any(is_unseen(character) for character in location):
        raise NotCanonical("the URL has a space, a control or a backslash")
    try:
        joined = urldefrag(urljoin(base.url, location)).url
    except ValueError:
        raise NotCanonical("the URL leads nowhere") from None
    return read_target(joined)


class Policy:
    """Says which targets may be dialled, as the operator allows.

    An entry of `allow` is a host, a host with a port, or a network. A host that is listed may be
    spoken to over http, at any port unless one is given, and may be private. No name opens the way
    to a metadata service: that takes its address.
    """

    def __init__(
        self, *, allow: Iterable[str], allow_private: bool, ports: Collection[int]
    ) -> None:
        self._private = allow_private
        # As it is: of a range of all ports a set would take milliseconds and megabytes.
        self._ports = ports
        self._hosts: set[tuple[str, int | None]] = set()
        self._networks: list[Network] = []
        for entry in allow:
            self.admit(entry)

    def admit(self, entry: str) -> None:
        """Allow one more target; raises `ConfigError`."""
        try:
            target = read_allowed(entry)
        except ValueError as error:
            raise ConfigError(f"the allowed target {error}") from None
        if target.host is not None:
            self._hosts.add((target.host.name, target.port))
        if target.network is not None:
            self._networks.append(target.network)

    @property
    def hides_names(self) -> bool:
        """Whether names of our own network are kept secret: callers may not dial into it."""
        return not self._private

    def refusal(self, target: Target) -> str:
        """Return why a target is refused before it is resolved; empty when it is not."""
        if not self._lists(target):
            if target.scheme != "https" and not self._private:
                return "http to a host that is not allowed for: see `allow` and --allow-private"
            if target.port not in self._ports and not self._private:
                return f"port {target.port} is not a usual one"
            if target.address is None and self._is_private_name(target.host):
                return f"{target.host} is not a public name"
        if target.address is not None:
            return self.refusal_of(target.address, target)
        return ""

    def refusal_of(self, address: Address, target: Target) -> str:
        """Return why an address of a target is refused; empty when it is not."""
        if is_public(address) or self._allows(address):
            return ""
        listed = self._lists(target)
        if listed and address == target.address:
            return ""
        if (listed or self._private) and is_private(address):
            return ""
        refusal = f"{target.host} is at {address}, which is not public"
        # Those that no general permission opens get no such advice.
        return f"{refusal}: see `allow` and --allow-private" if is_private(address) else refusal

    def _lists(self, target: Target) -> bool:
        if (target.host, target.port) in self._hosts or (target.host, None) in self._hosts:
            return True
        return target.address is not None and self._allows(target.address)

    def _allows(self, address: Address) -> bool:
        """Say whether an address is in an allowed network, and what it wraps is open as well."""
        if not any(address in network for network in self._networks):
            return False
        inner = embedded(address)
        return inner is None or is_public(inner) or self._allows(inner)

    def _is_private_name(self, host: str) -> bool:
        if host in METADATA_NAMES:
            return True
        return not self._private and ("." not in host or host.endswith(PRIVATE_ENDINGS))


class Anywhere(Policy):
    """Refuses nothing: for the tools of a person, who may go where their machine can."""

    def __init__(self) -> None:
        super().__init__(allow=(), allow_private=True, ports=())

    def refusal(self, target: Target) -> str:
        return ""

    def refusal_of(self, address: Address, target: Target) -> str:
        return ""


def read_address(text: str) -> Address:
    """Return an address that a resolver answered; raises NotCanonical."""
    try:
        return ip_address(text)
    except ValueError:
        raise NotCanonical(f"the resolver answered {text!r}, which is no address") from None
