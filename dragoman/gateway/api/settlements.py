"""What a task cost: its receipt, and how its two sides settle it."""

import msgspec

from dragoman.errors import TaskNotFound
from dragoman.gateway.api.asking import is_operator, missing_task, note, task_id_of
from dragoman.gateway.api.record import credit, escrow_of
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.model.errand import Escrow
from dragoman.model.money import credits_text


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """What a task cost and where it went, signed: a JWS whose key is in the gateway's JWKS."""

    task_id: str
    receipt: str


class AcceptRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was paid, and where the price is if it went through an escrow."""

    task_id: str
    amount: float
    escrow: Escrow | msgspec.UnsetType = msgspec.UNSET


class RefundRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was given back."""

    task_id: str
    amount: float


async def _receipt(ask: Ask) -> Receipt:
    task_id = task_id_of(ask)
    try:
        signed = await ask.gateway.ledger.receipt(
            task_id, owner=ask.owner, is_operator=is_operator(ask)
        )
    except TaskNotFound:
        raise missing_task(task_id) from None
    return Receipt(task_id, signed)


async def _accept(ask: Ask) -> AcceptRecord:
    task_id = task_id_of(ask)
    try:
        errand = await ask.gateway.ledger.accept(task_id, owner=ask.owner)
    except TaskNotFound:
        raise missing_task(task_id) from None
    note(ask, "ledger.accept", f"{task_id} {errand.agent}", credits_text(errand.charged))
    return AcceptRecord(task_id, credit(errand.charged), escrow_of(errand.escrow))


async def _refund(ask: Ask) -> RefundRecord:
    task_id = task_id_of(ask)
    try:
        errand = await ask.gateway.ledger.refund(
            task_id, owner=ask.owner, is_operator=is_operator(ask)
        )
    except TaskNotFound:
        raise missing_task(task_id) from None
    # What is given back out of an escrow was never taken.
    amount = errand.charged or errand.price
    note(ask, "ledger.refund", f"{task_id} {errand.agent}", credits_text(amount))
    return RefundRecord(task_id, credit(amount))


ENDPOINTS = [
    Endpoint(
        verb="GET",
        path="/api/v1/tasks/{id}/receipt",
        scope="tasks:read",
        name="get_receipt",
        summary="Read the signed receipt of a task that has ended",
        answer=_receipt,
        reply=Receipt,
        errors=("TASK_NOT_FOUND",),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/tasks/{id}/accept",
        scope="billing",
        name="accept_task",
        summary="Pay for a completed task of one's own that is in escrow",
        answer=_accept,
        reply=AcceptRecord,
        errors=("TASK_NOT_FOUND",),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/tasks/{id}/refund",
        scope="billing",
        name="refund_task",
        summary="Give back what a task brought in, once",
        answer=_refund,
        reply=RefundRecord,
        errors=("TASK_NOT_FOUND", "INSUFFICIENT_CREDITS"),
    ),
]
