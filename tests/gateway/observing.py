"""Files with errands that ended, as a gateway leaves them, without a gateway."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from dragoman.gateway.agents import Registered
from dragoman.model.identity import Principal
from dragoman.stores.sqlite.schema import connect, migrate, run

DAY = 24 * 3600 * 1000
# Noon, so that a few hours more or less are the same day.
NOW = 1_790_000_000_000 // DAY * DAY + DAY // 2
STATES = {
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "rejected": "TASK_STATE_REJECTED",
}


class Past(NamedTuple):
    """An errand that ended."""

    agent: str = "a"
    requester: str = ""
    payee: str = "owner"
    state: str = "completed"
    seconds: float = 1.0
    charged: int = 0
    at: int = NOW
    due_at: int = 0
    cause: str = ""
    skill: str = "s"
    task_id: str = ""


class Roll:
    """Registered agents, in memory."""

    def __init__(self, *agents: Registered) -> None:
        self.agents = {one.id: one for one in agents}

    def get(self, ref: str) -> Registered | None:
        found = [one for one in self.agents.values() if ref in (one.id, one.name)]
        return found[0] if found else None

    def all(self) -> Sequence[Registered]:
        return list(self.agents.values())


def agent(id: str = "a", days: int = 0, owner: str = "owner") -> Registered:
    """Return an agent that was registered so many days ago."""
    return Registered(
        id=id,
        name=f"{id}-name",
        title=id,
        url="http://127.0.0.1:1",
        owner=Principal.read(owner),
        created_at=NOW - days * DAY,
    )


def opened(path: Path | str = ":memory:") -> apsw.Connection:
    """Return a connection to a file with the present schema."""
    if path == ":memory:":
        connection = apsw.Connection(":memory:")
    else:
        connection = connect(str(path), "off")
    migrate(connection)
    return connection


def end(connection: apsw.Connection, *errands: Past) -> list[str]:
    """Write errands that ended; return their tasks' ids."""
    ids: list[str] = []
    for one in errands:
        ((last,),) = run(connection, "SELECT ifnull(max(task), 0) FROM errands")
        task_id = one.task_id or f"t{last + 1}"
        run(
            connection,
            "INSERT INTO errands (task, task_id, agent, requester, payee, skill, held, price, "
            "charged, began_at, due_at, ended_at, state, cause) "
            "VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?)",
            (
                last + 1,
                task_id,
                one.agent,
                one.requester,
                one.payee,
                one.skill,
                one.charged,
                one.charged,
                one.at - int(one.seconds * 1000),
                one.due_at,
                one.at,
                STATES[one.state],
                one.cause,
            ),
        )
        ids.append(task_id)
    return ids


def enroll(connection: apsw.Connection, *agents: Registered) -> None:
    """Write agents as a registry does."""
    for number, one in enumerate(agents, 1):
        run(
            connection,
            "INSERT INTO agents (id, name, body, status, last_seen_at, beat_at, version) "
            "VALUES (?, ?, ?, 'online', 0, 0, ?)",
            (one.id, one.name, msgspec.json.encode(one), number),
        )
