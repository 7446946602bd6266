"""A peer behind one of its interfaces: a Service over the wire.

One request, one answer, no second try: what to do when something breaks is decided by `line` and
`stream`. Whatever a peer sends, what comes out is the model or one class of `dragoman.errors`.
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import msgspec

from dragoman.client.cards import shown
from dragoman.client.file_encoding import FileEncoding, Refusal, has_files, may_hold_files
from dragoman.client.http import Exchange, Http, read_all, wish
from dragoman.dialects import errors as error_table
from dragoman.dialects import leniency
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import Corvid, Nexus
from dragoman.dialects.leniency import Noted
from dragoman.dialects.v0_2 import V0_2, V0_2_OBJECTS
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.dialects.v0_3_proto import V0_3_PROTO, V0_3_PROTO_TEXT
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    Overloaded,
    ParseFailed,
    PermissionDenied,
    RateLimited,
    TimedOut,
    Unauthenticated,
    Unreachable,
)
from dragoman.model import operations as ops
from dragoman.model.card import JSONRPC, AgentInterface
from dragoman.model.events import Event
from dragoman.model.identity import TaskId, new_id
from dragoman.model.message import Message
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task
from dragoman.security.egress import EgressFailed, EgressRefused
from dragoman.security.json_values import MAX_VALUES
from dragoman.service import Batch, Call, Opening, Reply, TaskReply
from dragoman.telemetry import tracing
from dragoman.telemetry.tracing import Span
from dragoman.transports import json_text, jsonrpc, rest, sse

# The largest answer, and the largest event of a stream: a task with its files comes as one.
MAX_ANSWER = 64 * 1024 * 1024
# So much of an event that has not ended yet shows that its peer is there: a large one takes long.
_PIECE = 1024
# What shows that a place does not serve the binding at all, so that another may.
NOT_SERVED = frozenset({404, 405, 501})
_JSON = "application/json"
_EVENTS = "text/event-stream"
_RESET = "x-dragoman-resume"
ADDRESS = "the REST address ends with the /v1 that the paths of 0.3 begin with: it is there once"
# What is spoken to a peer that refuses arrays in data parts, as the official Python library does.
_OBJECTS: dict[Dialect, Dialect] = {V0_3: V0_3_OBJECTS, V0_2: V0_2_OBJECTS}
# What a bearer token does not grant, in the words of RFC 6750.
_SCOPE = re.compile(r'\bscope="([!#-\[\]-~ ]{1,200})"', re.ASCII)


class NotServed(Unreachable):
    """There is no A2A at this address"""


class NotDialled(Unreachable):
    """The address is not one that is called"""


class Exchanged(msgspec.Struct, frozen=True):
    """Something that went over the wire, for whoever looks for the reason of something."""

    # "request", "answer", "event" or "failure".
    kind: str
    method: str
    url: str
    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    # Seconds since the request was made.
    elapsed: float = 0.0
    text: str = ""


# Bytes of a stream that are read in one go; without an event others have their turn after them.
_SLICE = 4 * 1024
T = TypeVar("T")
Observer = Callable[[Exchanged], None]
# Hears that something came in a stream, and whether it was only a comment.
Heard = Callable[[bool], None]
# Is waited for whenever a stream has sent much of nothing: comments, or what was known.
Idle = Callable[[], Awaitable[None]]
# From the address and the headers of a request to those it is made with.
Dress = Callable[[str, dict[str, str]], Awaitable[tuple[str, dict[str, str]]]]


def _nowhere(note: str) -> None:
    """Nobody is to be told."""


class Remote:
    """Answers calls by asking a peer."""

    def __init__(
        self,
        interface: AgentInterface,
        dialect: Dialect,
        http: Http,
        *,
        dress: Dress | None = None,
        observer: Observer | None = None,
        timeout: float | None = 30.0,
        most: int = MAX_ANSWER,
        most_values: int = MAX_VALUES,
        works_once: bool = False,
    ) -> None:
        self.interface = interface
        self.dialect = dialect
        self._http = http
        self._dress = dress
        self._observer = observer
        self._timeout = timeout
        self._most = most
        self.most_values = most_values
        self._works_once = works_once
        self._ids = itertools.count(1)
        # Only there do peers differ.
        self._files = FileEncoding(self._refusal) if dialect is V0_3_PROTO else None
        self._ends_with_v1 = self._files is not None and interface.url.rstrip("/").endswith("/v1")

    async def answer(self, call: Call, noted: Noted = _nowhere) -> Reply:
        """Return the peer's reply. A send may take as long as it likes: many peers do not answer
        before the task is done, whatever they were asked. `noted` is told what of the answer is
        not as its version has it, and was read for what it means."""
        operation = call.operation
        if self._ends_with_v1:
            noted(ADDRESS)
        if self._files is not None and has_files(operation):
            await self._learn_of_files(self._files, noted)
        asked = self._ask(call, _JSON)
        if isinstance(operation, ops.SendMessage):
            async with asked:
                value = await asked.value()
        else:
            try:
                async with asyncio.timeout(self._timeout), asked:
                    value = await asked.value()
            except TimeoutError:
                raise TimedOut(f"No answer in {self._timeout:g} s") from None
        try:
            result = asked.result(value)
        except A2AError as error:
            if isinstance(self.dialect, Nexus):
                raise self.dialect.decode_error(operation, error) from None
            raise
        if self._files is not None and may_hold_files(asked.body):
            await self._learn_of_files(self._files, noted, asked.headers)
        return _read(lambda: leniency.decode_reply(self.dialect, operation, result, noted))

    async def follow(
        self,
        call: Call,
        heard: Heard | None = None,
        idle: Idle | None = None,
        noted: Noted = _nowhere,
    ) -> AsyncGenerator[Batch]:
        """Yield what the peer streams: an opening Task or a Message, then batches of events.
        `heard` is told of all that comes, comments too; `noted` as by `answer`."""
        if self._ends_with_v1:
            noted(ADDRESS)
        if self._files is not None and has_files(call.operation):
            await self._learn_of_files(self._files, noted)
        async with self._ask(call, _EVENTS) as asked:
            if not asked.is_stream:
                # An error, or a peer that answers with all there is.
                result = asked.result(await asked.value())
                if self._files is not None and may_hold_files(asked.body):
                    await self._learn_of_files(self._files, noted, asked.headers)
                event = _read(lambda: leniency.decode_event(self.dialect, result, noted))
                yield _first(event, 0, is_reset=False)
                return
            is_first = True
            async for batch in self._batches(asked, heard, idle or _others, noted):
                if is_first:
                    is_first = False
                    yield _first(batch[0].event, batch[0].seq, is_reset=asked.is_reset)
                    del batch[0]
                if batch:
                    yield batch

    def adapts(self, operation: ops.Operation, error: A2AError) -> bool:
        """After a refusal, tell whether the same operation is worth sending in another shape, and
        keep to that shape: a peer of 0.x that is refused an array may take an object. What was
        refused as not valid did nothing."""
        objects = _OBJECTS.get(self.dialect)
        is_refused = isinstance(error, InvalidParams | InvalidRequest) and error.code is not None
        if objects is None or not is_refused or not isinstance(operation, ops.SendMessage):
            return False
        if not any(isinstance(part.data, list) for part in operation.message.parts):
            return False
        self.dialect = objects
        return True

    async def learn(self, noted: Noted) -> None:
        """Find out what the peer does in its own way, before it is needed."""
        if self._files is not None:
            await self._learn_of_files(self._files, noted)

    async def _learn_of_files(
        self, files: FileEncoding, noted: Noted, headers: Mapping[str, str] | None = None
    ) -> None:
        """Speak as the peer encodes files; `headers` are those of an answer that is read in any
        case."""
        if await files.is_text(headers):
            self.dialect = V0_3_PROTO_TEXT
        if files.note:
            noted(files.note)

    async def _refusal(self) -> Refusal:
        """Ask for a task that the peer cannot have; return how it says so."""
        call = Call(operation=ops.GetTask(task_id=TaskId(new_id())))
        try:
            async with asyncio.timeout(self._timeout), self._ask(call, _JSON) as asked:
                return await asked.refusal()
        except TimeoutError:
            raise TimedOut(f"No answer in {self._timeout:g} s") from None

    async def _batches(
        self, asked: "_Asked", heard: Heard | None, idle: Idle, noted: Noted
    ) -> AsyncGenerator[list[Recorded]]:
        reader = sse.Reader(self._most)
        quiet = 0
        async for chunk in _slices(asked.chunks()):
            lines, comments = reader.lines, reader.comments
            try:
                sent = reader.feed(chunk)
            except sse.TooLong:
                raise InvalidAgentResponse(f"an event has more than {self._most} bytes") from None
            if heard is not None and (reader.lines != lines or len(chunk) >= _PIECE):
                heard(not sent and reader.comments != comments)
            batch: list[Recorded] = []
            for one in sent:
                if not one.data.strip():
                    continue
                asked.observe("event", body=one.data)
                try:
                    value = await self.parsed(one.data)
                    result = asked.result(value, is_error=one.kind == "error")
                    if self._files is not None and may_hold_files(one.data):
                        await self._learn_of_files(self._files, noted, asked.headers)
                    event = _read(lambda: leniency.decode_event(self.dialect, result, noted))  # noqa: B023 - called at once
                except A2AError:
                    # What came before it is the caller's all the same.
                    if batch:
                        yield batch
                    raise
                batch.append(Recorded(_position(one.id), event))
            quiet = 0 if batch else quiet + len(chunk)
            if batch:
                yield batch
            elif quiet >= _SLICE:
                # However much of nothing a peer sends, others have their turn.
                quiet = 0
                await idle()

    async def parsed(self, body: bytes) -> Any:
        """Return the JSON that a peer sent; raises `InvalidAgentResponse`."""
        try:
            if len(body) <= json_text.READ_IN_LINE_BYTES:
                return json_text.parse(body, self.most_values)
            return await json_text.read(body, self.most_values)
        except ParseFailed as error:
            raise _unreadable(error) from None

    def _ask(self, call: Call, accept: str) -> "_Asked":
        """Put a call in the shape of the interface; it is sent once the context is entered."""
        operation = call.operation
        tenant = self.interface.tenant
        if tenant and not operation.tenant:
            operation = msgspec.structs.replace(operation, tenant=tenant)
        headers = {"accept": accept, "a2a-version": self.dialect.version}
        if call.after is not None:
            headers["last-event-id"] = str(call.after)
        if call.extensions:
            is_new = self.dialect.version == "1.0"
            name = "a2a-extensions" if is_new else "x-a2a-extensions"
            headers[name] = ", ".join(sorted(call.extensions))
        id: jsonrpc.Id = None
        if isinstance(self.dialect, Corvid):
            verb, path, value = self.dialect.request(operation)
            url = self.interface.url.rstrip("/") + path
            body = None if value is None else encode(value)
        elif self.interface.protocol_binding == JSONRPC:
            # Only the other requests on its connection have to have others.
            method, params = self.dialect.encode_request(operation)
            # Its gateway calls a request by the task that it is about.
            named = params.get("id") if isinstance(self.dialect, Nexus) else None
            id = named if isinstance(named, str) else str(next(self._ids))
            verb, url = "POST", self.interface.url
            body = jsonrpc.request(id, method, params)
        else:
            outgoing = rest.request(self.dialect, operation)
            verb, url = outgoing.verb, _joined(self.interface.url, outgoing.path)
            body = None if outgoing.body is None else encode(outgoing.body)
            is_proto = self.dialect.version == "1.0"
            headers["accept"] = f"{accept}, application/a2a+json" if is_proto else accept
        if body is not None or verb == "POST":
            # Said of an empty body as well, lest the library calls it something else.
            headers["content-type"] = _JSON
        return _Asked(self, _Request(operation, verb, url, headers, body, id), self._most)

    async def dressed(self, url: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Return where a request really goes, and its headers with credentials."""
        return (url, headers) if self._dress is None else await self._dress(url, headers)

    def open(
        self, request: "_Request", url: str, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[Exchange]:
        """Return the exchange of a request, to be entered."""
        # A connection that its peer just closed loses what is sent on it, and nobody can tell.
        # Only what may be asked twice goes on one that was used before.
        is_deed = isinstance(request.operation, ops.SendMessage | ops.CreatePush)
        reuse = self._works_once or not is_deed
        return self._http.open(request.verb, url, headers=headers, body=request.body, reuse=reuse)

    def observe(self, request: "_Request") -> "_Observe":
        """Return what tells the observer of a request."""
        return _Observe(self._observer, request.verb, request.url)

    def span(self, operation: ops.Operation, url: str, headers: Mapping[str, str]) -> Span:
        """Begin the span of one request, below what its headers say it belongs to."""
        names = {
            "a2a.operation": type(operation).__name__,
            "a2a.version": self.dialect.version,
            "a2a.binding": self.interface.protocol_binding,
            "server.address": _host(url),
        }
        parent = tracing.parse(headers.get("traceparent", ""), headers.get("tracestate", ""))
        return tracing.begin(type(operation).__name__, names, kind="client", parent=parent)


def _read(decode: Callable[[], T]) -> T:
    """Return what a peer's answer says; what cannot be read is the peer's fault."""
    try:
        return decode()
    except (InvalidParams, ParseFailed) as error:
        raise _unreadable(error) from None


def _not_json(error: ParseFailed) -> InvalidAgentResponse:
    # Of a limit that it breaks its author can make use.
    is_plain = error.public == ParseFailed().public
    detail = "" if is_plain else f": {error.public}"
    return InvalidAgentResponse(f"The agent's answer is not JSON{detail}")


def _unreadable(error: A2AError) -> InvalidAgentResponse:
    return InvalidAgentResponse(f"The agent's answer cannot be read: {error}")


class _Observe:
    """Tells the observer, if there is one, what one request led to."""

    def __init__(self, observer: Observer | None, method: str, url: str) -> None:
        self._observer = observer
        self._method = method
        self._url = url
        self._since = time.monotonic()

    def __call__(self, kind: str, **facts: Any) -> None:
        if self._observer is not None:
            elapsed = time.monotonic() - self._since
            self._observer(Exchanged(kind, self._method, self._url, elapsed=elapsed, **facts))


class _Request(msgspec.Struct, frozen=True):
    """What is sent: an operation in the shape of an interface."""

    operation: ops.Operation
    verb: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    # None: not in an envelope.
    id: jsonrpc.Id


class _Asked:
    """A request under way, and what the envelope and the status of its answer mean."""

    _exchange: Exchange

    def __init__(self, remote: Remote, request: _Request, most: int) -> None:
        self._remote = remote
        self._request = request
        self._id = request.id
        self._most = most
        self._is_rpc = request.id is not None
        self._is_send = isinstance(request.operation, ops.SendMessage)
        self.observe = remote.observe(request)
        self._opened: AbstractAsyncContextManager[Exchange] | None = None
        self._span: Span | None = None
        # Of an answer that is no stream, once it was read.
        self.body = b""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return self._exchange.headers

    async def refusal(self) -> Refusal:
        """Return how the peer answered, whatever it says."""
        body, is_cut = await read_all(self._exchange, self._most)
        self.observe("event", body=body)
        try:
            value = None if is_cut else await json_text.read(body, self._remote.most_values)
        except ParseFailed:
            value = None
        return Refusal(self._exchange.headers, value)

    async def __aenter__(self) -> Self:
        """Send it, and wait for the head of the answer."""
        remote, request = self._remote, self._request
        url, headers = await remote.dressed(request.url, request.headers)
        if tracing.on:
            self._span = remote.span(request.operation, request.url, headers)
            headers = {**headers, **self._span.trace.headers}
        try:
            self.observe("request", headers=headers, body=request.body or b"")
            opened = remote.open(request, url, headers)
            exchange = self._exchange = await opened.__aenter__()
            self._opened = opened
            self.observe("answer", status=exchange.status, headers=exchange.headers)
        except BaseException as error:
            # An observer may have failed.
            await self._close(error)
            raise self._failed(error) from None
        if self._span is not None:
            self._span.set({"http.response.status_code": exchange.status})
            if exchange.status >= 400:
                self._span.fail(str(exchange.status))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._close(error)
        except BaseException as late:
            raise self._failed(late) from None
        if error is not None:
            failure = self._failed(error)
            if failure is not error:
                raise failure from None
        elif self._span is not None:
            self._span.end()

    async def _close(self, error: BaseException | None) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            kind = None if error is None else type(error)
            await opened.__aexit__(kind, error, None if error is None else error.__traceback__)

    def _failed(self, error: BaseException) -> BaseException:
        """End with an error; return what callers make of it."""
        failure = error
        host = _host(self._request.url)
        if isinstance(error, EgressRefused):
            self.observe("failure", text=error.reason)
            failure = NotDialled(f"{host} is not called: {error.reason}")
        elif isinstance(error, EgressFailed):
            self.observe("failure", text=error.reason)
            # Whether the peer took a message matters only where it does something.
            kind = DeliveryUnknown if error.is_sent and self._is_send else Unreachable
            failure = kind(f"{host}: {error.reason}", reason=error.reason)
            failure.is_sent = error.is_sent
        if self._span is not None:
            if isinstance(error, Exception):
                self._span.fail(type(error).__name__)
            self._span.end()
        return failure

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        headers, status = self._exchange.headers, self._exchange.status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == _EVENTS and 200 <= status < 300

    @property
    def is_reset(self) -> bool:
        """Whether the stream begins anew, wherever it was to begin."""
        return self._exchange.headers.get(_RESET, "") == "reset"

    def chunks(self) -> AsyncGenerator[bytes]:
        return self._exchange.chunks()  # pyright: ignore[reportReturnType] - both are generators

    async def value(self) -> Any:
        """Return the JSON of the body; raises what the status says if there is none."""
        status = self._exchange.status
        # An error that stands in an event is still one answer.
        body, is_cut = await read_all(self._exchange, self._most)
        self.observe("event", body=body)
        self.body = body
        if is_cut:
            raise InvalidAgentResponse(f"the answer has more than {self._most} bytes")
        if not body.strip() and 200 <= status < 300 and not self._is_rpc:
            return None
        try:
            value = await json_text.read(body, self._remote.most_values)
        except ParseFailed as error:
            value = None
            if 200 <= status < 300:
                raise _not_json(error) from None
        if not 200 <= status < 300:
            raise self._refusal(status, value)
        return value

    def result(self, value: Any, *, is_error: bool = False) -> Any:
        """Return what an envelope holds; raises the error that it holds."""
        if self._is_rpc:
            return jsonrpc.result_of(value, self._id)
        if isinstance(value, dict) and ("error" in value or is_error):
            raise self._refusal(self._exchange.status, cast("dict[str, Any]", value))
        return cast(Any, value)

    def _refusal(self, status: int, value: Any) -> A2AError:
        """Return the error of an answer that is none."""
        error: A2AError
        said = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if self._is_rpc and status not in (401, 403):
            code = jsonrpc.code_of(said.get("error"))
            # Positive ones are of HTTP: whoever answers so does not speak JSON-RPC there.
            if code is not None and code < 0:
                error = error_table.decode_jsonrpc(said["error"])
                error.code = code
                return self._with_patience(error)
        if status in (401, 403):
            # Who is not known is told nothing worth repeating.
            error = Unauthenticated() if status == 401 else _denial(said)
            if asked := self._exchange.headers.get("www-authenticate", ""):
                error.facts["wwwAuthenticate"] = asked
                if status == 403 and (scope := _SCOPE.search(asked)):
                    error.facts["scope"] = scope[1]
        elif not self._is_rpc and _names_an_error(said):
            error = error_table.decode_rest(status, said)
        elif not self._is_rpc and (worded := error_table.by_words(said)) is not None:
            error = worded
        elif status in NOT_SERVED:
            error = NotServed(f"There is no A2A at this address: it answers {status}")
        elif status in (429, 503):
            error = RateLimited() if status == 429 else Overloaded()
        elif status in (502, 504):
            # It lost the agent on the way: a message may have got through before.
            kind = DeliveryUnknown if self._is_send else Unreachable
            error = kind(f"A gateway before the agent answers {status}")
        elif 300 <= status < 400:
            error = InvalidAgentResponse(f"The agent's address leads elsewhere ({status})")
        elif status >= 500:
            error = InternalError(f"The agent failed ({status})")
        else:
            error = InvalidAgentResponse(f"The agent answers {status} without a reason")
        error.code = status
        return self._with_patience(error)

    def _with_patience(self, error: A2AError) -> A2AError:
        error.facts |= wish(self._exchange.headers)
        return error


async def _others() -> None:
    """Let others have their turn."""
    await asyncio.sleep(0)


async def _slices(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield what a peer sends in pieces that are read in a moment: what waits unread may be far
    more, and others have their turn in between."""
    async for chunk in chunks:
        if len(chunk) <= _SLICE:
            yield chunk
            continue
        for start in range(0, len(chunk), _SLICE):
            yield chunk[start : start + _SLICE]


def _denial(value: dict[str, Any]) -> PermissionDenied:
    """Return what a peer says to a caller it knows, made fit to be shown."""
    said = error_table.decode_rest(403, value)
    scope = said.facts.get("scope", "")
    denial = PermissionDenied(shown(said.public), **({"scope": shown(scope)} if scope else {}))
    denial.is_quoted = said.is_quoted
    return denial


def _names_an_error(value: dict[str, Any]) -> bool:
    """Say whether a REST body is an error of the protocol, and not of a server in between."""
    inner = value.get("error")
    return (
        isinstance(inner, dict | str)
        or type(value.get("code")) is int
        or str(value.get("type", "")).startswith("https://a2a-protocol.org/")
    )


def _first(event: Event, seq: int, *, is_reset: bool) -> Batch:
    match event:
        case Task():
            return Opening(TaskReply(TaskReading(seq, event)), is_reset=is_reset)
        case Message():
            return event
        case _:
            # Peers of 0.x resume without a Task.
            return [Recorded(seq, event)]


def _position(id: str | None) -> int:
    """Return the position an event's id says; 0: it says none."""
    return int(id) if id and id.isascii() and id.isdigit() and len(id) < 19 else 0


def _joined(url: str, path: str) -> str:
    """Return a path below an interface's address. The paths of 0.3 begin with `/v1`, and many an
    address ends with it: it is there once."""
    base = url.rstrip("/")
    if path.startswith("/v1/"):
        base = base.removesuffix("/v1")
    return base + path


def _host(url: str) -> str:
    """Return what may be shown of an address."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]
