"""A peer behind a gRPC interface: the same Service over the wire as `remote.py`, by rpcs.

Importing this module loads protobuf; `agent_connection` does so for an agent that is spoken to in
this way.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from dragoman.client.http import Http, HttpExchange, RpcHttp, wish
from dragoman.client.pending_request import (
    NotServed,
    OutgoingRequest,
    PendingRequest,
)
from dragoman.client.remote import Heard, Idle, Remote, first_batch
from dragoman.dialects import leniency
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.leniency import Note
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.egress.errors import EgressRefused, RpcFailed
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    MethodNotFound,
    ParseFailed,
    TimedOut,
    Unauthenticated,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.card import RESUME_URI, AgentInterface
from dragoman.model.identity import TaskId, new_id
from dragoman.model.record import Recorded
from dragoman.service import Batch, Call, Reply
from dragoman.transports.grpc import statuses
from dragoman.transports.grpc.codec import codec_of

T = TypeVar("T")
_POSITIONS = frozenset({RESUME_URI})


def _nowhere(note: str) -> None:
    """No observer."""


class _RpcsOnly:
    """Carries requests as rpcs, whatever their verb."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.identity = http.identity
        self.close = http.close

    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AbstractAsyncContextManager[HttpExchange]:
        """Begin an rpc; raises `EgressRefused` where none can be made, as in one process."""
        if not isinstance(self._http, RpcHttp):
            raise EgressRefused("gRPC needs a connection")
        return self._http.open_rpc(url, headers=headers, body=body or b"")


class GrpcRemote(Remote):
    """Answers calls by asking a peer over gRPC."""

    def __init__(
        self,
        interface: AgentInterface,
        dialect: Dialect,
        http: Http,
        # Those of `Remote`.
        **options: Any,
    ) -> None:
        super().__init__(interface, dialect, http, **options)
        self._context = msgspec.structs.replace(self._context, http=_RpcsOnly(http))
        # How a peer of 0.3 puts files into bytes is found out with the first call.
        self._is_file_known = dialect is not V0_3_PROTO
        self._learning = asyncio.Lock()

    async def answer(self, call: Call, noted: Note = _nowhere) -> Reply:
        """Return the peer's reply. A send may take as long as it likes."""
        await self.learn(noted)
        operation = call.operation
        seconds = None if isinstance(operation, ops.SendMessage) else self._timeout
        data = await self._message(call, seconds)
        codec = codec_of(self.dialect)

        def decode() -> Reply:
            value = codec.reply_values(operation, data, self._most_values)
            return leniency.decode_reply(self.dialect, operation, value, noted)

        return _read(decode)

    async def follow(
        self,
        call: Call,
        heard: Heard | None = None,
        idle: Idle | None = None,
        noted: Note = _nowhere,
    ) -> AsyncGenerator[Batch]:
        """Yield what the peer streams: an opening Task or a Message, then events."""
        await self.learn(noted)
        is_first = True
        with _meanings(call.operation):
            # Closed with us, so that a reader that stops has hung up.
            async with self._rpc(call) as request, contextlib.aclosing(request.chunks()) as sent:
                async for data in sent:
                    request.observe("event", body=data)
                    if heard is not None:
                        heard(False)
                    recorded = self._event(data, noted)
                    if is_first:
                        is_first = False
                        yield first_batch(recorded, is_reset=request.is_reset)
                    else:
                        yield [recorded]
        if is_first:
            raise InvalidAgentResponse("The agent's stream has no event")

    async def learn(self, noted: Note) -> None:
        """Find out how a peer of 0.3 has files: the official Python library puts their base64
        where the proto has bytes, and says no more of an error than its name and words."""
        if self._is_file_known:
            return
        async with self._learning:
            if self._is_file_known:
                return
            call = Call(operation=ops.GetTask(task_id=TaskId(new_id())))
            try:
                await self._ended(call, self._timeout)
            except RpcFailed as failed:
                if not failed.details and failed.words.startswith("TaskNotFoundError"):
                    self.dialect = V0_3_PROTO_TEXT
            self._is_file_known = True

    def _event(self, data: bytes, noted: Note) -> Recorded:
        codec = codec_of(self.dialect)

        def decode() -> Recorded:
            value, position = codec.event_values(data, self._most_values)
            return Recorded.of_event(position, leniency.decode_event(self.dialect, value, noted))

        return _read(decode)

    async def _message(self, call: Call, seconds: float | None) -> bytes:
        """Return the one message of an answer."""
        with _meanings(call.operation):
            return await self._ended(call, seconds)

    async def _ended(self, call: Call, seconds: float | None) -> bytes:
        try:
            async with asyncio.timeout(seconds), self._rpc(call) as request:
                async for data in request.chunks():
                    request.observe("event", body=data)
                    return data
        except TimeoutError:
            raise TimedOut(f"No answer in {seconds or 0:g} s") from None
        raise InvalidAgentResponse("The agent answered with nothing")

    def _rpc(self, call: Call) -> PendingRequest:
        """Put a call in the shape of the interface; it is sent once the context is entered."""
        operation = call.operation
        tenant = self.interface.tenant
        if tenant and not operation.tenant:
            operation = msgspec.structs.replace(operation, tenant=tenant)
        headers = {"a2a-version": self.dialect.version}
        if call.after is not None:
            headers["last-event-id"] = str(call.after)
        # Peers that do not know it do not care.
        extensions = call.extensions | _POSITIONS if operation.streams else call.extensions
        if extensions:
            name = "a2a-extensions" if self.dialect.version == "1.0" else "x-a2a-extensions"
            headers[name] = ", ".join(sorted(extensions))
        path, body = codec_of(self.dialect).encode_request(operation)
        url = self.interface.url.rstrip("/") + path
        request = OutgoingRequest(operation, "POST", url, headers, body, None)
        return PendingRequest(self._context, request, self.dialect.version, reuse=True)


@contextlib.contextmanager
def _meanings(operation: ops.Operation) -> Generator[None]:
    """Raise what a peer's status means."""
    try:
        yield
    except RpcFailed as failed:
        raise _error(failed, operation) from None


def _error(failed: RpcFailed, operation: ops.Operation) -> A2AError:
    if failed.status == "DEADLINE_EXCEEDED":
        return TimedOut("The agent did not answer in time")
    is_named = bool(failed.details) or failed.words.partition(":")[0].endswith("Error")
    error = statuses.decode(failed.status, failed.words, failed.details)
    if isinstance(error, MethodNotFound) or (failed.status == "UNIMPLEMENTED" and not is_named):
        # Every agent has these; of the others an agent may have none.
        is_core = isinstance(operation, ops.SendMessage | ops.GetTask | ops.CancelTask)
        missing = "There is no A2A at this address: it has no such rpc"
        return NotServed(missing) if is_core else UnsupportedOperation("The agent has no such rpc")
    if isinstance(error, Unauthenticated):
        # Who is not known is told nothing worth repeating.
        error = Unauthenticated()
        if challenge := failed.trailers.get("www-authenticate", ""):
            error.facts["wwwAuthenticate"] = challenge
    error.code = statuses.CODES.get(failed.status)
    error.facts |= wish(failed.trailers)
    return error


def _read(decode: Callable[[], T]) -> T:
    """Return what a peer's message says; what cannot be read is the peer's fault."""
    try:
        return decode()
    except (InvalidParams, ParseFailed) as error:
        raise InvalidAgentResponse(f"The agent's answer cannot be read: {error}") from None
