"""What a task cost: its receipt, and how its two sides settle it."""

import msgspec

from dragoman.gateway.api.asking import (
    NumberQuery,
    is_operator,
    note,
    one_task,
    reference,
    task_id_of,
)
from dragoman.gateway.api.record import credit, escrow_of
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.task_reference import TaskReference
from dragoman.model.errand import Escrow
from dragoman.model.money import credits_text
from dragoman.stores.sqlite.errands import ErrandRow


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
    with one_task(task_id):
        signed = await ask.gateway.ledger.receipt(
            reference(task_id, ask.query.number),
            owner=ask.principal,
            is_operator=is_operator(ask),
        )
    return Receipt(task_id, signed)


async def _accept(ask: Ask) -> AcceptRecord:
    task_id = task_id_of(ask)
    with one_task(task_id):
        task = reference(task_id, ask.query.number)
        errand = await ask.gateway.ledger.accept(task, owner=ask.principal)
    note(ask, "ledger.accept", _named(errand), credits_text(errand.charged))
    return AcceptRecord(task_id, credit(errand.charged), escrow_of(errand.escrow))


async def _refund(ask: Ask) -> RefundRecord:
    task_id = task_id_of(ask)
    with one_task(task_id):
        errand = await ask.gateway.ledger.refund(
            reference(task_id, ask.query.number),
            owner=ask.principal,
            is_operator=is_operator(ask),
        )
    # What is given back out of an escrow was never taken.
    amount = errand.charged or errand.price
    note(ask, "ledger.refund", _named(errand), credits_text(amount))
    return RefundRecord(task_id, credit(amount))


def _named(errand: ErrandRow) -> str:
    return f"{TaskReference(errand.task_id, errand.task)} {errand.agent}"


ENDPOINTS = [
    Endpoint(
        verb="GET",
        path="/api/v1/tasks/{id}/receipt",
        scope="tasks:read",
        name="get_receipt",
        summary="Read the signed receipt of a task that has ended",
        answer=_receipt,
        query=NumberQuery,
        reply=Receipt,
        errors=("TASK_NOT_FOUND", "CONFLICT"),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/tasks/{id}/accept",
        scope="billing",
        name="accept_task",
        summary="Pay for a completed task of one's own that is in escrow",
        answer=_accept,
        query=NumberQuery,
        reply=AcceptRecord,
        errors=("TASK_NOT_FOUND", "CONFLICT"),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/tasks/{id}/refund",
        scope="billing",
        name="refund_task",
        summary="Give back what a task brought in, once",
        answer=_refund,
        query=NumberQuery,
        reply=RefundRecord,
        errors=("TASK_NOT_FOUND", "CONFLICT", "INSUFFICIENT_CREDITS"),
    ),
]
