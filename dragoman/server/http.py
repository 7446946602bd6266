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
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.server import connections as limits
from dragoman.server.connections import NEVER, Connections
from dragoman.server.http_chunks import ChunkLines
from dragoman.server.http_entry import LARGE_DIGITS, Entry
from dragoman.server.http_line import BODY, HEAD, IDLE
from dragoman.server.http_rules import (
    BAD_FRAMING,
    BAD_LENGTH,
    BAD_LINE,
    LARGE_HEAD,
    LONG_URL,
    MAX_LENGTH_DIGITS,
    NO_MEMORY,
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


class Connection(Entry):
    """One connection of a caller, and the request that is being read from it."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(connections, config, server_state, app_state, _loop)
        # Nothing has been heard: the time of the first head counts from the connection on.
        self._is_new = True
        self._discarded = 0
        self.url = b""
        self._version = ""
        # The host of the request before it, which need not be looked at twice.
        self._host: bytes | None = None
        self._upgrades = False
        self._is_large = False
        self._keeps_alive = True
        # What came before in the head that is being read; the piece that is being read, and how
        # far into both the last head began.
        self._before = bytearray()
        self._data = b""
        self._found = 0
        # Follows a chunked body.
        self._chunks: ChunkLines | None = None
        # Bytes of it in this and earlier pieces; where it began within a piece, `_slack` is how
        # long that piece was, since the parser does not say where.
        self._raw = self._slack = self._piece = 0

    def data_received(self, data: bytes) -> None:
        """Read on; what there is no memory for is refused, and nothing else."""
        if self._is_deaf:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES + 2 * self._all.max_body_bytes:
                self.drop()
            return
        if self._held and self._keep(data):
            return
        try:
            if self._phase == IDLE:
                is_first, self._is_new = self._is_new, False
                if self._is_refused_unread(data):
                    return
                self._phase = HEAD
                self._raw = self._slack = 0
                if not is_first:
                    self.read_by = self._all.now + limits.HEAD_SECONDS
            self._piece = len(data)
            self._raw += self._piece
            if self._chunks is not None and not self._chunks.take(data):
                self._refuse(BAD_FRAMING)
                return
            self._parse(data)
        except MemoryError:
            self._refuse(NO_MEMORY)
        if self._phase != IDLE and not self._is_deaf:
            self._check_unfinished()

    # The parser's side

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._seen = {}
        if self._phase == IDLE:
            self._phase = HEAD
            self.read_by = self._all.now + limits.HEAD_SECONDS

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field is read. Those behind a body are nobody's: what they say comes too late."""
        if self._phase == BODY:
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
        length = self._seen.get(b"content-length", b"")
        is_large = len(length) > LARGE_DIGITS or b"transfer-encoding" in self._seen
        if is_large:
            self._check_large(length)
        if self._is_refused() or (is_admitted := self._is_admitted()) is False:
            self._skip_app()
            return
        self._begin_cycle(is_admitted)
        self._phase = BODY
        self._body_bytes = 0
        self._began = self._all.now
        self.read_by = self._began + limits.BODY_SECONDS
        self._is_large = False
        if is_large:
            self._expect_much()

    def _begin_cycle(self, is_admitted: bool | None) -> None:
        """Give the request to the app, now or when those before it are answered."""
        self.give()
        parser = self.parser
        scope = cast("dict[str, Any]", self.scope)
        version = self._version
        scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        raw, _, query = self.url.partition(b"?")
        path = raw.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = raw, query
        state = scope["state"]
        state["is_admitted"], state["came_at"] = is_admitted, time.monotonic()
        state["ticket"], self._ticket = self._ticket, None
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

    def _skip_app(self) -> None:
        """Read the body, which is nobody's."""
        self.cycle = _ANSWERED
        self._phase = BODY
        self._body_bytes = 0
        self._is_large = False
        self._began = self._all.now
        self.read_by = self._began + limits.BODY_SECONDS

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
        self._phase = IDLE
        self._chunks = None
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

    # What is refused as HTTP

    def _parse(self, data: bytes) -> None:
        self._data, self._found = data, 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._before = bytearray()
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Enough):
                self._is_deaf = True
                if self._phase != BODY:
                    self.read_by = NEVER
            elif isinstance(cause, MemoryError):
                self._refuse(NO_MEMORY)
            else:
                begins = self._raw == self._piece and not self._slack
                self._refuse(meaning(error, cause, data if begins else b""))
        self._data = b""
        if self._phase or self._before:
            self._keep_head(data)

    def _keep_head(self, data: bytes) -> None:
        """Keep what has come of a head, from behind the last request line that was found."""
        if self._phase == HEAD and not self._is_deaf:
            self._before += data
            del self._before[: self._found]
        else:
            self._before = bytearray()

    def _check_head(self) -> None:
        """Refuse a head that is too large, or that two readers could understand differently."""
        if len(self.url) > MAX_URL_BYTES:
            raise Refused(LONG_URL)
        if is_heavy(self.headers, self._raw + self._slack):
            raise Refused(LARGE_HEAD)
        seen = self._seen
        parser = self.parser
        version, method = parser.get_http_version(), parser.get_method()
        self._version = version
        # The parser passes over space. Most requests begin with their piece.
        if self._found or not self._data.startswith(b"%b %b HTTP/1." % (method, self.url)):
            self._check_line(b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode()))
        else:
            self._found = 1
        self.url = check(version, method, self.url, seen, self._host)
        self._host = seen.get(b"host")
        self.expect_100_continue = b"expect" in seen and version == "1.1"
        if len(self.pipeline) >= MAX_PIPELINED:
            # The last one that waits is the last one that is answered.
            self.pipeline[0][0].keep_alive = False
            raise _Enough

    def _check_line(self, line: bytes) -> None:
        """Refuse a request line that is not in what came as it is to be written."""
        head = self._before + self._data if self._before else self._data
        found = head.find(line, self._found)
        if found < 0:
            raise Refused(BAD_LINE)
        self._found = found + len(line)

    def _check_large(self, length: bytes) -> None:
        """Refuse a length of too many digits; look at the lines of a chunked body."""
        if len(length) > MAX_LENGTH_DIGITS:
            raise Refused(BAD_LENGTH)
        if length:
            return
        self._chunks = ChunkLines()
        head = self._before + self._data if self._before else self._data
        begin = head.find(b"\r\n\r\n", max(0, self._found - 2)) + 4
        if not self._chunks.take(bytes(head), begin):
            raise Refused(BAD_FRAMING)

    def _check_unfinished(self) -> None:
        """Refuse what is too large already, before it has fully come."""
        if self._phase == HEAD:
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
        self._phase = HEAD
        self._parse(b"\r\n".join([*lines, b"", rest]))


def protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Return what uvicorn makes a connection with."""
    # It is only called.
    return cast("type[asyncio.Protocol]", partial(Connection, connections))
