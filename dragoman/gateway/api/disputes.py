"""Disputes, for operators: what requesters say was not done, and decisions on it.

Without authentication all callers are the local user, who is the operator.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import PermissionDenied
from dragoman.gateway.api.asking import (
    NumberQuery,
    PagedByTask,
    is_operator,
    note,
    one_task,
    page_of,
    reference,
    task_id_of,
)
from dragoman.gateway.api.envelope import ApiRefused
from dragoman.gateway.api.record import escrow_of
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.gateway.trust.observations import LONGEST_COMMENT, NoOpenDispute
from dragoman.model.clock import stamp
from dragoman.model.identity import LOCAL, OPERATOR
from dragoman.model.order import Escrow
from dragoman.security.audit.log import DENIED
from dragoman.stores.interface.trust import DisputeRow

ENDPOINTS = EndpointTable()

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
    """A page of open disputes, the oldest first."""

    disputes: list[DisputeRecord]
    total: int
    limit: int
    # What to send as `after` for the next page; left out: there is none.
    next: int | UnsetType = UNSET


class Resolution(msgspec.Struct, frozen=True):
    """What is decided: upheld, the task was not done; rejected, it was."""

    outcome: Decision
    note: Annotated[str, Meta(max_length=LONGEST_COMMENT)] = ""


class DecisionRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was decided, and where the price of the task is now if it went through an escrow."""

    task_id: str
    task_number: int
    outcome: Decision
    escrow: Escrow | UnsetType = UNSET


def _check(ask: Ask, act: str) -> None:
    if not (is_operator(ask) or ask.principal == LOCAL):
        note(ask, "access.denied", act, "not an operator", DENIED)
        raise PermissionDenied(scope=OPERATOR)


@ENDPOINTS.add("GET", "/api/v1/disputes", query=PagedByTask)
async def list_disputes(ask: Ask) -> Disputes:
    """Read open disputes, as an operator."""
    _check(ask, "list_disputes")
    query: PagedByTask = ask.query
    found, total = await ask.gateway.trust.store.disputes(limit=query.limit + 1, after=query.after)
    shown, following = page_of(found, query.limit, lambda one: one.task)
    return Disputes([_record(ask, one) for one in shown], total, query.limit, following)


def _record(ask: Ask, one: DisputeRow) -> DisputeRecord:
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


@ENDPOINTS.add(
    "POST",
    "/api/v1/disputes/{id}/resolve",
    query=NumberQuery,
    body=Resolution,
    errors=("NOT_FOUND", "CONFLICT"),
)
async def resolve_dispute(ask: Ask) -> DecisionRecord:
    """Decide on the dispute about a task, as an operator; an escrow moves with it."""
    _check(ask, "resolve_dispute")
    body: Resolution = ask.body
    task_id = task_id_of(ask)
    task = reference(task_id, ask.query.number)
    is_upheld = body.outcome == "upheld"
    with one_task(task_id):
        try:
            number = await ask.gateway.trust.resolve(task, is_upheld=is_upheld, note=body.note)
        except NoOpenDispute:
            raise ApiRefused("NOT_FOUND", "No open dispute is about this task") from None
    note(ask, "trust.resolve", str(TaskReference(task_id, number)), body.outcome)
    order = await ask.gateway.ledger.store.order(number)
    escrow = escrow_of(order.escrow if order is not None else "")
    return DecisionRecord(task_id, number, body.outcome, escrow)
