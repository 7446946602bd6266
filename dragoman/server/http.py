"""HTTP/1.1 as strict as it is written: uvicorn's protocol with what it lacks in front of the app.

Sizes, counts and deadlines hold while a request is being read; what two readers could understand
differently is refused; whatever is refused here is answered as a problem of RFC 9457, and the
connection closed. A good request costs a few comparisons.
"""

import asyncio
import time
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.server import connections as limits
from dragoman.server.connections import BUSY, NEVER, Connections, Refusal
from dragoman.server.http_rules import (
    BAD_FRAMING,
    LARGE_HEAD,
    LONG_URL,
    TOO_SLOW,
    WATCHED,
    Refused,
    check,
    is_heavy,
    meaning,
    repeated,
)
from dragoman.server.request import MAX_HEADER_BYTES, MAX_URL_BYTES

# Requests one connection may have waiting behind the one that is being answered.
MAX_PIPELINED = 100
# What chunks may take besides their content, and besides as much again as that.
MAX_FRAMING_BYTES = 64 * 1024
# What we go on reading after an answer that did not need it, besides twice the largest body: many
# callers send all they have before they read, and would never see why it was too much.
MAX_DISCARDED_BYTES = 1024 * 1024
# A length of more digits than this is a large body: one to hang up on rather than to swallow.
_LARGE_DIGITS = 5

_IDLE, _HEAD, _BODY = range(3)


class _Enough(Exception):
    """Stops the parser: no further request is read here, and those that were are answered."""


class _Answered:
    """Stands for a request that has its answer and needs nothing more."""

    response_started = response_complete = True
    waiting_for_100_continue = disconnected = False
    keep_alive = True
    message_event = asyncio.Event()


_ANSWERED = cast("RequestResponseCycle", _Answered())


class _Unfinished:
    """The transport of a request whose body is still coming.

    Its answer may be given before the body has come, and closing then must not take it back.
    """

    def __init__(self, connection: "Connection") -> None:
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing
        self.close = connection.linger


