"""A call that is answered with a stream of events, from its first to its end, and how server-sent
events are written."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.errors import A2AError
from dragoman.http.incidents import incident
from dragoman.http.open_streams import EndableStream, OpenStreams
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


class StreamLife(EndableStream, Protocol):
    """An open answer and how it ended."""

    is_closed: bool
    # Whether its reader ended it, and nothing but its reader.
    is_left: bool


class EventWriter(Protocol):
    """Writes the events of one stream as its binding has them."""

    @property
    def stream(self) -> StreamLife:
        """The answer that is written."""
        ...

    async def open(self, first: Batch, *, is_large: bool) -> None:
        """Begin, with the first batch."""
        ...

    async def write(self, batch: Batch) -> int:
        """Write a batch and wait until the reader has taken enough; return how many bytes."""
        ...

    async def fail(self, error: A2AError, task_id: str) -> None:
        """Say what broke the stream of a task."""
        ...

    async def close(self) -> None:
        """End the answer."""
        ...


class EventStreams:
    """Serves streams, which are counted among those that are open."""

    def __init__(self, streams: OpenStreams, *, cancels: bool) -> None:
        """`cancels` says whether a task is canceled when the caller leaves that began it."""
        self._streams = streams
        self._cancels = cancels

    async def serve(
        self, request: HttpRequest, call: Call, dialect: Dialect, writer: EventWriter
    ) -> None:
        """Answer with events until the stream ends. What goes wrong before the first one is
        raised."""
        if request.room is not None:
            await request.room.open_stream()
        service = dialect.around(request.mount.service, request.scope["headers"])
        batches = service.follow(call)
        stream = writer.stream
        self._streams.add(stream, request.pass_)
        try:
            # Waits for the first batch: a refusal is a plain error and not a broken stream.
            first = await anext(batches)
            task_id = _task_in(first)
        except BaseException:
            self._streams.discard(stream)
            raise
        try:
            request.watched.responded(200)
            request.is_answered = True
            await writer.open(first, is_large=call.size > LARGE_BYTES)
            # A stream may last for days: it does not keep the task that it began with.
            del first
            reader = self._streams.reader(call.caller, request.mount.name)
            async for batch in batches:
                size = await writer.write(batch)
                count = 1 if isinstance(batch, Opening | Message) else len(batch)
                # Nor does it keep what it wrote last.
                del batch
                if reader.is_ahead(count, size):
                    await reader.turn()
        except asyncio.CancelledError:
            figures.streams_cut.add("stopping" if self._streams.is_stopping else "gone")
            if not stream.is_closed:
                raise
            forgive_cancellation()
            is_left = stream.is_left and not self._streams.is_stopping
            if is_left and self._cancels:
                await _cancel(service, call, task_id)
        except Exception as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            public = error if isinstance(error, A2AError) else incident()
            await writer.fail(public, task_id)
        finally:
            stream.is_closed = True
            self._streams.discard(stream)
            await batches.aclose()
            await writer.close()


class SseWriter:
    """Writes events as server-sent ones."""

    # Thousands may be open.
    __slots__ = ("_dialect", "_failed", "_frame", "_headers", "_request", "stream")

    def __init__(
        self,
        request: HttpRequest,
        dialect: Dialect,
        headers: Headers,
        frame: Frame,
        failed: Callable[[A2AError, str], bytes],
    ) -> None:
        """`failed` writes an error after the first event, given the task of the stream."""
        self.stream = request.sse_stream()
        self._request = request
        self._dialect = dialect
        self._headers = headers
        self._frame = frame
        self._failed = failed

    async def open(self, first: Batch, *, is_large: bool) -> None:
        """Send the head of the answer and the first batch."""
        headers = [*sse.HEADERS, *self._headers, *self._request.extra]
        if isinstance(first, Opening) and first.is_reset:
            headers.append(RESET)
        headers += self._dialect.stream_headers
        # They are written once.
        self._headers = []
        await self.stream.open(headers)
        if is_large:
            opening = await off_loop(_frames, first, self._dialect, self._frame)
        else:
            opening = _frames(first, self._dialect, self._frame)
        await self.stream.write(opening)

    async def write(self, batch: Batch) -> int:
        """Write a batch in one go."""
        frames = _frames(batch, self._dialect, self._frame)
        await self.stream.write(frames)
        return len(frames)

    async def fail(self, error: A2AError, task_id: str) -> None:
        """Write the error as the last event."""
        await self.stream.write(sse.error_frame(self._failed(error, task_id)))

    async def close(self) -> None:
        """End the answer."""
        await self.stream.close()


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
        return sse.frame(before + dialect.encode_event(Recorded.of_event(0, batch)) + after)
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


async def _cancel(service: Service, call: Call, task_id: str) -> None:
    """Cancel the task that a stream began with, because the caller that began it left."""
    if not task_id or not isinstance(call.operation, ops.StreamMessage):
        return
    operation = ops.CancelTask(task_id=TaskId(task_id), tenant=call.operation.tenant)
    try:
        await service.answer(msgspec.structs.replace(call, operation=operation))
    except A2AError as error:
        # It ended meanwhile, or cannot be canceled: there is no caller left to tell.
        logger.debug("task %s was not canceled: %s", task_id, error)
