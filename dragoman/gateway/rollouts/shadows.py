"""Shadows: copies of tasks that go to a new version of an agent, and checks of answers.

A shadow is a task of an agent of the gateway's own, as runs of workflows are: it is recorded before
it begins, goes on after a crash, and has limits and a deadline. It has no order, so nothing of it
reaches a ledger or an agent's reputation, and no receivers. It is in a scope of its own: no caller
sees it. Only `rollouts.py` begins shadows.
"""

import asyncio

from dragoman.engine.running.replay import Replay
from dragoman.engine.running.turn_ends import Ended
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import InvalidParams
from dragoman.gateway.delivery.agent_call import cancel_at_agent
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.delivery import Delivery
from dragoman.gateway.routing import routing_options
from dragoman.model import operations as ops
from dragoman.model.identity import ANONYMOUS, Caller


class Shadows:
    """The code that gives copies of tasks to one agent, as the engine sees it."""

    # No agent of an author has a dot in its name.
    name = "gateway.rollouts"
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def __init__(self, context: DeliveryContext) -> None:
        self._context = context

    def admit(
        self, caller: Caller, operation: ops.SendMessage, began: ops.SendMessage | None = None
    ) -> None:
        """Admit every shadow: only `Rollouts` begins them."""

    def withdraw(self, replay: Replay) -> None:
        """Cancel a shadow at its agent that no worker of ours delivers any more."""
        at = replay.forwarded
        if at is not None and at.task_id:
            self._context.spawn(cancel_at_agent(self._context, at.agent, at.url, at.task_id))

    def plan(
        self,
        operation: ops.SendMessage,
        began: ops.SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Send it to the one agent that it names, without an order."""
        options = routing_options.read(began or operation)
        if not options.agent:
            raise InvalidParams("names no agent", field="metadata.agentId")

        async def run(worker: Worker) -> None:
            delivery = Delivery(self._context, worker, [options.agent])
            try:
                await delivery.deliver()
            except (asyncio.CancelledError, Ended):
                if worker.is_cancelled or worker.log.is_over:
                    self._context.spawn(delivery.cancel())
                raise

        return Plan(run, deadline=options.timeout)
