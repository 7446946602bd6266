"""What was observed of agents, in the file: a chained log of events, and its sums by day.

Every function works on a connection inside somebody else's transaction. What is observed and what
counts is the gateway's affair. A requester's day counts for `cap` tasks at most: of more, each
counts less, in exact integers, so that sums do not depend on the order in which things came.
"""

import hashlib
from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple

import apsw
import msgspec

from dragoman.stores.sqlite.schema import Row, insert, rows_of, run

# What stands before the first event.
NOTHING = "0" * 64
# One task that counts in full.
UNIT = 1_000_000
DAY_MS = 24 * 3600 * 1000

_LAST = "SELECT number, hash FROM trust_events ORDER BY number DESC LIMIT 1"
_KNOWN = """
SELECT task, type FROM trust_events
WHERE task IN (SELECT value FROM json_each(?)) AND task > 0
"""
_ADD = """
INSERT INTO trust_days VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET completed = completed + excluded.completed,
    failed = failed + excluded.failed, response_ms = response_ms + excluded.response_ms,
    ratings = ratings + excluded.ratings, rating_sum = rating_sum + excluded.rating_sum
"""
_PAID = "INSERT OR IGNORE INTO payers VALUES (?)"
_PAYERS = "SELECT requester FROM payers"
_DAYS = "SELECT * FROM trust_days"
_AGENTS_OF = "SELECT DISTINCT agent FROM trust_days WHERE requester = ?"
_AFTER = "SELECT body, hash FROM trust_events WHERE number > ? ORDER BY number LIMIT ?"
_EVENTS = "SELECT body, hash FROM trust_events ORDER BY number"
_HISTORY = """
SELECT body FROM trust_events WHERE agent = ? ORDER BY number DESC LIMIT ? OFFSET ?
"""
_HISTORY_TOTAL = "SELECT count(*) FROM trust_events WHERE agent = ?"
_TOTALS = """
SELECT ifnull(sum(completed), 0), ifnull(sum(failed), 0), ifnull(sum(ratings), 0),
    ifnull(sum(rating_sum), 0)
FROM trust_days WHERE agent = ?
"""
_VIOLATIONS = """
SELECT agent, at FROM trust_events
WHERE type = 'violation'{of}
"""
_COUNTED = """
SELECT agent, day,
    iif(total <= :cap, completed * :unit, completed * :unit * :cap / total) AS completed,
    min(total, :cap) * :unit AS total,
    iif(total <= :cap, response_ms,
        response_ms / total * :cap + response_ms % total * :cap / total) AS response_ms,
    min(ratings, :cap) * :unit AS ratings,
    iif(ratings <= :cap, rating_sum * :unit, rating_sum * :unit * :cap / ratings) AS rating_sum
FROM (SELECT *, completed + failed AS total FROM trust_days
    WHERE is_own = 0{of}
        AND (requester = '' OR requester IN (SELECT requester FROM payers)))
"""
_SUMS = """
SELECT agent, sum(completed), sum(total - completed), sum(response_ms), sum(ratings),
    sum(rating_sum), sum(iif(day > :recent, completed, 0)),
    sum(iif(day > :recent, total - completed, 0)), sum(iif(day > :active, total, 0)), max(day)
FROM ({counted}) GROUP BY agent
"""
# The index is of use only where the statement says that it is about some.
_SOME = " AND agent IN (SELECT value FROM json_each(:agents))"
_SUMS_OF_SOME = _SUMS.format(counted=_COUNTED.format(of=_SOME))
_SUMS_OF_ALL = _SUMS.format(counted=_COUNTED.format(of=""))
_VIOLATIONS_OF_SOME = _VIOLATIONS.format(of=_SOME)
_VIOLATIONS_OF_ALL = _VIOLATIONS.format(of="")
_REGISTERED = "SELECT id, name, body FROM agents ORDER BY name"


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that was observed. Its JSON, in this order, is what is hashed."""

    number: int = 0
    # The hash of the event before.
    prev: str = NOTHING
    # When it happened, in milliseconds.
    at: int
    agent: str
    type: str
    # What it is worth by itself, from -10 to 10. Nobody adds these up.
    score: int
    reason: str
    # The task's number in its store, and the id that its requester knows.
    task: int = 0
    task_id: str = ""
    requester: str = ""
    is_own: bool = False
    skill: str = ""
    # Micro-credits that went to another.
    charged: int = 0
    response_ms: int = 0
    rating: int = 0
    # How a dispute ended: upheld or rejected.
    outcome: str = ""


class Day(NamedTuple):
    """What came from one requester on one day."""

    completed: int = 0
    failed: int = 0
    response_ms: int = 0
    ratings: int = 0
    rating_sum: int = 0


# Agent, requester, whether it is its own agent, and the day since the epoch.
DayKey = tuple[str, str, bool, int]


class Sums(NamedTuple):
    """What counts of an agent's days; counts in millionths."""

    completed: int
    failed: int
    response_ms: int
    ratings: int
    rating_sum: int
    recent_completed: int
    recent_failed: int
    active: int
    last_day: int


