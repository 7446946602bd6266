"""Serves corvid agents: a task is sent with one plain request and read with another until it has
ended. Errors are one sentence with a status of HTTP."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.config import Settings
from dragoman.dialects import negotiate
from dragoman.dialects.house import CORVID, corvid, errors
from dragoman.errors import (
    A2AError,
    HopLimit,
    Overloaded,
    PermissionDenied,
    RateLimited,
    retry_after,
)
from dragoman.model import operations as ops
from dragoman.server.discovery import document
from dragoman.server.endpoints import Endpoints
from dragoman.server.incidents import incident
from dragoman.server.limits import SOURCE_AGENT
from dragoman.server.rates import Buckets, parse
from dragoman.server.request import JSON, Headers, Request, check_type, read_body, read_value
from dragoman.server.routes import BY_REQUEST, Access, Answer, Routes
from dragoman.transports import rest

# Who sends, where nobody says so.
_NOBODY = "unknown"
_MAX_NAME = 256


class CorvidEndpoints:
    """The two requests of corvid."""

    def __init__(
        self,
        settings: Settings,
        endpoints: Endpoints,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._endpoints = endpoints
        self._now = now
        rate = parse("corvid_rate", settings.corvid_rate)
        self._rates = None if rate is None else Buckets(rate)

    def add_to(self, routes: Routes, elsewhere: Answer) -> None:
        """Serve both; `elsewhere` answers callers of 1.0, whose paths these are not."""

        async def send(request: Request) -> None:
            await (elsewhere if _is_newer(request) else self.send)(request)

        async def get(request: Request) -> None:
            await (elsewhere if _is_newer(request) else self.get)(request)

        routes.add(corvid.SEND_PATH, send, Access.CALLER, BY_REQUEST)
        routes.add(corvid.TASK_PATH + "*", get, Access.CALLER, BY_REQUEST)

    async def send(self, request: Request) -> None:
        """Begin a task and answer with it at once."""
        if request.verb != "POST":
            await request.refuse_verb("POST")
            return
        await self._answer(request, "tasks/send", self._sent)

    async def get(self, request: Request) -> None:
        """Answer with a task."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        await self._answer(request, "tasks/get", self._named)

    async def _sent(self, request: Request) -> Any:
        check_type(request)
        body = await read_body(request, self._settings.max_body_bytes)
        return await read_value(body, self._settings.max_json_values)

    async def _named(self, request: Request) -> Any:
        return {"id": rest.segment(request.path.removeprefix(corvid.TASK_PATH))}

    async def _answer(
        self, request: Request, method: str, params: Callable[[Request], Awaitable[Any]]
    ) -> None:
        request.watched.binding = "corvid"
        try:
            operation = CORVID.decode_request(method, await params(request))
            if isinstance(operation, ops.SendMessage):
                self._admit(request, operation)
                operation = await self._prepared(operation)
            reply = await self._endpoints.reply_to(request, operation, CORVID)
            body = CORVID.encode_reply(operation, reply)
            headers: Headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
            headers.append((b"cache-control", b"private, no-store"))
            await request.respond(200, headers, body)
        except PermissionDenied as error:
            self._endpoints.note_denial(request, error)
            await _refuse(request, error)
        except asyncio.CancelledError:
            if not self._endpoints.forgives_cancellation():
                raise
            await _refuse(request, Overloaded())
        except A2AError as error:
            await _refuse(request, error)
        except Exception:
            await _refuse(request, incident())

    async def _prepared(self, operation: ops.SendMessage) -> ops.SendMessage:
        """Return a message that was let in as it begins a task; the context of one is what these
        callers see as the session."""
        return operation

    def _admit(self, request: Request, operation: ops.SendMessage) -> None:
        """Refuse what was passed on too often, and a source that sends too much."""
        metadata = operation.metadata
        if metadata.get(corvid.DEPTH, 1) > self._settings.max_depth:
            raise HopLimit("Invocation depth limit exceeded.")
        if self._rates is None:
            return
        source = metadata.get(corvid.SOURCE) or request.header(SOURCE_AGENT) or _NOBODY
        key = request.room.key if request.room is not None else ""
        if wait := self._rates.take((key, source[:_MAX_NAME]), self._now()):
            raise RateLimited(retry_after=int(wait) + 1)


def _is_newer(request: Request) -> bool:
    """Tell whether a request names a version that has nothing to do with corvid."""
    return any(request.version) and negotiate.error_version(*request.version) == "1.0"


async def _refuse(request: Request, error: A2AError) -> None:
    status, content = errors.corvid(error)
    request.watched.failed(error)
    headers: Headers = []
    if status in (429, 503):
        later = retry_after(error)
        headers.append((b"retry-after", b"%d" % later))
    await document(request, content, *headers, status=status)
