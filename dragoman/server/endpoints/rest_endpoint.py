"""REST: the paths of 1.0, those of 0.3 below `/v1`, and what leads nowhere."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dragoman.dialects import negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import A2AError, MethodNotFound, Unauthenticated, retry_after
from dragoman.http.documents import unauthenticated
from dragoman.http.request import (
    JSON,
    HttpRequest,
    check_type,
    read_body,
    read_value,
    rest_type,
)
from dragoman.model import operations as ops
from dragoman.model.card import HTTP_JSON
from dragoman.model.record import encode
from dragoman.server.endpoints import large_bodies
from dragoman.server.endpoints.event_stream import SseWriter
from dragoman.server.endpoints.responder import Responder, common_headers, respond
from dragoman.service import LARGE_BYTES, Call, Reply
from dragoman.transports import rest


class RestEndpoint:
    """Answers REST requests of every version."""

    def __init__(self, responder: Responder, choose: Callable[[Dialect, str], Dialect]) -> None:
        """`choose` returns the dialect of a call of 0.3, given the official one and the method."""
        self._responder = responder
        self._choose = choose
        settings = responder.settings
        self._settings = settings
        self._is_served = HTTP_JSON in settings.bindings()
        self._infers = settings.dialects.version_mode == "infer"

    async def answer(self, request: HttpRequest) -> None:
        """Answer one REST request, also one that leads nowhere."""
        request.watched.binding = "rest"
        version = negotiate.rest_version(*request.version, request.path)
        is_old = version != V1_0.version
        dialect: Dialect = V0_3 if is_old else V1_0
        try:
            if not self._is_served:
                raise MethodNotFound("Nothing is served here")
            route = rest.find_0_3(request.verb, request.path) if is_old else self._find(request)
            if isinstance(route, rest.VerbNotAllowed):
                await request.refuse_verb(route.allow)
                return
            if route is None:
                raise MethodNotFound("Nothing is served here")
            request.watched.route = rest.template(route, version)
            if not is_old:
                official = negotiate.for_rest(*request.version, infer=self._infers)
                dialect = self._responder.discovery.offered(official, request)
            check_type(request)
            body = await read_body(request, self._settings.http.max_body_bytes)
            value = await read_value(body, self._settings.http.max_json_values) if body else None
            if is_old:
                agent = request.header(b"user-agent") or ""
                official = negotiate.for_rest_0_3(
                    *request.version, agent, value, infer=self._infers
                )
                official = self._responder.discovery.offered(official, request)
                dialect = self._choose(official, route.method)
            params = rest.params(route, request.scope["query_string"], value)
            method = rest.method(route, dialect)
            if request.size > LARGE_BYTES:
                operation = await large_bodies.decoded(dialect, method, params)
            else:
                operation = dialect.decode_request(method, params)
            call = self._responder.call(request, operation, dialect)
            if operation.streams:
                # A stream may last for days: it does not keep the text of its request.
                del body, value, params
                await self._stream(request, call, dialect)
                return
            reply = await self._responder.reply(request, call, dialect)
            if (size := large_bodies.size_of(reply)) > LARGE_BYTES:
                write = partial(_content, dialect, operation, reply)
                content = await large_bodies.encoded(size, write)
            else:
                content = rest.content(dialect.encode_reply(operation, reply))
            says = rest_type(request, dialect.version), dialect.version, True
            if not request.respond_again(says, content):
                await respond(request, says, content)
        except (Exception, asyncio.CancelledError) as error:
            # Not in a variable here: its traceback would keep this frame, and the body in it, alive
            # until the garbage collector runs.
            await self._fail(request, self._responder.public_error(request, error), dialect)

    def _find(self, request: HttpRequest) -> rest.RestRoute | rest.VerbNotAllowed | None:
        """Return what a path of 1.0 is. Below `/v1` it is one only if the request names that
        version: `/v1` is then part of our address, or a tenant."""
        if not request.path.startswith("/v1/"):
            return rest.find(request.verb, request.path)
        if self._responder.discovery.base(request).endswith("/v1"):
            return rest.find(request.verb, request.path.removeprefix("/v1"))
        return rest.find(request.verb, request.path, reserved=rest.RESERVED - {"v1"})

    async def _fail(self, request: HttpRequest, error: A2AError, dialect: Dialect) -> None:
        if isinstance(error, Unauthenticated):
            await unauthenticated(request, error)
            return
        request.watched.failed(error)
        self._responder.discovery.narrow(error)
        status, content = dialect.encode_rest_error(error, self._settings.dialects.error_table)
        # Errors of 1.0.0 are plain JSON, whatever else is spoken.
        is_1_0_0 = self._settings.dialects.error_table == "1.0.0"
        kind = JSON if is_1_0_0 else rest_type(request, dialect.version)
        says, later = (kind, dialect.version, True), retry_after(error)
        await respond(request, says, encode(content), status=status, retry_after=later)

    def _stream(
        self, request: HttpRequest, call: Call, dialect: Dialect
    ) -> Coroutine[Any, Any, None]:
        def failed(error: A2AError, task_id: str) -> bytes:
            table = self._settings.dialects.error_table
            return encode(dialect.encode_rest_error(error, table, task_id).body)

        headers = common_headers(request, dialect.version)
        frame = dialect.rest_frame
        writer = SseWriter(request, dialect, headers, frame, failed)
        return self._responder.stream(request, call, dialect, writer)


def _content(dialect: Dialect, operation: ops.Operation, reply: Reply) -> bytes:
    return rest.content(dialect.encode_reply(operation, reply))
