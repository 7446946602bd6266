"""Answers the calls of every version and binding: takes the envelope off, has the agent's service
answer, and puts the envelope on again. Whatever is wrong with a request, the answer has the shape
its sender expects and says nothing about us."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.dialects import errors, negotiate
from dragoman.dialects.dialect import Dialect, with_transitions
from dragoman.dialects.house import House, r
from dragoman.dialects.house import errors as house_errors
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    MethodNotFound,
    Overloaded,
    PermissionDenied,
    TaskNotFound,
    Unauthenticated,
    retry_after,
)
from dragoman.model import operations as ops
from dragoman.model.card import HTTP_JSON
from dragoman.model.identity import Caller, TaskId
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded, encode
from dragoman.security.audit import Audit
from dragoman.server import large
from dragoman.server.discovery import Discovery, denied, unauthenticated
from dragoman.server.house import Houses, reconnected
from dragoman.server.incidents import incident
from dragoman.server.request import (
    JSON,
    Headers,
    Request,
    check_type,
    read_body,
    read_value,
    rest_type,
)
from dragoman.server.streams import OpenStreams
from dragoman.service import (
    LARGE_BYTES,
    Batch,
    Call,
    Opening,
    Reply,
    Service,
    TaskReply,
    off_loop,
)
from dragoman.telemetry import figures, tracing
from dragoman.transports import json_text, jsonrpc, rest, sse

logger = logging.getLogger("dragoman")

# Says that a stream does not go on from where its reader was, but begins with the task as it is.
RESET = (b"x-dragoman-resume", b"reset")
# What callers of one house are told of a stream, and others know of HTTP.
KEEPS_ALIVE = (b"connection", b"keep-alive")

Follow = Callable[[Service, Call], AsyncGenerator[Batch]]


class Endpoints:
    """The operations of the protocol, over JSON-RPC and REST."""

    def __init__(
        self,
        settings: Settings,
        discovery: Discovery,
        streams: OpenStreams,
        audit: Audit,
        houses: Houses,
    ) -> None:
        self._settings = settings
        self._houses = houses
        self._bindings = settings.bindings()
        self._discovery = discovery
        self._streams = streams
        self._audit = audit

    # JSON-RPC

    async def answer_jsonrpc(self, request: Request) -> None:
        """Answer one JSON-RPC request."""
        request.watched.binding = "jsonrpc"
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        id: jsonrpc.Id = None
        method = ""
        dialect: Dialect | None = self._houses.at(request.path)
        try:
            check_type(request)
            body = await read_body(request, self._settings.max_body_bytes)
            if len(body) <= json_text.READ_IN_LINE_BYTES:
                value = json_text.parse(body, self._settings.max_json_values)
            else:
                value = await read_value(body, self._settings.max_json_values)
            id = jsonrpc.request_id(value)
            method = jsonrpc.method_name(value)
            envelope = jsonrpc.parse(value)
            if request.path == r.PATH:
                # This house judges the whole envelope before what is in it.
                jsonrpc.check_answerable(envelope)
            dialect = self._houses.by_request(request, envelope) or self._official(
                request, envelope.method, next(iter(value))
            )
            if request.size > LARGE_BYTES:
                operation = await large.decoded(dialect, envelope.method, envelope.params)
            else:
                operation = dialect.decode_request(envelope.method, envelope.params)
            jsonrpc.check_answerable(envelope)
            operation = self._houses.reconnecting(request, operation, dialect, envelope.params)
            operation = await self._houses.resumed(request, operation, dialect)
            call = self._call(request, operation, dialect)
            if operation.streams:
                # Whoever reads a task and can follow it comes back to it.
                follow = reconnected if method == "tasks/get" else None
                await self._stream_jsonrpc(request, call, dialect, id, follow)
                return
            reply = await self._answer(request, call, dialect)
            if isinstance(operation, ops.GetTask):
                dialect = self._houses.mirrored(dialect, request, reply, id)
            if (size := large.size_of(reply)) > LARGE_BYTES:
                write = partial(_success, id, dialect, operation, reply)
                body = await large.encoded(size, write)
            else:
                body = jsonrpc.success(id, dialect.encode_reply(operation, reply))
            is_card = isinstance(operation, ops.GetExtendedCard)
            await self._reply(request, JSON, body, dialect.version, private=is_card)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except PermissionDenied as error:
            self.note_denial(request, error)
            if request.path == r.PATH:
                await self._jsonrpc_error(request, error, id, dialect, method)
            else:
                await denied(request, error)
        except asyncio.CancelledError:
            if not self._streams.is_stopping:
                raise
            _forgive_cancellation()
            await self._jsonrpc_error(request, Overloaded(), id, dialect, method)
        except A2AError as error:
            await self._jsonrpc_error(request, error, id, dialect, method)
        except Exception:
            await self._jsonrpc_error(request, incident(), id, dialect, method)

    def _official(self, request: Request, method: str, first: str) -> Dialect:
        """Return the dialect of a call by the version it names or its method shows; `first` is the
        first member of its envelope."""
        infer = self._settings.version_mode == "infer"
        dialect = negotiate.for_jsonrpc(method, *request.version, infer=infer)
        dialect = self._houses.at_home(self._discovery.offered(dialect, request), request)
        if dialect is V1_0:
            return dialect
        return negotiate.for_library(dialect, request.header(b"user-agent") or "", first)

    async def _jsonrpc_error(
        self,
        request: Request,
        error: A2AError,
        id: jsonrpc.Id,
        dialect: Dialect | None,
        method: str,
    ) -> None:
        self._discovery.narrow(error)
        version = dialect.version if dialect else negotiate.error_version(*request.version, method)
        said = _said(error, dialect, version)
        request.watched.failed(error, said["code"])
        body = jsonrpc.failure(id, said)
        kind = JSON
        status = dialect.http_status(error) if isinstance(dialect, House) else 200
        needs_event = request.reads_events_alone
        if isinstance(dialect, House) and method in dialect.streams_of_events_alone:
            needs_event = True
        if version != V1_0.version and needs_event and status == 200:
            kind, body = sse.CONTENT_TYPE, sse.on_single_lines(sse.frame(body))
        # Errors of the protocol are 200 here; that we are busy, or that the caller may not do
        # this, is a matter of HTTP.
        is_http = isinstance(error, Overloaded | PermissionDenied)
        status = errors.http_status(error) if is_http else status
        later = retry_after(error)
        await self._reply(request, kind, body, version, status=status, retry_after=later)

    def note_denial(self, request: Request, error: PermissionDenied) -> None:
        """Put in the audit log that a known caller may not do this."""
        self._audit.record(
            "access.denied",
            outcome="denied",
            who=request.caller.principal.text,
            object=f"{request.mount.agent.name} {error.facts.get('skill', '')}".strip(),
            reason=error.facts.get("scope", ""),
            address=request.address,
        )

    def _call(self, request: Request, operation: ops.Operation, dialect: Dialect) -> Call:
        is_old = dialect.version != "1.0"
        name = type(operation).__name__
        agent = request.mount.agent.name
        request.watched.is_for(name, dialect.version, agent, _task_of(operation))
        names_tasks = isinstance(dialect, House) and dialect.names_tasks
        closes_on_input = is_old or not isinstance(operation, ops.SubscribeToTask)
        if isinstance(dialect, House) and dialect.keeps_open:
            closes_on_input = False
        caller = request.caller
        return Call(
            operation=_placed(operation, caller),
            caller=caller,
            after=request.after,
            extensions=request.extensions,
            closes_on_input=closes_on_input,
            patience=self._settings.max_block_seconds if is_old else 0.0,
            client_task_id=names_tasks or (is_old and self._settings.client_task_ids),
            size=request.size,
        )

    async def reply_to(self, request: Request, operation: ops.Operation, dialect: Dialect) -> Reply:
        """Return the reply to an operation that came in an envelope of its own kind."""
        return await self._answer(request, self._call(request, operation, dialect), dialect)

    def forgives_cancellation(self) -> bool:
        """Tell whether a request was cut off because the server ends; its answer goes on then."""
        if self._streams.is_stopping:
            _forgive_cancellation()
        return self._streams.is_stopping

    async def _answer(self, request: Request, call: Call, dialect: Dialect) -> Reply:
        if isinstance(call.operation, ops.GetExtendedCard):
            return await self._discovery.extended_card(request, dialect)
        reply = await request.mount.service.answer(call)
        return with_transitions(reply, dialect) if isinstance(reply, TaskReply) else reply

    async def _stream_jsonrpc(
        self,
        request: Request,
        call: Call,
        dialect: Dialect,
        id: jsonrpc.Id,
        follow: Follow | None = None,
    ) -> None:
        before, after = jsonrpc.success_frame(id)

        def failed(error: A2AError, _: str) -> bytes:
            return jsonrpc.failure(id, _said(error, dialect, dialect.version))

        await self._stream(request, call, dialect, (before, after), failed, follow)

    # REST

    async def answer_rest(self, request: Request) -> None:
        """Answer one REST request, also one that leads nowhere."""
        request.watched.binding = "rest"
        version = negotiate.rest_version(*request.version, request.path)
        is_old = version != V1_0.version
        infer = self._settings.version_mode == "infer"
        dialect: Dialect = V1_0
        try:
            if HTTP_JSON not in self._bindings:
                raise MethodNotFound("Nothing is served here")
            route = rest.find_0_3(request.verb, request.path) if is_old else self._find(request)
            if isinstance(route, rest.NotAllowed):
                await request.refuse_verb(route.allow)
                return
            if route is None:
                raise MethodNotFound("Nothing is served here")
            request.watched.route = rest.template(route, version)
            if not is_old:
                dialect = negotiate.for_rest(*request.version, infer=infer)
                dialect = self._discovery.offered(dialect, request)
            check_type(request)
            body = await read_body(request, self._settings.max_body_bytes)
            value = await read_value(body, self._settings.max_json_values) if body else None
            if is_old:
                agent = request.header(b"user-agent") or ""
                dialect = negotiate.for_rest_0_3(*request.version, agent, value, infer=infer)
                dialect = self._discovery.offered(dialect, request)
                dialect = self._houses.over_rest(dialect, route.method)
                version = dialect.version
            params = rest.params(route, request.scope["query_string"], value)
            if request.size > LARGE_BYTES:
                operation = await large.decoded(dialect, rest.method(route, dialect), params)
            else:
                operation = dialect.decode_request(rest.method(route, dialect), params)
            operation = await self._houses.resumed(request, operation, dialect)
            call = self._call(request, operation, dialect)
            if operation.streams:
                await self._stream_rest(request, call, dialect)
                return
            reply = await self._answer(request, call, dialect)
            if (size := large.size_of(reply)) > LARGE_BYTES:
                write = partial(_content, dialect, operation, reply)
                content = await large.encoded(size, write)
            else:
                content = rest.content(dialect.encode_reply(operation, reply))
            await self._reply(request, rest_type(request, version), content, version, private=True)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except PermissionDenied as error:
            self.note_denial(request, error)
            await self._rest_error(request, error, version, dialect)
        except asyncio.CancelledError:
            if not self._streams.is_stopping:
                raise
            _forgive_cancellation()
            await self._rest_error(request, Overloaded(), version, dialect)
        except A2AError as error:
            await self._rest_error(request, error, version, dialect)
        except Exception:
            await self._rest_error(request, incident(), version, dialect)

    def _find(self, request: Request) -> rest.Route | rest.NotAllowed | None:
        """Return what a path of 1.0 is. Below `/v1` it is one only for who says so: that is our
        address then, or a tenant."""
        if not request.path.startswith("/v1/"):
            return rest.find(request.verb, request.path)
        if self._discovery.base(request).endswith("/v1"):
            return rest.find(request.verb, request.path.removeprefix("/v1"))
        return rest.find(request.verb, request.path, reserved=rest.RESERVED - {"v1"})

    def _rest_failure(
        self, error: A2AError, version: str, dialect: Dialect, task_id: str = ""
    ) -> tuple[int, Any]:
        if dialect is r.RX_REST:
            return house_errors.rx_rest(error, task_id)
        if version == V1_0.version:
            return errors.rest(error, self._settings.error_table)
        return errors.rest_0_x(error)

    async def _rest_error(
        self, request: Request, error: A2AError, version: str, dialect: Dialect
    ) -> None:
        request.watched.failed(error)
        self._discovery.narrow(error)
        status, content = self._rest_failure(error, version, dialect)
        # Errors of 1.0.0 are plain JSON, whatever else is spoken.
        is_1_0_0 = self._settings.error_table == "1.0.0"
        kind = JSON if is_1_0_0 else rest_type(request, version)
        later = retry_after(error)
        body = encode(content)
        await self._reply(
            request, kind, body, version, status=status, private=True, retry_after=later
        )

    async def _stream_rest(self, request: Request, call: Call, dialect: Dialect) -> None:
        def failed(error: A2AError, task_id: str) -> bytes:
            return encode(self._rest_failure(error, dialect.version, dialect, task_id)[1])

        is_wrapped = dialect is r.RX_REST and self._settings.rx_rest_wrap
        wrap = jsonrpc.success_frame(None) if is_wrapped else (b"", b"")
        await self._stream(request, call, dialect, wrap, failed)

    # Answers

    async def _stream(
        self,
        request: Request,
        call: Call,
        dialect: Dialect,
        wrap: tuple[bytes, bytes],
        failed: Callable[[A2AError, str], bytes],
        follow: Follow | None = None,
    ) -> None:
        if request.room is not None:
            request.room.open_stream()
        service = request.mount.service
        batches = service.follow(call) if follow is None else follow(service, call)
        stream = sse.Stream(request.send, request.receive)
        self._streams.add(stream, request.pass_)
        try:
            # Waits for the first batch: a refusal is a plain error and not a broken stream.
            first = await anext(batches)
        except BaseException:
            self._streams.discard(stream)
            raise
        try:
            headers = [*sse.HEADERS, *_common(request, dialect.version), *request.extra]
            if isinstance(first, Opening) and first.is_reset:
                headers.append(RESET)
            is_house = isinstance(dialect, r.R) and dialect.keeps_open
            if is_house:
                headers.append(KEEPS_ALIVE)
            request.watched.responded(200)
            request.is_answered = True
            await stream.open(headers)
            trace = _trace(request) if is_house else None
            if call.is_large:
                opening = await off_loop(_frames, first, dialect, wrap, trace)
            else:
                opening = _frames(first, dialect, wrap, trace)
            await stream.write(opening)
            reader = self._streams.reader(call.caller, request.mount.agent.name)
            async for batch in batches:
                frames = _frames(batch, dialect, wrap, trace)
                await stream.write(frames)
                if reader.is_ahead(_count(batch), len(frames)):
                    await reader.turn()
        except asyncio.CancelledError:
            figures.streams_cut.add("stopping" if self._streams.is_stopping else "gone")
            if not stream.is_closed:
                raise
            _forgive_cancellation()
            is_left = stream.is_left and not self._streams.is_stopping
            if is_left and self._settings.cancel_on_disconnect:
                await _cancel(service, call, first)
        except A2AError as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            await stream.write(sse.error_frame(failed(error, _task_in(first))))
        except Exception as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            await stream.write(sse.error_frame(failed(incident(), _task_in(first))))
        finally:
            stream.is_closed = True
            self._streams.discard(stream)
            await batches.aclose()
            await stream.close()

    async def _reply(
        self,
        request: Request,
        kind: bytes,
        body: bytes,
        version: str,
        *,
        status: int = 200,
        private: bool = False,
        retry_after: int = 1,
    ) -> None:
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        headers += _common(request, version)
        if private:
            headers.append((b"cache-control", b"private, no-store"))
        if status in (429, 503):
            headers.append((b"retry-after", b"%d" % retry_after))
        await request.respond(status, headers, body)


def _placed(operation: ops.Operation, caller: Caller) -> ops.Operation:
    """Return an operation in the tenant its caller's credential is for. What it asks for in
    another one does not exist, whether it does or not."""
    if caller.tenant is None or operation.tenant == caller.tenant:
        return operation
    if operation.tenant:
        raise TaskNotFound(taskId=_task_of(operation))
    return msgspec.structs.replace(operation, tenant=caller.tenant)


def _success(id: jsonrpc.Id, dialect: Dialect, operation: ops.Operation, reply: Reply) -> bytes:
    return jsonrpc.success(id, dialect.encode_reply(operation, reply))


def _content(dialect: Dialect, operation: ops.Operation, reply: Reply) -> bytes:
    return rest.content(dialect.encode_reply(operation, reply))


def _said(error: A2AError, dialect: Dialect | None, version: str) -> dict[str, Any]:
    """Return the `error` member of a JSON-RPC answer."""
    if isinstance(dialect, House):
        return dialect.encode_error(error)
    return errors.jsonrpc(error, version)


def _count(batch: Batch) -> int:
    """Return how many events a batch has."""
    return 1 if isinstance(batch, Opening | Message) else len(batch)


def _task_in(first: Batch) -> str:
    """Return the task that a stream is about."""
    return first.reply.reading.task.id if isinstance(first, Opening) else ""


async def _cancel(service: Service, call: Call, first: Batch) -> None:
    """End the task that a stream began with: who began it left, and is to have meant that."""
    task_id = _task_in(first)
    if not task_id or not isinstance(call.operation, ops.StreamMessage):
        return
    operation = ops.CancelTask(task_id=TaskId(task_id), tenant=call.operation.tenant)
    try:
        await service.answer(msgspec.structs.replace(call, operation=operation))
    except A2AError as error:
        # It ended meanwhile, or cannot be ended: nobody is there to be told.
        logger.debug("task %s was not canceled: %s", task_id, error)


def _task_of(operation: ops.Operation) -> str:
    if isinstance(operation, ops.SendMessage):
        return operation.message.task_id
    return getattr(operation, "task_id", "")


def _common(request: Request, version: str) -> Headers:
    headers: Headers = [
        (b"a2a-version", version.encode()),
        (b"vary", b"A2A-Version, Accept"),
    ]
    asked = request.extensions
    if asked:
        active = ", ".join(sorted(asked & request.mount.extensions)).encode()
        if active:
            name = b"a2a-extensions" if version == V1_0.version else b"x-a2a-extensions"
            headers.append((name, active))
    return headers


def _trace(request: Request) -> Metadata:
    """Return the trace a stream belongs to and our own place in it."""
    here = tracing.current() if tracing.on else None
    if here is None:
        came = tracing.arrived(request.scope["headers"])
        trace_id = came.trace_id if came is not None else secrets.token_hex(16)
        here = tracing.Trace(trace_id, secrets.token_hex(8))
    return tracing.event_metadata(here)


def _frames(
    batch: Batch, dialect: Dialect, wrap: tuple[bytes, bytes], trace: Metadata | None = None
) -> bytes:
    before, after = wrap
    if trace is not None:
        batch = r.with_trace(batch, trace)
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


def _forgive_cancellation() -> None:
    """The cancellation was our own way to end a stream; the task goes on to close it."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
