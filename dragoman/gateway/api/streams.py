"""A task followed by server-sent events, from our log.

`status` shows the whole task, first and whenever its status changes; `message` what its agent says
on the way, `artifact` a piece of a result, `complete` the task at its end. Ids are positions of the
log, and `Last-Event-ID` continues from there. Where one event of the log becomes several here, the
last of them carries its position: a reader that is cut off in between gets them again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.engine.reading import read_task
from dragoman.errors import A2AError, Overloaded, UnsupportedOperation
from dragoman.gateway.api.asking import reading_of, scope_of, shown_task, task_id_of
from dragoman.gateway.api.envelope import ApiRefused, failure
from dragoman.gateway.api.record import ArtifactRecord, artifact_record, message_record
from dragoman.gateway.api.table import Ask
from dragoman.http.incidents import incident
from dragoman.model import operations as ops
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task
from dragoman.server.endpoints.event_stream import RESET
from dragoman.service import Call, Opening
from dragoman.telemetry import figures
from dragoman.transports import sse

_encode = msgspec.json.Encoder().encode


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a result, as an event shows it."""

    artifact_id: str
    artifact: ArtifactRecord
    append: bool
    last: bool


async def follow(ask: Ask) -> None:
    """Answer with the events of a task; with one error event if there is no such task."""
    request = ask.request
    if request.room is not None:
        await request.room.open_stream()
    stream = request.sse_stream()
    ask.streams.add(stream, request.pass_)
    frames = _frames(ask)
    try:
        # An invalid request is a plain error; a missing task is an event.
        first, is_reset = await anext(frames)
        headers = [*sse.HEADERS, *request.extra, *([RESET] if is_reset else [])]
        request.watched.responded(200)
        request.is_answered = True
        await stream.open(headers)
        await stream.write(first)
        reader = ask.streams.reader(ask.caller, request.mount.name)
        async for frame, _ in frames:
            await stream.write(frame)
            if reader.is_ahead(1, len(frame)):
                await reader.turn()
    except asyncio.CancelledError:
        figures.streams_cut.add("stopping" if ask.streams.is_stopping else "gone")
        if not stream.is_closed:
            raise
        if (task := asyncio.current_task()) is not None:
            # The stream was ended by cancelling this task.
            task.uncancel()
        if not request.is_answered:
            raise Overloaded from None
    except Exception as error:
        if not request.is_answered:
            raise
        figures.streams_cut.add("failed")
        request.watched.failed(error)
        shown = error if isinstance(error, A2AError | ApiRefused) else incident()
        await stream.write(_event("error", failure(shown)[1].error))
    finally:
        stream.is_closed = True
        ask.streams.discard(stream)
        await frames.aclose()
        if request.is_answered:
            await stream.close()


async def _frames(ask: Ask) -> AsyncGenerator[tuple[bytes, bool]]:
    """Yield frames; with the first, whether the reader's position could not be used."""
    try:
        task_id = task_id_of(ask)
        reading = await reading_of(ask, task_id)
    except ApiRefused as error:
        if error.code != "TASK_NOT_FOUND":
            raise
        yield _event("error", failure(error)[1].error), False
        return
    if reading.task.status.state.is_terminal and ask.request.after is None:
        yield await _opening(ask, reading), False
        return
    operation = ops.SubscribeToTask(task_id=task_id, tenant=ask.caller.tenant or "")
    call = Call(
        operation=operation, caller=ask.caller, after=ask.request.after, closes_on_input=False
    )
    try:
        async with contextlib.aclosing(ask.gateway.service.follow(call)) as batches:
            async for batch in batches:
                if isinstance(batch, Opening):
                    yield await _opening(ask, batch.reply.reading), batch.is_reset
                elif not isinstance(batch, Message):
                    for recorded in batch:
                        yield await _event_frame(ask, task_id, recorded), False
    except UnsupportedOperation:
        # It ended after it was read.
        reading = await reading_of(ask, task_id)
        if not reading.task.status.state.is_terminal:
            raise
        yield await _opening(ask, reading), False


async def _opening(ask: Ask, reading: TaskReading) -> bytes:
    """Return the task as it is, and its end if it has ended."""
    return await _status(ask, reading.task, reading.seq)


async def _event_frame(ask: Ask, task_id: TaskId, recorded: Recorded) -> bytes:
    match recorded.event:
        case ArtifactUpdate() as event:
            shown = artifact_record(event.artifact)
            chunk = Chunk(event.artifact.artifact_id, shown, event.append, event.last_chunk)
            return _event("artifact", chunk, recorded.seq)
        case StatusUpdate() as event:
            message = b""
            if event.status.message is not None:
                message = _event("message", message_record(event.status.message))
            task = await _as_of(ask, task_id, recorded.seq)
            return message + await _status(ask, task, recorded.seq)
        case _:
            return b""


async def _as_of(ask: Ask, task_id: TaskId, seq: int) -> Task:
    """Return the task as it was after an event: its stream has no messages of the caller."""
    store = ask.gateway.store
    head = await store.head(scope_of(ask), task_id)
    reading = None if head is None else await read_task(store, head.number, upto=seq)
    if reading is None:
        reading = await reading_of(ask, task_id)
    return reading.task


async def _status(ask: Ask, task: Task, seq: int) -> bytes:
    shown = await shown_task(ask, task)
    if not task.status.state.is_terminal:
        return _event("status", shown, seq)
    return _event("status", shown) + _event("complete", shown, seq)


def _event(kind: str, value: Any, seq: int | None = None) -> bytes:
    data = _encode(value)
    if seq is None:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind.encode(), data)
