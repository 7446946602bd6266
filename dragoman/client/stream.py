"""One task followed to where it rests, through every cut: no event twice, none left out.

Where the peer's streams have positions, a broken one is taken up at the last that was shown. Where
they have none, the peer is asked how the task stands, and the difference to what was shown is told
as events. A peer that cannot stream is asked again and again.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import Literal, Self

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.line import LONGEST_WAIT, TRIES, Line
from dragoman.client.seen import Seen
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    MethodNotFound,
    Overloaded,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskStatus
from dragoman.service import Batch, Opening, Reply, TaskReply

Shown = Task | Message | StatusUpdate | ArtifactUpdate
Until = Literal["rest", "terminal"]

# Seconds that a task under way may be out of reach before we say so.
PATIENCE = 60.0
POLL_EVERY, POLL_GROWTH, POLL_AT_MOST = 2.0, 1.5, 15.0
FAILED_POLLS = 5
# How many of the latest tasks are looked through for a message whose answer was lost.
LATEST = 20
# What a stream may break with: a later try can find the task as good as ever.
_BREAKS = (Unreachable, TimedOut, Overloaded, InternalError, InvalidAgentResponse)
# What a peer answers that cannot stream, or where there is nothing left to stream.
_NO_STREAM = (UnsupportedOperation, MethodNotFound)


class Polling(msgspec.Struct, frozen=True):
    """How often a peer is asked that cannot stream; None: less and less often."""

    interval: float | None = None
    # How much history the last read asks for; the others ask for none.
    history: int | None = None


class Stream:
    """The events of one task. Iterate over it; what was shown so far is in `task` and `answer`."""

    def __init__(
        self,
        line: Line,
        operation: ops.SendMessage | ops.SubscribeToTask,
        *,
        after: int | None = None,
        until: Until = "rest",
        polling: Polling | None = None,
        patience: float = PATIENCE,
        polls_only: bool = False,
    ) -> None:
        self._line = line
        self._operation = operation
        self._until = until
        self._polling = polling or Polling()
        self._patience = patience
        self._polls_only = polls_only
        self._seen = Seen()
        self._cursor = after
        self._is_done = False
        # A send to a task that waits may open with it still waiting: that is not yet its answer.
        self._waited_as: TaskStatus | None = None
        # Whether something was made up for by asking how the task stands.
        self._is_patched = False
        self.message: Message | None = None
        self._events = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Shown:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. The task goes on."""
        await self._events.aclose()

    @property
    def cursor(self) -> int | None:
        """The position of the last event shown, for `subscribe(after=...)`; None: there is none."""
        return self._cursor

    @property
    def task(self) -> Task | None:
        """The task as shown so far."""
        return self._seen.task()

    @property
    def task_id(self) -> str:
        """The task's id, empty before the agent has said it."""
        return self._seen.task_id

    @property
    def answer(self) -> Answer:
        """What the agent said so far."""
        return Answer(self._seen.task(), self.message)

    # The way through

    async def _run(self) -> AsyncGenerator[Shown]:
        await self._line.open()
        if self._line.can_stream and not self._polls_only:
            async with contextlib.aclosing(streamed := self._streamed()):
                async for event in streamed:
                    yield event
        if not self._is_done:
            async with contextlib.aclosing(polled := self._polled()):
                async for event in polled:
                    yield event

    async def _streamed(self) -> AsyncGenerator[Shown]:
        """Follow by streams; returns before the end when the peer turns out to have none."""
        operation: ops.Operation = self._operation
        after = self._cursor
        tries = 0
        progress_at = time.monotonic()
        while True:
            problem: A2AError | None = None
            try:
                async with contextlib.aclosing(self._line.follow(operation, after)) as batches:
                    is_first = True
                    async for batch in batches:
                        for event in await self._unseen(batch, is_first=is_first):
                            tries, progress_at = 0, time.monotonic()
                            yield event
                        is_first = False
                        if self._is_done:
                            return
            except _NO_STREAM as error:
                if not self._seen.task_id and operation is self._operation:
                    if isinstance(operation, ops.SendMessage):
                        # It was refused, so nothing was done: the message goes another way.
                        return
                    raise
                problem = error
            except _BREAKS as error:
                problem = error
            tries += 1
            if not self._seen.task_id:
                found = await self._before_the_task(operation, problem, tries)
                if found is None:
                    return
                operation, after = found
                continue
            # The stream broke off, or ended before its task did.
            is_late = time.monotonic() - progress_at > self._patience
            if problem is not None and (is_late or (tries > TRIES and not _is_outage(problem))):
                raise problem
            if tries > 1 and problem is not None:
                await self._line.pause(tries - 1, problem)
            operation = ops.SubscribeToTask(task_id=TaskId(self._seen.task_id))
            after = self._cursor if self._line.has_positions else None
            if after is None and (problem is None or self._line.version != "1.0" or tries > 1):
                # Its stream may begin without the Task, or the task may have come to rest.
                try:
                    events = await self._difference()
                except _BREAKS as error:
                    if time.monotonic() - progress_at > self._patience:
                        raise
                    await self._line.pause(tries, error)
                    continue
                for event in events:
                    tries, progress_at = 0, time.monotonic()
                    yield event
                if self._is_done:
                    return
                if tries > 1 and not isinstance(problem, Unreachable):
                    # It ends its streams, or refuses them, while the task goes on.
                    return

    async def _before_the_task(
        self, operation: ops.Operation, problem: A2AError | None, tries: int
    ) -> tuple[ops.Operation, int | None] | None:
        """Return how to go on when nothing was shown yet; raises where that might repeat work."""
        if problem is None:
            problem = DeliveryUnknown("The agent's stream ended before it began")
        if tries >= TRIES * 2:
            raise problem
        if not isinstance(operation, ops.SendMessage):
            if not isinstance(problem, Unreachable | TimedOut | Overloaded):
                raise problem
            await self._line.pause(tries, problem)
            return operation, self._cursor
        if self._line.may_repeat(operation, problem):
            await self._line.pause(tries, problem)
            # Sent again, the message leads to its task; from its beginning, if that began here.
            is_resumable = self._line.has_positions and not operation.message.task_id
            return operation, 0 if is_resumable else None
        if isinstance(problem, DeliveryUnknown):
            task_id = await self.find_task(operation.message)
            if task_id:
                return ops.SubscribeToTask(task_id=TaskId(task_id)), None
        raise problem

    async def find_task(self, message: Message) -> str:
        """Return the task that a message has led to, if the peer has it among its latest."""
        if message.task_id:
            return message.task_id
        try:
            reply = await self._line.answer(
                ops.ListTasks(context_id=message.context_id, page_size=LATEST, history=LATEST)
            )
        except A2AError:
            # It lists no tasks, or is gone: whether it has the message stays unknown.
            return ""
        tasks = [item.reading.task for item in getattr(reply, "tasks", [])]
        return next(
            (
                task.id
                for task in tasks
                if any(known.message_id == message.message_id for known in task.history)
            ),
            "",
        )

    # What is shown

    async def _unseen(self, batch: Batch, *, is_first: bool) -> list[Shown]:
        """Return what of a batch was not shown yet, and note it as shown."""
        match batch:
            case Message():
                if self._seen.task_id:
                    raise InvalidAgentResponse("a message came where a task was under way")
                self.message = batch
                self._is_done = True
                return [batch]
            case Opening():
                return self._opened(batch)
            case _:
                pass
        pending = [recorded.event for recorded in batch]
        if is_first and self._seen.task_id and self._cursor_of(batch) is None:
            # Back without a Task: what fell between is made up for before these.
            self._is_patched = True
            shown = list(self._shown(self._seen.missing(await self._get(), pending)))
            return shown if self._is_done else [*shown, *self._shown(pending)]
        return [event for recorded in batch for event in await self._recorded(recorded)]

    def _opened(self, opening: Opening) -> list[Shown]:
        task = opening.reply.reading.task
        seq = opening.reply.reading.seq
        if not self._seen.task_id:
            if isinstance(self._operation, ops.SendMessage) and task.status.state.is_interrupted:
                self._waited_as = task.status
            self._move(seq)
            return list(self._shown([task]))
        self._check(task.id, task.context_id)
        if self._line.has_positions and not opening.is_reset and self._cursor is not None:
            # As of where we left off: all of it was shown.
            return []
        shown = list(self._shown(self._seen.missing(task)))
        self._move(seq)
        return shown

    async def _recorded(self, recorded: Recorded) -> list[Shown]:
        if recorded.seq and self._line.has_positions:
            if self._cursor is not None and recorded.seq <= self._cursor:
                return []
            self._move(recorded.seq)
        event = recorded.event
        if isinstance(event, Message):
            raise InvalidAgentResponse("a message came where a task was under way")
        if isinstance(event, Task):
            self._check(event.id, event.context_id)
            return list(self._shown(self._seen.missing(event)))
        if (
            self._is_patched
            and isinstance(event, StatusUpdate)
            and event.status.state.is_terminal
            and self._line.version != "1.0"
        ):
            # Between two looks something may have slipped: the last look is the whole task.
            return list(self._shown(self._seen.missing(await self._get())))
        return list(self._shown([event]))

    def _shown(self, events: Sequence[Event]) -> Iterator[Shown]:
        for event in events:
            if self._is_done:
                return
            match event:
                case Task() | Message():
                    pass
                case StatusUpdate() | ArtifactUpdate():
                    self._check(event.task_id, event.context_id)
                case _:
                    continue
            self._seen.apply(event)
            if isinstance(event, Task):
                self._look(event.status)
            elif isinstance(event, StatusUpdate):
                self._look(event.status)
            yield event

    def _look(self, status: TaskStatus) -> None:
        """Note whether this is where the caller wanted to get to."""
        if status.state.is_terminal:
            self._is_done = True
        elif status.state.is_interrupted and self._until == "rest":
            self._is_done = status != self._waited_as

    def _check(self, task_id: str, context_id: str) -> None:
        task = self._seen.task_id
        if task and task_id and task_id != task:
            raise InvalidAgentResponse("an event of another task came in this one's stream")
        asked = self._operation.task_id if isinstance(self._operation, ops.SubscribeToTask) else ""
        if asked and task_id and task_id != asked:
            raise InvalidAgentResponse("the stream is of another task than was asked for")

    def _move(self, seq: int) -> None:
        if seq and self._line.has_positions:
            self._cursor = seq

    def _cursor_of(self, batch: Sequence[Recorded]) -> int | None:
        return batch[0].seq if batch and batch[0].seq and self._line.has_positions else None

    # Asking

    async def _get(self, history: int | None = None) -> Task:
        reply = await self._line.answer(
            ops.GetTask(task_id=TaskId(self._seen.task_id), history=history)
        )
        return task_of(reply)

    async def _difference(self) -> list[Shown]:
        """Return what there is to show since a stream broke, by how the task stands."""
        self._is_patched = True
        task = await self._get()
        self._check(task.id, task.context_id)
        shown = list(self._shown(self._seen.missing(task)))
        self._look(task.status)
        return shown

    async def _polled(self) -> AsyncGenerator[Shown]:
        """Send without waiting, then ask until the task rests."""
        if not self._seen.task_id:
            first = await self._sent_or_read()
            for event in await self._unseen(first, is_first=True):
                yield event
        interval = self._polling.interval or POLL_EVERY
        failures = 0
        is_first = True
        while not self._is_done:
            if not is_first or failures:
                await asyncio.sleep(interval if not failures else _spread(interval, failures))
            try:
                task = await self._get(0)
                failures = 0
            except _BREAKS as error:
                failures += 1
                if failures >= FAILED_POLLS:
                    raise
                if "retryAfter" in error.facts:
                    await asyncio.sleep(min(LONGEST_WAIT, float(error.facts["retryAfter"])))
                continue
            if task.status.state.is_resting:
                # Polls leave the history out; the last look has what the caller wants of it.
                task = await self._get(self._polling.history)
            for event in self._shown(self._seen.missing(task)):
                yield event
            self._look(task.status)
            if not is_first and self._polling.interval is None:
                interval = min(interval * POLL_GROWTH, POLL_AT_MOST)
            is_first = False

    async def _sent_or_read(self) -> Batch:
        operation = self._operation
        if isinstance(operation, ops.SubscribeToTask):
            reply = await self._line.answer(ops.GetTask(task_id=operation.task_id))
        else:
            reply = await self._line.answer(_at_once(operation))
        if isinstance(reply, Message):
            return reply
        return Opening(TaskReply(reply.reading)) if isinstance(reply, TaskReply) else []


def _at_once(operation: ops.SendMessage) -> ops.SendMessage:
    """Return a send that does not wait, whatever it was."""
    return ops.SendMessage(
        message=operation.message,
        accepted_output_modes=operation.accepted_output_modes,
        history=operation.history,
        wait=False,
        push=operation.push,
        metadata=operation.metadata,
        tenant=operation.tenant,
    )


def task_of(reply: Reply) -> Task:
    """Return the task of a reply that must be one."""
    if not isinstance(reply, TaskReply):
        raise InvalidAgentResponse("The agent answered with something that is no task")
    return reply.reading.task


def _is_outage(error: A2AError) -> bool:
    """Say whether the peer is away, and not wrong."""
    return isinstance(error, Unreachable | Overloaded | TimedOut)


def _spread(interval: float, failures: int) -> float:
    return min(LONGEST_WAIT, interval * 2**failures) * (0.75 + random.random() / 2)
