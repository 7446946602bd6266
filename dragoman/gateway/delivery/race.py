"""Several agents on one repeatable task: the first answer counts, or the first on which agents of
enough owners agree. Nothing of an answer is shown before it has won; the other agents are canceled,
and only the winner is paid.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.streams.life_signs import Silence
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.config import Settings
from dragoman.engine.log import TaskLog
from dragoman.engine.running.relaying import record_forwarded, record_relayed
from dragoman.engine.running.turn_ends import TaskEnded
from dragoman.engine.running.worker import Worker
from dragoman.errors import InvalidAgentResponse, InvalidParams, TaskFailed
from dragoman.gateway.delivery.agent_call import AgentCall, cancel_at_agent, counted_for_caller
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.outgoing import outgoing
from dragoman.gateway.delivery.remote_ids import message_id_of, remote_message
from dragoman.gateway.registry.registered import Registered, voter
from dragoman.gateway.routing.routing_options import RoutingOptions
from dragoman.model.events import Forwarded
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.order import Order
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.shares import NARROW_EVENTS, SLICE

logger = logging.getLogger("dragoman")

# Bytes of an answer that are held in memory, because none is shown before it has won.
_MOST_HELD = 16 * 1024 * 1024


class _Rival:
    """One agent that works on the task."""

    def __init__(self, agent: Registered, *, is_ours: bool) -> None:
        self.agent = agent
        self.forwarded = Forwarded(agent.id, "", is_ours=is_ours)
        # Known as soon as the agent names it.
        self.task_id = ""
        self.answer: Task | None = None
        # What of the answer was read leniently.
        self.lenient: list[str] = []

    @property
    def vote(self) -> bytes:
        """The content of the answer, which agents agree on."""
        assert self.answer is not None, "only agents that answered vote"
        contents = [artifact.parts for artifact in self.answer.artifacts]
        message = self.answer.status.message
        if message is not None and not contents:
            contents = [message.parts]
        return hashlib.sha256(encode(contents)).digest()


class _TooMuch(Exception):
    """An answer is too long. Not an `A2AError`, after which the stream would be read on."""


class _UnshownAnswer:
    """Limits what is held in memory of an answer until it has won."""

    def __init__(self, log: TaskLog, settings: Settings) -> None:
        self._log = log
        self._most_bytes = min(settings.engine.max_task_bytes, _MOST_HELD)
        self._most_events = settings.engine.max_events
        self._bytes = self._events = 0

    async def add(self, event: Shown) -> None:
        """Count an event, and wait for a turn; raises `_TooMuch` for too many."""
        self._count(len(encode(event)))
        if self._events % NARROW_EVENTS == 0:
            await self._turn()

    async def take_idle_turn(self) -> None:
        """Count data without events, and wait for a turn; raises `_TooMuch`."""
        self._count(0)
        await self._turn()
        # A turn may come at once.
        await asyncio.sleep(0)

    def _count(self, size: int) -> None:
        self._events += 1
        self._bytes += size
        if self._events > self._most_events or self._bytes > self._most_bytes:
            raise _TooMuch(
                f"the answer has more than {self._most_events:,} events or "
                f"{self._most_bytes:,} bytes"
            )

    async def _turn(self) -> None:
        self._log.shares.use(self._log.account, SLICE)
        await self._log.shares.turn(self._log.account, self._log.agent)


class Race:
    """A task that several agents do at the same time."""

    def __init__(
        self,
        context: DeliveryContext,
        worker: Worker,
        chosen: Sequence[str],
        options: RoutingOptions,
        *,
        is_ours: bool = False,
    ) -> None:
        """`chosen` are the ids of agents that may do the task, best first. `is_ours`: the gateway
        made the task's id, and not its caller."""
        self._context = context
        self._worker = worker
        self._options = options
        self._requester = worker.caller.principal
        found = [agent for name in chosen if (agent := context.router.get(name)) is not None]
        # Held is the price of the dearest of them: a substitute for an agent with an open circuit
        # costs no more.
        first = found[: options.race]
        most = max((agent.price for agent in first), default=0)
        fit = [one for one in found if one in first or (self._may(one) and one.price <= most)]
        callable_ = [one for one in fit if not context.upstreams.of(one).is_open(self._requester)]
        self._rivals = [_Rival(agent, is_ours=is_ours) for agent in callable_[: options.race]]

    def _may(self, agent: Registered) -> bool:
        return agent.is_repeatable(self._options.skill)

    async def run(self) -> None:
        """Have the task done, and record the answer that won."""
        worker, quorum = self._worker, self._options.quorum
        for rival in self._rivals:
            if not self._may(rival.agent):
                raise InvalidParams(
                    f"{rival.agent.name} is not registered as safe to repeat",
                    field="metadata.race",
                )
        voters = {voter(rival.agent, self._requester) for rival in self._rivals}
        if len(voters) < quorum:
            raise TaskFailed(f"Only agents of {len(voters)} owners can do the task at present.")
        await worker.log.durable(worker.log.seq)
        running = {
            asyncio.get_running_loop().create_task(self._answer(rival)): rival
            for rival in self._rivals
        }
        winner: _Rival | None = None
        try:
            waiting = set(running)
            while waiting and winner is None:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._note_end(running[task], task)
                winner = self._winner()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for rival in self._rivals:
                if rival is not winner and rival.answer is None:
                    cancel = cancel_at_agent(
                        self._context, rival.agent.id, rival.forwarded.url, rival.task_id
                    )
                    self._context.spawn(cancel)
        if winner is None or winner.answer is None:
            raise TaskFailed(f"No {quorum} of the agents gave the same answer.")
        self._record(winner, winner.answer)

    def _note_end(self, rival: _Rival, task: asyncio.Task[Task]) -> None:
        error = task.exception()
        if error is None:
            rival.answer = task.result()
            return
        logger.info("task %s: %s: %s", self._worker.log.task_id, rival.agent.name, error)

    def _winner(self) -> _Rival | None:
        votes: dict[bytes, dict[str, _Rival]] = {}
        for rival in self._rivals:
            answer = rival.answer
            if answer is None or answer.status.state is not TaskState.COMPLETED:
                continue
            agreeing = votes.setdefault(rival.vote, {})
            agreeing.setdefault(voter(rival.agent, self._requester), rival)
            if len(agreeing) >= self._options.quorum:
                return next(iter(agreeing.values()))
        return None

    async def _answer(self, rival: _Rival) -> Task:
        """Return what an agent answers."""
        upstream = self._context.upstreams.of(rival.agent)
        url = upstream.next_url(self._requester)
        rival.forwarded = msgspec.structs.replace(rival.forwarded, url=url)
        async with AgentCall(self._context, upstream, url, self._requester) as call:
            found = await self._exchange(rival, await call.connection(self._worker))
            call.succeeded()
            return found

    async def _exchange(self, rival: _Rival, connection: AgentConnection) -> Task:
        context, worker, url = self._context, self._worker, rival.forwarded.url
        message_id = message_id_of(context, worker, rival.agent.id)
        message = remote_message(
            context, worker, rival.agent, connection, rival.forwarded, message_id
        )
        operation = outgoing(worker, message, context.gateway_id, connection)
        settings, log = context.settings, worker.log
        # An agent that has begun may take its time, as long as it shows signs of life.
        silence = Silence(
            ask_after=settings.gateway.forward_quiet,
            most=settings.gateway.forward_patience,
            begin=settings.gateway.forward_patience,
        )
        unshown = _UnshownAnswer(log, settings)
        opened = Stream(connection, operation, silence=silence)
        opened.idle = unshown.take_idle_turn
        async with contextlib.aclosing(opened) as stream:
            try:
                with counted_for_caller(context, log, message_id, url):
                    async for event in stream:
                        rival.task_id = stream.task_id
                        await unshown.add(event)
            except _TooMuch as error:
                raise InvalidAgentResponse(str(error)) from None
            rival.lenient = sorted(stream.leniencies)
            if stream.task is not None:
                return stream.task
            # The agent answered with a message only.
            return Task(TaskId(""), ContextId(""), TaskStatus(TaskState.COMPLETED, stream.message))

    def _record(self, winner: _Rival, answer: Task) -> None:
        worker, agent = self._worker, winner.agent
        worker.log.order = Order(
            agent=agent.id, payee=agent.owner, price=agent.price, held=agent.price
        )
        forwarded = Forwarded(
            agent.id,
            winner.forwarded.url,
            task_id=answer.id,
            context_id=answer.context_id,
            is_delivered=True,
            lenient=winner.lenient,
        )
        record_forwarded(worker, forwarded)
        for artifact in answer.artifacts:
            worker.artifact(artifact)
        record_relayed(worker, answer.status)
        raise TaskEnded
