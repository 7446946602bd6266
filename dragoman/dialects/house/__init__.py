"""Dialects of single systems ("houses"): the client speaks them where a card shows them, servers
answer in them at their own paths and where a request has their shape. Each is 0.x with shapes,
errors and habits of its own. Begin with `r.py` or `nexus.py`; here is who is recognized by what."""

from collections.abc import Container, Mapping
from typing import Any

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import fasta2a, nexus, r, selectools, v0_1
from dragoman.dialects.house.corvid import CORVID, Corvid
from dragoman.dialects.house.fasta2a import FASTA2A
from dragoman.dialects.house.nexus import NEXUS, Nexus
from dragoman.dialects.v0_3 import V0
from dragoman.model.task import Task
from dragoman.service import Reply, TaskReply

# What every card of the official versions has; the two systems here name no version.
_OFFICIAL = ("protocolVersion", "supportedInterfaces", "preferredTransport", "defaultInputModes")

_SENDS = ("message/send", "message/stream")


def by_card(raw: Mapping[str, Any]) -> Nexus | Corvid | None:
    """Return the house whose card this is, if it is one's."""
    if "supportedInterfaces" not in raw and isinstance(raw.get("supportedProtocols"), list):
        return CORVID
    return NEXUS if not any(name in raw for name in _OFFICIAL) and raw.get("url") else None


def is_official(method: str, params: Any) -> bool:
    """Tell whether a request of 0.x is beyond doubt no house's: one look at what most send."""
    match params:
        case {"id": _} if method == "tasks/get":
            return True
        case {"message": {"parts": [_, *_] as parts} as message} if method in _SENDS:
            return "inputRequest" not in message and all(map(_is_official_part, parts))
        case _:
            return False


def _is_official_part(part: Any) -> bool:
    match part:
        case {"kind": "text" | "file" | "data"}:
            return "type" not in part
        case _:
            return False


def by_request(
    method: str, params: Any, served: Container[str], *, reads_events: bool = False
) -> V0 | None:
    """Return the house that only can have made a request of 0.x, if it is served. `reads_events`
    says whether the caller accepts server-sent events. `is_official` spares most calls this."""
    found: tuple[str, V0] | None = None
    if v0_1.is_spoken(method, params):
        found = "0.1", v0_1.V0_1()
    elif method == selectools.ALIAS:
        found = "selectools", selectools.SELECTOOLS
    elif r.is_spoken(method, params):
        found = "r", r.RX_ABROAD_FOLLOWING if reads_events else r.RX_ABROAD
    elif method == "message/send" and nexus.is_spoken(params):
        found = "nexus", NEXUS
    elif fasta2a.is_spoken(method, params):
        found = "fasta2a", FASTA2A
    return found[1] if found is not None and found[0] in served else None


def by_origin(task: Task, served: Container[str]) -> V0 | None:
    """Return the house whose peer began a task, where that can be told."""
    first = task.history[0].message_id if task.history else ""
    if first.startswith(v0_1.ORIGIN) and "0.1" in served:
        return v0_1.V0_1()
    return NEXUS if nexus.is_origin(first) and "nexus" in served else None


class Unversioned(V0):
    """0.3 for a caller that reads a task and names no version: the task is shown in the dialect of
    the house whose peer began it, which reads it again with a request like all others."""

    def __init__(self, plain: V0, served: Container[str], *, has_id: bool) -> None:
        """`plain` is how other tasks are shown. A request without an id is one of fasta2a."""
        self._plain = plain
        self._served = served
        self._others: V0 = FASTA2A if not has_id and "fasta2a" in served else plain

    def for_reply(self, reply: Reply) -> Dialect:
        """Return the dialect in which to write a reply."""
        if not isinstance(reply, TaskReply):
            return self._plain
        return by_origin(reply.reading.task, self._served) or self._others


__all__ = [
    "CORVID",
    "FASTA2A",
    "NEXUS",
    "Corvid",
    "Nexus",
    "Unversioned",
    "by_card",
    "by_origin",
    "by_request",
    "is_official",
]
