"""Which of a card's interfaces to speak to, and how: the card's order, unless the user has one."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from dragoman.dialects import house
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3_proto import V0_3_PROTO
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import CardInvalid, ConfigError, VersionNotSupported
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, AgentCard, AgentInterface

# What people call the bindings.
BINDINGS = {
    "jsonrpc": JSONRPC,
    "json-rpc": JSONRPC,
    "rest": HTTP_JSON,
    "http+json": HTTP_JSON,
    "grpc": GRPC,
}
# The schemes of addresses that only gRPC has.
_TLS = {"grpc": "http", "grpcs": "https"}
SPOKEN = ((1, 0), (0, 3), (0, 2))
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?:\.[0-9]{1,9})?\Z")


class InterfaceCandidate(msgspec.Struct, frozen=True):
    """An interface we can speak to."""

    interface: AgentInterface
    dialect: Dialect


def has_grpc() -> bool:
    """Tell whether gRPC can be spoken: it is an extra."""
    try:
        return find_spec("grpc") is not None and find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        # There is no package of the parent's name.
        return False


def binding(name: str) -> str:
    """Return a binding by what it is called; raises `ConfigError`."""
    found = BINDINGS.get(name.strip().lower())
    if found is None:
        raise ConfigError(f"{name!r} is no binding: jsonrpc, rest or grpc")
    return found


def candidates(
    card: AgentCard,
    raw: Mapping[str, Any] | None = None,
    *,
    version: str = "",
    oldest: str = "0.2",
    preferred: str = "",
    bindings: Sequence[str] = (),
    origin: str = "",
) -> list[InterfaceCandidate]:
    """Return the interfaces to try, best first; raises what stands in the way of every one.

    Where the card has interfaces of at least the `preferred` version, older ones are not among
    them: an error of a newer one is not answered by stepping down. `origin` is where the card came
    from: by it an address of gRPC is plain, or has TLS."""
    wanted = _numbers(version) if version else None
    if version and wanted is None:
        raise ConfigError(f"{version!r} is no version: 1.0, 0.3 or 0.2")
    if wanted is not None and wanted not in SPOKEN:
        spoken = ", ".join(f"{major}.{minor}" for major, minor in SPOKEN)
        raise VersionNotSupported(
            f"Version {version} was asked for, and this client speaks {spoken}",
            supportedVersions=spoken,
        )
    floor = _numbers(oldest) or (0, 2)
    own = house.by_card(raw or {})
    known = [
        InterfaceCandidate(addressed(interface, card, origin), dialect)
        for interface in card.supported_interfaces
        if (dialect := own or _dialect(interface)) is not None
    ]
    if not known:
        named = ", ".join(sorted({item.protocol_binding for item in card.supported_interfaces}))
        raise CardInvalid(f"The card offers nothing this client speaks (it has: {named or 'none'})")
    spoken = [
        _as_asked(candidate, wanted)
        for candidate in known
        if _fits(candidate, wanted) and (wanted is not None or _of(candidate) >= floor)
    ]
    if not spoken:
        offered = ", ".join(sorted({item.dialect.version for item in known}))
        raise VersionNotSupported(
            f"The agent speaks {offered}, and {version or f'{oldest} or newer'} was asked for",
            supportedVersions=offered,
        )
    if wanted is None and (newer := _numbers(preferred)):
        spoken = [item for item in spoken if _of(item) >= newer] or spoken
    order = [binding(name) for name in bindings]
    first = next((name for name in order if any(_binding(item) == name for item in spoken)), None)
    # The first preferred binding that is offered comes first; all else in the card's order.
    return sorted(spoken, key=lambda item: _binding(item) != first) if first else spoken


def places(candidate: InterfaceCandidate) -> list[InterfaceCandidate]:
    """Return where an interface may be, likeliest first. An address that ends with the `/v1` which
    the paths of 0.3 begin with has it once; servers below such a prefix have it twice."""
    url = candidate.interface.url.rstrip("/")
    is_rest = _binding(candidate) == HTTP_JSON
    if not is_rest or candidate.dialect is not V0_3_PROTO or not url.endswith("/v1"):
        return [candidate]
    doubled = msgspec.structs.replace(candidate.interface, url=f"{url}/v1")
    return [candidate, InterfaceCandidate(doubled, candidate.dialect)]


def addressed(interface: AgentInterface, card: AgentCard, origin: str) -> AgentInterface:
    """Return an interface whose address says whether it has TLS. Those of gRPC need not: then the
    same holds as for the other interfaces of that host, or for the card itself."""
    url = interface.url
    if interface.protocol_binding.upper() != GRPC or url.startswith(("http://", "https://")):
        return interface
    scheme, separator, rest = url.partition("://")
    place = rest if separator else url
    # Of gRPC's own names for addresses.
    place = place.removeprefix("dns:").lstrip("/")
    if separator and scheme.lower() in ("grpc", "grpcs"):
        return msgspec.structs.replace(interface, url=f"{_TLS[scheme.lower()]}://{place}")
    host = place.rpartition(":")[0] or place
    known = [one.url for one in card.supported_interfaces if one.url.startswith("http")]
    alike = [one for one in (*known, origin) if _host(one) == host] or [origin]
    is_plain = alike[0].startswith("http://") or (not alike[0] and _is_here(host))
    return msgspec.structs.replace(interface, url=f"{'http' if is_plain else 'https'}://{place}")


def address_of(card: AgentCard, origin: str = "") -> str:
    """Return where an agent is according to its card, as a URL also where it has gRPC first."""
    return addressed(card.supported_interfaces[0], card, origin).url


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition(":")[0]


def _is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "[::1]")


def _binding(candidate: InterfaceCandidate) -> str:
    return candidate.interface.protocol_binding.upper()


def _of(candidate: InterfaceCandidate) -> tuple[int, int]:
    return _numbers(candidate.dialect.version) or (0, 0)


def _fits(candidate: InterfaceCandidate, wanted: tuple[int, int] | None) -> bool:
    # What 0.2 says, 0.3 understands; not the other way round.
    offered = _of(candidate)
    return wanted is None or (offered[0] == wanted[0] and offered >= wanted)


def _as_asked(candidate: InterfaceCandidate, wanted: tuple[int, int] | None) -> InterfaceCandidate:
    if wanted == (0, 2) and candidate.dialect is V0_3:
        return InterfaceCandidate(candidate.interface, V0_2)
    return candidate


def _numbers(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version.strip())
    return (int(found[1]), int(found[2])) if found else None


def _dialect(interface: AgentInterface) -> Dialect | None:
    # Cards of 0.x that say no version are of the time before they had to.
    numbers: tuple[int, int] = _numbers(interface.protocol_version) or (0, 2)
    match interface.protocol_binding.upper():
        case "JSONRPC":
            if numbers[0] == 1:
                return V1_0
            return (V0_3 if numbers[1] >= 3 else V0_2) if numbers[0] == 0 else None
        case "HTTP+JSON":
            if numbers[0] == 1:
                return V1_0
            return V0_3_PROTO if numbers[0] == 0 else None
        case "GRPC" if has_grpc():
            return V1_0 if numbers[0] == 1 else V0_3_PROTO if numbers[0] == 0 else None
        case _:
            return None
