"""Where agents are and were: by it one that was removed is known again, with all that was observed
of it.

Every function works on a connection inside somebody else's transaction.
"""

import apsw

from dragoman.stores.sqlite.schema import run

_PUT = (
    "INSERT INTO agent_places VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET url = excluded.url WHERE url <> excluded.url"
)
# Of several the one that was at the very address, and else the one that was registered first.
_GONE = """
SELECT agent FROM agent_places WHERE owner = ? AND origin = ?
    AND agent NOT IN (SELECT id FROM agents)
ORDER BY url <> ?, agent LIMIT 1
"""
_HAS_RECORD = """
SELECT EXISTS (SELECT 1 FROM trust_events WHERE agent = :agent)
    OR EXISTS (SELECT 1 FROM errands WHERE ended_at = 0 AND agent = :agent)
    OR EXISTS (SELECT 1 FROM errands WHERE ended_at > 0 AND is_observed = 0 AND agent = :agent)
"""
_FORGET = "DELETE FROM agent_places WHERE agent = ?"


def put(connection: apsw.Connection, owner: str, origin: str, agent: str, url: str) -> None:
    """Keep that somebody's agent is at an address."""
    run(connection, _PUT, (owner, origin, agent, url))


def gone(connection: apsw.Connection, owner: str, origin: str, url: str) -> str:
    """Return the id of an agent of the same owner that was there and is registered no more; empty:
    there is none of which anything was observed."""
    rows = run(connection, _GONE, (owner, origin, url))
    return rows[0][0] if rows else ""


def leave(connection: apsw.Connection, agent: str) -> None:
    """Forget where an agent was that is removed, unless there is something to remember it for."""
    if not run(connection, _HAS_RECORD, {"agent": agent})[0][0]:
        run(connection, _FORGET, (agent,))
