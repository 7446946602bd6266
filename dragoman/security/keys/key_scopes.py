"""What the key of an agent is for: its scopes, what they open, and which of them may be given.

A key opens what its scopes name and nothing else; what no scope names needs `*`. None of them
opens what is an operator's, and none of them is a scope that a skill asks for.
"""

from collections.abc import Iterable

from dragoman.model.identity import Caller

EVERYTHING = "*"
SCOPES = frozenset(
    {
        EVERYTHING,
        "agents:read",
        "agents:write",
        "agents:heartbeat",
        "tasks:read",
        "tasks:write",
    }
)


def allows(caller: Caller, scope: str, agent_id: str = "") -> bool:
    """Tell whether a caller may do what a scope names, to an agent if one is named.

    A caller that came by another credential than the key of an agent is not held by these scopes.
    """
    if caller.key_scopes is None:
        return True
    if agent_id and agent_id != caller.agent:
        return False
    return EVERYTHING in caller.key_scopes or scope in caller.key_scopes


def allows_any(caller: Caller, scopes: Iterable[str]) -> bool:
    """Tell whether a caller may do what any one of several scopes names."""
    return caller.key_scopes is None or any(allows(caller, scope) for scope in scopes)


def grantable(caller: Caller) -> frozenset[str]:
    """Return the scopes that a caller may give to a key it makes: those of its own credential.

    `*` is all of them. A credential that names none of them is not restricted and gives any; one
    that names some gives those, whatever else it may do. All other scopes (of skills, of
    operators) are never passed on.
    """
    named = caller.scopes & SCOPES if caller.key_scopes is None else caller.key_scopes
    is_restricted = caller.key_scopes is not None or bool(named)
    if EVERYTHING in named or not is_restricted:
        return SCOPES
    return named & SCOPES
