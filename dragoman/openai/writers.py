"""An answer on its way to its caller: in pieces as a stream, or whole when it is done. Both end
early when the caller leaves."""

import asyncio

from dragoman.errors import A2AError, Overloaded
from dragoman.http.documents import document
from dragoman.http.request import HttpRequest
from dragoman.openai.answers import ChatAnswer
from dragoman.openai.encoding import AnswerEncoder
from dragoman.openai.errors import ChatError, refuse
from dragoman.service import Batch
from dragoman.transports import sse

_STOPPED = "The server stopped before the answer was whole; the task goes on."


class StreamedAnswer:
    """Writes an answer as server-sent events."""

    def __init__(self, request: HttpRequest, answer: ChatAnswer, encoder: AnswerEncoder) -> None:
        self.stream = request.sse_stream()
        self._request = request
        self._answer = answer
        self._encoder = encoder
        self._is_failed = False

    async def open(self, first: Batch, *, is_large: bool) -> None:
        """Send the head, and the first of the answer."""
        await self.stream.open([*sse.HEADERS, *self._request.extra])
        deltas = self._answer.take(first)
        frames = self._encoder.begin(self._answer)
        await self.stream.write(frames + b"".join(map(self._encoder.delta, deltas)))

    async def write(self, batch: Batch) -> int:
        """Write what a batch adds to the answer."""
        frames = b"".join(map(self._encoder.delta, self._answer.take(batch)))
        if frames:
            await self.stream.write(frames)
        return len(frames)

    async def fail(self, error: A2AError, task_id: str) -> None:
        """Write an error as the last event."""
        self._is_failed = True
        await self.stream.write(self._encoder.failed(error))

    async def close(self) -> None:
        """Write what ends the answer, and end the response."""
        if not self._is_failed and not self.stream.is_left:
            if self._answer.is_done:
                await self.stream.write(self._encoder.end(self._answer))
            else:
                await self.stream.write(self._encoder.failed(Overloaded(_STOPPED)))
        await self.stream.close()


class WholeAnswer:
    """Collects an answer and sends it when it is done."""

    def __init__(self, request: HttpRequest, answer: ChatAnswer, encoder: AnswerEncoder) -> None:
        self.stream = CallerWatch(request)
        self._request = request
        self._answer = answer
        self._encoder = encoder
        self._error: A2AError | None = None

    async def open(self, first: Batch, *, is_large: bool) -> None:
        """Take the first batch, and watch for the caller's leaving."""
        self.stream.begin()
        self._answer.take(first)

    async def write(self, batch: Batch) -> int:
        """Take a batch; nothing is written yet."""
        self._answer.take(batch)
        return 0

    async def fail(self, error: A2AError, task_id: str) -> None:
        """Remember what broke it."""
        self._error = error

    async def close(self) -> None:
        """Send the answer, or why there is none."""
        self.stream.end()
        if self.stream.is_left:
            return
        if self._error is None and not self._answer.is_done:
            self._error = Overloaded(_STOPPED)
        try:
            if self._error is not None:
                raise self._error
            await document(self._request, self._encoder.whole(self._answer))
        except (A2AError, ChatError) as error:
            await refuse(self._request, error)


class CallerWatch:
    """The caller of an answer that is not sent yet: it may leave, and the server may stop."""

    def __init__(self, request: HttpRequest) -> None:
        self._receive = request.receive
        self._task = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self.is_closed = False
        self.is_left = False

    def begin(self) -> None:
        """Watch for the caller's leaving."""
        self._watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    def end(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.cancel()

    def stop(self) -> None:
        """End what the answer is collected from."""
        if not self.is_closed and self._task is not None:
            self.is_closed = True
            self._task.cancel()

    def keep_alive(self, quiet_since: float) -> None:
        """Write nothing: an answer that is not sent yet has no place for it."""

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_left = True
        self.stop()
