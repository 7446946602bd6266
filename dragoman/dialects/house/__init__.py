"""Dialects of single systems, spoken to by the client where their cards show them."""

from collections.abc import Mapping
from typing import Any

from dragoman.dialects.house.corvid import CORVID, Corvid
from dragoman.dialects.house.nexus import NEXUS, Nexus

# What every card of the official versions has; the two systems here name no version.
_OFFICIAL = ("protocolVersion", "supportedInterfaces", "preferredTransport", "defaultInputModes")


def by_card(raw: Mapping[str, Any]) -> Nexus | Corvid | None:
    """Return the house whose card this is, if it is one's."""
    if "supportedInterfaces" not in raw and isinstance(raw.get("supportedProtocols"), list):
        return CORVID
    return NEXUS if not any(name in raw for name in _OFFICIAL) and raw.get("url") else None


__all__ = ["CORVID", "NEXUS", "Corvid", "Nexus", "by_card"]
