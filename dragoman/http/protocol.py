"""HTTP/1.1 as strict as it is written, on httptools.

One connection of a caller: what is read from it, what is refused, what it waits for and how it
ends. Sizes, counts and deadlines hold while a request is being read; what two readers could
understand differently is refused; what is refused is answered as a problem of RFC 9457. A good
request costs a few comparisons.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httptools

from dragoman.http import connections as counts
from dragoman.http.admission import Ticket
from dragoman.http.connections import Connections, CountedRefusal
from dragoman.http.deadlines import LAST_REQUEST_SECONDS, NEVER, Deadlines
from dragoman.http.exchange import ANSWERED, Exchange, Flow, KnownRequest, UnfinishedTransport
from dragoman.http.grpc.front import PREFACE, GrpcConnection, RpcOrigin
from dragoman.http.head_rules import (
    BAD_FRAMING,
    LARGE_HEAD,
    LONG_URL,
    NO_MEMORY,
    TOO_SLOW,
    meaning,
    plain_head,
)
from dragoman.http.known_heads import KnownHeads, head_key
from dragoman.http.raw_request import RawRequest
from dragoman.http.refusals.delayed import RefusalWriter
from dragoman.http.refusals.early import EarlyRefusal, EarlyRefusals
from dragoman.http.refusals.refused_connections import CAN_POLL, RefusedConnections
from dragoman.http.request import MAX_URL_BYTES
from dragoman.http.request_head import RequestHead

# How far the request has come that is being read.
IDLE, HEAD, BODY = range(3)
# Requests one connection may have waiting behind the one that is being answered.
MAX_PIPELINED = 100
# What we go on reading after an answer that did not need it, besides twice the largest body: many
# callers send all they have before they read, and would never see why it was too much.
MAX_DISCARDED_BYTES = 1024 * 1024
# What may have come of a body that the app has not asked for; then no more is read.
MAX_UNTAKEN_BYTES = 64 * 1024

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class SwitchedProtocol(asyncio.Protocol):
    """A protocol that a connection is given to; it says when the connection is gone."""

    on_lost: Callable[[Exception | None], None] | None


_ASGI = {"version": "3.0", "spec_version": "2.3"}


class _EndOfReading(Exception):
    """Stops the parser: no further request is read here, and those that were are answered."""


class HttpProtocol(asyncio.Protocol):
    """One connection of a caller, and the request that is being read from it."""

    __slots__ = (
        "_all",
        "_app",
        "_asks_for_websocket",
        "_body_bytes",
        "_descriptor",
        "_discarded",
        "_exchange",
        "_extensions",
        "_grpc",
        "_head",
        "_heads",
        "_host",
        "_is_deaf",
        "_is_large",
        "_is_new",
        "_is_switched",
        "_keeps_alive",
        "_last_refusal",
        "_loop",
        "_phase",
        "_preface",
        "_raw",
        "_refusals",
        "_refused",
        "_running",
        "_upgrades",
        "_waiting",
        "address",
        "client",
        "deadlines",
        "early",
        "flow",
        "parser",
        "scheme",
        "server",
        "transport",
    )

    def __init__(
        self,
        app: AsgiApp,
        connections: Connections,
        refused: RefusedConnections,
    ) -> None:
        self._app = app
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self.parser: Any = _parser(self)
        # What the connection is, once it is made.
        self.transport: asyncio.Transport
        self.flow: Flow
        self.server: tuple[str, int] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme = "http"
        self.address = ""
        self._extensions: dict[str, Any] | None = None
        self.deadlines = Deadlines(connections)
        self.early = EarlyRefusals(connections)
        self._refusals = RefusalWriter(self, connections.delayed)
        self._refused = refused
        # While it is read together with others that were refused; None: the loop reads it.
        self._descriptor: int | None = None
        # The request that was read last, the one that is being answered, and those between them.
        self._exchange: Exchange | None = None
        self._running = ANSWERED
        self._waiting: list[Exchange] = []
        self._heads = KnownHeads(connections.known_heads)
        # Nothing more is read as a request; bytes that were dropped since.
        self._is_deaf = False
        self._discarded = 0
        # Since it turned out to speak HTTP/2; and what came before that was certain.
        self._grpc: GrpcConnection | None = None
        self._preface = b""
        # Since another protocol has the connection.
        self._is_switched = False
        # A refusal that ends the connection and has to wait for the answers before it.
        self._last_refusal: CountedRefusal | None = None

        # The request that is being read.
        self._raw = RawRequest()
        self._phase = IDLE
        self._head = RequestHead()
        # Nothing has come yet: the time of the first head counts from the connection on.
        self._is_new = True
        # The host of the request before it, which need not be checked twice.
        self._host: bytes | None = None
        self._upgrades = False
        # Whether the request asks for a WebSocket, and behind it nothing has come.
        self._asks_for_websocket = False
        self._body_bytes = 0
        self._is_large = False
        # Whether the connection would stay open after a large body, had it come.
        self._keeps_alive = True

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is read and written
        """A caller has connected, and shaken hands where there is TLS."""
        self.transport = transport
        self.flow = Flow(transport)
        self.server = _address(transport.get_extra_info("sockname"))
        self.client = _address(transport.get_extra_info("peername"))
        self.address = self.client[0] if self.client else ""
        certificate: bytes | None = None
        if transport.get_extra_info("sslcontext"):
            self.scheme = "https"
            certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self._extensions = {"tls": {"client_cert": certificate}}
        self.early.connect(self.client, self.address, certificate)
        self.deadlines.await_head()
        refused = self._all.admit(self)
        if refused is not None:
            self._all.count(refused.reason)
            self._is_deaf = True
            transport.write(refused.answer)
            transport.close()
        elif self._all.is_stopping:
            # It was accepted before we stopped to listen, and its first request is on its way.
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; the request that is being answered is told."""
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        # They hold each other.
        self.parser = None
        self._all.forget(self)
        self._leave_refused()
        if self._all.admission is not None:
            self._all.admission.forget(self.client)
        self._refusals.clear()
        self._heads.clear()
        self._waiting.clear()
        running = self._running
        if not running.response_complete:
            self._leave(running)
            running.disconnect()

    def shutdown(self) -> None:
        """The server ends: the next answer is the last one here. A connection without a request is
        closed, once one that is on its way has had time to come."""
        self.flush_refusals()
        self.return_to_loop(b"")
        # A request with a known head would be answered as one that keeps the connection.
        self._heads.clear()
        if self._exchange is not None and not self._exchange.response_complete:
            self._exchange.keep_alive = False
        elif self._is_deaf or self._grpc is not None:
            self.transport.close()
        else:
            asyncio.get_running_loop().call_later(LAST_REQUEST_SECONDS, self._end_waiting)

    def _end_waiting(self) -> None:
        """Close a connection on which no request has come since the server began to end."""
        if self._phase != BODY and not self._is_answering:
            self.flush_refusals()
            self.transport.close()

    def pause_writing(self) -> None:
        """The caller does not take what is written; a plain answer has a deadline for that."""
        self.flow.pause_writing()
        running = self._running
        is_open = running.response_started and not running.response_complete
        if not (is_open and running.is_chunked):
            self._bound_writing()

    def resume_writing(self) -> None:
        """The caller has taken most of it."""
        self.flow.resume_writing()
        if not self.transport.is_closing():
            self.deadlines.write_by = NEVER
            if self._phase == IDLE and self.is_waiting:
                self.deadlines.await_request()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Read on; what there is no memory for is refused, and nothing else."""
        if self._is_deaf:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES + 2 * self._all.max_body_bytes:
                self.drop()
            return
        if self._refusals.waiting and self._refusals.postpone(data):
            return
        if self._is_new and self._all.grpc is not None:
            data = self._preface + data
            if self._is_grpc(data):
                return
        try:
            if self._phase == IDLE:
                if (
                    self._running.response_complete
                    and not self._waiting
                    and self._ends_unread(data)
                ):
                    return
                self._phase = HEAD
                self._raw.begin()
                if self._is_new:
                    self._is_new = False
                else:
                    self.deadlines.await_head()
            if not self._raw.take(data):
                self._refuse(BAD_FRAMING)
                return
            self._parse(data)
        except MemoryError:
            self._refuse(NO_MEMORY)
        if self._phase != IDLE and not self._is_deaf:
            self._check_unfinished()

    def _ends_unread(self, data: bytes) -> bool:
        """Refuse a plain request, or give one with a known head to what answers it, and tell
        whether this was one: then it need not be parsed."""
        early = self.early
        refused = None
        if is_active := early.is_active:
            refused = early.unread(data)
        found = None if refused is not None else self._heads.find(data)
        if found is not None and is_active:
            refused = early.known_head(found[0].scope["headers"])
        if refused is not None:
            # A known head is never that of the first request.
            self._is_new = False
            self._refuse_early(refused, is_last=True)
            self.deadlines.await_request()
            return True
        if found is None:
            return False
        # In overload one that waited for its turn too long is not begun.
        state: dict[str, Any] = {"came_at": time.monotonic()}
        if is_active and (ticket := early.take_ticket()) is not None:
            state |= {"is_admitted": True, "ticket": ticket}
        known, body = found
        self.deadlines.read_by = NEVER
        # Its whole body has come.
        exchange = Exchange(
            known.scope,
            state,
            self.transport,
            self.flow,
            self.on_response_complete,
            body,
            False,
            True,
        )
        self._exchange = exchange
        self._start(exchange, known.answer(exchange))
        return True

    def _is_grpc(self, data: bytes) -> bool:
        """Give away a connection that begins as HTTP/2 does, and tell whether this is one: one of
        which too little has come may be."""
        start = data[: len(PREFACE)]
        if not PREFACE.startswith(start):
            if self._local_port not in self._all.grpc_ports:
                return False
            self.drop()
            return True
        if len(start) < len(PREFACE):
            self._preface = data
            return True
        self._is_new, self._preface = False, b""
        # What speaks HTTP/2 has deadlines of its own.
        self.deadlines.read_by = NEVER
        certificate = (self._extensions or {}).get("tls", {}).get("client_cert")
        origin = RpcOrigin(self.client, self.server, self.scheme, certificate)
        assert self._all.grpc is not None
        self._grpc = self._all.grpc.begin(self, origin, data)
        return True

    @property
    def _local_port(self) -> int:
        return self.server[1] if self.server else 0

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _EndOfReading):
                self._is_deaf = True
                if self._phase != BODY:
                    self.deadlines.read_by = NEVER
            elif isinstance(cause, MemoryError):
                self._refuse(NO_MEMORY)
            else:
                self._refuse(meaning(error, cause, self._raw.begins))
        self._raw.keep(is_head=self._phase == HEAD and not self._is_deaf)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request that asks for another protocol as the plain request that it also is.

        The parser stops behind the head of one and would take its body for the next request, so
        it is given the head again, without that wish.
        """
        self._upgrades = False
        head, old = self._head, self.parser
        self._asks_for_websocket = not rest and head.asks_for_websocket
        line = old.get_method(), head.url, old.get_http_version().encode()
        plain = plain_head(line, head.headers, closes=not old.should_keep_alive())
        self.parser = _parser(self)
        self._phase = HEAD
        data = plain + rest
        self._raw.replace(data)
        self._parse(data)

    def _check_unfinished(self) -> None:
        """Refuse what is too large already, before it has fully come."""
        if self._phase == HEAD:
            if len(self._head.url) > MAX_URL_BYTES:
                self._refuse(LONG_URL)
            elif self._raw.is_head_too_long():
                self._refuse(LARGE_HEAD)
        elif self._head.is_chunked and self._raw.is_framing_too_long(self._body_bytes):
            self._refuse(BAD_FRAMING)

    # Called by the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head = RequestHead()
        if self._phase == IDLE:
            self._phase = HEAD
            self.deadlines.await_head()

    def on_url(self, url: bytes) -> None:
        """A piece of its target is read."""
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field is read. Those behind a body are ignored: what they say comes too late."""
        if self._phase != BODY:
            self._head.add(name, value)

    def on_headers_complete(self) -> None:
        """The head is read: refuse it, or give it to the app."""
        head = self._head
        head.complete(self.parser, self._raw, self._host)
        self._host = head.host
        if len(self._waiting) >= MAX_PIPELINED:
            # The last one that waits is the last one that is answered.
            self._waiting[-1].keep_alive = False
            raise _EndOfReading
        if self.parser.should_upgrade():
            self._upgrades = True
            return
        is_large = head.is_large
        if head.is_chunked:
            self._raw.begin_chunks()
        refused = None
        if self.early.is_active and head.is_plain and not self._is_answering:
            refused = self.early.after_head(head.headers)
        if refused is None:
            self._begin_exchange(self.early.take_ticket())
        else:
            self._refuse_early(refused, is_last=False)
            # The body is read all the same, and dropped.
            self._exchange = ANSWERED
        self._phase = BODY
        self._body_bytes = 0
        self._is_large = False
        self.deadlines.await_body()
        if is_large or head.expects_continue:
            self._expect_much()

    def _begin_exchange(self, ticket: Ticket | None) -> None:
        """Give the request to the app, now or when those before it are answered."""
        self._refusals.flush()
        head = self._head
        # None: the app decides whether it may begin.
        is_admitted = None if ticket is None else True
        state: dict[str, Any] = {
            "is_admitted": is_admitted,
            "came_at": time.monotonic(),
            "ticket": ticket,
        }
        scope = head.scope() | {
            "asgi": _ASGI,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "state": state,
        }
        if self._extensions is not None:
            scope["extensions"] = self._extensions
        before = self._exchange
        exchange = self._exchange = Exchange(
            scope, state, self.transport, self.flow, self.on_response_complete
        )
        exchange.waiting_for_100_continue = head.expects_continue
        exchange.keep_alive = (
            head.version == "1.1" and head.keeps_alive and not self._all.is_stopping
        )
        state["exchange"] = exchange
        asks, self._asks_for_websocket = self._asks_for_websocket, False
        state["switch"] = self.switch if asks else None
        is_repeatable = exchange.keep_alive and self._all.keeps_heads and not asks
        if is_repeatable and not exchange.waiting_for_100_continue:
            key = head_key(self._raw.begins, head.fields, len(head.headers))
            if key:
                exchange.keep = partial(self._keep, exchange, key)
        if before is None or before.response_complete:
            self._start_asgi(exchange)
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def _keep(self, exchange: Exchange, key: bytes, request: KnownRequest) -> None:
        """Know the head of a request from here on, if it was answered to the end."""
        if exchange.response_complete and not self.transport.is_closing():
            self._heads.add(key, request)

    def _expect_much(self) -> None:
        """An answer before the end of this body is the last one here: the caller may send all of it
        or, if it asked whether it should, none."""
        assert self._exchange is not None, "its head was read"
        self._is_large = True
        self._keeps_alive = self._exchange.keep_alive
        self._exchange.keep_alive = False
        self._exchange.transport = UnfinishedTransport(self.transport, self.linger)

    def on_body(self, body: bytes) -> None:
        """Give a piece to the app; of what is beyond the limit, the first tells that it is."""
        exchange = self._exchange
        assert exchange is not None, "its head was read"
        if exchange.response_complete or self._body_bytes > self._all.max_body_bytes:
            return
        self._body_bytes += len(body)
        exchange.feed(body)
        if len(exchange.body) > MAX_UNTAKEN_BYTES:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """A request is read."""
        if self._upgrades:
            return
        exchange = self._exchange
        assert exchange is not None, "its head was read"
        if self._body_bytes > self._all.max_body_bytes:
            # Not all of it was given to the app, so to the app it has no end.
            if not self._is_large:
                self._expect_much()
            raise _EndOfReading
        self._phase = IDLE
        self._raw.end()
        if self._is_large:
            exchange.transport = self.transport
            if not exchange.response_started:
                exchange.keep_alive = self._keeps_alive and not self._all.is_stopping
        if exchange.response_complete:
            self.deadlines.await_request()
            return
        self.deadlines.read_by = NEVER
        exchange.more_body = False
        exchange.wake()

    # Answers

    def _start_asgi(self, exchange: Exchange) -> None:
        self._start(exchange, self._app(exchange.scope, exchange.receive, exchange.send))

    def _start(self, exchange: Exchange, answering: Awaitable[None]) -> None:
        # The app may find out who calls here.
        self.early.counts_for = None
        self._running = exchange
        # Not by the loop, whose tasks are looked at for those of authors.
        task = asyncio.Task(exchange.run(answering), loop=self._loop)
        tasks = self._all.tasks
        task.add_done_callback(tasks.discard)
        tasks.add(task)

    def on_response_complete(self) -> None:
        """An answer is given, or was broken off; the next request has its turn."""
        self._leave(self._running)
        if self.transport.is_closing():
            self._bound_writing()
        elif self._waiting:
            self._start_asgi(self._waiting.pop(0))
        elif self._last_refusal is not None:
            self._write_last(self._last_refusal)
        elif not self._is_deaf:
            if self.flow.read_paused:
                self.flow.resume_reading()
            if self._phase == IDLE:
                self.deadlines.await_request()

    def _leave(self, exchange: Exchange) -> None:
        """A request that was admitted is under way no longer."""
        ticket: Ticket | None = exchange.state.pop("ticket", None)
        if ticket is not None and (admission := self._all.admission) is not None:
            admission.end(ticket)

    @property
    def _is_answering(self) -> bool:
        """Whether an answer is under way, or owed to a request before this one."""
        return bool(self._waiting) or not self._running.response_complete

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered: also if the rest of a body is still coming whose
        request has its answer."""
        if self._grpc is not None:
            return not self._grpc.open_rpcs
        if self._is_switched:
            return False
        return self._running.response_complete

    # Another protocol

    def switch(self, head: bytes, protocol: SwitchedProtocol) -> bool:
        """Answer the request that is being answered with this head, and give the connection to
        another protocol. False: it cannot be given away, and nothing was written."""
        running = self._running
        if running.response_started or self._is_deaf or self._waiting:
            return False
        running.response_started = running.response_complete = True
        running.wake()
        self._leave(running)
        self._is_deaf = self._is_switched = True
        self.deadlines.read_by = self.deadlines.write_by = NEVER
        protocol.on_lost = self.connection_lost
        transport = self.transport
        transport.write(head)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self.flow.resume_reading()
        return True

    # Refusals that leave the connection open

    def _refuse_early(self, refused: EarlyRefusal, *, is_last: bool) -> None:
        """Refuse a request without the app. Behind the last one nothing has come."""
        answer, reason, is_at_once = refused
        self._all.count(reason)
        if is_at_once or self._refusals.is_due():
            if self._descriptor is not None:
                self._refused.write(self._descriptor, self, answer)
            elif not (is_last and self._join_refused(answer)):
                self.transport.write(answer)
        else:
            # What comes meanwhile is not refused before it.
            self.early.counts_for = None
            self._refusals.delay(answer, is_last=is_last)

    def flush_refusals(self) -> None:
        """Write the refusals that wait."""
        self._refusals.flush()

    def write_refusals(self, answers: bytes) -> None:
        """Write refusals that have waited."""
        if self._descriptor is not None and not self.transport.get_write_buffer_size():
            self._refused.write(self._descriptor, self, answers)
        else:
            self.transport.write(answers)

    # Read together with others that were refused

    def _join_refused(self, answer: bytes) -> bool:
        """Write a refusal and have the next request read together with those of other refused
        connections. False: neither is possible."""
        transport = self.transport
        # What is unsent comes first.
        if self._descriptor is not None or transport.get_write_buffer_size():
            return False
        if self.scheme == "https" or self._all.is_stopping or transport.is_closing():
            return False
        socket = transport.get_extra_info("socket")
        if socket is None or not CAN_POLL:
            return False
        descriptor = self._descriptor = socket.fileno()
        transport.pause_reading()
        self._refused.add(descriptor, self)
        self._refused.write(descriptor, self, answer)
        return True

    @property
    def is_answered(self) -> bool:
        """Whether no answer is under way, and none unsent: that comes first."""
        return (
            self._running.response_complete
            and not self._refusals.waiting
            and not self.transport.get_write_buffer_size()
        )

    def read_together(self, data: bytes) -> bool:
        """Refuse or begin what came, and tell whether that was possible; otherwise the loop has to
        read it."""
        if not self.is_answered or self._waiting or not self.early.is_active:
            return False
        try:
            return self._ends_unread(data)
        except MemoryError:
            self.return_to_loop(b"")
            self._refuse(NO_MEMORY)
            return True

    def return_to_loop(self, data: bytes, unsent: bytes = b"") -> None:
        """Be read by the loop from here on: write what the system did not take of a refusal, and
        begin with what was read already."""
        if not self._leave_refused() or self.transport.is_closing():
            return
        self.transport.resume_reading()
        if unsent:
            self.transport.write(unsent)
        if data:
            self.data_received(data)

    def _leave_refused(self) -> bool:
        """Be read together with others no more, and tell whether it was."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._refused.remove(descriptor, self)
        return descriptor is not None

    # Refusals that end it

    def _refuse(self, refused: CountedRefusal) -> None:
        """Answer, once those before it are answered, and close."""
        self._all.count(refused.reason)
        self._is_deaf = True
        self.deadlines.read_by = NEVER
        if self._phase == BODY:
            exchange = self._exchange
            assert exchange is not None, "its head was read"
            if exchange.response_started:
                self._hang_up(exchange)
                return
            # To the app its caller is gone.
            exchange.disconnect()
            if exchange is self._running:
                self._write_last(refused)
                return
            self._waiting.pop()
        running = self._running
        if running.response_complete or running.disconnected:
            self._write_last(refused)
        else:
            self._last_refusal = refused

    def _hang_up(self, exchange: Exchange) -> None:
        """Close without a refusal: the request has its answer, or is getting it."""
        if exchange.response_complete:
            self._close()
        else:
            exchange.keep_alive = False

    def _write_last(self, refused: CountedRefusal) -> None:
        self._last_refusal = None
        self._refusals.flush()
        self.transport.write(refused.answer)
        # From a caller that was late nothing more is read.
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
        self.deadlines.linger()
        self._bound_writing()

    # Deadlines

    def expire(self) -> None:
        """Act on the deadline that has passed."""
        if self.deadlines.is_late_to_take():
            self._all.count(counts.UNREAD)
            self.drop()
        elif self._is_deaf:
            self._end_lingering()
        elif self._phase == IDLE:
            self._end_idling()
        elif self.flow.read_paused or (self._phase == BODY and self._is_awaited):
            # Our back-pressure paused reading, or the caller waits for our word; it is not late.
            self.deadlines.await_body()
        elif self._phase != BODY or not self.deadlines.extend_body(self._body_bytes):
            self._refuse(TOO_SLOW)

    def _end_idling(self) -> None:
        if not self.transport.get_write_buffer_size():
            self._all.count(counts.IDLE)
            self._close()
        elif self.deadlines.write_by == NEVER:
            self._all.count(counts.UNREAD)
            self.drop()
        else:
            # The caller still reads a long answer.
            self.deadlines.read_by = NEVER

    def _end_lingering(self) -> None:
        if self.transport.get_write_buffer_size():
            # The answer is still on its way, and has a deadline of its own.
            self.deadlines.read_by = NEVER
        else:
            self.drop()

    @property
    def _is_awaited(self) -> bool:
        """Whether the caller waits for our word before it sends the body."""
        return self._exchange is not None and self._exchange.waiting_for_100_continue

    def drop(self) -> None:
        """Close at once, whatever is unsent."""
        self.deadlines.read_by = self.deadlines.write_by = NEVER
        self.transport.abort()

    def _close(self) -> None:
        self._is_deaf = True
        self.deadlines.read_by = NEVER
        self.transport.close()
        self._bound_writing()

    def _bound_writing(self) -> None:
        self.deadlines.bound_writing(self.transport.get_write_buffer_size())


def protocol(app: AsgiApp, connections: Connections) -> Callable[[], HttpProtocol]:
    """Return what makes the protocol of each connection to an app."""
    return partial(HttpProtocol, app, connections, RefusedConnections(connections))


def _parser(connection: HttpProtocol) -> Any:
    parser = httptools.HttpRequestParser(connection)
    # What comes behind a last request is dropped, and is no reason to refuse that request.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _address(name: Any) -> tuple[str, int] | None:
    """Return one end of a connection; None: it has no address, as with a socket of Unix."""
    return None if isinstance(name, str) or not name else (name[0], name[1])
