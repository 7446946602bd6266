"""Several agents on one task, for tasks that may be done twice: the first answer counts, or the
first on which agents of enough owners agree. Nothing of an answer is shown before it has won; the
others are canceled, and only the winner is paid.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Sequence

import msgspec

from dragoman.client.life_signs import Silence
from dragoman.client.stream import Shown, Stream
from dragoman.config import Settings
from dragoman.dialects.house import Nexus
from dragoman.engine.log import TaskLog
from dragoman.engine.shares import NARROW_EVENTS, SLICE
from dragoman.engine.worker import TaskEnded, Worker
from dragoman.errors import (
    A2AError,
    AgentOffline,
    InvalidAgentResponse,
    InvalidParams,
    TaskFailed,
)
from dragoman.gateway.agents import Registered, voter
from dragoman.gateway.means import Means, note_failure, passing
from dragoman.gateway.naming import message_id_of, sent_id, task_id_of
from dragoman.gateway.outgoing import outgoing
from dragoman.gateway.relay import NOTE_WITHIN
from dragoman.gateway.upstreams import Upstream
from dragoman.gateway.wishes import Wishes
from dragoman.model import operations as ops
from dragoman.model.errand import Errand
from dragoman.model.events import Forwarded
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman")

# Bytes of an answer that are kept in memory, since none is shown before it has won.
_MOST_HELD = 16 * 1024 * 1024


class _Rival:
    """One agent at work on it."""

    def __init__(self, agent: Registered) -> None:
        self.agent = agent
        self.url = ""
        self.task_id = ""
        self.answer: Task | None = None
        # What of its answer was read for what it means.
        self.lenient: list[str] = []

    @property
    def vote(self) -> bytes:
        """What the answer says, whoever gives it."""
        assert self.answer is not None, "asked of those that answered"
        said = [artifact.parts for artifact in self.answer.artifacts]
        message = self.answer.status.message
        if message is not None and not said:
            said = [message.parts]
        return hashlib.sha256(encode(said)).digest()


class _TooMuch(Exception):
    """An answer is too long. No error of the agent's, after which its stream would be read on."""


class _Unshown:
    """What is kept in memory of an answer until it has won."""

    def __init__(self, log: TaskLog, settings: Settings) -> None:
        self._log = log
        self._most_bytes = min(settings.max_task_bytes, _MOST_HELD)
        self._most_events = settings.max_events
        self._bytes = self._events = 0

    async def add(self, event: Shown) -> None:
        """Count an event, and wait for one's turn; raises `_TooMuch` for too many."""
        self._count(len(encode(event)))
        if self._events % NARROW_EVENTS == 0:
            await self._turn()

    async def wait(self) -> None:
        """Count what is nothing to show, and wait for one's turn; raises `_TooMuch`."""
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


