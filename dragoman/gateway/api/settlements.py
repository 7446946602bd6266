"""What a task cost: its receipt, its escrow, and how its two sides settle it."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

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
from dragoman.gateway.api.record import credit, escrow_of
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.money.task_reference import TaskReference
from dragoman.model.clock import stamp
from dragoman.model.money import credits_text
from dragoman.model.order import DELIVERED, Escrow
from dragoman.stores.interface.orders import OrderRow

ENDPOINTS = EndpointTable()

Side = Literal["requester", "payee", "operator"]


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """What a task cost and where it went, signed: a JWS whose key is in the gateway's JWKS."""

    task_id: str
    receipt: str


class AcceptRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was paid, and where the price is if it went through an escrow."""

    task_id: str
    amount: float
    escrow: Escrow | UnsetType = UNSET


class EscrowRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Where the price of a task is; null: it goes through no escrow. The side is the caller's: the
    requester, the payee, or an operator that is neither."""

    task_id: str
    task_number: int
    agent_id: str
    side: Side
    amount: float
    escrow: Escrow | None
    # When the task ended; and when it is paid unless it is accepted or disputed before.
    ended_at: str | None
    release_at: str | None


class Escrows(msgspec.Struct, frozen=True):
    """A page of completed tasks whose price is in escrow, the latest first."""

    escrows: list[EscrowRecord]
    total: int
    limit: int
    # What to send as `after` for the next page; left out: there is none.
    next: int | UnsetType = UNSET


class RefundRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was given back."""

    task_id: str
    amount: float


@ENDPOINTS.add(
    "GET",
    "/api/v1/tasks/{id}/receipt",
    scope="tasks:read",
    query=NumberQuery,
    errors=("TASK_NOT_FOUND", "CONFLICT"),
)
async def get_receipt(ask: Ask) -> Receipt:
    """Read the signed receipt of a task that has ended."""
    task_id = task_id_of(ask)
    with one_task(task_id):
        signed = await ask.gateway.ledger.receipt(
            reference(task_id, ask.query.number),
            owner=ask.principal,
            is_operator=is_operator(ask),
        )
    return Receipt(task_id, signed)


@ENDPOINTS.add(
    "POST",
    "/api/v1/tasks/{id}/accept",
    scope="billing",
    query=NumberQuery,
    errors=("TASK_NOT_FOUND", "CONFLICT"),
)
async def accept_task(ask: Ask) -> AcceptRecord:
    """Pay for a completed task of yours that is in escrow."""
    task_id = task_id_of(ask)
    with one_task(task_id):
        task = reference(task_id, ask.query.number)
        order = await ask.gateway.ledger.accept(task, owner=ask.principal)
    note(ask, "ledger.accept", _audit_name(order), credits_text(order.charged))
    return AcceptRecord(task_id, credit(order.charged), escrow_of(order.escrow))


@ENDPOINTS.add(
    "GET",
    "/api/v1/tasks/{id}/escrow",
    scope="tasks:read",
    query=NumberQuery,
    errors=("TASK_NOT_FOUND", "CONFLICT"),
)
async def get_escrow(ask: Ask) -> EscrowRecord:
    """Read where the price of a task is."""
    task_id = task_id_of(ask)
    with one_task(task_id):
        task = reference(task_id, ask.query.number)
        order = await ask.gateway.ledger.escrow(
            task, owner=ask.principal, is_operator=is_operator(ask)
        )
    return _record(ask, order)


@ENDPOINTS.add("GET", "/api/v1/billing/escrow", scope="billing", query=PagedByTask)
async def list_escrows(ask: Ask) -> Escrows:
    """Read which completed tasks of yours, asked for or done, are in escrow."""
    query: PagedByTask = ask.query
    found, total = await ask.gateway.ledger.store.in_escrow(
        ask.principal, limit=query.limit + 1, after=query.after
    )
    shown, following = page_of(found, query.limit, lambda order: order.task)
    return Escrows([_record(ask, order) for order in shown], total, query.limit, following)


def _record(ask: Ask, order: OrderRow) -> EscrowRecord:
    sides = {order.payee: "payee", order.requester: "requester"}
    return EscrowRecord(
        task_id=order.task_id,
        task_number=order.task,
        agent_id=order.agent,
        side=msgspec.convert(sides.get(ask.principal, "operator"), Side),
        amount=credit(order.price),
        escrow=escrow_of(order.escrow) or None,
        ended_at=stamp(order.ended_at * 1000) if order.ended_at else None,
        release_at=stamp(order.release_at * 1000) if order.escrow == DELIVERED else None,
    )


@ENDPOINTS.add(
    "POST",
    "/api/v1/tasks/{id}/refund",
    scope="billing",
    query=NumberQuery,
    errors=("TASK_NOT_FOUND", "CONFLICT", "INSUFFICIENT_CREDITS"),
)
async def refund_task(ask: Ask) -> RefundRecord:
    """Give back what a task brought in, once."""
    task_id = task_id_of(ask)
    with one_task(task_id):
        order = await ask.gateway.ledger.refund(
            reference(task_id, ask.query.number),
            owner=ask.principal,
            is_operator=is_operator(ask),
        )
    # What is given back out of an escrow was never taken.
    amount = order.charged or order.price
    note(ask, "ledger.refund", _audit_name(order), credits_text(amount))
    return RefundRecord(task_id, credit(amount))


def _audit_name(order: OrderRow) -> str:
    return f"{TaskReference(order.task_id, order.task)} {order.agent}"
