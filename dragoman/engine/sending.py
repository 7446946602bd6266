"""Answers `SendMessage`: takes a message in, and replies with what becomes of it, or streams it."""

import asyncio
from collections.abc import AsyncGenerator

from dragoman.engine.following import Following, LogPosition, resume_position
from dragoman.engine.intake import (
    Accepted,
    Arriving,
    BegunTask,
    Continued,
    Intake,
    Repeated,
    TakenElsewhere,
    moving_log,
)
from dragoman.engine.log import TaskLog
from dragoman.engine.reading import TaskReader
from dragoman.engine.receivers import refused
from dragoman.errors import StoreConflict, StoreRefused
from dragoman.model.identity import Scope, TaskId
from dragoman.model.message import Message
from dragoman.model.operations import SendMessage
from dragoman.model.record import TaskReading
from dragoman.service import LARGE_BYTES, Batch, Call, Opening, Reply, TaskReply, next_turn

# What an answer waits for: see `_goal_of`.
Awaited = tuple[TaskId, TaskLog | None, int, int]


class Sending:
    """Answers and streams the messages sent to one agent."""

    def __init__(self, intake: Intake, following: Following, reader: TaskReader) -> None:
        self._intake = intake
        self._following = following
        self._reader = reader

    async def send(self, scope: Scope, call: Call, operation: SendMessage) -> Reply:
        """Return the reply or the task that a message led to, at rest if its caller waits."""
        try:
            accepted = await self._intake.accept(scope, call, operation)
            try:
                return await self._answer(scope, call, operation, accepted)
            except StoreConflict:
                accepted = await self._intake.accepted_elsewhere(scope, call, operation)
                return await self._answer(scope, call, operation, accepted)
        except StoreRefused as error:
            # Of the message's own write, or of the one that a repetition waited for.
            raise refused(error) from None

    async def _answer(
        self, scope: Scope, call: Call, operation: SendMessage, accepted: Accepted
    ) -> Reply:
        if isinstance(accepted, BegunTask) and accepted.worker.decision.has_task:
            # Most messages begin a task, and it is known at once that there is one.
            log: TaskLog | None = accepted.worker.log
            task_id, seq, durable = log.task_id, 1, 1
        else:
            reply = await _reply(accepted)
            if reply is not None:
                return reply
            task_id, log, seq, durable = _goal_of(accepted)
        reading = None
        try:
            if log is None and operation.wait:
                resting = self._following.rest_elsewhere(scope, task_id, seq)
                await asyncio.wait_for(resting, call.patience or None)
            elif log is not None and operation.wait:
                rest = log.rest(seq)
                reading = await (asyncio.wait_for(rest, call.patience) if call.patience else rest)
            elif log is not None:
                await log.durable(durable)
        except TimeoutError:
            if log is not None:
                # A task that is answered with is durable, however slow the disk is.
                await log.durable(durable)
        if reading is None:
            if call.size > LARGE_BYTES:
                await next_turn()
            reading = await self._reader.read(await self._reader.find(scope, task_id))
        return TaskReply(reading, operation.history)

    async def stream(
        self, scope: Scope, call: Call, operation: SendMessage
    ) -> AsyncGenerator[Batch]:
        """Yield the reply or the task that a message led to, then the task's events."""
        try:
            accepted = await self._intake.accept(scope, call, operation)
            try:
                begun = await _durable_beginning(accepted)
            except StoreConflict:
                accepted = await self._intake.accepted_elsewhere(scope, call, operation)
                begun = await _durable_beginning(accepted)
        except StoreRefused as error:
            raise refused(error) from None
        if isinstance(begun, Message):
            yield begun
            return
        task_id, log, seq, _ = begun
        is_reset = False
        if isinstance(accepted, BegunTask):
            reading = TaskReading(seq, accepted.task)
            number = accepted.worker.log.number
        else:
            head = await self._reader.find(scope, task_id)
            upto = seq or resume_position(call.after, head)
            is_reset = call.after is not None and upto is None
            reading, number = await self._reader.read(head, upto), head.number
        yield Opening(TaskReply(reading, operation.history), is_reset)
        state = reading.task.status.state
        if state.is_terminal or (state.is_interrupted and not seq and call.after is None):
            return
        position = LogPosition(scope, task_id, number, reading.seq)
        async for batch in self._following.stream(position, call, log):
            yield batch
            # A stream may last for days: it does not keep what it showed last.
            del batch


async def _durable_beginning(accepted: Accepted) -> Message | Awaited:
    """Wait until what a stream begins with is durable; return it, be it only a reply."""
    reply = await _reply(accepted)
    if reply is not None:
        return reply
    awaited = _, log, _, durable = _goal_of(accepted)
    if log is not None:
        await log.durable(durable)
    return awaited


def _goal_of(accepted: Accepted) -> Awaited:
    """Return what an answer waits for: the task, its log if it is written here, the position after
    which the task has to rest, and the one that has to be durable."""
    match accepted:
        case BegunTask(worker):
            return worker.log.task_id, worker.log, 1, 1
        case Continued(log, seq):
            return log.task_id, log, seq, seq
        case TakenElsewhere(task_id, seq):
            return task_id, None, seq, seq
        case Arriving(worker, seq):
            return worker.log.task_id, moving_log(accepted), 0, seq
        case Repeated(task_id, log):
            return task_id, log, 0, 1
        case Message():
            raise AssertionError("a reply has no task")


async def _reply(accepted: Accepted) -> Message | None:
    """Wait until it is decided whether there is a task; return the reply if there is none."""
    match accepted:
        case BegunTask(worker) | Arriving(worker):
            return await worker.decision.made()
        case Message():
            return accepted
        case _:
            return None
