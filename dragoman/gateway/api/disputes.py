"""Disputes, for whoever runs the gateway: what requesters say was not done, and decisions on it.

Where callers are not asked who they are, all of them are the local user, who runs it.
"""

from typing import Annotated, Literal

import apsw
import msgspec
from msgspec import Meta

from dragoman.errors import PermissionDenied
from dragoman.gateway.api.asking import (
    NumberQuery,
    Paged,
    is_operator,
    note,
    one_task,
    reference,
    task_id_of,
)
from dragoman.gateway.api.envelope import Refused
from dragoman.gateway.api.record import escrow_of
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.ratings import LONGEST_COMMENT, NoOpenDispute
from dragoman.gateway.task_reference import TaskReference
from dragoman.model.errand import Escrow
from dragoman.model.identity import LOCAL, OPERATOR
from dragoman.model.instant import stamp
from dragoman.security.audit import DENIED
from dragoman.stores.sqlite import outcomes
from dragoman.stores.sqlite.errands import errand_of

Decision = Literal["upheld", "rejected"]


class DisputeRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A task that is disputed. An agent without a name is registered no more."""

    task_id: str
    task_number: int
    agent_id: str
    agent_name: str
    requester: str
    reason: str
    opened_at: str


class Disputes(msgspec.Struct, frozen=True):
    """A page of disputes that nobody decided on, the oldest first."""

    disputes: list[DisputeRecord]
    total: int
    limit: int
    offset: int


class Resolution(msgspec.Struct, frozen=True):
    """What is decided: upheld, the task was not done; rejected, it was."""

    outcome: Decision
    note: Annotated[str, Meta(max_length=LONGEST_COMMENT)] = ""


class Resolved(msgspec.Struct, frozen=True, rename="camel"):
    """What was decided, and where the price of the task is now if it went through an escrow."""

    task_id: str
    task_number: int
    outcome: Decision
    escrow: Escrow | msgspec.UnsetType = msgspec.UNSET


def _check(ask: Ask, act: str) -> None:
    if not (is_operator(ask) or ask.principal == LOCAL):
        note(ask, "access.denied", act, "not an operator", DENIED)
        raise PermissionDenied(scope=OPERATOR)


async def _list(ask: Ask) -> Disputes:
    _check(ask, "list_disputes")
    query: Paged = ask.query

    def read(connection: apsw.Connection) -> tuple[list[outcomes.Dispute], int]:
        found = outcomes.disputes(connection, query.limit, query.offset)
        return found, len(outcomes.open_disputes(connection))

    found, total = await ask.gateway.store.look(read)
    return Disputes([_record(ask, one) for one in found], total, query.limit, query.offset)


def _record(ask: Ask, one: outcomes.Dispute) -> DisputeRecord:
    agent = ask.gateway.registry.get(one.agent)
    return DisputeRecord(
        task_id=one.task_id,
        task_number=one.task,
        agent_id=one.agent,
        agent_name=agent.name if agent is not None else "",
        requester=one.requester,
        reason=one.reason,
        opened_at=stamp(one.opened_at * 1000),
    )


async def _resolve(ask: Ask) -> Resolved:
    _check(ask, "resolve_dispute")
    body: Resolution = ask.body
    task_id = task_id_of(ask)
    meant = reference(task_id, ask.query.number)
    is_upheld = body.outcome == "upheld"
    with one_task(task_id):
        try:
            number = await ask.gateway.trust.resolve(meant, is_upheld=is_upheld, note=body.note)
        except NoOpenDispute:
            raise Refused("NOT_FOUND", "No open dispute is about this task") from None
    note(ask, "trust.resolve", str(TaskReference(task_id, number)), body.outcome)
    errand = await ask.gateway.store.look(lambda connection: errand_of(connection, number))
    escrow = escrow_of(errand.escrow if errand is not None else "")
    return Resolved(task_id, number, body.outcome, escrow)


ENDPOINTS = [
    Endpoint(
        verb="GET",
        path="/api/v1/disputes",
        name="list_disputes",
        summary="Read disputes that nobody decided on, as an operator",
        answer=_list,
        query=Paged,
        reply=Disputes,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/disputes/{id}/resolve",
        name="resolve_dispute",
        summary="Decide on the dispute about a task, as an operator; an escrow moves with it",
        answer=_resolve,
        query=NumberQuery,
        body=Resolution,
        reply=Resolved,
        errors=("NOT_FOUND", "CONFLICT"),
    ),
]
