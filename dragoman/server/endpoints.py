"""Answers the calls of every version and binding: takes the envelope off, has the agent's service
answer, and puts the envelope on again. Whatever is wrong with a request, the answer has the shape
its sender expects and says nothing about us."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.dialects import errors, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import r
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    InternalError,
    MethodNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    TaskNotFound,
    Unauthenticated,
)
from dragoman.model import operations as ops
from dragoman.model.card import HTTP_JSON
from dragoman.model.identity import Caller, new_id
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded, encode
from dragoman.security.audit import Audit
from dragoman.server.discovery import Discovery, denied, unauthenticated
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
from dragoman.service import Batch, Call, Opening, Reply
from dragoman.telemetry import figures, tracing
from dragoman.transports import jsonrpc, rest, sse

logger = logging.getLogger("dragoman")

# Says that a stream does not go on from where its reader was, but begins with the task as it is.
RESET = (b"x-dragoman-resume", b"reset")


class Endpoints:
    """The operations of the protocol, over JSON-RPC and REST."""

    def __init__(
        self,
        settings: Settings,
        discovery: Discovery,
        streams: OpenStreams,
        audit: Audit,
    ) -> None:
        self._settings = settings
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
        dialect: Dialect | None = None
        try:
            check_type(request)
            value = await read_value(await read_body(request, self._settings.max_body_bytes))
            id = jsonrpc.request_id(value)
            method = jsonrpc.method_name(value)
            envelope = jsonrpc.parse(value)
            dialect = negotiate.for_jsonrpc(
                envelope.method, *request.version, infer=self._settings.version_mode == "infer"
            )
            dialect = self._discovery.offered(dialect, request)
            operation = dialect.decode_request(envelope.method, envelope.params)
            call = self._call(request, operation, dialect)
            if operation.streams:
                await self._stream_jsonrpc(request, call, dialect, id)
                return
            reply = await self._answer(request, call, dialect)
            body = jsonrpc.success(id, dialect.encode_reply(operation, reply))
            is_card = isinstance(operation, ops.GetExtendedCard)
            await self._reply(request, JSON, body, dialect.version, private=is_card)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except PermissionDenied as error:
            self._note_denial(request, error)
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
        said = errors.jsonrpc(error, version)
        request.watched.failed(error, said["code"])
        body = jsonrpc.failure(id, said)
        kind = JSON
        if request.wants_stream_only:
            # A client that can only read events gets the error as one.
            kind, body = sse.CONTENT_TYPE, sse.on_single_lines(sse.frame(body))
        # Errors of the protocol are 200 here; that we are busy is a matter of HTTP.
        status = errors.http_status(error) if isinstance(error, Overloaded) else 200
        later = error.retry_after if isinstance(error, RateLimited) else 1
        await self._reply(request, kind, body, version, status=status, retry_after=later)

    def _note_denial(self, request: Request, error: PermissionDenied) -> None:
        self._audit.record(
            "access.denied",
            outcome="denied",
            who=request.caller.owner,
            object=f"{request.mount.agent.name} {error.facts.get('skill', '')}".strip(),
            reason=error.facts.get("scope", ""),
            address=request.address,
        )

    def _call(self, request: Request, operation: ops.Operation, dialect: Dialect) -> Call:
        is_old = dialect.version != "1.0"
        name = type(operation).__name__
        agent = request.mount.agent.name
        request.watched.is_for(name, dialect.version, agent, _task_of(operation))
        if request.room is not None and _begins_task(operation):
            request.room.begin_task()
        return Call(
            operation=_placed(operation, request.caller),
            caller=request.caller,
            after=request.after,
            extensions=request.extensions,
            closes_on_input=is_old or not isinstance(operation, ops.SubscribeToTask),
            patience=self._settings.max_block_seconds if is_old else 0.0,
            client_task_id=is_old and self._settings.client_task_ids,
        )

    async def _answer(self, request: Request, call: Call, dialect: Dialect) -> Reply:
        if isinstance(call.operation, ops.GetExtendedCard):
            return await self._discovery.extended_card(request, dialect)
        return await request.mount.service.answer(call)

    async def _stream_jsonrpc(
        self, request: Request, call: Call, dialect: Dialect, id: jsonrpc.Id
    ) -> None:
        before, after = jsonrpc.success_frame(id)

        def failed(error: A2AError) -> bytes:
            return jsonrpc.failure(id, errors.jsonrpc(error, dialect.version))

        await self._stream(request, call, dialect, (before, after), failed)

    # REST

    async def answer_rest(self, request: Request) -> None:
        """Answer one REST request, also one that leads nowhere."""
        request.watched.binding = "rest"
        version = negotiate.rest_version(*request.version, request.path)
        is_old = version != V1_0.version
        infer = self._settings.version_mode == "infer"
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
            dialect: Dialect = V1_0
            if not is_old:
                dialect = negotiate.for_rest(*request.version, infer=infer)
                dialect = self._discovery.offered(dialect, request)
            check_type(request)
            body = await read_body(request, self._settings.max_body_bytes)
            value = await read_value(body) if body else None
            if is_old:
                agent = request.header(b"user-agent") or ""
                dialect = negotiate.for_rest_0_3(*request.version, agent, value, infer=infer)
                dialect = self._discovery.offered(dialect, request)
                version = dialect.version
            params = rest.params(route, request.scope["query_string"], value)
            operation = dialect.decode_request(rest.method(route, dialect), params)
            call = self._call(request, operation, dialect)
            if operation.streams:
                await self._stream_rest(request, call, dialect)
                return
            reply = await self._answer(request, call, dialect)
            content = rest.content(dialect.encode_reply(operation, reply))
            await self._reply(request, rest_type(request, version), content, version, private=True)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except PermissionDenied as error:
            self._note_denial(request, error)
            await self._rest_error(request, error, version)
        except asyncio.CancelledError:
            if not self._streams.is_stopping:
                raise
            _forgive_cancellation()
            await self._rest_error(request, Overloaded(), version)
        except A2AError as error:
            await self._rest_error(request, error, version)
        except Exception:
            await self._rest_error(request, incident(), version)

    def _find(self, request: Request) -> rest.Route | rest.NotAllowed | None:
        """Return what a path of 1.0 is. Below `/v1` it is one only for who says so: that is our
        address then, or a tenant."""
        if not request.path.startswith("/v1/"):
            return rest.find(request.verb, request.path)
        if self._discovery.base(request).endswith("/v1"):
            return rest.find(request.verb, request.path.removeprefix("/v1"))
        return rest.find(request.verb, request.path, reserved=rest.RESERVED - {"v1"})

    def _rest_failure(self, error: A2AError, version: str) -> tuple[int, Any]:
        if version == V1_0.version:
            return errors.rest(error, self._settings.error_table)
        return errors.rest_0_x(error)

    async def _rest_error(self, request: Request, error: A2AError, version: str) -> None:
        request.watched.failed(error)
        self._discovery.narrow(error)
        status, content = self._rest_failure(error, version)
        kind = rest_type(request, version)
        later = error.retry_after if isinstance(error, RateLimited) else 1
        body = encode(content)
        await self._reply(
            request, kind, body, version, status=status, private=True, retry_after=later
        )

    async def _stream_rest(self, request: Request, call: Call, dialect: Dialect) -> None:
        def failed(error: A2AError) -> bytes:
            return encode(self._rest_failure(error, dialect.version)[1])

        await self._stream(request, call, dialect, (b"", b""), failed)

    # Answers

    async def _stream(
        self,
        request: Request,
        call: Call,
        dialect: Dialect,
        wrap: tuple[bytes, bytes],
        failed: Callable[[A2AError], bytes],
    ) -> None:
        if request.room is not None:
            request.room.open_stream()
        batches = request.mount.service.follow(call)
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
            request.watched.responded(200)
            request.is_answered = True
            await stream.open(headers)
            trace = _trace(request) if request.path == r.PATH else None
            await stream.write(_frames(first, dialect, wrap, trace))
            async for batch in batches:
                await stream.write(_frames(batch, dialect, wrap, trace))
        except asyncio.CancelledError:
            figures.streams_cut.add("stopping" if self._streams.is_stopping else "gone")
            if not stream.is_closed:
                raise
            _forgive_cancellation()
        except A2AError as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            await stream.write(sse.error_frame(failed(error)))
        except Exception as error:
            figures.streams_cut.add("failed")
            request.watched.failed(error)
            await stream.write(sse.error_frame(failed(incident())))
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


def _begins_task(operation: ops.Operation) -> bool:
    return isinstance(operation, ops.SendMessage) and not operation.message.task_id


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


def incident() -> InternalError:
    """Log the exception in hand and return what the caller may know of it."""
    incident = new_id()
    logger.exception("incident %s", incident, extra={"incident": incident})
    return InternalError(incident=incident)


def _forgive_cancellation() -> None:
    """The cancellation was our own way to end a stream; the task goes on to close it."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