class Contest:
    """A task that several agents do at once."""

    def __init__(
        self,
        means: Means,
        worker: Worker,
        chosen: Sequence[str],
        wanted: Wishes,
        *,
        is_ours: bool = False,
    ) -> None:
        """`is_ours` says that we made the task's id, and not its caller."""
        self._is_ours = is_ours
        self._means = means
        self._worker = worker
        self._wanted = wanted
        self._requester = worker.caller.principal
        found = [agent for name in chosen if (agent := means.directory.get(name)) is not None]
        # What the dearest of them costs is held: who steps in for one that is left alone is one of
        # those that it pays for.
        first = found[: wanted.race]
        most = max((agent.price for agent in first), default=0)
        fit = [one for one in found if one in first or (one.repeatable and one.price <= most)]
        there = [one for one in fit if not means.upstreams.of(one).is_open(self._requester)]
        self._rivals = [_Rival(agent) for agent in there[: wanted.race]]

    async def run(self) -> None:
        """Have it done, and record the answer that won."""
        worker = self._worker
        for rival in self._rivals:
            if not rival.agent.repeatable:
                raise InvalidParams(
                    f"{rival.agent.name} is not registered as safe to repeat",
                    field="metadata.race",
                )
        voters = {voter(rival.agent, self._requester) for rival in self._rivals}
        if len(voters) < self._wanted.quorum:
            raise TaskFailed(f"Only agents of {len(voters)} owners can do the task at present.")
        await worker.log.durable(worker.log.seq)
        running = {
            asyncio.get_running_loop().create_task(self._answered(rival)): rival
            for rival in self._rivals
        }
        winner: _Rival | None = None
        try:
            waiting = set(running)
            while waiting and winner is None:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._look(running[task], task)
                winner = self._winner()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for rival in self._rivals:
                if rival is not winner and rival.answer is None:
                    self._means.soon(self._cancel(rival))
        if winner is None or winner.answer is None:
            raise TaskFailed(f"No {self._wanted.quorum} of the agents gave the same answer.")
        self._record(winner, winner.answer)

    def _look(self, rival: _Rival, task: asyncio.Task[Task]) -> None:
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
            if len(agreeing) >= self._wanted.quorum:
                return next(iter(agreeing.values()))
        return None

    async def _answered(self, rival: _Rival) -> Task:
        """Return what an agent answers; how it went is told to its breaker."""
        directory, agent = self._means.directory, rival.agent
        upstream = self._means.upstreams.of(agent)
        rival.url = upstream.next_url(self._requester)
        passage = upstream.circuits.call(rival.url, self._requester)
        async with upstream.places.place():
            if wait := passage.admit():
                raise AgentOffline(retryAfter=math.ceil(wait))
            upstream.budget.requested()
            try:
                found = await self._asked(rival, upstream)
            except (A2AError, TimeoutError) as error:
                note_failure(self._means, upstream, passage, error)
                raise
            except BaseException:
                passage.left()
                raise
            passage.succeeded()
            directory.saw(agent.id)
            return found

    async def _asked(self, rival: _Rival, upstream: Upstream) -> Task:
        own = message_id_of(self._means, self._worker, rival.agent.id)
        line = await upstream.line(rival.url)
        is_named = isinstance(line.dialect, Nexus)
        task_id = task_id_of(self._worker, own, is_ours=self._is_ours) if is_named else ""
        message = msgspec.structs.replace(
            self._worker.message,
            message_id=sent_id(self._means, self._worker, rival.agent, rival.url, own),
            task_id=TaskId(task_id),
            context_id=ContextId(""),
            reference_task_ids=[],
        )
        operation = outgoing(self._worker, message, self._means.id, line)
        settings, log = self._means.settings, self._worker.log
        # One that has begun may take its time, as long as it lives.
        silence = Silence(
            ask_after=settings.forward_quiet,
            most=settings.forward_patience,
            begin=settings.forward_patience,
        )
        unshown = _Unshown(log, settings)
        opened = Stream(line, operation, silence=silence)
        opened.idle = unshown.wait
        async with contextlib.aclosing(opened) as stream:
            try:
                with passing(self._means, log, own, rival.url):
                    async for event in stream:
                        rival.task_id = stream.task_id
                        await unshown.add(event)
            except _TooMuch as error:
                raise InvalidAgentResponse(str(error)) from None
            rival.lenient = sorted(stream.leniencies)
            return _task(stream)

    async def _cancel(self, rival: _Rival) -> None:
        if not rival.task_id:
            return
        try:
            async with asyncio.timeout(NOTE_WITHIN):
                line = await self._means.upstreams.of(rival.agent).line(rival.url)
                await line.answer(ops.CancelTask(task_id=TaskId(rival.task_id)))
        except (A2AError, TimeoutError) as error:
            logger.info("%s was not told that it lost: %s", rival.agent.name, error)

    def _record(self, winner: _Rival, answer: Task) -> None:
        worker, agent = self._worker, winner.agent
        worker.log.errand = Errand(
            agent=agent.id, payee=agent.owner, price=agent.price, held=agent.price
        )
        place = Forwarded(
            agent.id,
            winner.url,
            task_id=answer.id,
            context_id=answer.context_id,
            is_delivered=True,
            lenient=winner.lenient,
        )
        worker.forward(place)
        for artifact in answer.artifacts:
            worker.artifact(artifact)
        worker.relay(answer.status)
        raise TaskEnded


def _task(stream: Stream) -> Task:
    """Return what an agent answered as a task, also where it is only a message."""
    if stream.task is not None:
        return stream.task
    message: Message | None = stream.message
    return Task(TaskId(""), ContextId(""), TaskStatus(TaskState.COMPLETED, message))
