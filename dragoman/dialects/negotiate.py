"""Which version does this peer speak? Header, query and method name decide, each request anew.

The letter of 1.0 reads a missing version as 0.3. Peers of 1.0 that forget the header are common,
so unless told to be strict the name of the method or the path speaks for them.

What 0.3 is over REST and gRPC is loaded with the first call there: no start needs it.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import BY_V0_METHOD, BY_V1_METHOD
from dragoman.dialects.reading import Value
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import VersionNotSupported
from dragoman.model.patterns import late_pattern

SUPPORTED = "1.0,0.3,0.2"
SUPPORTED_ON_REST = "1.0"

CardShape = Literal["1.0", "0.3", "hybrid"]

_VERSION = late_pattern(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,9})?\Z")
_OLDER: dict[tuple[int, int], Dialect] = {(0, 3): V0_3, (0, 2): V0_2}
# The official Python library has no name of its own, but the HTTP client under it has.
_PYTHON_AGENTS = ("python-httpx/", "a2a-sdk")
_PYTHON_GRPC = "grpc-python"
_EXTENSION_HEADERS = (b"a2a-extensions", b"x-a2a-extensions")


def for_jsonrpc(method: str, header: str | None, query: str | None, *, infer: bool) -> Dialect:
    """Return the dialect of a JSON-RPC call.

    A method of the other generation contradicts a version that is named; an unknown method
    does not, and is left for the dialect to refuse.
    """
    version = _requested(header, query)
    if not version:
        if "/" in method:
            return V0_3
        if infer:
            return V1_0
        if method in BY_V1_METHOD:
            raise _refusal(SUPPORTED)
        return V0_3
    dialect = _dialect(version)
    if dialect is None or method in (BY_V0_METHOD if dialect is V1_0 else BY_V1_METHOD):
        raise _refusal(SUPPORTED)
    return dialect


def for_library(dialect: Dialect, agent: str, first: str) -> Dialect:
    """Return the dialect for the library that a JSON-RPC request comes from. The official Python
    one takes no arrays; it does not write the members of its envelopes in the order in which
    people and most others do, `jsonrpc` first."""
    is_python = first != "jsonrpc" and agent.startswith(_PYTHON_AGENTS)
    return V0_3_OBJECTS if dialect is V0_3 and is_python else dialect


def for_rest(header: str | None, query: str | None, *, infer: bool) -> Dialect:
    """Return the dialect of a call on the paths of 1.0."""
    version = _requested(header, query)
    if _dialect(version) is V1_0 or (not version and infer):
        return V1_0
    raise _refusal(SUPPORTED_ON_REST)


def rest_version(header: str | None, query: str | None, path: str) -> str:
    """Return the version whose paths a REST call means: 0.3 is below `/v1`, where 1.0 is only if
    the call says so."""
    is_old = path.startswith("/v1/")
    return error_version(header, query, path) if is_old else V1_0.version


def for_rest_0_3(
    header: str | None, query: str | None, agent: str, body: Value, *, infer: bool
) -> Dialect:
    """Return the dialect of a call on the paths of 0.3, which its body decides.

    1.0 allows a version in the address of an interface, so a send of 1.0 may come here too.
    """
    from dragoman.dialects.v0_3_proto import (
        V0_3_PROTO,
        V0_3_PROTO_TEXT,
        has_plain_files,
        is_core,
        is_newer,
    )

    version = _requested(header, query)
    named = _dialect(version) if version else None
    if version and named is None:
        raise _refusal(SUPPORTED)
    if is_core(body):
        return named or V0_3
    if named is None and infer and is_newer(body):
        return V1_0
    is_python = agent.startswith(_PYTHON_AGENTS) and not has_plain_files(body)
    return V0_3_PROTO_TEXT if is_python else V0_3_PROTO


def for_grpc_0_3(header: str | None) -> Dialect:
    """Return the dialect of an rpc of the service that 0.x has."""
    from dragoman.dialects.v0_3_proto import V0_3_PROTO

    version = _requested(header, None)
    if not version or _dialect(version) in (V0_3, V0_2):
        return V0_3_PROTO
    raise _refusal(SUPPORTED)


def for_grpc_library(agent: str, values: Value) -> Dialect:
    """Return the dialect for the library that an rpc of 0.3 comes from: the official Python one
    has gRPC's own name, and text where the proto has bytes."""
    from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT, has_plain_files

    is_python = agent.startswith(_PYTHON_GRPC) and not has_plain_files(values)
    return V0_3_PROTO_TEXT if is_python else V0_3_PROTO


def error_version(header: str | None, query: str | None, method: str = "") -> str:
    """Return the version in whose shape an error is written that comes before any dialect."""
    version = _requested(header, query)
    if version:
        numbers = _numbers(version)
        return "0.3" if numbers and numbers[0] == 0 else "1.0"
    return "0.3" if "/" in method else "1.0"


def for_error(header: str | None, query: str | None, method: str) -> Dialect:
    """Return the dialect in which an error is written that comes before any dialect is chosen."""
    return V1_0 if error_version(header, query, method) == "1.0" else V0_3


def card_shape(header: str | None, query: str | None) -> CardShape:
    """Return the shape of the card a caller wants; one that names no version can read both."""
    version = _requested(header, query)
    if not version:
        return "hybrid"
    numbers = _numbers(version)
    return "0.3" if numbers is not None and numbers[0] == 0 else "1.0"


def extensions(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    """Return the extensions a caller asks for, under the header's name in either generation."""
    return frozenset(
        uri
        for name, value in headers
        if name.lower() in _EXTENSION_HEADERS
        for item in value.decode("latin-1").split(",")
        if (uri := item.strip())
    )


def _requested(header: str | None, query: str | None) -> str:
    return (header or "").strip() or (query or "").strip()


@lru_cache(maxsize=64)
def _numbers(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


@lru_cache(maxsize=64)
def _dialect(version: str) -> Dialect | None:
    numbers = _numbers(version)
    if numbers is None:
        return None
    # Minor versions only add, so a later 1.x is served as 1.0.
    return V1_0 if numbers[0] == 1 else _OLDER.get(numbers)


def _refusal(supported: str) -> VersionNotSupported:
    return VersionNotSupported(supportedVersions=supported)
