"""Trust: the reputation of an agent, why it is so, and what requesters say of their tasks."""

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
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.model.clock import stamp

_MISSING: tuple[Code, ...] = ("AGENT_NOT_FOUND",)
ENDPOINTS = EndpointTable()

_TaskId = Annotated[str, Meta(min_length=1, max_length=256)]


class TaskStats(msgspec.Struct, frozen=True):
    """Tasks that counted for or against an agent."""

    total: int
    completed: int
    failed: int


class RatingStats(msgspec.Struct, frozen=True, rename="camel"):
    """What requesters rated; the average is null before the first rating."""

    avg_rating: float | None
    count: int


class ReputationRecord(msgspec.Struct, frozen=True, rename="camel"):
    """An agent's score, and what it is made of: each part from 0 to 100."""

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
    """What a requester says of a task that was completed."""

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


class FeedbackRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The feedback is recorded; the score of the agent after it."""

    task_id: str
    trust_score: int


@ENDPOINTS.add("GET", "/api/v1/trust/{id}", scope="agents:read", errors=_MISSING)
async def get_trust(ask: Ask) -> ReputationRecord:
    """Read the reputation of an agent, and why it is so."""
    agent = visible_agent(ask)
    found = await ask.gateway.trust.reputation(agent.id)
    if found is None:
        raise no_agent(ask.path["id"])
    document: dict[str, Any] = {**found.document(), "explanation": found.sentences()}
    return msgspec.convert(document, ReputationRecord)


@ENDPOINTS.add(
    "GET", "/api/v1/trust/{id}/history", scope="agents:read", query=HistoryQuery, errors=_MISSING
)
async def get_trust_history(ask: Ask) -> History:
    """Read what was observed of an agent, the latest first."""
    agent = visible_agent(ask)
    query: HistoryQuery = ask.query
    # The owner of the agent did the tasks, and knows of them.
    viewer = None if agent.owner == ask.principal else viewer_of(ask)
    events, total = await ask.gateway.trust.history(
        agent.id, limit=query.limit, offset=query.offset, viewer=viewer
    )
    shown = [
        msgspec.convert({**event, "createdAt": stamp(event["createdAt"] * 1000)}, TrustEvent)
        for event in events
    ]
    return History(shown, total, query.limit, query.offset)


@ENDPOINTS.add(
    "POST",
    "/api/v1/trust/{id}/rate",
    scope="*",
    status=201,
    body=Rating,
    errors=(*_MISSING, "CONFLICT"),
)
async def rate_agent(ask: Ask) -> FeedbackRecord:
    """Rate a completed task of yours, once."""
    agent = visible_agent(ask)
    body: Rating = ask.body
    trust = ask.gateway.trust
    # What ended a moment ago may not have been looked at yet.
    await trust.digest()
    task = reference(body.task_id, body.task_number)
    with one_task(body.task_id):
        await trust.rate(agent.id, task, ask.principal, body.rating, body.comment)
    if is_operator(ask):
        # An operator that moves a score leaves a trace outside the file with the scores.
        note(ask, "trust.rate", f"{body.task_id} {agent.id}", str(body.rating))
    return FeedbackRecord(body.task_id, trust.score(agent.id))


@ENDPOINTS.add(
    "POST",
    "/api/v1/trust/{id}/dispute",
    scope="*",
    status=201,
    body=Dispute,
    errors=(*_MISSING, "CONFLICT"),
)
async def dispute_task(ask: Ask) -> FeedbackRecord:
    """Say that a task of yours was not done."""
    agent = visible_agent(ask)
    body: Dispute = ask.body
    trust = ask.gateway.trust
    await trust.digest()
    task = reference(body.task_id, body.task_number)
    with one_task(body.task_id):
        number = await trust.dispute(agent.id, task, ask.principal, body.reason)
    note(ask, "trust.dispute", f"{TaskReference(body.task_id, number)} {agent.id}")
    return FeedbackRecord(body.task_id, trust.score(agent.id))
