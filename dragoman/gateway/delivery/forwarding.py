"""The gateway's code as the engine sees it: an agent whose work is done by other agents."""

import asyncio
from collections.abc import Sequence
from functools import partial

from dragoman.engine.running.replay import Replay
from dragoman.engine.running.turn_ends import Ended
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import NoAgentAvailable
from dragoman.gateway.delivery.agent_call import cancel_at_agent
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.delivery import Delivery
from dragoman.gateway.delivery.race import Race
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.routing import hop_limit, routing_options
from dragoman.gateway.routing.routing_options import RoutingOptions
from dragoman.model.artifact import Artifact
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Part
from dragoman.model.operations import SendMessage, StreamMessage
from dragoman.model.order import Order

NAME = "gateway"
# The gateway's own skill.
DISCOVERY = "agent-discovery"
# Seconds: the outcome of a task that is given less time says nothing about its agent.
_LEAST_TIME = 1.0


class Forwarding:
    """An agent whose code is another agent."""

    name = NAME
    streaming = True
    required_extensions: frozenset[str] = frozenset()
    is_scoped = False

    def __init__(self, context: DeliveryContext, clock: Clock | None = None) -> None:
        self._context = context
        self._router = context.router
        self._clock = clock or SystemClock()

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Every caller that the gateway accepts may send tasks."""

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Choose the agents. A further message goes to the agent that got the first one."""
        if is_answer or began is not None:
            return Plan(self._recover)
        arrival = hop_limit.arrive(operation.metadata, self._context.gateway_id)
        options = routing_options.read(operation)
        if options.skill == DISCOVERY and not options.agent:
            return Plan(self._discover)
        chosen = self._router.choose(operation, options, caller.principal)
        if not chosen.agents:
            raise NoAgentAvailable("No agent available")
        now = self._clock.now()
        ends = routing_options.deadline(options, arrival, now)
        rivals = chosen.agents[: options.race]
        best = rivals[0]
        seconds = None if ends is None else max(0.001, (ends - now) / 1000)
        is_hurried = seconds is not None and seconds < _LEAST_TIME
        order = Order(
            agent=best.id,
            payee=best.owner,
            held=best.price if options.race == 1 else max(agent.price for agent in rivals),
            price=best.price,
            skill=chosen.skill or options.skill,
            due_at=ends or 0,
            cause="hurried" if is_hurried else "",
        )
        return Plan(
            partial(
                self._deliver,
                chosen=[agent.id for agent in chosen.agents],
                options=options,
                why=chosen.why,
                is_ours=not operation.message.task_id,
                is_in_conversation=bool(operation.message.context_id),
            ),
            deadline=seconds,
            tasks=len(rivals),
            order=order,
            may_begin_early=seconds is None and self._may_begin_early(operation, best, options),
        )

    def _may_begin_early(
        self, operation: SendMessage, agent: Registered, options: RoutingOptions
    ) -> bool:
        """Say whether a task without a deadline may be sent before it is on disk: no money is held
        for it, its caller waits, and the same message given to another process, or sent again after
        a crash of this one, goes to the same address and leads to the same task there. (A deadline
        counts from now: the same message again would have another.)"""
        upstream = self._context.upstreams.of(agent)
        return (
            bool(options.agent)
            and options.race == 1
            and operation.wait
            and not isinstance(operation, StreamMessage)
            and self._context.settings.engine.idempotency
            and not agent.price
            and not agent.replicas
            # Sent again it could find another context of the agent.
            and not operation.message.context_id
            # Sent again it could go to the other version.
            and not self._router.canaries.has(agent.id)
            and upstream.works_once(upstream.urls[0])
        )

    async def _recover(self, worker: Worker) -> None:
        """Deliver a further message, or a message of a task that another worker began."""
        options = routing_options.read(worker.replay.began)
        chosen: Sequence[str] = []
        why = ""
        if worker.replay.forwarded is None:
            # The other worker sent nothing.
            found = self._router.choose(worker.replay.began, options, worker.caller.principal)
            chosen, why = await self._within_order(worker, found.agents), found.why
        # The recorded message has a context in any case, whether its caller named one or not.
        await self._deliver(worker, chosen, options, why, is_ours=False, is_in_conversation=True)

    async def _deliver(
        self,
        worker: Worker,
        chosen: Sequence[str],
        options: RoutingOptions,
        why: str,
        *,
        is_ours: bool,
        is_in_conversation: bool,
    ) -> None:
        context = self._context
        if options.race > 1 and worker.replay.turn == 0:
            await Race(context, worker, chosen, options, is_ours=is_ours).run()
            return
        if chosen and self._router.canaries.has(chosen[0]) and worker.replay.forwarded is None:
            task_id, requester = worker.log.task_id, worker.caller.principal
            canary = self._router.canary(chosen[0], options.skill, task_id, requester)
            # The order stays the agent's, whichever version does the work.
            chosen = [canary, *chosen] if canary else chosen
        delivery = Delivery(
            context,
            worker,
            chosen,
            why,
            is_ours=is_ours,
            is_in_conversation=is_in_conversation,
        )
        try:
            await delivery.deliver()
        except (asyncio.CancelledError, Ended):
            # Also of a task that reached a limit: its agent would work on for nothing.
            if worker.is_cancelled or worker.log.is_over:
                context.spawn(delivery.cancel())
            raise
        finally:
            self._router.ended()

    async def _within_order(self, worker: Worker, agents: Sequence[Registered]) -> list[str]:
        """Return the agents that may do a task for which money is held already: the ordered agent
        first, then others that cost no more. The agent that does it is the one that is paid."""
        order = await self._router.order(worker.log.number)
        if order is None:
            return [agent.id for agent in agents]
        fitting = [one for one in agents if one.id == order.agent or one.price <= order.held]
        if not fitting:
            raise NoAgentAvailable("No agent available")
        fitting.sort(key=lambda agent: agent.id != order.agent)
        best = fitting[0]
        if best.id != order.agent:
            worker.log.order = Order(
                agent=best.id, payee=best.owner, price=best.price, held=best.price
            )
        return [agent.id for agent in fitting]

    def withdraw(self, replay: Replay) -> None:
        """Cancel a task at its agent that no worker of ours delivers any more."""
        at = replay.forwarded
        if at is not None and at.task_id:
            self._context.spawn(cancel_at_agent(self._context, at.agent, at.url, at.task_id))

    async def _discover(self, worker: Worker) -> None:
        """Answer which agents could do what a message says: the gateway's own skill."""
        found = self._router.find(worker.message.text, worker.caller)
        artifact = Artifact(
            artifact_id=worker.artifact_id(), parts=[Part(data=found)], name="agents"
        )
        worker.artifact(artifact)
