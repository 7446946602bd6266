"""Delivers one message of a task to an agent; `AnswerRelay` records what the agent answers.

The log is the truth. Which agent got the message and the agent's id of the task are in the log
(`Forwarded`) before anything depends on them. So the worker that continues after a crash knows what
may have been sent, and asks the agent for what is missing instead of sending the message again.
What may follow a failure is decided in `retries`; what is done about it is done here.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.streams.life_signs import LifeSigns, NoSignOfLife
from dragoman.client.streams.lost_messages import find_task
from dragoman.client.streams.stream import Polling, Stream
from dragoman.client.time_limit import TimeLimit
from dragoman.egress.targets import read_target
from dragoman.egress.tunnels import is_joined
from dragoman.engine.running.relaying import record_forwarded
from dragoman.engine.running.turn_ends import TaskWaits
from dragoman.engine.running.worker import Worker
from dragoman.errors import A2AError, AgentOffline, TaskFailed, TaskNotFound, TimedOut
from dragoman.gateway.delivery import failures, retries
from dragoman.gateway.delivery.agent_call import AgentCall, cancel_at_agent, counted_for_caller
from dragoman.gateway.delivery.answer_relay import AnswerRelay
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.outgoing import outgoing
from dragoman.gateway.delivery.remote_ids import (
    earlier_context,
    may_repeat,
    message_id_of,
    remote_message,
)
from dragoman.gateway.delivery.upstreams import Upstream
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.routing import routing_options
from dragoman.model import operations as ops
from dragoman.model.events import Forwarded
from dragoman.model.identity import TaskId
from dragoman.model.order import Order

logger = logging.getLogger("dragoman")

_UNKNOWN = (
    "Delivery unknown: the agent did not answer the message, and cannot tell it from a repetition. "
    "It may have done the work."
)
_UNKNOWN_AFTER_ERROR = (
    "Delivery unknown: the agent answered {code}, and cannot tell the message from a repetition. "
    "It may have done the work."
)
_UNANSWERED = (
    "Delivery unknown: the agent did not answer the message, however often it was sent. It may "
    "have done the work."
)
# Seconds for which a task that may be written once is not written.
_HOLD_BACK = 0.02
# Seconds that a whole answer is waited for before the task is streamed.
_QUICK = 0.5
# Seconds that no task takes: its deadline ends it.
_UNTIL_DEADLINE = 10 * 365 * 86_400.0


class Delivery:
    """One message on its way to an agent."""

    def __init__(
        self,
        context: DeliveryContext,
        worker: Worker,
        chosen: Sequence[str],
        why: str = "",
        *,
        is_ours: bool = False,
        is_in_conversation: bool = False,
    ) -> None:
        """`chosen` are the ids of agents that may do the task, best first. `is_ours`: the gateway
        made the task's id, and not its caller. `is_in_conversation`: earlier tasks of its context
        may be of the same conversation."""
        self._context = context
        self._worker = worker
        self._relay = AnswerRelay(context, worker)
        self._requester = worker.caller.principal
        self._is_ours = is_ours
        self._is_in_conversation = is_in_conversation
        self._why = why
        self._chosen = list(chosen)
        # The prices at the time of the choice: an agent that takes over does it for no more.
        self._prices = {agent_id: self._price(agent_id) for agent_id in chosen}
        self._tried: list[str] = []
        self._message_id = message_id_of(context, worker)

    async def deliver(self) -> None:
        """Deliver the message and relay the answer, until the task rests."""
        await self._pick_first_address()
        log = self._worker.log
        releasing: asyncio.TimerHandle | None = None
        if self._worker.plan.may_begin_early and log.durable_seq == 0:
            # The caller waits for the answer, and no money is held: the task is written once,
            # together with its answer, if that comes within a moment.
            log.is_held = True
            releasing = log.loop.call_later(_HOLD_BACK, log.release)
        else:
            # Nothing is sent before the task, and the money held for it, are on disk.
            await log.durable(log.seq)
        try:
            await self._attempt_until_answered()
        finally:
            if releasing is not None:
                releasing.cancel()
            if log.is_held:
                log.release()

    async def cancel(self) -> None:
        """Tell the agent that the task is canceled."""
        forwarded = self._relay.forwarded
        await cancel_at_agent(self._context, forwarded.agent, forwarded.url, forwarded.task_id)

    async def _attempt_until_answered(self) -> None:
        relay, log = self._relay, self._worker.log
        if relay.forwarded.task_id or relay.forwarded.begun:
            await relay.recollect()
        failed = 0
        since = time.monotonic()
        while True:
            relay.has_answered = False
            try:
                await self._attempt()
                return
            except (A2AError, TimeoutError) as error:
                problem = TimedOut() if isinstance(error, TimeoutError) else error
            relay.signs.release()
            if relay.has_answered:
                failed, since = 0, time.monotonic()
            # With an open circuit nothing was sent, so no attempt failed.
            failed += not isinstance(problem, AgentOffline)
            before = relay.forwarded
            # Without its query, which may be a secret.
            logger.info("task %s: %s: %s", log.task_id, before.url.partition("?")[0], problem)
            await self._recover(problem, failed, since)
            if not isinstance(problem, AgentOffline) and relay.forwarded is before:
                self._note_retry()
            # The next agent gets nothing before the money held for it is on disk.
            await log.durable(log.seq)

    # Where the message goes

    async def _pick_first_address(self) -> None:
        replay, relay = self._worker.replay, self._relay
        last = replay.forwarded
        if last is None:
            agent = self._agent(self._chosen[0])
            url, context_id = await self._first_place(agent)
            self._forward_to(
                agent.id,
                url,
                context_id=context_id,
                why=self._why,
                begun=[],
                continues=bool(context_id),
            )
        elif last.turn == replay.turn:
            if last.is_answered:
                raise TaskWaits
            relay.forwarded = last
            relay.is_uncertain = not last.is_delivered
        else:
            # The answer to a question goes to the agent that asked it.
            self._forward_to(
                last.agent,
                last.url,
                task_id=last.task_id,
                context_id=last.context_id,
                begun=last.begun if last.task_id else [],
                asks_plainly=last.asks_plainly,
            )

    async def _first_place(self, agent: Registered) -> tuple[str, str]:
        """Return the address for a new task, and the context there in which its conversation goes
        on; empty: a new one.

        A context is of one address: replicas may have stores of their own, and the same id there
        may be of another caller."""
        upstream = self._context.upstreams.of(agent)
        if self._is_in_conversation:
            earlier = await earlier_context(self._context.store, self._worker.log, agent.id)
            url = "" if earlier is None else upstream.reached_at(earlier.url)
            if earlier is not None and url and upstream.may_return_to(url, self._requester):
                return url, earlier.context_id
        return upstream.next_url(self._requester), ""

    def _forward_to(
        self,
        agent_id: str,
        url: str,
        *,
        task_id: str = "",
        context_id: str = "",
        why: str = "",
        begun: list[str],
        asks_plainly: bool = False,
        continues: bool = False,
    ) -> None:
        """Record where the message goes next."""
        worker, relay = self._worker, self._relay
        before = relay.forwarded
        moves = before.moves + 1 if before.agent else 0
        if before.agent and before.agent != agent_id:
            self._assign(agent_id)
        if moves:
            self._count_retry()
        relay.forwarded = Forwarded(
            agent_id,
            url,
            turn=worker.replay.turn,
            task_id=task_id,
            context_id=context_id,
            moves=moves,
            why=why,
            begun=begun,
            asks_plainly=asks_plainly,
            is_ours=before.is_ours if before.agent else self._is_ours,
            continues=continues,
        )
        if before.agent:
            relay.signs = LifeSigns()
        # The log and the metrics show it, and they have names instead of ids.
        agent = self._context.router.get(agent_id)
        worker.log.agent = worker.log.scope.agent if agent is None else agent.name
        record_forwarded(worker, relay.forwarded)

    def _start_over(self, agent_id: str, url: str, why: str = "") -> None:
        """Have the work done from the beginning; what was made of it so far is replaced."""
        self._forward_to(agent_id, url, why=why, begun=self._relay.start_over())

    def _note_retry(self) -> None:
        """Record that the message is sent again to the same address."""
        if not self._relay.forwarded.is_delivered:
            self._count_retry()
            record_forwarded(self._worker, self._relay.forwarded)

    def _count_retry(self) -> None:
        log = self._worker.log
        order = log.order or Order()
        log.order = msgspec.structs.replace(order, retries=order.retries + 1)

    def _assign(self, agent_id: str) -> None:
        """Have another agent paid for the task."""
        agent = self._context.router.get(agent_id)
        if agent is not None:
            log = self._worker.log
            # Retries that were not written yet count on.
            retried = log.order.retries if log.order is not None else 0
            log.order = Order(
                agent=agent.id,
                payee=agent.owner,
                price=agent.price,
                held=agent.price,
                retries=retried,
            )

    def _price(self, agent_id: str) -> int:
        agent = self._context.router.get(agent_id)
        return 0 if agent is None else agent.price

    def _agent(self, agent_id: str = "") -> Registered:
        """Return an agent, or the one that has the message; raises `TaskFailed` if it is gone."""
        agent = self._context.router.get(agent_id or self._relay.forwarded.agent)
        if agent is None:
            raise TaskFailed("The agent is not registered any more.")
        return agent

    def _is_repeatable(self, agent: Registered) -> bool:
        """Tell whether an agent may do the task twice, as its owner declared."""
        if not agent.repeatable_skills:
            return agent.repeatable
        return agent.is_repeatable(routing_options.read(self._worker.replay.began).skill)

    # One attempt

    async def _attempt(self) -> None:
        """Have one agent do the task, until it rests or the call fails."""
        context, relay = self._context, self._relay
        agent = self._agent()
        upstream = context.upstreams.of(agent)
        url = upstream.reached_at(relay.forwarded.url)
        if not url:
            self._leave_address(agent, upstream)
            url = upstream.reached_at(relay.forwarded.url)
        # The wait for a slot of ours is not the agent's silence.
        relay.signs.hold()
        async with AgentCall(context, upstream, url, self._requester, self._until()) as call:
            relay.signs.release()
            relay.on_answer = call.succeeded
            connection = await call.connection(self._worker)
            with counted_for_caller(context, self._worker.log, self._message_id, url):
                await self._exchange(connection, agent)

    def _leave_address(self, agent: Registered, upstream: Upstream) -> None:
        """Go to an address that the agent has: its owner removed the one that the task went to.
        Raises `TaskFailed` if that one may have the task, and the work must not be done twice."""
        relay = self._relay
        may_have_it = relay.forwarded.task_id or relay.forwarded.is_delivered or relay.is_uncertain
        if may_have_it and (not self._is_repeatable(agent) or self._worker.replay.turn):
            relay.note_cause("lost")
            raise TaskFailed("The agent is no longer at the address where it has the task.")
        self._start_over(agent.id, upstream.next_url(self._requester))

    async def _exchange(self, connection: AgentConnection, agent: Registered) -> None:
        """Send the message, and relay the answer."""
        relay, log = self._relay, self._worker.log
        is_followed = isinstance(self._worker.operation, ops.StreamMessage)
        if connection.works_once and not is_followed and not relay.forwarded.is_delivered:
            await self._try_one_request(connection, agent)
        with self._context.push_inbox.expecting(log.scope, log.task_id) as pause:
            opened = await self._open_stream(connection, agent, Polling(pause=pause))
            opened.idle = relay.take_idle_turn
            async with contextlib.aclosing(opened) as stream:
                await relay.read_stream(stream, connection)

    async def _try_one_request(self, connection: AgentConnection, agent: Registered) -> None:
        """Have a short task done in one request, at half the cost of a stream. Returns if it takes
        longer: the message is then sent again, to an agent that answers it with the same task."""
        operation = self._operation(connection, agent, wait=True)
        self._relay.is_uncertain = True
        try:
            with TimeLimit(_QUICK, self._worker.log.loop):
                reply = await connection.answer(operation, self._relay.note_leniency)
        except TimeoutError:
            return
        self._relay.read_reply(reply, connection)

    async def _open_stream(
        self, connection: AgentConnection, agent: Registered, polling: Polling
    ) -> Stream:
        """Return the agent's answer: to the message, or of the task that it has."""
        relay, settings = self._relay, self._context.settings
        repeats = may_repeat(connection)
        options: dict[str, Any] = {
            "patience": self._patience(agent) / 2,
            "polling": polling,
            "silence": retries.silence_limits(
                settings,
                repeatable=self._is_repeatable(agent),
                may_repeat=repeats,
                most=_UNTIL_DEADLINE if self._may_work_offline(agent) else None,
            ),
            "is_light": True,
        }
        operation = self._operation(connection, agent)
        if (
            relay.is_uncertain
            and not repeats
            and not await self._find_task(connection, operation)
            and not self._is_repeatable(agent)
        ):
            relay.note_cause("delivery-unknown")
            raise TaskFailed(_UNKNOWN)
        if relay.forwarded.is_delivered:
            followed = ops.SubscribeToTask(task_id=TaskId(relay.forwarded.task_id))
            begun = relay.replay_filter if relay.replay_filter.task_id else None
            return Stream(connection, followed, begun=begun, signs=relay.signs, **options)
        # From here on the message may have arrived.
        relay.is_uncertain = True
        relay.signs = LifeSigns()
        return Stream(connection, operation, signs=relay.signs, **options)

    def _operation(
        self, connection: AgentConnection, agent: Registered, *, wait: bool = False
    ) -> ops.SendMessage:
        message = remote_message(
            self._context,
            self._worker,
            agent,
            connection,
            self._relay.forwarded,
            self._message_id,
        )
        return outgoing(self._worker, message, self._context.gateway_id, connection, wait=wait)

    async def _find_task(self, connection: AgentConnection, operation: ops.SendMessage) -> bool:
        """Ask the agent whether it has the message, and by which task."""
        found = await find_task(connection, operation.message)
        if found:
            self._relay.learn(found, self._relay.forwarded.context_id)
        return bool(found)

    def _patience(self, agent: Registered) -> float:
        """Return for how many seconds an agent that has the task may be unreachable."""
        if self._relay.forwarded.is_delivered and self._may_work_offline(agent):
            return _UNTIL_DEADLINE
        has_other_address = False
        if self._is_repeatable(agent):
            upstream, here = self._context.upstreams.of(agent), self._relay.forwarded.url
            has_other_address = any(
                upstream.circuits.address(url).state == "closed"
                for url in upstream.urls
                if url != here
            )
        return retries.patience(
            self._context.settings,
            repeatable=self._is_repeatable(agent),
            has_other_address=has_other_address,
        )

    def _may_work_offline(self, agent: Registered) -> bool:
        """Tell whether an agent that has the task has until its deadline to deliver: one that dials
        out may lose its network, works on, and comes back by itself."""
        if self._is_repeatable(agent) or not self._worker.deadline:
            return False
        return is_joined(read_target(self._relay.forwarded.url).host)

    def _until(self) -> float | None:
        """Return when the task has to have ended, by the monotonic clock."""
        deadline = self._worker.deadline
        if not deadline:
            return None
        return time.monotonic() + max(0.0, deadline - self._worker.clock.now()) / 1000

    # After a failure

    async def _recover(self, problem: A2AError, failed: int, since: float) -> None:
        """Choose the next address and wait until it may be tried; raises how the task ends if there
        is none."""
        agent = self._agent()
        upstream = self._context.upstreams.of(agent)
        if self._relay.forwarded.is_delivered:
            await self._recover_task(agent, problem, failed, since)
            return
        if self._relay.forwarded.continues and retries.may_refuse_context(problem):
            self._leave_context()
            return
        works_once = await self._works_once(upstream)
        until = since + self._patience(agent)
        plan = retries.plan_retry(
            problem,
            failed,
            retries.Schedule(attempts=self._context.settings.gateway.forward_attempts),
            works_once=works_once,
            repeatable=self._is_repeatable(agent),
            patience_left=until - time.monotonic(),
        )
        if not plan.may_have_arrived:
            self._relay.is_uncertain = False
        if plan.wait is not None:
            if not plan.asks_only and plan.may_move and self._move_to_replica(upstream):
                return
            await self._pause(plan.wait)
            if not plan.asks_only and (
                isinstance(problem, AgentOffline) or await self._is_retry_granted(upstream, until)
            ):
                return
        if plan.may_move and self._move(problem):
            return
        if not plan.is_answer_lost:
            raise await self._failure(problem)
        # Asking for the task costs the agent a request, as a retry does.
        if upstream.budget.may_retry() and await self._is_found(upstream, agent):
            return
        self._relay.note_cause("delivery-unknown")
        if plan.asks_only and retries.is_answer(problem):
            raise TaskFailed(_UNKNOWN_AFTER_ERROR.format(code=problem.code))
        raise TaskFailed(_UNANSWERED if works_once else _UNKNOWN)

    def _leave_context(self) -> None:
        """Send the message once more, in a new context: the agent may have forgotten the one that
        it refused, and has begun nothing."""
        relay = self._relay
        relay.is_uncertain = False
        relay.forwarded = msgspec.structs.replace(relay.forwarded, context_id="", continues=False)
        record_forwarded(self._worker, relay.forwarded)

    async def _recover_task(
        self, agent: Registered, problem: A2AError, failed: int, since: float
    ) -> None:
        """Wait for an agent that has the task; once patience ends, give a repeatable task to
        another one."""
        patience = self._patience(agent)
        # The agent is away only since its last sign of life, whatever failed.
        is_late = time.monotonic() - since > patience and self._relay.signs.silence > patience
        is_late |= isinstance(problem, NoSignOfLife)
        is_retryable = retries.is_retryable(problem)
        if is_retryable and not is_late:
            await self._pause(min(retries.LONGEST_PAUSE, 0.25 * 2 ** min(failed, 10)))
            return
        is_lost = is_retryable or isinstance(problem, TaskNotFound)
        if not (self._is_repeatable(agent) and is_lost and self._move(problem)):
            raise await self._failure(problem)

    async def _works_once(self, upstream: Upstream) -> bool:
        try:
            return may_repeat(await upstream.connection(self._relay.forwarded.url))
        except A2AError:
            return False

    async def _is_found(self, upstream: Upstream, agent: Registered) -> bool:
        """Ask the agent for the task of a message whose answer was lost."""
        try:
            connection = await upstream.connection(self._relay.forwarded.url)
        except A2AError:
            return False
        operation = self._operation(connection, agent)
        try:
            async with asyncio.timeout(self._context.settings.gateway.forward_patience):
                return await self._find_task(connection, operation)
        except TimeoutError:
            return False

    async def _is_retry_granted(self, upstream: Upstream, until: float) -> bool:
        """Wait until the agent's retry budget allows a retry, as long as patience lasts."""
        while not upstream.budget.may_retry():
            left = until - time.monotonic()
            if left <= 0:
                return False
            await self._pause(min(left, upstream.budget.retry_in()))
        return True

    def _move_to_replica(self, upstream: Upstream) -> bool:
        """Go on at once with another address of the same agent, if one is worth trying."""
        forwarded = self._relay.forwarded
        url = upstream.next_url(self._requester, forwarded.url)
        if url == forwarded.url or upstream.circuits.is_open(url, self._requester):
            return False
        if forwarded.task_id:
            # Only the address that asked knows which question the message answers.
            return False
        self._forward_to(forwarded.agent, url, begun=forwarded.begun)
        return True

    def _move(self, problem: A2AError) -> bool:
        """Give the task to the same agent elsewhere, or to another one, if there is any."""
        context, worker = self._context, self._worker
        if worker.replay.turn:
            return False
        here = self._relay.forwarded
        agent = context.router.get(here.agent)
        self._tried.append(here.agent)
        if agent is not None:
            upstream = context.upstreams.of(agent)
            if self._tried.count(here.agent) < len(upstream.urls):
                self._start_over(here.agent, upstream.next_url(self._requester, here.url))
                return True
        price = self._prices.get(here.agent, agent.price if agent is not None else 0)
        others = [
            agent_id
            for agent_id in self._chosen
            if agent_id not in self._tried and self._price(agent_id) <= self._prices[agent_id]
        ]
        others += context.router.others(worker.replay.began, self._tried, price, self._requester)
        for agent_id in others:
            other = context.router.get(agent_id)
            if other is not None:
                why = f"{other.name}, after {here.agent} failed: {failures.words(problem)}"
                url = context.upstreams.of(other).next_url(self._requester)
                self._start_over(other.id, url, why)
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        until = self._until()
        if until is not None:
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        await asyncio.sleep(seconds)

    async def _failure(self, problem: A2AError) -> TaskFailed:
        """Return how the task ends."""
        end = failures.end_of(problem, may_know=self._worker.may_know)
        self._relay.note_cause(end.cause)
        agent = self._context.router.get(self._relay.forwarded.agent)
        if agent is None:
            return TaskFailed(end.sentence)
        return TaskFailed(await self._context.upstreams.of(agent).hidden(end.sentence))
