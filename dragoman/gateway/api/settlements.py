"""What a task cost: its receipt, and how its two sides settle it."""

from typing import Literal

import msgspec

from dragoman.gateway.api.asking import (
    NumberQuery,
    Paged,
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
from dragoman.model.instant import stamp
from dragoman.model.money import credits_text
from dragoman.stores.sqlite.errands import ErrandRow
from dragoman.stores.sqlite.escrow import DELIVERED

Side = Literal["requester", "payee", "operator"]


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """What a task cost and where it went, signed: a JWS whose key is in the gateway's JWKS."""

    task_id: str
    receipt: str


class AcceptRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was paid, and where the price is if it went through an escrow."""

    task_id: str
    amount: float
    escrow: Escrow | msgspec.UnsetType = msgspec.UNSET


class EscrowRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Where the price of a task is: null, it goes through no escrow. The side is the caller's: who
    asked for the task, who does it, or neither."""

    task_id: str
    task_number: int
    agent_id: str
    side: Side
    amount: float
    escrow: Escrow | None
    # Since when the task has ended; and when it is paid if nobody says anything.
    ended_at: str | None
    release_at: str | None


class Escrows(msgspec.Struct, frozen=True):
    """A page of completed tasks whose price is in escrow, the latest first."""

    escrows: list[EscrowRecord]
    total: int
    limit: int
    offset: int


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


async def _escrow(ask: Ask) -> EscrowRecord:
    task_id = task_id_of(ask)
    with one_task(task_id):
        task = reference(task_id, ask.query.number)
        errand = await ask.gateway.ledger.escrow(
            task, owner=ask.principal, is_operator=is_operator(ask)
        )
    return _kept(ask, errand)


async def _escrows(ask: Ask) -> Escrows:
    query: Paged = ask.query
    found, total = await ask.gateway.ledger.escrows(
        ask.principal, limit=query.limit, offset=query.offset
    )
    return Escrows([_kept(ask, errand) for errand in found], total, query.limit, query.offset)


def _kept(ask: Ask, errand: ErrandRow) -> EscrowRecord:
    sides = {errand.payee: "payee", errand.requester: "requester"}
    return EscrowRecord(
        task_id=errand.task_id,
        task_number=errand.task,
        agent_id=errand.agent,
        side=msgspec.convert(sides.get(ask.principal, "operator"), Side),
        amount=credit(errand.price),
        escrow=escrow_of(errand.escrow) or None,
        ended_at=stamp(errand.ended_at * 1000) if errand.ended_at else None,
        release_at=stamp(errand.release_at * 1000) if errand.escrow == DELIVERED else None,
    )


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
        verb="GET",
        path="/api/v1/tasks/{id}/escrow",
        scope="tasks:read",
        name="get_escrow",
        summary="Read where the price of a task is",
        answer=_escrow,
        query=NumberQuery,
        reply=EscrowRecord,
        errors=("TASK_NOT_FOUND", "CONFLICT"),
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/billing/escrow",
        scope="billing",
        name="list_escrows",
        summary="Read which completed tasks of one's own, asked for or done, are in escrow",
        answer=_escrows,
        query=Paged,
        reply=Escrows,
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