_decode = msgspec.json.Decoder(Event).decode


def line(event: Event) -> tuple[bytes, str]:
    """Return an event's text and its hash."""
    body = msgspec.json.encode(event)
    return body, hashlib.sha256(body).hexdigest()


def head(connection: apsw.Connection) -> tuple[int, str]:
    """Return the last event's number and hash."""
    rows = run(connection, _LAST)
    return (rows[0][0], rows[0][1].hex()) if rows else (0, NOTHING)


def known(connection: apsw.Connection, tasks: Sequence[int]) -> set[tuple[int, str]]:
    """Return which types of events tasks have."""
    return {(task, type) for task, type in run(connection, _KNOWN, (_listed(tasks),))}


def append(connection: apsw.Connection, event: Event) -> bool:
    """Add an event to the chain; False: its task has one of this type."""
    if (event.task, event.type) in known(connection, [event.task]):
        return False
    extend(connection, [event])
    return True


def extend(connection: apsw.Connection, events: Sequence[Event]) -> None:
    """Add events to the chain, none of which is known."""
    last, prev = head(connection)
    rows: list[Row] = []
    for number, event in enumerate(events, last + 1):
        body, digest = line(msgspec.structs.replace(event, number=number, prev=prev))
        filed = (event.agent, event.type, event.task, event.at)
        rows.append((number, *filed, body, bytes.fromhex(digest)))
        prev = digest
    insert(connection, "INSERT INTO trust_events", rows)


def add(connection: apsw.Connection, key: DayKey, day: Day) -> None:
    """Add to the sums of a day."""
    agent, requester, is_own, number = key
    run(connection, _ADD, (agent, requester, int(is_own), number, *day))


def set_paid(connection: apsw.Connection, requester: str) -> None:
    """Note that somebody paid another."""
    run(connection, _PAID, (requester,))


def payers(connection: apsw.Connection) -> set[str]:
    """Return everybody who did."""
    return {requester for (requester,) in run(connection, _PAYERS)}


def days(connection: apsw.Connection) -> dict[DayKey, Day]:
    """Return all sums; a day whose sums are zero is as good as none."""
    return {
        (agent, requester, bool(is_own), day): Day(*sums)
        for agent, requester, is_own, day, *sums in run(connection, _DAYS)
        if any(sums)
    }


def agents_of(connection: apsw.Connection, requester: str) -> list[str]:
    """Return the agents that somebody had tasks with."""
    return [agent for (agent,) in run(connection, _AGENTS_OF, (requester,))]


def sums(
    connection: apsw.Connection,
    agents: Collection[str] | None,
    *,
    cap: int,
    recent: int,
    active: int,
) -> dict[str, Sums]:
    """Return what counts by agent: of these, or of all; `recent` and `active` are the last days
    that are not."""
    values = {"cap": cap, "unit": UNIT, "recent": recent, "active": active, **_some(agents)}
    statement = _SUMS_OF_ALL if agents is None else _SUMS_OF_SOME
    return {agent: Sums(*rest) for agent, *rest in run(connection, statement, values)}


def violations(connection: apsw.Connection, agents: Collection[str] | None) -> dict[str, list[int]]:
    """Return when agents broke rules."""
    found: dict[str, list[int]] = {}
    statement = _VIOLATIONS_OF_ALL if agents is None else _VIOLATIONS_OF_SOME
    for agent, at in run(connection, statement, _some(agents)):
        found.setdefault(agent, []).append(at)
    return found


def _some(agents: Collection[str] | None) -> dict[str, str]:
    return {} if agents is None else {"agents": _listed(sorted(agents))}


def _listed(values: Sequence[int | str]) -> str:
    """Return values for `json_each`."""
    return msgspec.json.encode(values).decode()


def totals(connection: apsw.Connection, agent: str) -> Day:
    """Return all that was observed of an agent, whether it counts or not."""
    completed, failed, ratings, rating_sum = run(connection, _TOTALS, (agent,))[0]
    return Day(completed, failed, 0, ratings, rating_sum)


def after(connection: apsw.Connection, number: int, limit: int) -> list[Event]:
    """Return the events after one."""
    return [_decode(body) for body, _ in run(connection, _AFTER, (number, limit))]


def chain(connection: apsw.Connection) -> Generator[tuple[bytes, str]]:
    """Yield the text and the hash of every event, in order."""
    for body, digest in rows_of(connection, _EVENTS, ()):
        yield body, digest.hex()


def history(
    connection: apsw.Connection, agent: str, limit: int, offset: int
) -> tuple[list[Event], int]:
    """Return a page of an agent's events, the latest first, and how many there are."""
    rows = run(connection, _HISTORY, (agent, limit, offset))
    ((total,),) = run(connection, _HISTORY_TOTAL, (agent,))
    return [_decode(body) for (body,) in rows], total


def registered(connection: apsw.Connection) -> list[tuple[str, str, bytes]]:
    """Return id, name and text of every agent."""
    return [(id, name, body) for id, name, body in run(connection, _REGISTERED)]
