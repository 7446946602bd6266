"""Carries one message of a task to an agent; what the agent answers is recorded by `relay`.

The log is the truth. Where the agent got the message and what it calls the task there stands in it
(`Forwarded`) before anything depends on it; so whoever goes on after a crash knows what may have
been sent, and asks the agent for what is missing instead of sending it again.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.client.life_signs import LifeSigns, NoSignOfLife, Silence
from dragoman.client.line import Line
from dragoman.client.seen import Seen
from dragoman.client.stream import Polling, Stream, task_of
from dragoman.dialects.house import Nexus
from dragoman.engine.worker import TaskEnded, TaskWaits, Worker
from dragoman.errors import (
    A2AError,
    AgentOffline,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    TaskFailed,
    TaskNotFound,
    TimedOut,
)
from dragoman.gateway import failing, retrying
from dragoman.gateway.agents import Registered
from dragoman.gateway.means import Means, note_failure, passing
from dragoman.gateway.naming import message_id_of, sent_id, task_id_of
from dragoman.gateway.outgoing import outgoing
from dragoman.gateway.relay import NOTE_WITHIN, Relay, may_repeat
from dragoman.gateway.upstreams import Upstream
from dragoman.model import operations as ops
from dragoman.model.errand import Errand
from dragoman.model.events import Forwarded
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message
from dragoman.model.requests import as_answer, reply_to

logger = logging.getLogger("dragoman")

# Seconds between two looks for an agent that has the task and does not answer, at most.
_LONGEST_PAUSE = 30.0
_UNKNOWN = (
    "Delivery unknown: the agent did not answer the message, and cannot tell it from a repetition. "
    "It may have done the work."
)
_FAILED_OVER_IT = (
    "Delivery unknown: the agent answered {code}, and cannot tell the message from a repetition. "
    "It may have done the work."
)
_UNANSWERED = (
    "Delivery unknown: the agent did not answer the message, however often it was sent. It may "
    "have done the work."
)
# Seconds after which the same agent at another address does what may be done twice.
_FAILOVER = 4.0
# Seconds for which a task that may be written once is not.
_MOMENT = 0.02
# Seconds that a whole answer is waited for before it is followed.
_QUICK = 0.5


class Carrier(Relay):
    """One message on its way."""

    def __init__(
        self,
        means: Means,
        worker: Worker,
        chosen: Sequence[str],
        why: str = "",
        *,
        is_ours: bool = False,
    ) -> None:
        """`chosen` are the agents that may do it, best first, by their ids. `is_ours` says that we
        made the task's id, and not its caller."""
        super().__init__(means, worker)
        self._is_ours = is_ours
        self._why = why
        self._chosen = list(chosen)
        # What each cost when it was chosen: whoever takes over does it for no more.
        self._prices = {name: self._price(name) for name in chosen}
        self._tried: list[str] = []
        # What the message is called at the agents.
        self._own = message_id_of(means, worker)
        # Whose calls these are.
        self._who = worker.caller.principal

    # The way

    async def carry(self) -> None:
        """Deliver the message and relay the answer, until the task rests."""
        worker = self._worker
        last = worker.replay.forwarded
        if last is not None and last.turn == worker.replay.turn:
            if last.is_answered:
                raise TaskWaits
            self._place = last
            self._is_doubtful = not last.is_delivered
        elif last is not None:
            # The answer to a question goes to whoever asked it.
            self._move_to(
                last.agent,
                last.url,
                task_id=last.task_id,
                context_id=last.context_id,
                begun=last.begun if last.task_id else [],
                asks_plainly=last.asks_plainly,
            )
        else:
            self._begin_with(self._chosen[0])
        if self._may_be_one_write():
            # Whoever sends a message waits for its answer, and nothing is held for it: the task is
            # written once, with what came of it, if that comes in a moment.
            worker.log.is_held = True
            asyncio.get_running_loop().call_later(_MOMENT, worker.log.release)
        else:
            # Nothing goes out before the task, and what is held for it, are on disk.
            await worker.log.durable(worker.log.seq)
        try:
            await self._carry()
        finally:
            if worker.log.is_held:
                worker.log.release()

    def _may_be_one_write(self) -> bool:
        worker = self._worker
        return worker.plan.may_begin_early and worker.log.durable_seq == 0

    async def _carry(self) -> None:
        worker = self._worker
        if self._place.task_id or self._place.begun:
            await self._recollect()
        failures = 0
        since = time.monotonic()
        while True:
            self._is_heard = False
            try:
                await self._leg()
                return
            except (A2AError, TimeoutError) as error:
                problem = TimedOut() if isinstance(error, TimeoutError) else error
            self._signs.release()
            if self._is_heard:
                failures, since = 0, time.monotonic()
            # Where nothing was sent, nothing failed: the agent is left alone for a while.
            failures += not isinstance(problem, AgentOffline)
            # Without its query, which may be a secret.
            where = self._place.url.partition("?")[0]
            logger.info("task %s: %s: %s", worker.log.task_id, where, problem)
            before = self._place
            await self._recover(problem, failures, since)
            if not isinstance(problem, AgentOffline) and self._place is before:
                self._note_retry()
            # Whoever is next gets nothing before it is held what they cost.
            await worker.log.durable(worker.log.seq)

    def _begin_with(self, agent_id: str) -> None:
        agent = self._means.directory.get(agent_id)
        if agent is None:
            raise TaskFailed("The agent is not registered any more.")
        url = self._means.upstreams.of(agent).next_url(self._who, self._place.url)
        self._move_to(agent.id, url, why=self._why, begun=[])

    def _move_to(
        self,
        agent: str,
        url: str,
        *,
        task_id: str = "",
        context_id: str = "",
        why: str = "",
        begun: list[str],
        asks_plainly: bool = False,
    ) -> None:
        """Record where the message goes next."""
        worker, before = self._worker, self._place
        moves = before.moves + 1 if before.agent else 0
        place = Forwarded(
            agent,
            url,
            turn=worker.replay.turn,
            task_id=task_id,
            context_id=context_id,
            moves=moves,
            why=why,
            begun=begun,
            asks_plainly=asks_plainly,
            is_ours=before.is_ours if before.agent else self._is_ours,
        )
        if before.agent and before.agent != agent:
            self._assign(agent)
        if moves:
            self._count_retry()
        self._place = place
        self._signs = LifeSigns()
        worker.log.agent = agent
        worker.forward(place)

    def _note_retry(self) -> None:
        """Record that the message is sent again to where it was sent."""
        if not self._place.is_delivered:
            self._count_retry()
            self._worker.forward(self._place)

    def _count_retry(self) -> None:
        log = self._worker.log
        errand = log.errand or Errand()
        log.errand = msgspec.structs.replace(errand, retries=errand.retries + 1)

    def _price(self, agent_id: str) -> int:
        agent = self._means.directory.get(agent_id)
        return 0 if agent is None else agent.price

    def _assign(self, agent_id: str) -> None:
        """Have another agent paid for it."""
        agent = self._means.directory.get(agent_id)
        if agent is not None:
            # What nobody wrote yet of an earlier try counts on.
            before = self._worker.log.errand or Errand()
            self._worker.log.errand = Errand(
                agent=agent.id,
                payee=agent.owner,
                price=agent.price,
                held=agent.price,
                retries=before.retries,
            )

    # One agent

    async def _leg(self) -> None:
        """Have one agent do it, as far as that goes."""
        agent = self._means.directory.get(self._place.agent)
        if agent is None:
            raise TaskFailed("The agent is not registered any more.")
        upstream = self._means.upstreams.of(agent)
        if self._place.url not in upstream.urls:
            self._leave(agent, upstream)
        circuits, url = upstream.circuits, self._place.url
        if circuits.is_open(url, self._who):
            # Before a place: those who have one may be waiting for the same dead agent.
            raise AgentOffline(retryAfter=math.ceil(circuits.retry_in(url, self._who)))
        passage = circuits.call(url, self._who)
        # Whoever waits for a place of ours is not waiting for the agent.
        self._signs.hold()
        async with upstream.places.place(self._until()):
            self._signs.release()
            if wait := passage.admit():
                raise AgentOffline(retryAfter=math.ceil(wait))
            self._on_heard = passage.succeeded
            upstream.budget.requested()
            try:
                line = await upstream.line(self._place.url)
                # Nobody but an agent of this process is counted so, and that one gets our own id.
                with passing(self._means, self._worker.log, self._own, self._place.url):
                    await self._exchange(line, agent)
            except (TaskWaits, TaskEnded, TaskFailed):
                if not self._is_heard:
                    passage.left()
                raise
            except (A2AError, TimeoutError) as error:
                note_failure(self._means, upstream, passage, error)
                raise
            except BaseException:
                passage.left()
                raise

    async def _exchange(self, line: Line, agent: Registered) -> None:
        """Send the message, and relay what the agent makes of it."""
        if self._may_be_quick(line):
            await self._quick(line)
        log = self._worker.log
        with self._means.hooks.expecting(log.scope, log.task_id) as pause:
            opened = await self._stream(line, agent, Polling(pause=pause))
            opened.idle = self._hear_nothing
            async with contextlib.aclosing(opened) as stream:
                await self._relay_all(stream, line)

    def _may_be_quick(self, line: Line) -> bool:
        """Whether to wait a moment for the whole answer before it is followed: where nobody looks
        on, and the same message again leads to the same task."""
        is_watched = isinstance(self._worker.operation, ops.StreamMessage)
        return line.works_once and not is_watched and not self._place.is_delivered

    async def _quick(self, line: Line) -> None:
        """Have a short task done in one request: it costs half of what a stream does. Returns if
        it takes longer, and the message is then sent again, which only says where its task is."""
        message = self._message(line)
        operation = outgoing(self._worker, message, self._means.id, line, wait=True)
        self._is_doubtful = True
        try:
            async with asyncio.timeout(_QUICK):
                reply = await line.answer(operation, self._note_leniency)
        except TimeoutError:
            return
        self._hear(line)
        if isinstance(reply, Message):
            self._relay(reply)
        self._relay(task_of(reply))

    def _leave(self, agent: Registered, upstream: Upstream) -> None:
        """Go where the agent is: its owner took back the address that the task went to. Raises
        `TaskFailed` where that one may have it, and the work must not be done twice."""
        place = self._place
        may_have_it = bool(place.task_id) or place.is_delivered or self._is_doubtful
        if may_have_it and (not agent.repeatable or self._worker.replay.turn):
            self._note_cause("lost")
            raise TaskFailed("The agent is no longer at the address where it has the task.")
        self._start_over(agent.id, upstream.next_url(self._who))

    async def _stream(self, line: Line, agent: Registered, polling: Polling) -> Stream:
        """Return the agent's answer: to the message, or of the task that it has."""
        more: dict[str, Any] = {
            "patience": self._patience(agent) / 2,
            "polling": polling,
            "silence": self._silence(agent, line),
            "signs": self._signs,
            "is_light": True,
        }
        message = self._message(line)
        operation = outgoing(self._worker, message, self._means.id, line)
        if self._is_doubtful:
            await self._settle_doubt(line, agent, operation)
        if self._place.is_delivered:
            task_id = TaskId(self._place.task_id)
            followed = ops.SubscribeToTask(task_id=task_id)
            begun = self._seen if self._seen.task_id else None
            return Stream(line, followed, begun=begun, **more)
        # From here on it may have arrived.
        self._is_doubtful = True
        self._signs = more["signs"] = LifeSigns()
        return Stream(line, operation, **more)

    def _silence(self, agent: Registered, line: Line) -> Silence:
        """Return how long an agent may be silent. One that is, with its connection open, may be
        busy: it has longer than one that is away, also where the work may be done twice."""
        settings = self._means.settings
        longest = settings.forward_patience
        soon = min(longest, settings.forward_timeout)
        return Silence(
            ask_after=settings.forward_quiet,
            most=soon if agent.repeatable else longest,
            begin=soon if may_repeat(line) else longest,
        )

    def _patience(self, agent: Registered) -> float:
        """Return for how many seconds an agent that has the task may be out of reach. Where the
        work may be done twice, somebody else does it soon."""
        settings = self._means.settings
        longest = settings.forward_patience
        if not agent.repeatable:
            return longest
        upstream = self._means.upstreams.of(agent)
        others = [url for url in upstream.urls if url != self._place.url]
        is_elsewhere = any(upstream.circuits.address(url).state == "closed" for url in others)
        return min(longest, _FAILOVER if is_elsewhere else settings.forward_timeout)

    def _message(self, line: Line) -> Message:
        """Return the message by the agent's ids, the same however often it is sent. Agents without
        ids of messages know a task by the id that their caller gives it."""
        worker, place = self._worker, self._place
        task_id = place.task_id
        if not task_id and isinstance(line.dialect, Nexus):
            task_id = task_id_of(worker, self._own, is_ours=place.is_ours)
        said = worker.message
        if place.asks_plainly:
            said = as_answer(said, reply_to(said, ""))
        return msgspec.structs.replace(
            said,
            message_id=self._sent_id(),
            task_id=TaskId(task_id),
            context_id=ContextId(place.context_id),
            reference_task_ids=[],
        )

    def _sent_id(self) -> MessageId:
        place = self._place
        agent = self._means.directory.get(place.agent)
        if agent is None:
            raise TaskFailed("The agent is not registered any more.")
        return sent_id(self._means, self._worker, agent, place.url, self._own)

    async def _settle_doubt(
        self, line: Line, agent: Registered, operation: ops.SendMessage
    ) -> None:
        """Find out whether the agent has the message, unless it may get it twice.

        Raises `TaskFailed` where nobody can tell and it must not do the work twice."""
        if may_repeat(line):
            return
        found = await Stream(line, operation).find_task(operation.message)
        if found:
            self._learn(found, self._place.context_id)
        elif not agent.repeatable:
            self._note_cause("delivery-unknown")
            raise TaskFailed(_UNKNOWN)

    def _until(self) -> float | None:
        """Return when the task has to have ended, by the clock that never jumps."""
        deadline = self._worker.deadline
        if not deadline:
            return None
        return time.monotonic() + max(0.0, deadline / 1000 - time.time())

    # What goes wrong

    async def _recover(self, problem: A2AError, failures: int, since: float) -> None:
        """Decide who does it next, and wait until then; raises how the task ends if nobody."""
        settings = self._means.settings
        agent = self._means.directory.get(self._place.agent)
        upstream = self._upstream()
        if agent is None or upstream is None:
            raise TaskFailed("The agent is not registered any more.")
        is_late = time.monotonic() - since > self._patience(agent)
        if self._place.is_delivered:
            # Whatever failed, it is away only since its last sign of life.
            is_late &= self._signs.silence > self._patience(agent)
            is_late |= isinstance(problem, NoSignOfLife)
            is_worth_it = retrying.is_retryable(problem)
            if is_worth_it and not is_late:
                await self._pause(min(_LONGEST_PAUSE, 0.25 * 2 ** min(failures, 10)))
                return
            is_lost = is_worth_it or isinstance(problem, TaskNotFound)
            if agent.repeatable and is_lost and self._move(problem):
                return
            raise await self._failure(problem)
        is_unknown = _may_have_arrived(problem)
        if not is_unknown:
            self._is_doubtful = False
        works_once = await self._works_once(upstream)
        until = since + self._patience(agent)
        schedule = retrying.Schedule(attempts=settings.forward_attempts)
        wait = schedule.wait(failures, problem)
        if works_once and isinstance(problem, NoSignOfLife):
            # Sent again it does no harm, and may be answered: for as long as patience lasts.
            wait = min(_LONGEST_PAUSE, schedule.first * schedule.factor ** (failures - 1))
        usual = schedule.delay(failures) or 0.0
        if wait is not None and wait > max(usual, until - time.monotonic()):
            # By then nobody would have patience left.
            wait = None
        may_again = retrying.may_send_again(
            problem, works_once=works_once, repeatable=agent.repeatable
        )
        # Whoever may be at work on it and could begin anew is not sent it again, only asked for it.
        is_asked_only = is_unknown and not works_once and not agent.repeatable
        if may_again and is_asked_only and wait is not None and not is_late:
            await self._pause(wait)
        elif may_again and wait is not None and not is_late:
            if (agent.repeatable or not is_unknown) and self._turn_to(upstream):
                return
            await self._pause(wait)
            if isinstance(problem, AgentOffline) or await self._is_granted(upstream, until):
                return
        if (agent.repeatable or not is_unknown) and self._move(problem):
            return
        if isinstance(problem, DeliveryUnknown | TimedOut) or (may_again and is_asked_only):
            # A look costs the agent a request, like a second try.
            if upstream.budget.may_retry() and await self._is_found(upstream):
                return
            self._note_cause("delivery-unknown")
            if is_asked_only and retrying.is_answer(problem):
                raise TaskFailed(_FAILED_OVER_IT.format(code=problem.code))
            raise TaskFailed(_UNANSWERED if works_once else _UNKNOWN)
        raise await self._failure(problem)

    async def _is_found(self, upstream: Upstream) -> bool:
        """Look whether the agent has the message whose answer was lost, and which task it is."""
        try:
            line = await upstream.line(self._place.url)
        except A2AError:
            return False
        operation = outgoing(self._worker, self._message(line), self._means.id, line)
        try:
            async with asyncio.timeout(self._means.settings.forward_patience):
                found = await Stream(line, operation).find_task(operation.message)
        except TimeoutError:
            return False
        if found:
            self._learn(found, self._place.context_id)
        return bool(found)

    async def _is_granted(self, upstream: Upstream, until: float) -> bool:
        """Wait until the agent is worth another try, as long as anybody has patience."""
        while not upstream.budget.may_retry():
            left = until - time.monotonic()
            if left <= 0:
                return False
            await self._pause(min(left, upstream.budget.retry_in()))
        return True

    def _upstream(self) -> Upstream | None:
        agent = self._means.directory.get(self._place.agent)
        return None if agent is None else self._means.upstreams.of(agent)

    async def _works_once(self, upstream: Upstream) -> bool:
        try:
            return may_repeat(await upstream.line(self._place.url))
        except A2AError:
            return False

    def _turn_to(self, upstream: Upstream) -> bool:
        """Go on at once with another address of the same agent, if one is worth trying."""
        url = upstream.next_url(self._who, self._place.url)
        place = self._place
        if url == place.url or upstream.circuits.is_open(url, self._who):
            return False
        if place.task_id:
            # Only where it asked does anybody know what the message answers.
            return False
        self._move_to(place.agent, url, begun=place.begun)
        return True

    def _move(self, problem: A2AError) -> bool:
        """Give the task to the same agent elsewhere, or to another one, if there is any."""
        worker = self._worker
        if worker.replay.turn:
            return False
        here_id = self._place.agent
        here = self._means.directory.get(here_id)
        upstream = self._upstream()
        self._tried.append(here_id)
        is_elsewhere = upstream is not None and self._tried.count(here_id) < len(upstream.urls)
        if upstream is not None and is_elsewhere:
            self._start_over(here_id, upstream.next_url(self._who, self._place.url))
            return True
        price = self._prices.get(here_id, here.price if here is not None else 0)
        others = [
            name
            for name in self._chosen
            if name not in self._tried and self._price(name) <= self._prices[name]
        ]
        others += self._means.directory.others(
            worker.replay.began, self._tried, price, worker.caller.principal
        )
        for other in others:
            agent = self._means.directory.get(other)
            if agent is not None:
                why = f"{agent.name}, after {here_id} failed: {failing.words(problem)}"
                url = self._means.upstreams.of(agent).next_url(self._who)
                self._start_over(agent.id, url, why)
                return True
        return False

    def _start_over(self, agent: str, url: str, why: str = "") -> None:
        """Have the work done from the beginning; what was made of it so far is replaced."""
        self._renamed = {}
        self._seen = Seen(is_light=True)
        self._is_doubtful = False
        self._move_to(agent, url, why=why, begun=list(self._made))

    async def _pause(self, seconds: float) -> None:
        until = self._until()
        if until is not None:
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        await asyncio.sleep(seconds)

    async def _failure(self, problem: A2AError) -> TaskFailed:
        """Return how the task ends."""
        end = failing.end_of(problem, may_know=self._worker.may_know)
        self._note_cause(end.cause)
        upstream = self._upstream()
        return TaskFailed(end.sentence if upstream is None else await upstream.hidden(end.sentence))

    # The end from outside

    async def cancel(self) -> None:
        """Tell the agent that the task is canceled."""
        await canceled(self._means, self._place)


async def canceled(means: Means, place: Forwarded) -> None:
    """Tell an agent that a task it has is not wanted any more."""
    agent = means.directory.get(place.agent)
    if agent is None or not place.task_id:
        return
    try:
        async with asyncio.timeout(NOTE_WITHIN):
            line = await means.upstreams.of(agent).line(place.url)
            await line.answer(ops.CancelTask(task_id=TaskId(place.task_id)))
    except (A2AError, TimeoutError) as error:
        logger.info("%s was not told that a task is canceled: %s", agent.name, error)


def _may_have_arrived(problem: A2AError) -> bool:
    """Say whether the agent may have begun to work although it did not say so."""
    return retrying.is_delivery_unknown(problem) or isinstance(
        problem, InvalidAgentResponse | InternalError
    )
