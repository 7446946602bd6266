"""Dialects of single systems: spoken to by the client where their cards show them, and by servers
to whoever calls at their paths or in their shapes."""

from collections.abc import Container, Mapping
from typing import Any, cast

from dragoman.dialects.house import fasta2a, nexus, r, selectools, v0_1
from dragoman.dialects.house.corvid import CORVID, Corvid
from dragoman.dialects.house.fasta2a import FASTA2A
from dragoman.dialects.house.house import House
from dragoman.dialects.house.nexus import NEXUS, Nexus
from dragoman.model.task import Task

# What every card of the official versions has; the two systems here name no version.
_OFFICIAL = ("protocolVersion", "supportedInterfaces", "preferredTransport", "defaultInputModes")


def by_card(raw: Mapping[str, Any]) -> Nexus | Corvid | None:
    """Return the house whose card this is, if it is one's."""
    if "supportedInterfaces" not in raw and isinstance(raw.get("supportedProtocols"), list):
        return CORVID
    return NEXUS if not any(name in raw for name in _OFFICIAL) and raw.get("url") else None


def by_request(method: str, params: Any, served: Container[str]) -> House | None:
    """Return the house that only can have made a request of 0.x, if it is served."""
    house: tuple[str, House] | None = None
    if v0_1.is_spoken(method, params):
        house = "0.1", v0_1.V0_1()
    elif method == selectools.ALIAS:
        house = "selectools", selectools.SELECTOOLS
    elif r.is_spoken(method, params):
        house = "r", r.RX_ABROAD
    elif method == "message/send" and nexus.is_spoken(_parts(params)):
        house = "nexus", NEXUS
    elif fasta2a.is_spoken(method, params):
        house = "fasta2a", FASTA2A
    return house[1] if house is not None and house[0] in served else None


def by_origin(task: Task, served: Container[str]) -> House | None:
    """Return the house whose peer began a task, where that can be told: it reads the task again
    with a request that is like everybody's."""
    first = task.history[0].message_id if task.history else ""
    if first.startswith(v0_1.ORIGIN) and "0.1" in served:
        return v0_1.V0_1()
    return NEXUS if nexus.began(first) and "nexus" in served else None


def _parts(params: Any) -> Any:
    message = cast("dict[str, Any]", params).get("message") if type(params) is dict else None
    return cast("dict[str, Any]", message).get("parts") if type(message) is dict else None


__all__ = [
    "CORVID",
    "FASTA2A",
    "NEXUS",
    "Corvid",
    "House",
    "Nexus",
    "by_card",
    "by_origin",
    "by_request",
]
