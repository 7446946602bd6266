"""Keys of agents in the file: made, ended, and what changed since a process last looked.

Every function works on a connection inside somebody else's transaction. What a key opens is not
decided here. A key that ended stays for a while, so that its owner sees what became of it.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import apsw

from dragoman.stores.sqlite.schema import run

# How long a key that ended is still shown.
_REMEMBER_MS = 90 * 24 * 3600 * 1000

_COLUMNS = (
    "id, hash, agent, label, tenant, owner, scopes, parent, parent_ref, parent_mark, generation, "
    "made_at, expires_at, revoked_at"
)
_NEXT = "UPDATE agent_keys_version SET version = version + 1 RETURNING version"
_VERSION = "SELECT version FROM agent_keys_version"
_CHANGED = f"SELECT {_COLUMNS} FROM agent_keys WHERE version > ? ORDER BY version"
_ALL = f"SELECT {_COLUMNS} FROM agent_keys ORDER BY number"
_OF_AGENT = f"SELECT {_COLUMNS} FROM agent_keys WHERE agent = ? ORDER BY number"
_IS_THERE = "SELECT 1 FROM agents WHERE id = ?"
_FORGET = (
    "DELETE FROM agent_keys "
    "WHERE min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) < ?"
)
_LIVE = (
    "SELECT count(*) FROM agent_keys "
    "WHERE agent = ? AND revoked_at IS NULL AND coalesce(expires_at > ?, 1)"
)
_PUT = f"INSERT INTO agent_keys ({_COLUMNS}, version) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
_REVOKE = (
    "UPDATE agent_keys SET revoked_at = ?, version = ? "
    "WHERE revoked_at IS NULL AND {} = ? RETURNING id"
)


# What became of a key that was to be kept.
Put = Literal["kept", "gone", "full"]


class AgentKeyRow(NamedTuple):
    """A key as the file has it. Who reads it can neither use the key nor guess it."""

    id: str
    hash: bytes
    agent: str
    label: str
    tenant: str | None
    owner: str
    scopes: str
    parent: str
    parent_ref: str
    parent_mark: bytes
    generation: int
    # Milliseconds since the epoch.
    made_at: int
    expires_at: int | None = None
    revoked_at: int | None = None


def version_of(connection: apsw.Connection) -> int:
    """Return how often keys have changed."""
    return run(connection, _VERSION)[0][0]


def changed(connection: apsw.Connection, after: int) -> Sequence[AgentKeyRow]:
    """Return the keys that were made or ended after a version."""
    return [AgentKeyRow(*row) for row in run(connection, _CHANGED, (after,))]


def every(connection: apsw.Connection) -> Sequence[AgentKeyRow]:
    """Return all keys, in the order they were made."""
    return [AgentKeyRow(*row) for row in run(connection, _ALL)]


def of_agent(connection: apsw.Connection, agent: str) -> Sequence[AgentKeyRow]:
    """Return the keys of an agent, in the order they were made."""
    return [AgentKeyRow(*row) for row in run(connection, _OF_AGENT, (agent,))]


def put(connection: apsw.Connection, row: AgentKeyRow, *, most: int) -> Put:
    """Keep a key, unless its agent was removed meanwhile or has so many that are good."""
    if not run(connection, _IS_THERE, (row.agent,)):
        return "gone"
    run(connection, _FORGET, (row.made_at - _REMEMBER_MS,))
    ((live,),) = run(connection, _LIVE, (row.agent, row.made_at))
    if live >= most:
        return "full"
    run(connection, _PUT, (*row, _next(connection)))
    return "kept"


def revoke(connection: apsw.Connection, id: str, now: int) -> bool:
    """End a key; tell whether it was good until then. One that was revoked stays as it was."""
    return bool(run(connection, _REVOKE.format("id"), (now, _next(connection), id)))


def revoke_all(connection: apsw.Connection, agent: str, now: int) -> list[str]:
    """End the keys of an agent; return the ids of those that were good until then."""
    values = (now, _next(connection), agent)
    return [id for (id,) in run(connection, _REVOKE.format("agent"), values)]


def _next(connection: apsw.Connection) -> int:
    return run(connection, _NEXT)[0][0]
