"""Errands that ended, and what their requesters say of them: ratings and disputes.

Every function works on a connection inside somebody else's transaction. The errands themselves are
the ledger's; here they are read, and noted as observed.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import apsw
import msgspec

from dragoman.stores.sqlite.schema import run

_ENDED = """
SELECT task, task_id, agent, requester, payee, skill, charged, began_at, due_at, ended_at, state,
    cause
FROM errands WHERE ended_at > 0 AND is_observed = 0 ORDER BY task LIMIT ?
"""
_NUMBERED = """
SELECT task, task_id, agent, requester, payee, skill, charged, began_at, due_at, ended_at, state,
    cause
FROM errands WHERE task = ?
"""
_OBSERVED = """
UPDATE errands SET is_observed = 1 WHERE task IN (SELECT value FROM json_each(?))
"""
_IS_OBSERVED = "SELECT is_observed FROM errands WHERE task = ?"
# Errands that ended for or against an agent whose event is missing, or tells something else.
_UNEQUAL = """
SELECT e.task FROM errands AS e LEFT JOIN trust_events AS o ON o.task = e.task AND o.task > 0
    AND o.type IN ('task_completed', 'task_failed', 'task_timeout')
WHERE e.is_observed = 1 AND e.agent <> '' AND e.state <> 'TASK_STATE_CANCELED'
    AND e.cause NOT IN (SELECT value FROM json_each(?))
    AND (o.task IS NULL OR o.agent <> e.agent OR o.at <> e.ended_at
        OR CAST(o.body AS TEXT) ->> 'requester' <> e.requester
        OR (o.type = 'task_completed') <> (e.state = 'TASK_STATE_COMPLETED'))
LIMIT 1
"""
# And events that no errand stands for.
_UNFOUNDED = """
SELECT o.task FROM trust_events AS o LEFT JOIN errands AS e ON e.task = o.task
WHERE o.task > 0 AND (e.task IS NULL OR e.ended_at = 0) LIMIT 1
"""
# Events that are filed under something else than they say.
_MISFILED = """
SELECT number FROM (SELECT *, CAST(body AS TEXT) AS told FROM trust_events)
WHERE told ->> 'agent' <> agent OR told ->> 'type' <> type OR told ->> 'task' <> task
    OR told ->> 'at' <> at
LIMIT 1
"""
_WAITING = "SELECT count(*) FROM errands WHERE ended_at > 0 AND is_observed = 0"
_RATED = "SELECT rating FROM ratings WHERE task = ?"
_RATE = "INSERT INTO ratings VALUES (?, ?, ?, ?, ?, ?)"
_COMMENTS = "SELECT task, comment FROM ratings WHERE task IN (SELECT value FROM json_each(?))"
_DISPUTE = "INSERT INTO disputes (task, agent, requester, reason, opened_at) VALUES (?, ?, ?, ?, ?)"
_DISPUTED = "SELECT outcome FROM disputes WHERE task = ?"
_OPEN = "SELECT task FROM disputes WHERE outcome = ''"
_RESOLVE = "UPDATE disputes SET outcome = ?, note = ?, resolved_at = ? WHERE task = ?"
_DISPUTES = """
SELECT errands.task, errands.task_id, disputes.agent, disputes.requester, reason, opened_at
FROM disputes
JOIN errands ON errands.task = disputes.task
WHERE outcome = '' ORDER BY disputes.task LIMIT ? OFFSET ?
"""


class Dispute(NamedTuple):
    """A dispute without a decision: the task by its number and its id, and since when."""

    task: int
    task_id: str
    agent: str
    requester: str
    reason: str
    opened_at: int


class Outcome(NamedTuple):
    """An errand that ended. Its two sides are the texts of principals."""

    task: int
    task_id: str
    agent: str
    requester: str
    payee: str
    skill: str
    charged: int
    began_at: int
    due_at: int
    ended_at: int
    state: str
    cause: str

    @property
    def is_own(self) -> bool:
        """Tell whether someone asked their own agent. The local user, who is the operator, is
        believed: with nobody else about, there is nobody to deceive."""
        return self.requester == self.payee != ""

    @property
    def response_ms(self) -> int:
        """Return how long it took."""
        return max(self.ended_at - self.began_at, 0)


def ended(connection: apsw.Connection, limit: int) -> list[Outcome]:
    """Return errands that ended and are not among the events."""
    return [Outcome(*row) for row in run(connection, _ENDED, (limit,))]


def waiting(connection: apsw.Connection) -> int:
    """Return how many of these there are."""
    return int(run(connection, _WAITING)[0][0])


def numbered(connection: apsw.Connection, task: int) -> Outcome:
    """Return the errand of a task, by its number."""
    return Outcome(*run(connection, _NUMBERED, (task,))[0])


def set_observed(connection: apsw.Connection, tasks: Sequence[int]) -> None:
    """Note that errands are among the events, or have no place there."""
    run(connection, _OBSERVED, (msgspec.json.encode(tasks).decode(),))


def is_observed(connection: apsw.Connection, task: int) -> bool:
    """Tell whether that was noted."""
    return bool(run(connection, _IS_OBSERVED, (task,))[0][0])


def unequal(connection: apsw.Connection, causes: Collection[str]) -> int | None:
    """Return the number of a task whose errand and event disagree, or of which one is missing;
    errands that ended for one of the causes have none."""
    rows = run(connection, _UNEQUAL, (msgspec.json.encode(sorted(causes)).decode(),))
    rows = rows or run(connection, _UNFOUNDED)
    return rows[0][0] if rows else None


def misfiled(connection: apsw.Connection) -> int | None:
    """Return the number of an event that is filed under something else than it says."""
    rows = run(connection, _MISFILED)
    return rows[0][0] if rows else None


def rating(connection: apsw.Connection, task: int) -> int | None:
    """Return how a task was rated."""
    rows = run(connection, _RATED, (task,))
    return rows[0][0] if rows else None


def put_rating(
    connection: apsw.Connection, outcome: Outcome, rating: int, comment: str, at: int
) -> None:
    """Keep a rating."""
    values = (outcome.task, outcome.agent, outcome.requester, rating, comment, at)
    run(connection, _RATE, values)


def comments(connection: apsw.Connection, tasks: list[int]) -> dict[int, str]:
    """Return what was said with ratings."""
    rows = run(connection, _COMMENTS, (msgspec.json.encode(tasks).decode(),))
    return {task: comment for task, comment in rows if comment}


def dispute(connection: apsw.Connection, task: int) -> str | None:
    """Return how a dispute ended; empty: it has not; None: there is none."""
    rows = run(connection, _DISPUTED, (task,))
    return rows[0][0] if rows else None


def put_dispute(connection: apsw.Connection, outcome: Outcome, reason: str, at: int) -> None:
    """Keep that a task is disputed."""
    run(connection, _DISPUTE, (outcome.task, outcome.agent, outcome.requester, reason, at))


def resolve(connection: apsw.Connection, task: int, outcome: str, note: str, at: int) -> None:
    """Keep how a dispute ended."""
    run(connection, _RESOLVE, (outcome, note, at, task))


def open_disputes(connection: apsw.Connection) -> set[int]:
    """Return the numbers of disputed tasks that wait for a decision."""
    return {task for (task,) in run(connection, _OPEN)}


def disputes(connection: apsw.Connection, limit: int, offset: int) -> list[Dispute]:
    """Return some of the disputes that nobody decided on, the oldest first."""
    return [Dispute(*row) for row in run(connection, _DISPUTES, (limit, offset))]
