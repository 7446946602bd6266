"""An agent's reputation: its score, what the score is made of, and the events behind it.

Read from a store, so a command on a store's file and a running gateway show the same.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from dragoman.gateway.trust.counting import facts_of, sum_window
from dragoman.gateway.trust.scores import Facts, Score, TrustRules, decimal, score
from dragoman.model.identity import Principal
from dragoman.stores.interface.trust import TrustDay, TrustStore


class Reputation(NamedTuple):
    """An agent's score, and what it comes from."""

    agent_id: str
    agent_name: str
    score: Score
    facts: Facts
    # All that was observed, whether it counts or not.
    observed: TrustDay

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
        sentences = [f"{self.agent_name} has {self.score.value} of 100: {self.score.badge}."]
        for one in self.score.components:
            points = f"{decimal(one.points):g} of {decimal(one.weight * 100):g} points"
            sentences.append(f"{one.name} {decimal(one.value):g}: {points}; {one.why}.")
        if self.score.note:
            sentences.append(f"{self.score.note[0].upper()}{self.score.note[1:]}.")
        all_ = self.observed.completed + self.observed.failed
        if all_ != self.facts.total:
            sentences.append(
                f"Of {all_} observed outcomes {decimal(self.facts.total):g} count: those of "
                "requesters that never paid another, and of the agent's owner, do not; and one "
                "requester's day counts only so much."
            )
        return sentences


async def reputation_of(
    store: TrustStore, id: str, name: str, created_at: int, rules: TrustRules, at: int
) -> Reputation:
    """Return an agent's reputation, from the store's sums."""
    facts = (await facts_in(store, {id: created_at}, rules.cap, at))[id]
    return Reputation(id, name, score(facts, rules.policy), facts, await store.totals(id))


async def facts_in(
    store: TrustStore, created: dict[str, int], cap: int, at: int, every: bool = False
) -> dict[str, Facts]:
    """Return the facts of these agents; with `every`, of all others that were observed too."""
    agents: Collection[str] | None = None if every else created.keys()
    sums, violations = await store.figures(agents, sum_window(cap, at))
    return {
        id: facts_of(sums.get(id), violations.get(id, ()), created.get(id, 0), at)
        for id in {*created, *sums, *violations}
    }


async def history_of(
    store: TrustStore, agent: str, limit: int, offset: int, viewer: Principal | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of events as the REST API has them, without the ids of tasks that are not the
    viewer's (None: all are shown)."""
    requester = None if viewer is None else viewer.text
    events, comments, total = await store.history(agent, limit=limit, offset=offset)
    page = [
        {
            "id": str(one.number),
            "agentId": one.agent,
            "eventType": one.type,
            "score": one.score,
            "reason": one.reason,
            "taskId": (one.task_id or None) if requester in (None, one.requester) else None,
            "createdAt": one.at,
        }
        | (
            {"comment": comments[one.task]}
            if one.type == "rating_received" and one.task in comments
            else {}
        )
        for one in events
    ]
    return page, total
