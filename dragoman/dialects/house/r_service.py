"""What R's callers are served beyond the protocol, as a service around the agent's own: answers
that name their task only by a reference, streams that begin with a status, events with a trace."""

import contextlib
import os
from collections.abc import AsyncGenerator, Sequence

import msgspec

from dragoman.dialects import reading
from dragoman.errors import TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded
from dragoman.model.requests import TOOL_RESULT, open_requests
from dragoman.model.task import TaskState, TaskStatus
from dragoman.service import Batch, Call, Opening, Reply, Service, TaskReply
from dragoman.telemetry import tracing

# How many of a message's references are looked up.
_MAX_REFERENCES = 16


class RService:
    """The service of one request."""

    def __init__(
        self,
        service: Service,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        from_status: bool,
        shows_trace: bool,
    ) -> None:
        self._service = service
        self._headers = headers
        self._from_status = from_status
        self._shows_trace = shows_trace

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        return await self._service.answer(await self._to_waiting_task(call))

    async def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Yield the stream of a call."""
        call = await self._to_waiting_task(call)
        from_status = self._from_status and isinstance(call.operation, ops.SubscribeToTask)
        if from_status and call.after is None:
            assert isinstance(call.operation, ops.SubscribeToTask)
            found = await self._task(call, call.operation.task_id)
            # With a position, a task that has ended can be followed too.
            call = msgspec.structs.replace(call, after=found.reading.seq)
        trace: Metadata | None = None
        async with contextlib.aclosing(self._service.follow(call)) as batches:
            async for batch in batches:
                if from_status and isinstance(batch, Opening):
                    batch = _as_status(batch)
                if self._shows_trace:
                    trace = trace or _trace(self._headers)
                    batch = _with_trace(batch, trace)
                yield batch

    async def _task(self, call: Call, task_id: TaskId) -> TaskReply:
        get = ops.GetTask(task_id=task_id, tenant=call.operation.tenant)
        found = await self._service.answer(
            Call(operation=get, caller=call.caller, extensions=call.extensions)
        )
        assert isinstance(found, TaskReply), "the reply to a GetTask"
        return found

    async def _to_waiting_task(self, call: Call) -> Call:
        """Return a message that answers a question of a task it refers to, as one to that task."""
        operation = call.operation
        if not isinstance(operation, ops.SendMessage):
            return call
        message = operation.message
        answered = _answered_ids(message)
        if message.task_id or not answered or not message.reference_task_ids:
            return call
        waiting: list[TaskId] = []
        for reference in dict.fromkeys(message.reference_task_ids[:_MAX_REFERENCES]):
            task_id = TaskId(reference)
            try:
                task = (await self._task(call, task_id)).reading.task
            except TaskNotFound:
                continue
            if any(earlier.message_id == message.message_id for earlier in task.history):
                # A repetition: the task took the message before and has gone on since.
                return _to(call, operation, task_id)
            if question_ids := open_question_ids(task.status):
                waiting.append(task_id)
                if len(waiting) > 1 or not {*question_ids} & {*answered}:
                    return call
        return _to(call, operation, waiting[0]) if waiting else call


def _to(call: Call, operation: ops.SendMessage, task_id: TaskId) -> Call:
    message = msgspec.structs.replace(operation.message, task_id=task_id)
    return msgspec.structs.replace(
        call, operation=msgspec.structs.replace(operation, message=message)
    )


def open_question_ids(status: TaskStatus) -> list[str]:
    """Return the ids by which open questions are answered; empty: none is open."""
    is_input = status.state is TaskState.INPUT_REQUIRED
    # A permission that was given elsewhere is not answered by an id.
    found = [one for one in open_requests(status) if is_input or one.handoff is not None]
    return [request.request_id for request in found]


def _answered_ids(message: Message) -> list[str]:
    """Return the ids of the questions that a message answers."""
    results = [part.data for part in message.parts if part.media_type == TOOL_RESULT]
    ids = [reading.members(result).get("toolUseId") for result in results]
    return [id for id in ids if isinstance(id, str)]


def _as_status(opening: Opening) -> list[Recorded]:
    """Return what a stream opens with as the status alone, for readers who come back."""
    task = opening.reply.reading.task
    event = StatusUpdate(task.id, task.context_id, task.status)
    return [Recorded.of_event(opening.reply.reading.seq, event)]


def _trace(headers: Sequence[tuple[bytes, bytes]]) -> Metadata:
    """Return the trace a stream belongs to and our own place in it."""
    here = tracing.current() if tracing.on else None
    if here is None:
        came = tracing.arrived(headers)
        trace_id = came.trace_id if came is not None else os.urandom(16).hex()
        here = tracing.Trace(trace_id, os.urandom(8).hex())
    return tracing.event_metadata(here)


def _with_trace(batch: Batch, trace: Metadata) -> Batch:
    """Return events of a stream with their trace, which an agent may not set for them."""
    if isinstance(batch, Opening | Message):
        return batch
    return [_with_trace_of(recorded, trace) for recorded in batch]


def _with_trace_of(recorded: Recorded, trace: Metadata) -> Recorded:
    if not recorded.is_status:
        return recorded
    event = recorded.event
    assert isinstance(event, StatusUpdate), "a status event"
    return Recorded.of_event(
        recorded.seq, msgspec.structs.replace(event, metadata={**event.metadata, **trace})
    )
