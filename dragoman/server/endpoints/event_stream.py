"""A call that is answered with a stream of server-sent events, from its head to its end."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.config import Settings
from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError
from dragoman.http.incidents import incident
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import Headers, HttpRequest
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.record import Recorded
from dragoman.service import LARGE_BYTES, Batch, Call, Opening, Service, off_loop
from dragoman.telemetry import figures
from dragoman.transports import sse

logger = logging.getLogger("dragoman")

# Says that a stream does not go on from where its reader was, but begins with the task as it is.
RESET = (b"x-dragoman-resume", b"reset")

# What stands before and after each event.
Frame = tuple[bytes, bytes]


class EventStreams:
    """Serves streams, which are counted among those that are open."""

    def __init__(self, settings: Settings, streams: OpenStreams) -> None:
        self._streams = streams
        self._cancels = settings.dialects.cancel_on_disconnect

    async def serve(
        self,
        request: HttpRequest,
        call: Call,
        dialect: Dialect,
        headers: Headers,
        frame: Frame,
        failed: Callable[[A2AError, str], bytes],
    ) -> None:
        """Answer with events until the stream ends. What goes wrong before the first one is
        raised; `failed` writes a later error, given the task of the stream."""
        if request.room is not None:
            await request.room.open_stream()
        service = dialect.around(request.mount.service, request.scope["headers"])
        batches = service.follow(call)
        stream = sse.SseStream(request.send, request.receive)
        self._streams.add(stream, request.pass_)
        try:
            # Waits for the first batch: a refusal is a plain error and not a broken stream.
            first = await anext(batches)
        except BaseException:
            self._streams.discard(stream)
            raise
        try:
            headers = [*sse.HEADERS, *headers, *request.extra]
            if isinstance(first, Opening) and first.is_reset:
                headers.append(RESET)
            headers += dialect.stream_headers
            request.watched.responded(200)
            request.is_answered = True
            await stream.open(headers)
            if call.size > LARGE_BYTES:
                opening = await off_loop(_frames, first, dialect, frame)
            else:
                opening = _frames(first, dialect, frame)
            await stream.write(opening)
            reader = self._streams.reader(call.caller, request.mount.name)
            async for batch in batches:
                frames = _frames(batch, dialect, frame)
                await stream.write(frames)
                count = 1 if isinstance(batch, Opening | Message) else len(batch)
                if reader.is_ahead(count, len(frames)):
                    await reader.turn()
        except asyncio.CancelledError:
            figures.streams_cut.add("stopping" if self._streams.is_stopping else "gone")
            if not stream.is_closed:
                raise
            forgive_cancellation()
            is_left = stream.is_left and not self._streams.is_stopping
            if is_left and self._cancels:
                await _cancel(service, call, first)
        except Exception as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            public = error if isinstance(error, A2AError) else incident()
            await stream.write(sse.error_frame(failed(public, _task_in(first))))
        finally:
            stream.is_closed = True
            self._streams.discard(stream)
            await batches.aclose()
            await stream.close()


def forgive_cancellation() -> None:
    """The cancellation was our own way to end a stream; the task goes on to close it."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _frames(batch: Batch, dialect: Dialect, frame: Frame) -> bytes:
    before, after = frame
    if isinstance(batch, Opening):
        opening = dialect.encode_opening(batch.reply)
        return sse.frame(before + opening + after, batch.reply.reading.seq)
    if isinstance(batch, Message):
        return sse.frame(before + dialect.encode_event(Recorded(0, batch)) + after)
    return b"".join(
        [
            b"id: %d\ndata: %b%b%b\n\n"
            % (recorded.seq, before, dialect.encode_event(recorded), after)
            for recorded in batch
        ]
    )


def _task_in(first: Batch) -> str:
    """Return the task that a stream is about."""
    return first.reply.reading.task.id if isinstance(first, Opening) else ""


async def _cancel(service: Service, call: Call, first: Batch) -> None:
    """Cancel the task that a stream began with, because the caller that began it left."""
    task_id = _task_in(first)
    if not task_id or not isinstance(call.operation, ops.StreamMessage):
        return
    operation = ops.CancelTask(task_id=TaskId(task_id), tenant=call.operation.tenant)
    try:
        await service.answer(msgspec.structs.replace(call, operation=operation))
    except A2AError as error:
        # It ended meanwhile, or cannot be canceled: there is no caller left to tell.
        logger.debug("task %s was not canceled: %s", task_id, error)
