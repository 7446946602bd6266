"""Adds to a task what it cost, for callers that named the most it may cost.

The ledger alone knows: a price is taken or put in escrow when the task is completed, and nothing is
taken from a requester whose own agent did the task.
"""

from collections.abc import AsyncGenerator

import msgspec

from dragoman.gateway.delivery.forwarding import NAME
from dragoman.gateway.money.ledger import Ledger
from dragoman.model import operations as ops
from dragoman.model.identity import Scope
from dragoman.model.money import COST, LIMITS, credits_text
from dragoman.model.record import TaskReading
from dragoman.model.task import TaskState
from dragoman.service import Batch, Call, Reply, Service, TaskReply

_LIMITS = tuple(f'"{name}"'.encode() for name in LIMITS)


class CostService:
    """A service whose completed tasks carry their cost."""

    def __init__(self, service: Service, ledger: Ledger) -> None:
        self._service = service
        self._ledger = ledger

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        reply = await self._service.answer(call)
        if not isinstance(call.operation, ops.GetTask) or not isinstance(reply, TaskReply):
            return reply
        if not any(name in reply.reading.body for name in _LIMITS):
            # Most callers name no limit: their tasks go out as they are on disk.
            return reply
        task = reply.reading.task
        if task.status.state is not TaskState.COMPLETED:
            return reply
        scope = Scope.of(NAME, call.operation.tenant, call.caller)
        order = await self._ledger.store.order_in(scope, task.id)
        cost = credits_text(0 if order is None else order.cost)
        shown = msgspec.structs.replace(task, metadata={**task.metadata, COST: cost})
        return msgspec.structs.replace(reply, reading=TaskReading(reply.reading.seq, shown))

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call: events are the agent's own."""
        return self._service.follow(call)
