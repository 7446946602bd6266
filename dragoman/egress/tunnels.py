"""Agents that dialled out to us: names that lead into a tunnel instead of to an address.

Such a name ends with a domain that never resolves, so no other process can mean it. Only a client
that was given tunnels goes there, and none is led there by a redirect.
"""

import asyncio
from typing import Protocol

# Reserved by RFC 2606: no resolver knows a name below it.
JOINED = ".joined.invalid"


def is_joined(host: str) -> bool:
    """Tell whether a host is that of an agent that dialled out."""
    return host.endswith(JOINED)


def joined_name(url: str) -> str:
    """Return what the hosts of all processes of an agent that dialled out end with, by the address
    of one of them; empty: it is an address as any other."""
    host = url.partition("//")[2].partition("/")[0]
    return host[host.find(".") :] if is_joined(host) else ""


class Tunnels(Protocol):
    """What opens connections to agents that dialled out."""

    async def connect(self, host: str, protocol: asyncio.Protocol, within: float) -> bool:
        """Give a protocol a connection to a host; return False if no tunnel leads there within so
        many seconds: one that was cut is soon there again."""
        ...
