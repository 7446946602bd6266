"""A host as text, in the one spelling that all readers read alike, and the targets that an operator
allows to be dialled."""

import unicodedata
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import NamedTuple

import msgspec

from dragoman.model.patterns import late_pattern

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

AUTHORITY = late_pattern(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]+)(?::(?P<port>[1-9][0-9]{0,4}))?")
_NAME = late_pattern(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
# A name whose last label is one of these is read by some as an IPv4 address.
_NUMBER = late_pattern(r"[0-9]+|0x[0-9a-f]*")
_TARGETS = "write agents.example, agents.example:8443 or 10.0.0.0/24"


class NotCanonical(ValueError):
    """The text is not one that all readers read alike; says why."""


class Host(NamedTuple):
    """A lower-case ASCII name without a last dot, or an address as text."""

    name: str
    address: Address | None


class AllowedTarget(msgspec.Struct, frozen=True):
    """A host that may be dialled, at one port or at any; or a network, without a host."""

    host: Host | None
    port: int | None
    network: Network | None


def read_host(text: str) -> Host:
    """Return a host in canonical form; raises `NotCanonical`."""
    if text.startswith("["):
        try:
            # A zone names an interface of this machine: no peer has business there.
            address = IPv6Address(text[1:-1])
        except ValueError:
            raise NotCanonical("there is no IPv6 address in the brackets") from None
        if address.scope_id is not None:
            raise NotCanonical("the address has a zone")
        return Host(str(address), address)
    name = text if text.isascii() else _ascii_name(text)
    name = name.lower().removesuffix(".")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise NotCanonical("the host is no name")
    if not _NUMBER.fullmatch(name.rpartition(".")[2]):
        return Host(name, None)
    try:
        return Host(name, IPv4Address(name))
    except ValueError:
        raise NotCanonical("the host is a number, but not four decimal ones") from None


def read_allowed(entry: str) -> AllowedTarget:
    """Return what an entry of `allow` names; raises `ValueError`."""
    text = entry.strip()
    try:
        if "/" in text:
            return AllowedTarget(None, None, ip_network(text))
        if text.count(":") > 1 and not text.startswith("["):
            text = f"[{text}]"
        found = AUTHORITY.fullmatch(text)
        if found is None:
            raise NotCanonical("is not a host, a host with a port, or a network")
        host = read_host(found["host"])
    except ValueError as error:
        raise ValueError(f"{entry!r}: {error}; {_TARGETS}") from None
    port = int(found["port"]) if found["port"] else None
    alone = ip_network(host.address) if host.address is not None and port is None else None
    return AllowedTarget(host, port, alone)


def is_unseen(character: str) -> bool:
    """Say whether a character is a space, a control or another that shows nothing."""
    return unicodedata.category(character)[0] in "CZ"


def _ascii_name(text: str) -> str:
    # Large tables, for the few hosts that need them.
    import idna

    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise NotCanonical("the host is no international name") from None
