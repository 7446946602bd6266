"""Registered agents in the file: what is known of each, its credential, and what changed since.

Every function works on a connection inside somebody else's transaction. What a body says is the
gateway's affair; here it is a text with a name that nobody else has.
"""

from collections.abc import Sequence
from typing import NamedTuple

import apsw
import msgspec

from dragoman.stores.sqlite import agent_keys
from dragoman.stores.sqlite.schema import run
from dragoman.stores.sqlite.seals import Seals

# How long others may take to notice that somebody was removed.
_REMEMBER_MS = 24 * 3600 * 1000

_COLUMNS = "id, name, body, status, last_seen_at, beat_at, version"
_CHANGED = f"SELECT {_COLUMNS} FROM agents WHERE version > ? ORDER BY version"
_REMOVED = "SELECT id, version FROM agents_removed WHERE version > ?"
_VERSION = "SELECT version FROM agents_watch"
_NEXT = "UPDATE agents_watch SET version = version + 1 RETURNING version"
_TAKEN = "SELECT 1 FROM agents WHERE name = ? AND id <> ?"
_PUT = (
    "INSERT INTO agents (id, name, body, status, last_seen_at, beat_at, version) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, body = excluded.body, "
    "version = excluded.version"
)
_SEEN = "UPDATE agents SET status = ?, last_seen_at = ?, beat_at = ?, version = ? WHERE id = ?"
_BODY = f"SELECT {_COLUMNS} FROM agents WHERE id = ?"
_REMOVE = "DELETE FROM agents WHERE id = ?"
_FORGET = "DELETE FROM agents_removed WHERE at < ?"
_BURY = (
    "INSERT INTO agents_removed VALUES (?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET at = excluded.at, version = excluded.version"
)
_WATCH = (
    "UPDATE agents_watch SET worker = ?, until = ? WHERE worker = ? OR until < ? RETURNING worker"
)
_CREDENTIAL = "SELECT shown, body FROM agent_credentials WHERE agent = ?"
_PUT_CREDENTIAL = (
    "INSERT INTO agent_credentials (agent, shown, body) VALUES (?, ?, ?) "
    "ON CONFLICT (agent) DO UPDATE SET shown = excluded.shown, body = excluded.body"
)
_DROP_CREDENTIAL = "DELETE FROM agent_credentials WHERE agent = ?"


class AgentRow(NamedTuple):
    """An agent as the file has it."""

    id: str
    name: str
    body: bytes
    status: str
    last_seen_at: int
    beat_at: int
    # Of its last change; made when it is written.
    version: int


class Changes(NamedTuple):
    """What happened after a version."""

    agents: Sequence[AgentRow]
    # Ids and versions.
    removed: Sequence[tuple[str, int]]
    version: int


def changes(connection: apsw.Connection, after: int) -> Changes:
    """Return what changed after a version."""
    # First: what is written meanwhile is read once more, and never missed.
    version = version_of(connection)
    if version == after:
        return Changes((), (), version)
    agents = [AgentRow(*row) for row in run(connection, _CHANGED, (after,))]
    removed = [(id, number) for id, number in run(connection, _REMOVED, (after,))]
    return Changes(agents, removed, version)


def version_of(connection: apsw.Connection) -> int:
    """Return how often agents have changed."""
    return run(connection, _VERSION)[0][0]


def find(connection: apsw.Connection, id: str) -> AgentRow | None:
    """Return an agent as it stands at this moment."""
    rows = run(connection, _BODY, (id,))
    return AgentRow(*rows[0]) if rows else None


def free_name(connection: apsw.Connection, wanted: str, id: str) -> str:
    """Return a name that no other agent has: the one that is wanted, or with a number after it."""
    name, number = wanted, 1
    while run(connection, _TAKEN, (name, id)):
        number += 1
        name = f"{wanted}-{number}"
    return name


def put(connection: apsw.Connection, row: AgentRow) -> int:
    """Keep an agent; how it is seen stays as it was if it was there. Return the version."""
    version = _next(connection)
    run(connection, _PUT, (*row[:-1], version))
    return version


def put_standing(
    connection: apsw.Connection, id: str, status: str, last_seen_at: int, beat_at: int
) -> int:
    """Keep how an agent is seen; return the version."""
    version = _next(connection)
    run(connection, _SEEN, (status, last_seen_at, beat_at, version, id))
    return version


def remove(connection: apsw.Connection, id: str, now: int) -> int:
    """Forget an agent and its credential, and end its keys; return the version."""
    version = _next(connection)
    agent_keys.revoke_all(connection, id, now)
    run(connection, _REMOVE, (id,))
    run(connection, _DROP_CREDENTIAL, (id,))
    run(connection, _FORGET, (now - _REMEMBER_MS,))
    run(connection, _BURY, (id, now, version))
    return version


def _next(connection: apsw.Connection) -> int:
    return run(connection, _NEXT)[0][0]


def watch(connection: apsw.Connection, worker: int, now: int, until: int) -> bool:
    """Become the one process that looks after the agents, unless another is; tell whether."""
    return bool(run(connection, _WATCH, (worker, until, worker, now)))


class Shown(msgspec.Struct, frozen=True, rename="camel"):
    """What of a credential is in clear: whose it is, what it is, and where alone it may go."""

    agent: str
    kind: str
    header: str = ""
    to: list[str] = []


_decode_shown = msgspec.json.Decoder(Shown).decode


def put_credential(connection: apsw.Connection, seals: Seals, shown: Shown, secret: bytes) -> None:
    """Keep the credential for an agent."""
    clear = msgspec.json.encode(shown)
    body = seals.credential(connection, clear, secret)
    run(connection, _PUT_CREDENTIAL, (shown.agent, clear, body))


def drop_credential(connection: apsw.Connection, id: str) -> None:
    """Forget the credential for an agent."""
    run(connection, _DROP_CREDENTIAL, (id,))


def credential(connection: apsw.Connection, seals: Seals, id: str) -> tuple[Shown, bytes] | None:
    """Return the credential for an agent, if there is one."""
    for shown, body in run(connection, _CREDENTIAL, (id,)):
        return _decode_shown(shown), seals.credentialed(bytes(shown), bytes(body))
    return None
