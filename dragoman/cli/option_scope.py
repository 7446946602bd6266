"""Which of the options every command understands have an effect on commands of our own.

The others are not shown there, and are refused on the command line: who writes `serve --bearer`
believes that something is protected. In the environment they are meant for other commands.
"""

from collections.abc import Mapping

import click

# How a command writes and where it reads its settings; a server has all the time it wants.
_SERVES = frozenset({"output", "config", "verbose", "debug"})
_OURS = _SERVES | {"timeout"}
_LISTS = _OURS | {"stream"}
_TLS = frozenset({"insecure", "client-cert", "client-key", "ca-cert"})
# What it takes to ask a gateway.
_GATEWAY = _TLS | {"bearer", "api-key"}
# What it takes to read the card of an agent.
_ASKS = _TLS | {"bearer", "api-key", "trust-origin", "a2a-version", "strict-version"}

# The words of a command, and the names of its rows; one that is not here takes them all.
_REACH: Mapping[str, frozenset[str]] = {
    "serve": _SERVES,
    "up": _SERVES,
    "gateway": _SERVES,
    "join": _SERVES | {"bearer", "api-key"},
    "mcp": _SERVES | _ASKS | {"svc-param"},
    "mock": _SERVES | {"transport"},
    "demo-server": _SERVES | {"transport"},
    "record": _SERVES | _ASKS | {"agent-card"},
    "replay": _LISTS | _ASKS,
    "init": _OURS,
    "bench": _OURS | _ASKS | {"agent-card", "transport", "svc-param", "extension"},
    "doctor": _LISTS | _ASKS | {"agent-card", "transport"},
    "push": _LISTS | _GATEWAY,
    "push replay": _OURS | _GATEWAY,
    "push secret": _OURS,
    "tasks": _LISTS | _GATEWAY | {"context-id", "task-id"},
    "tasks show": _OURS | _GATEWAY,
    "tasks tree": _OURS | _GATEWAY,
    "agents": _OURS | _GATEWAY,
    "agents list": _LISTS | _GATEWAY,
    "credits": _OURS | _GATEWAY,
    "credits statement": _LISTS | _GATEWAY,
    "credits packages": _LISTS | _GATEWAY,
    "credits escrow": _LISTS | _GATEWAY,
    "triggers": _OURS | _GATEWAY,
    "triggers list": _LISTS | _GATEWAY,
    "rollouts": _OURS | _GATEWAY,
    "rollouts list": _LISTS | _GATEWAY,
    "workflows": _OURS | _GATEWAY,
    "workflows list": _LISTS | _GATEWAY,
    "workflows run": _LISTS | _GATEWAY | {"wait", "async", "poll-interval"},
    "keys": _OURS | _GATEWAY,
    "keys list": _LISTS | _GATEWAY,
    "vault": _OURS,
    "backup": _OURS,
    "store": _OURS,
    "gen": _OURS | _ASKS | {"agent-card", "svc-param"},
    "card sign": _OURS,
    "card verify": _OURS | _ASKS | {"agent-card"},
    "ledger": _OURS | _GATEWAY,
    "trust": _OURS | _GATEWAY,
    "trust list": _LISTS | _GATEWAY,
    "trust disputes": _LISTS | _GATEWAY,
    "audit": _LISTS,
    "audit verify": _OURS,
}
# It follows nothing on most of our commands, and makes their JSON compact on all.
_ACCEPTED = frozenset({"stream"})


def shown_options(ctx: click.Context) -> frozenset[str] | None:
    """Return the names of the options that help shows for a command; None: all of them."""
    words: list[str] = []
    place = ctx
    while place.parent is not None:
        words.insert(0, place.info_name or "")
        place = place.parent
    while words:
        if (found := _REACH.get(" ".join(words))) is not None:
            return found
        words.pop()
    return None if getattr(place.command, "calls_agents", True) else _OURS


def accepted_options(ctx: click.Context) -> frozenset[str] | None:
    """Return the names of the options that a command takes; None: all of them."""
    found = shown_options(ctx)
    return None if found is None else found | _ACCEPTED
