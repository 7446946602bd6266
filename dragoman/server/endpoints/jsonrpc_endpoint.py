"""JSON-RPC: one request, one answer, in the dialect that the request shows. Whatever is wrong with
a request, the answer has the shape its sender expects and says nothing about us."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from dragoman.dialects import errors, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.operations import BY_V1_METHOD
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    retry_after,
)
from dragoman.http.documents import denied, unauthenticated
from dragoman.http.request import (
    HELD_BYTES,
    JSON,
    HttpRequest,
    check_type,
    read_body,
    read_value,
)
from dragoman.model import operations as ops
from dragoman.server.endpoints import large_bodies
from dragoman.server.endpoints.event_stream import SseWriter
from dragoman.server.endpoints.responder import Choose, Responder, common_headers, respond
from dragoman.service import LARGE_BYTES, Call, Reply, TaskReply
from dragoman.transports import json_text, jsonrpc, sse


class JsonRpcEndpoint:
    """Answers the requests of one path, or of several with the same dialects."""

    def __init__(
        self,
        responder: Responder,
        choose: Choose,
        default: Dialect | None = None,
        denies_in_body: bool = False,
    ) -> None:
        """`default` writes errors before a dialect is chosen; None: that of the named version.
        `denies_in_body` says whether a denied permission is an error of JSON-RPC."""
        self._responder = responder
        self._choose = choose
        self._default = default
        self._denies_in_body = denies_in_body
        self._max_bytes = responder.settings.http.max_body_bytes
        # Bytes of a body that is read and parsed at once, if all of it has come.
        self._small = min(self._max_bytes, HELD_BYTES)
        self._max_values = responder.settings.http.max_json_values

    async def answer(self, request: HttpRequest) -> None:
        """Answer one request."""
        request.watched.binding = "jsonrpc"
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        id: jsonrpc.Id = None
        method = ""
        dialect = self._default
        try:
            verdict = request.verdict
            if verdict is None or not verdict.is_checked:
                check_type(request)
                if verdict is not None:
                    verdict.is_checked = True
            if (body := request.take_body(self._small)) is not None:
                value = json_text.parse(body, self._max_values)
            else:
                body = await read_body(request, self._max_bytes)
                value = await read_value(body, self._max_values)
            try:
                envelope = jsonrpc.parse(value)
            except InvalidRequest:
                id, method = jsonrpc.request_id(value), jsonrpc.method_name(value)
                raise
            id, method = envelope.id, envelope.method
            chosen = verdict.dialects.get(method) if verdict and envelope.has_id else None
            if chosen is None:
                chosen = self._choose(request, envelope, next(iter(value)))
                if chosen is V1_0 and verdict and method in BY_V1_METHOD:
                    # In later versions nothing but the head and the method decides.
                    verdict.dialects[method] = chosen
            dialect = chosen
            if request.size > LARGE_BYTES:
                operation = await large_bodies.decoded(dialect, method, envelope.params)
            else:
                operation = dialect.decode_request(method, envelope.params)
            if not envelope.has_id:
                raise jsonrpc.unanswerable()
            call = self._responder.call(request, operation, dialect)
            if operation.streams:
                # A stream may last for days: it does not keep the text of its request.
                del body, value, envelope
                await self._stream(request, call, dialect, id)
                return
            reply = await self._responder.reply(request, call, dialect)
            dialect = dialect.for_reply(reply)
            size = reply.reading.size if type(reply) is TaskReply else large_bodies.size_of(reply)
            if size > LARGE_BYTES:
                write = partial(_success, id, dialect, operation, reply)
                body = await large_bodies.encoded(size, write)
            else:
                body = jsonrpc.success(id, dialect.encode_reply(operation, reply))
            says = JSON, dialect.version, operation.is_private
            if not request.respond_again(says, body):
                await respond(request, says, body)
        except (Exception, asyncio.CancelledError) as error:
            # Not in a variable here: its traceback would keep this frame, and the body in it, alive
            # until the garbage collector runs.
            public_error = self._responder.public_error
            await self._fail(request, public_error(request, error), id, dialect, method)

    def _stream(
        self, request: HttpRequest, call: Call, dialect: Dialect, id: jsonrpc.Id
    ) -> Coroutine[Any, Any, None]:
        def failed(error: A2AError, _: str) -> bytes:
            return jsonrpc.failure(id, dialect.encode_error(error))

        headers = common_headers(request, dialect.version)
        frame = jsonrpc.success_frame(id)
        writer = SseWriter(request, dialect, headers, frame, failed)
        return self._responder.stream(request, call, dialect, writer)

    async def _fail(
        self,
        request: HttpRequest,
        error: A2AError,
        id: jsonrpc.Id,
        dialect: Dialect | None,
        method: str,
    ) -> None:
        if isinstance(error, Unauthenticated):
            await unauthenticated(request, error)
            return
        if isinstance(error, PermissionDenied) and not self._denies_in_body:
            await denied(request, error)
            return
        self._responder.discovery.narrow(error)
        dialect = dialect or negotiate.for_error(*request.version, method)
        member = dialect.encode_error(error)
        request.watched.failed(error, member["code"])
        kind, body = JSON, jsonrpc.failure(id, member)
        status = dialect.http_status(error)
        needs_event = request.reads_events_alone or method in dialect.event_stream_methods
        if dialect.version != V1_0.version and needs_event and status == 200:
            kind, body = sse.CONTENT_TYPE, sse.on_single_lines(sse.frame(body))
        # Errors of the protocol are 200 here; that we are busy, or that the caller may not do
        # this, is a matter of HTTP.
        if isinstance(error, Overloaded | PermissionDenied):
            status = errors.http_status(error)
        later = retry_after(error)
        says = kind, dialect.version, False
        await respond(request, says, body, status=status, retry_after=later)


def _success(id: jsonrpc.Id, dialect: Dialect, operation: ops.Operation, reply: Reply) -> bytes:
    return jsonrpc.success(id, dialect.encode_reply(operation, reply))
