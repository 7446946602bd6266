"""Serves corvid agents: a task is sent with one plain request and read with another until it has
ended. Errors are one sentence with a status of HTTP."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.config import Settings
from dragoman.config.formats import read_rate
from dragoman.dialects import negotiate
from dragoman.dialects.house import CORVID, corvid, errors
from dragoman.errors import A2AError, HopLimit, RateLimited, retry_after
from dragoman.http.documents import PRIVATE, document
from dragoman.http.limits import SOURCE_AGENT
from dragoman.http.rates import Buckets
from dragoman.http.request import JSON, Headers, HttpRequest, check_type, read_body, read_value
from dragoman.http.routes import Answer
from dragoman.model import operations as ops
from dragoman.server.endpoints.responder import Responder
from dragoman.transports import rest

# The source of a message that names none.
_UNKNOWN_SOURCE = "unknown"
_MAX_NAME = 256

# Looks at the body of a send; True: it is refused, and the answer has been given.
Screen = Callable[[HttpRequest, Any], Awaitable[bool]]
Prepare = Callable[[ops.SendMessage], Awaitable[ops.SendMessage]]


class CorvidEndpoints:
    """The two requests of corvid."""

    def __init__(
        self,
        settings: Settings,
        responder: Responder,
        *,
        screen: Screen | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """`screen` looks at the body of a send first and tells whether it has refused it;
        `prepare` returns an admitted message as it is to begin a task."""
        self._settings = settings
        self._responder = responder
        self._screen = screen
        self._prepare = prepare
        rate = read_rate(settings.dialects.corvid_rate)
        self._rates = None if rate is None else Buckets(rate)

    def answers(self, elsewhere: Answer) -> dict[str, Answer]:
        """Return what answers each path; `elsewhere` answers callers of 1.0, whose paths these are
        not."""

        async def send(request: HttpRequest) -> None:
            await (elsewhere if _is_newer(request) else self.send)(request)

        async def get(request: HttpRequest) -> None:
            await (elsewhere if _is_newer(request) else self.get)(request)

        return {corvid.SEND_PATH: send, corvid.TASK_PATH + "*": get}

    async def send(self, request: HttpRequest) -> None:
        """Begin a task and answer with it at once."""
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        await self._answer(request, "tasks/send", self._body)

    async def get(self, request: HttpRequest) -> None:
        """Answer with a task."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        await self._answer(request, "tasks/get", self._task_id)

    async def _body(self, request: HttpRequest) -> Any:
        check_type(request)
        body = await read_body(request, self._settings.http.max_body_bytes)
        return await read_value(body, self._settings.http.max_json_values)

    async def _task_id(self, request: HttpRequest) -> Any:
        return {"id": rest.segment(request.path.removeprefix(corvid.TASK_PATH))}

    async def _answer(
        self, request: HttpRequest, method: str, read: Callable[[HttpRequest], Awaitable[Any]]
    ) -> None:
        request.watched.binding = "corvid"
        try:
            params = await read(request)
            is_send = method == "tasks/send"
            if is_send and self._screen is not None and await self._screen(request, params):
                return
            operation = CORVID.decode_request(method, params)
            if isinstance(operation, ops.SendMessage):
                self._admit(request, operation)
                if self._prepare is not None:
                    operation = await self._prepare(operation)
            call = self._responder.call(request, operation, CORVID)
            reply = await self._responder.reply(request, call, CORVID)
            body = CORVID.encode_reply(operation, reply)
            headers: Headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
            headers.append(PRIVATE)
            await request.respond(200, headers, body)
        except (Exception, asyncio.CancelledError) as error:
            await _refuse(request, self._responder.public_error(request, error))

    def _admit(self, request: HttpRequest, operation: ops.SendMessage) -> None:
        """Refuse what was passed on too often, and a source that sends too much."""
        metadata = operation.metadata
        if metadata.get(corvid.DEPTH, 1) > self._settings.dialects.max_depth:
            raise HopLimit("Invocation depth limit exceeded.")
        if self._rates is None:
            return
        source = metadata.get(corvid.SOURCE) or request.header(SOURCE_AGENT) or _UNKNOWN_SOURCE
        key = request.room.key if request.room is not None else ""
        if wait := self._rates.take((key, source[:_MAX_NAME]), time.monotonic()):
            raise RateLimited(retry_after=int(wait) + 1)


def _is_newer(request: HttpRequest) -> bool:
    """Tell whether a request names a version that has nothing to do with corvid."""
    return any(request.version) and negotiate.error_version(*request.version) == "1.0"


async def _refuse(request: HttpRequest, error: A2AError) -> None:
    status, content = errors.corvid(error)
    request.watched.failed(error)
    headers: Headers = []
    if status in (429, 503):
        later = retry_after(error)
        headers.append((b"retry-after", b"%d" % later))
    await document(request, content, *headers, status=status)
