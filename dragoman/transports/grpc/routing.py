"""Which of several agents an rpc is for.

An rpc has no path of its own to say so, but requests of 1.0 have a tenant, which a card may ask
callers to send: the path of an agent is one, `agents/NAME`, and what follows is the tenant there.
"""

from dragoman.transports.grpc import tables
from dragoman.transports.grpc.classes import fields_of
from dragoman.transports.grpc.codec import CalledRpc
from dragoman.transports.grpc.varints import read_varint

# What the paths of agents begin with: those of this process, and those of a gateway.
PREFIXES = ("agents/", "a2a/")
_FIRST, _SECOND = (prefix.encode() for prefix in PREFIXES)


def inner_tenant(tenant: str) -> str:
    """Return the tenant at the agent, of one that may lead to it."""
    if not _leads(tenant):
        return tenant
    return "".join(tenant.split("/", 2)[2:])


def addressed(called: CalledRpc, request: bytes) -> str:
    """Return the path of the agent that a request names; empty: it names none."""
    if _FIRST not in request and _SECOND not in request:
        # Most name none, and need no look at their fields.
        return ""
    number = _numbers.get(called.rpc.request) if called.codec.schema is tables.V1_0 else None
    tenant = _text(request, number) if number is not None else ""
    return "/" + "/".join(tenant.split("/", 2)[:2]) if _leads(tenant) else ""


def _leads(tenant: str) -> bool:
    return tenant.startswith(PREFIXES)


def _numbers_of_tenants() -> dict[str, int]:
    rows = [(name, row) for name, line in tables.V1_0.messages.items() for row in fields_of(line)]
    return {name: row.number for name, row in rows if row.name == "tenant"}


_numbers = _numbers_of_tenants()


def _text(data: bytes, number: int) -> str:
    """Return a text among the outermost fields of a message, without reading the others; empty
    where there is none, or no message."""
    at, found = 0, b""
    while at < len(data):
        key, at = read_varint(data, at, len(data))
        if key & 7 == 2:
            length, at = read_varint(data, at, len(data))
            if key >> 3 == number:
                found = data[at : at + length]
            at += length
        elif key & 7 == 0:
            _, at = read_varint(data, at, len(data))
        else:
            break
    return found.decode("utf-8", "replace")
