"""One connection, below what is asked on it: its deadlines, its refusals and its end.

A caller that keeps us waiting, or does not take its answer, is let go; one that is refused is told
why, in its turn, before the connection is closed.
"""

import asyncio
import time
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.server import connections as limits
from dragoman.server.admission import Ticket
from dragoman.server.connections import NEVER, Connections, Refusal
from dragoman.server.http_rules import TOO_SLOW

# Where a request is that is being read.
IDLE, HEAD, BODY = range(3)
# Seconds after a refusal was given in which only those ask again who do not care what it said. To
# hold one takes twice the time of giving it, so it has to keep more than one away.
AGAIN = 0.050
# Bytes of refusals that are held for one caller, who has sent requests behind each other.
MAX_HELD_BYTES = 64 * 1024
# What may come meanwhile and is kept: more is read at once, and then nothing until they are given.
MAX_KEPT_BYTES = 4 * 1024


class Line(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.read_by = self.write_by = NEVER
        self.address = ""
        self._all = connections
        self._certificate: bytes | None = None
        self._extensions: dict[str, Any] | None = None
        self._running: RequestResponseCycle | None = None
        # Nothing more is read as a request.
        self._is_deaf = False
        # An answer that has to wait for those before it.
        self._last_words: Refusal | None = None
        # Refusals that wait to be given later, like others'.
        self._held = b""
        # What came meanwhile, and when the last one was given.
        self._kept = b""
        self._refused_at = 0.0
        # How far the request has come that is being read, since when, and how much of its body.
        self._phase = IDLE
        self._began = 0.0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
        """A caller has connected, and shaken hands where there is TLS."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.scheme == "https":
            shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self._certificate = shown
            self._extensions = {"tls": {"client_cert": shown}}
        self.read_by = self._all.now + limits.HEAD_SECONDS
        refused = self._all.admit(self)
        if refused is not None:
            self._all.count(refused.reason)
            self._is_deaf = True
            transport.write(refused.answer)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; requests that are being answered hear of it."""
        super().connection_lost(exc)
        self._all.forget(self)
        if self._all.admission is not None:
            self._all.admission.forget(self.client)
        self._held = self._kept = b""
        self.pipeline.clear()
        running = self._running
        # Not the last request that was read, which is all the base class knows of.
        if running is not None and not running.response_complete:
            self._leave(running)
            running.disconnected = True
            running.message_event.set()

    def shutdown(self) -> None:
        """The server ends; whoever waits for nothing is let go."""
        self.give()
        super().shutdown()

    def pause_writing(self) -> None:
        """The caller does not take what is written; a plain answer is taken in time or not."""
        super().pause_writing()
        running = self._running
        streams = (
            running is not None
            and running.response_started
            and not running.response_complete
            and running.chunked_encoding
        )
        if not streams:
            self._bound_writing()

    def resume_writing(self) -> None:
        """The caller has taken most of it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self.write_by = NEVER
            if self._phase == IDLE and self.is_waiting:
                self.read_by = self._all.now + limits.IDLE_SECONDS

    # Answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self._end_task)
        self.tasks.add(task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.transport.is_closing():
            # Closed by an app that broke its answer off; what is unsent is not waited for.
            self._bound_writing()

    def on_response_complete(self) -> None:
        """An answer is given; the next request has its turn."""
        self.server_state.total_requests += 1
        if self._running is not None:
            self._leave(self._running)
        if self.transport.is_closing():
            self._bound_writing()
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._last_words is not None:
            self._say(self._last_words)
        elif not self._is_deaf:
            self.flow.resume_reading()
            if self._phase == IDLE:
                self.read_by = self._all.now + limits.IDLE_SECONDS

    def _leave(self, cycle: RequestResponseCycle) -> None:
        """A request that was let in is under way no longer."""
        ticket: Ticket | None = cycle.scope.get("state", {}).pop("ticket", None)
        if ticket is not None and self._all.admission is not None:
            self._all.admission.end(ticket)

    # Refusals that leave the connection open

    @property
    def _is_answering(self) -> bool:
        """Whether an answer is under way, or owed to a request before this one."""
        running = self._running
        return bool(self.pipeline) or (running is not None and not running.response_complete)

    def _turn_away(self, answer: bytes, reason: str, *, is_last: bool) -> None:
        """Refuse a request: at once, or soon if the caller did not wait after the one before.
        Behind the last one nothing has come; where something has, nothing more is to come."""
        self._all.count(reason)
        self.server_state.total_requests += 1
        now = time.monotonic()
        if now - self._refused_at > AGAIN and not self._held:
            self._refused_at = now
            self.transport.write(answer)
            return
        if not self._held:
            self._all.refusals.hold(self)
        self._held += answer
        if not is_last:
            self.flow.pause_reading()
        if len(self._held) > MAX_HELD_BYTES:
            self.give()

    def _keep(self, data: bytes) -> bool:
        """Read this after the refusal that is held, and tell whether that can be."""
        if len(data) > MAX_KEPT_BYTES:
            self.give()
            return False
        self._kept = data
        self.flow.pause_reading()
        return True

    def give(self) -> None:
        """Give the refusals that are held, before anything else is said; read on."""
        held, self._held = self._held, b""
        kept, self._kept = self._kept, b""
        if held and not self.transport.is_closing():
            self._refused_at = time.monotonic()
            self.transport.write(held)
            self.flow.resume_reading()
            if kept:
                self.data_received(kept)

    # Refusals that end it

    def _refuse(self, refused: Refusal) -> None:
        """Answer, once those before it are answered, and close."""
        self._all.count(refused.reason)
        self._is_deaf = True
        self.read_by = NEVER
        if self._phase == BODY:
            cycle = self.cycle
            if cycle.response_started:
                self._hang_up(cycle)
                return
            # To the app its caller is gone.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle is self._running:
                self._say(refused)
                return
            self.pipeline.popleft()
        running = self._running
        if running is None or running.response_complete or running.disconnected:
            self._say(refused)
        else:
            self._last_words = refused

    def _hang_up(self, cycle: RequestResponseCycle) -> None:
        """Close without a word: the request has its answer, or is getting it."""
        if cycle.response_complete:
            self._close()
        else:
            cycle.keep_alive = False

    def _say(self, refused: Refusal) -> None:
        self._last_words = None
        self.give()
        self.transport.write(refused.answer)
        # Who was late is not listened to any longer.
        if refused is TOO_SLOW:
            self._close()
        else:
            self.linger()

    def linger(self) -> None:
        """Close once the caller has had time to read why."""
        self._is_deaf = True
        if not self.transport.can_write_eof():
            self._close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.read_by = self._all.now + limits.LINGER_SECONDS
        self._bound_writing()

    # Deadlines

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being done for the caller: also if the rest of a body is still coming
        whose request has its answer."""
        running = self._running
        return running is None or running.response_complete

    def expire(self) -> None:
        """See what the caller is late with."""
        now = self._all.now
        if self.write_by <= now:
            self._all.count(limits.UNREAD)
            self.drop()
        elif self._is_deaf:
            self._end_listening()
        elif self._phase == IDLE:
            self._end_waiting()
        elif self.flow.read_paused or (self._phase == BODY and self._is_awaited):
            # It is us who do not read.
            self._began = now
            self.read_by = now + limits.BODY_SECONDS
        elif self._phase == BODY and now < self._began + self._body_seconds:
            self.read_by = self._began + self._body_seconds
        else:
            self._refuse(TOO_SLOW)

    def _end_waiting(self) -> None:
        if not self.transport.get_write_buffer_size():
            self._all.count(limits.IDLE)
            self._close()
        elif self.write_by == NEVER:
            self._all.count(limits.UNREAD)
            self.drop()
        else:
            # It still reads a long answer.
            self.read_by = NEVER

    def _end_listening(self) -> None:
        if self.transport.get_write_buffer_size():
            # The answer is still on its way, and has a time of its own.
            self.read_by = NEVER
        else:
            self.drop()

    @property
    def _is_awaited(self) -> bool:
        """Whether the caller waits for our word before it sends the body."""
        return self.cycle.waiting_for_100_continue

    @property
    def _body_seconds(self) -> float:
        """How long the body may have taken for what has come of it."""
        return max(limits.BODY_SECONDS, self._body_bytes / limits.BYTES_PER_SECOND)

    def drop(self) -> None:
        """Close at once, whatever is unsent."""
        self.read_by = self.write_by = NEVER
        self.transport.abort()

    def _close(self) -> None:
        self._is_deaf = True
        self.read_by = NEVER
        self.transport.close()
        self._bound_writing()

    def _bound_writing(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        seconds = limits.WRITE_SECONDS + unsent / limits.BYTES_PER_SECOND
        self.write_by = min(self.write_by, self._all.now + seconds)