class Connection(HttpToolsProtocol):
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
        self._extensions: dict[str, Any] | None = None
        self._running: RequestResponseCycle | None = None
        # Set if it is decided that the request that comes may begin.
        self._verdict: bool | None = None
        # Nothing has been heard: the time of the first head counts from the connection on.
        self._is_new = True
        # Nothing more is read as a request.
        self._is_deaf = False
        self._discarded = 0
        # An answer that has to wait for those before it.
        self._last_words: Refusal | None = None

        # The request that is being read.
        self.url = b""
        self._phase = _IDLE
        self._seen: dict[bytes, bytes] = {}
        self._version = ""
        # The host of the request before it, which need not be looked at twice.
        self._host: bytes | None = None
        self._upgrades = False
        self._is_large = False
        self._keeps_alive = True
        self._began = 0.0
        # Bytes of it in this and earlier pieces; where it began within a piece, `_slack` is how
        # long that piece was, since the parser does not say where.
        self._raw = self._slack = self._piece = 0
        self._body_bytes = 0

    # The transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
        """A caller has connected, and shaken hands where there is TLS."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.scheme == "https":
            shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
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
        self.pipeline.clear()
        running = self._running
        # Not the last request that was read, which is all the base class knows of.
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._is_deaf:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES + 2 * self._all.max_body_bytes:
                self.drop()
            return
        if self._phase == _IDLE:
            is_first, self._is_new = self._is_new, False
            if self._is_refused_unread(data):
                return
            self._phase = _HEAD
            self._raw = self._slack = 0
            if not is_first:
                self.read_by = self._all.now + limits.HEAD_SECONDS
        self._piece = len(data)
        self._raw += self._piece
        self._parse(data)
        if self._phase != _IDLE and not self._is_deaf:
            self._check_unfinished()

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
            if self._phase == _IDLE and self.is_waiting:
                self.read_by = self._all.now + limits.IDLE_SECONDS

    # The parser's side

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._seen = {}
        if self._phase == _IDLE:
            self._phase = _HEAD
            self.read_by = self._all.now + limits.HEAD_SECONDS

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field is read. Those behind a body are nobody's: what they say comes too late."""
        if self._phase == _BODY:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in WATCHED:
            if name in self._seen:
                raise repeated(name)
            self._seen[name] = value

    def on_headers_complete(self) -> None:
        """The head is read: refuse it, or give it to the app."""
        self._check_head()
        if self.parser.should_upgrade():
            self._upgrades = True
            return
        is_admitted = self._is_admitted()
        if is_admitted is False:
            self._skip_app()
            return
        self._begin_cycle(is_admitted)
        self._phase = _BODY
        self._body_bytes = 0
        self._began = self._all.now
        self.read_by = self._began + limits.BODY_SECONDS
        length = self._seen.get(b"content-length", b"")
        self._is_large = False
        if len(length) > _LARGE_DIGITS or b"transfer-encoding" in self._seen:
            self._expect_much()

    def _begin_cycle(self, is_admitted: bool | None) -> None:
        """Give the request to the app, now or when those before it are answered."""
        parser = self.parser
        scope = cast("dict[str, Any]", self.scope)
        version = self._version
        scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        raw, _, query = self.url.partition(b"#")[0].partition(b"?")
        path = raw.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = raw, query
        state = scope["state"]
        state["is_admitted"], state["came_at"] = is_admitted, time.monotonic()
        if self._extensions is not None:
            scope["extensions"] = self._extensions
        # The base class says there is always one; before the first there is none.
        before = cast("RequestResponseCycle | None", self.cycle)
        self.cycle = cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version == "1.1" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        app = cast("Any", self.app)  # pyright: ignore[reportUnknownMemberType]  # uvicorn's types
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def _expect_much(self) -> None:
        """An answer before the end of this body is the last one here."""
        self._is_large = True
        self._keeps_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False
        self.cycle.transport = cast("asyncio.Transport", _Unfinished(self))

    def on_body(self, body: bytes) -> None:
        """Give a piece to the app; of what is beyond the limit, the first tells that it is."""
        cycle = self.cycle
        if cycle.response_complete or self._body_bytes > self._all.max_body_bytes:
            return
        self._body_bytes += len(body)
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request is read."""
        if self._upgrades:
            return
        cycle = self.cycle
        if self._body_bytes > self._all.max_body_bytes:
            # Not all of it was given to the app, so to the app it has no end.
            if not self._is_large:
                self._expect_much()
            raise _Enough
        self._phase = _IDLE
        self._raw, self._slack = 0, self._piece
        if self._is_large:
            cycle.transport = self.transport
            if not cycle.response_started:
                cycle.keep_alive = self._keeps_alive
        if cycle.response_complete:
            self.read_by = self._all.now + limits.IDLE_SECONDS
            return
        self.read_by = NEVER
        cycle.more_body = False
        cycle.message_event.set()

    # Overload

    def _is_refused_unread(self, data: bytes) -> bool:
        """Refuse one whole plain request in overload, and tell whether that was done. With five
        times what we can do, most of the time would go into reading what is not answered."""
        admission = self._all.admission
        if admission is None or not admission.is_overloaded or self._is_answering:
            return False
        if not admission.is_plain(data):
            return False
        if admission.enter(self.client):
            self._verdict = True
            return False
        self._say_busy()
        self.read_by = self._all.now + limits.IDLE_SECONDS
        return True

    def _is_admitted(self) -> bool | None:
        """Whether a request may begin; None: the app decides. In overload that is decided here,
        unless its refusal is not as plain as most."""
        verdict, self._verdict = self._verdict, None
        admission = self._all.admission
        if verdict is not None or admission is None or not admission.is_overloaded:
            return verdict
        is_plain = (
            not self._is_answering
            and self.parser.get_method() == b"POST"
            and self.parser.should_keep_alive()
            and b"expect" not in self._seen
            and 0 < len(self._seen.get(b"content-length", b"")) <= _LARGE_DIGITS
            and not any(name == b"last-event-id" for name, _ in self.headers)
        )
        return admission.enter(self.client) if is_plain else None

    @property
    def _is_answering(self) -> bool:
        """Whether an answer is under way, or owed to a request before this one."""
        running = self._running
        return bool(self.pipeline) or (running is not None and not running.response_complete)

    def _say_busy(self) -> None:
        # It is counted where it was decided.
        self.server_state.total_requests += 1
        self.transport.write(BUSY.answer)

    def _skip_app(self) -> None:
        """Refuse at once."""
        self._say_busy()
        # Its body is still read, and nobody's.
        self.cycle = _ANSWERED
        self._phase = _BODY
        self._body_bytes = 0
        self._is_large = False
        self._began = self._all.now
        self.read_by = self._began + limits.BODY_SECONDS

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
            if self._phase == _IDLE:
                self.read_by = self._all.now + limits.IDLE_SECONDS

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
        """Whether nothing is being done for the caller."""
        running = self._running
        return self._phase != _BODY and (running is None or running.response_complete)

    def expire(self) -> None:
        """See what the caller is late with."""
        now = self._all.now
        if self.write_by <= now:
            self._all.count(limits.UNREAD)
            self.drop()
        elif self._is_deaf:
            self._end_listening()
        elif self._phase == _IDLE:
            self._end_waiting()
        elif self.flow.read_paused or (self._phase == _BODY and self._is_awaited):
            # It is us who do not read.
            self._began = now
            self.read_by = now + limits.BODY_SECONDS
        elif self._phase == _BODY and now < self._began + self._body_seconds:
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

    # Refusals

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Enough):
                self._is_deaf = True
                if self._phase != _BODY:
                    self.read_by = NEVER
            else:
                begins = self._raw == self._piece and not self._slack
                self._refuse(meaning(error, cause, data if begins else b""))

    def _check_head(self) -> None:
        """Refuse a head that is too large, or that two readers could understand differently."""
        if len(self.url) > MAX_URL_BYTES:
            raise Refused(LONG_URL)
        if is_heavy(self.headers, self._raw + self._slack):
            raise Refused(LARGE_HEAD)
        seen = self._seen
        version = self._version = self.parser.get_http_version()
        self.url = check(version, self.parser.get_method(), self.url, seen, self._host)
        self._host = seen.get(b"host")
        self.expect_100_continue = b"expect" in seen and version == "1.1"
        if len(self.pipeline) >= MAX_PIPELINED:
            # The last one that waits is the last one that is answered.
            self.pipeline[0][0].keep_alive = False
            raise _Enough

    def _check_unfinished(self) -> None:
        """Refuse what is too large already, before it has fully come."""
        if self._phase == _HEAD:
            if len(self.url) > MAX_URL_BYTES:
                self._refuse(LONG_URL)
            elif self._raw > MAX_HEADER_BYTES + MAX_URL_BYTES + self._slack:
                self._refuse(LARGE_HEAD)
        elif b"transfer-encoding" in self._seen:
            around = self._raw - 2 * self._body_bytes - self._slack
            if around > MAX_HEADER_BYTES + MAX_FRAMING_BYTES:
                self._refuse(BAD_FRAMING)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request that would rather speak something else as what it also is.

        The parser stops behind the head of one and would take its body for the next request, so
        it is given the head again, without the wish.
        """
        self._upgrades = False
        hops = (b"upgrade", b"http2-settings", b"connection")
        closes = not self.parser.should_keep_alive()
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % field for field in self.headers if field[0] not in hops]
        lines += [b"connection: close"] if closes else []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._phase = _HEAD
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def _refuse(self, refused: Refusal) -> None:
        """Answer, once those before it are answered, and close."""
        self._all.count(refused.reason)
        self._is_deaf = True
        self.read_by = NEVER
        if self._phase == _BODY:
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
        self.transport.write(refused.answer)
        # Who was late is not listened to any longer.
        if refused is TOO_SLOW:
            self._close()
        else:
            self.linger()


def protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Return what uvicorn makes a connection with."""
    # It is only called.
    return cast("type[asyncio.Protocol]", partial(Connection, connections))
