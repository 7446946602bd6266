"""How an agent stands: its score with what it is made of, and the events behind it.

All of it is read from a store's file on whatever connection one has, so a command that looks into
the file and a gateway that works on it tell the same.
"""

from typing import Any, NamedTuple

import apsw

from dragoman.gateway import trust_export
from dragoman.gateway.scores import (
    ACTIVE_DAYS,
    DEFAULT_POLICY,
    RECENT_DAYS,
    Facts,
    Score,
    decimal,
    score,
)
from dragoman.model.identity import Principal
from dragoman.stores.sqlite import outcomes, trust
from dragoman.stores.sqlite.trust import DAY_MS, Day

CAP = 20


class Rules(NamedTuple):
    """How events become a score."""

    policy: str = DEFAULT_POLICY
    # For how many tasks, and ratings, of an agent one requester's day counts at most.
    cap: int = CAP


class TrustStanding(NamedTuple):
    """How an agent stands."""

    agent_id: str
    agent_name: str
    score: Score
    facts: Facts
    # All that was observed, whether it counts or not.
    observed: Day

    def document(self) -> dict[str, Any]:
        """Return it as the REST API has it."""
        done, failed, rated = self.observed.completed, self.observed.failed, self.observed.ratings
        average = round(self.observed.rating_sum / rated, 2) if rated else None
        return {
            "agentId": self.agent_id,
            "agentName": self.agent_name,
            "trustScore": self.score.value,
            "badge": self.score.badge,
            "components": {one.name: decimal(one.value) for one in self.score.components},
            "taskStats": {"total": done + failed, "completed": done, "failed": failed},
            "ratingStats": {"avgRating": average, "count": rated},
        }

    def sentences(self) -> list[str]:
        """Return how the score came about."""
        said = [f"{self.agent_name} has {self.score.value} of 100: {self.score.badge}."]
        for one in self.score.components:
            points = f"{decimal(one.points):g} of {decimal(one.weight * 100):g} points"
            said.append(f"{one.name} {decimal(one.value):g}: {points}; {one.why}.")
        if self.score.note:
            said.append(f"{self.score.note[0].upper()}{self.score.note[1:]}.")
        all_ = self.observed.completed + self.observed.failed
        if all_ != self.facts.total:
            said.append(
                f"Of {all_} observed outcomes {decimal(self.facts.total):g} count: those of "
                "requesters that never paid another, and of the agent's owner, do not; and one "
                "requester's day counts only so much."
            )
        return said


def standing_of(
    connection: apsw.Connection, id: str, name: str, created_at: int, rules: Rules, at: int
) -> TrustStanding:
    """Return how an agent stands, from the store's sums."""
    facts = facts_in(connection, {id: created_at}, rules.cap, at)[id]
    return TrustStanding(id, name, score(facts, rules.policy), facts, trust.totals(connection, id))


def facts_in(
    connection: apsw.Connection, created: dict[str, int], cap: int, at: int, every: bool = False
) -> dict[str, Facts]:
    """Return the facts of these agents; with `every`, of whoever else was observed too."""
    today = at // DAY_MS
    agents = None if every else created.keys()
    sums = trust.sums(
        connection, agents, cap=cap, recent=today - RECENT_DAYS, active=today - ACTIVE_DAYS
    )
    broke = trust.violations(connection, agents)
    return {
        id: trust_export.facts_of(sums.get(id), broke.get(id, ()), created.get(id, 0), at)
        for id in {*created, *sums, *broke}
    }


def history_of(
    connection: apsw.Connection,
    agent: str,
    limit: int,
    offset: int,
    viewer: Principal | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of events as the REST API has them, without the ids of tasks that are not the
    viewer's (None: all are shown)."""
    shown = None if viewer is None else viewer.text
    events, total = trust.history(connection, agent, limit, offset)
    said = outcomes.comments(connection, [one.task for one in events])
    page = [
        {
            "id": str(one.number),
            "agentId": one.agent,
            "eventType": one.type,
            "score": one.score,
            "reason": one.reason,
            "taskId": (one.task_id or None) if shown in (None, one.requester) else None,
            "createdAt": one.at,
        }
        | (
            {"comment": said[one.task]}
            if one.type == "rating_received" and one.task in said
            else {}
        )
        for one in events
    ]
    return page, total
