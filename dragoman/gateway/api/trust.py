"""Trust: how an agent stands, why, and the word of those whose tasks it did."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.gateway.api.asking import (
    Paged,
    TaskNumber,
    is_operator,
    no_agent,
    note,
    one_task,
    reference,
    viewer_of,
    visible_agent,
)
from dragoman.gateway.api.envelope import Code
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.task_reference import TaskReference
from dragoman.model.instant import stamp

_TaskId = Annotated[str, Meta(min_length=1, max_length=256)]


class TaskStats(msgspec.Struct, frozen=True):
    """Tasks that counted for or against an agent."""

    total: int
    completed: int
    failed: int


class RatingStats(msgspec.Struct, frozen=True, rename="camel"):
    """What requesters said; the average is null before anyone did."""

    avg_rating: float | None
    count: int


class Standing(msgspec.Struct, frozen=True, rename="camel"):
    """How an agent stands, and of what the score is made: each from 0 to 100."""

    agent_id: str
    agent_name: str
    trust_score: int
    badge: str
    components: dict[str, float]
    task_stats: TaskStats
    rating_stats: RatingStats
    # How the score came about, in sentences.
    explanation: list[str]


class TrustEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One thing that was observed."""

    id: str
    agent_id: str
    event_type: str
    score: int
    reason: str
    task_id: str | None
    created_at: str
    comment: str | msgspec.UnsetType = msgspec.UNSET


class History(msgspec.Struct, frozen=True):
    """A page of what was observed, the latest first."""

    events: list[TrustEvent]
    total: int
    limit: int
    offset: int


class HistoryQuery(Paged, frozen=True, kw_only=True):
    """Which part of a history is wanted."""


class Rating(msgspec.Struct, frozen=True, rename="camel"):
    """The word of a requester on a task that was completed."""

    task_id: _TaskId
    rating: Annotated[int, Meta(ge=1, le=5)]
    comment: Annotated[str, Meta(max_length=1000)] = ""
    # Which one, where several tasks have the id.
    task_number: TaskNumber | msgspec.UnsetType = msgspec.UNSET


class Dispute(msgspec.Struct, frozen=True, rename="camel"):
    """Why a task that counts as completed was not done."""

    task_id: _TaskId
    reason: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"\S")]
    # Which one, where several tasks have the id.
    task_number: TaskNumber | msgspec.UnsetType = msgspec.UNSET


class Taken(msgspec.Struct, frozen=True, rename="camel"):
    """What was said is recorded; and how the agent stands."""

    task_id: str
    trust_score: int


async def _standing(ask: Ask) -> Standing:
    agent = visible_agent(ask)
    found = await ask.gateway.trust.standing(agent.id)
    if found is None:
        raise no_agent(ask.path["id"])
    document: dict[str, Any] = {**found.document(), "explanation": found.sentences()}
    return msgspec.convert(document, Standing)


async def _history(ask: Ask) -> History:
    agent = visible_agent(ask)
    query: HistoryQuery = ask.query
    # Whoever owns the agent did the tasks, and knows of them.
    viewer = None if agent.owner == ask.principal else viewer_of(ask)
    events, total = await ask.gateway.trust.history(
        agent.id, limit=query.limit, offset=query.offset, viewer=viewer
    )
    shown = [
        msgspec.convert({**event, "createdAt": stamp(event["createdAt"] * 1000)}, TrustEvent)
        for event in events
    ]
    return History(shown, total, query.limit, query.offset)


async def _rate(ask: Ask) -> Taken:
    agent = visible_agent(ask)
    body: Rating = ask.body
    trust = ask.gateway.trust
    # What ended a moment ago may not have been looked at yet.
    await trust.digest()
    task = reference(body.task_id, body.task_number)
    with one_task(body.task_id):
        await trust.rate(agent.id, task, ask.principal, body.rating, body.comment)
    if is_operator(ask):
        # Who runs the gateway and moves a score leaves a trace outside the file with the scores.
        note(ask, "trust.rate", f"{body.task_id} {agent.id}", str(body.rating))
    return Taken(body.task_id, trust.score(agent.id))


async def _dispute(ask: Ask) -> Taken:
    agent = visible_agent(ask)
    body: Dispute = ask.body
    trust = ask.gateway.trust
    await trust.digest()
    task = reference(body.task_id, body.task_number)
    with one_task(body.task_id):
        number = await trust.dispute(agent.id, task, ask.principal, body.reason)
    note(ask, "trust.dispute", f"{TaskReference(body.task_id, number)} {agent.id}")
    return Taken(body.task_id, trust.score(agent.id))


_MISSING: tuple[Code, ...] = ("AGENT_NOT_FOUND",)
ENDPOINTS = [
    Endpoint(
        verb="GET",
        path="/api/v1/trust/{id}",
        scope="agents:read",
        name="get_trust",
        summary="Read how an agent stands, and why",
        answer=_standing,
        reply=Standing,
        errors=_MISSING,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/trust/{id}/history",
        scope="agents:read",
        name="get_trust_history",
        summary="Read what was observed of an agent, the latest first",
        answer=_history,
        query=HistoryQuery,
        reply=History,
        errors=_MISSING,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/trust/{id}/rate",
        scope="*",
        name="rate_agent",
        summary="Rate a completed task of one's own, once",
        answer=_rate,
        status=201,
        body=Rating,
        reply=Taken,
        errors=(*_MISSING, "CONFLICT"),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/trust/{id}/dispute",
        scope="*",
        name="dispute_task",
        summary="Say that a task of one's own was not done",
        answer=_dispute,
        status=201,
        body=Dispute,
        reply=Taken,
        errors=(*_MISSING, "CONFLICT"),
    ),
]
