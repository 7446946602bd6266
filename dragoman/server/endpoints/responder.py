"""What the endpoints of all bindings share: from an operation to a call, from a call to its reply
or its stream, from any error to what the caller may know of it."""

import asyncio
from collections.abc import Callable

import msgspec

from dragoman.config import Settings
from dragoman.dialects import negotiate
from dragoman.dialects.dialect import Dialect, with_transitions
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import A2AError, Overloaded, PermissionDenied, TaskNotFound
from dragoman.http.documents import PRIVATE
from dragoman.http.incidents import incident
from dragoman.http.open_streams import OpenStreams
from dragoman.http.request import Headers, HttpRequest
from dragoman.model import operations as ops
from dragoman.security.audit.log import Audit
from dragoman.server.discovery import Discovery
from dragoman.server.endpoints.event_stream import EventStreams, forgive_cancellation
from dragoman.service import Call, Reply, TaskReply
from dragoman.transports.jsonrpc import Envelope

# Returns the dialect of a JSON-RPC request, given the first member of its envelope.
Choose = Callable[[HttpRequest, Envelope, str], Dialect]


class Responder:
    """Answers operations, whatever envelope they came in."""

    def __init__(
        self, settings: Settings, discovery: Discovery, streams: OpenStreams, audit: Audit
    ) -> None:
        self.settings = settings
        self.discovery = discovery
        self._settings = settings.dialects
        cancels = settings.dialects.cancel_on_disconnect
        self.stream = EventStreams(streams, cancels=cancels).serve
        self._streams = streams
        self._audit = audit
        self._infers = settings.dialects.version_mode == "infer"

    def official(self, request: HttpRequest, envelope: Envelope, first: str) -> Dialect:
        """Return the dialect of a JSON-RPC call by the version it names or its method shows."""
        dialect = negotiate.for_jsonrpc(envelope.method, *request.version, infer=self._infers)
        dialect = self.discovery.offered(dialect, request)
        if dialect is V1_0 or first == "jsonrpc":
            # No library is known by such a request.
            return dialect
        return negotiate.for_library(dialect, request.header(b"user-agent") or "", first)

    def call(self, request: HttpRequest, operation: ops.Operation, dialect: Dialect) -> Call:
        """Return the call that asks for an operation."""
        version = dialect.version
        watched = request.watched
        watched.is_for(type(operation).__name__, version, request.mount.name)
        if watched.span is not None:
            watched.span.set({"agent.task.id": _task_of(operation)})
        caller = request.caller
        if caller.tenant is not None:
            operation = _in_tenant(operation, caller.tenant)
        closes_on_input, patience, names_tasks = not dialect.keeps_open, 0.0, dialect.names_tasks
        if version != "1.0":
            patience = self._settings.max_block_seconds
            names_tasks = names_tasks or self._settings.client_task_ids
        elif operation.streams and type(operation) is ops.SubscribeToTask:
            closes_on_input = False
        return Call(
            operation,
            caller,
            request.after,
            request.extensions,
            closes_on_input,
            patience,
            names_tasks,
            request.size,
            shows_ended=dialect.shows_ended,
        )

    async def reply(self, request: HttpRequest, call: Call, dialect: Dialect) -> Reply:
        """Return the one reply to a call."""
        if type(call.operation) is ops.GetExtendedCard:
            return await self.discovery.extended_card(request, dialect)
        service = dialect.around(request.mount.service, request.scope["headers"])
        reply = await service.answer(call)
        if type(reply) is TaskReply and reply.transitions is not None:
            return with_transitions(reply, dialect)
        return reply

    def public_error(self, request: HttpRequest, error: BaseException) -> A2AError:
        """As the function `public_error`; a denied permission is recorded."""
        if isinstance(error, PermissionDenied):
            self._note_denial(request, error)
        return public_error(error, self._streams)

    def _note_denial(self, request: HttpRequest, error: PermissionDenied) -> None:
        self._audit.record(
            "access.denied",
            outcome="denied",
            who=request.caller.principal.text,
            object=f"{request.mount.name} {error.facts.get('skill', '')}".strip(),
            reason=error.facts.get("scope", ""),
            address=request.address,
        )


def public_error(error: BaseException, streams: OpenStreams) -> A2AError:
    """Return what the caller is told of any error in hand; a cancellation that is not our own way
    to end a request is raised."""
    if isinstance(error, A2AError):
        return error
    if not isinstance(error, asyncio.CancelledError):
        return incident()
    if not streams.is_stopping:
        raise error
    forgive_cancellation()
    return Overloaded()


# What the head of an answer says: the media type, the version of the protocol, and whether the
# answer is for this caller alone.
Says = tuple[bytes, str, bool]


async def respond(
    request: HttpRequest, says: Says, body: bytes, *, status: int = 200, retry_after: int = 1
) -> None:
    """Send a whole answer in a version of the protocol. A good one may be tried by the quicker
    `request.respond_again` first."""
    kind, version, private = says
    headers = [(b"content-type", kind), *common_headers(request, version)]
    if private:
        headers.append(PRIVATE)
    if status in (429, 503):
        headers.append((b"retry-after", b"%d" % retry_after))
    elif status == 200:
        request.respond_alike(says, headers)
    await request.respond(status, [(b"content-length", b"%d" % len(body)), *headers], body)


def common_headers(request: HttpRequest, version: str) -> Headers:
    """Return the headers of every answer in a version of the protocol."""
    headers: Headers = [(b"a2a-version", version.encode()), (b"vary", b"A2A-Version, Accept")]
    extensions = request.extensions
    if extensions:
        active = ", ".join(sorted(extensions & request.mount.extensions)).encode()
        if active:
            name = b"a2a-extensions" if version == V1_0.version else b"x-a2a-extensions"
            headers.append((name, active))
    return headers


def _in_tenant(operation: ops.Operation, tenant: str) -> ops.Operation:
    """Return an operation in the tenant its caller's credential is for. What it asks for in
    another tenant is not found, whether it exists or not."""
    if operation.tenant == tenant:
        return operation
    if operation.tenant:
        raise TaskNotFound(taskId=_task_of(operation))
    return msgspec.structs.replace(operation, tenant=tenant)


def _task_of(operation: ops.Operation) -> str:
    if isinstance(operation, ops.SendMessage):
        return operation.message.task_id
    return getattr(operation, "task_id", "")
