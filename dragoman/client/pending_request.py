"""One request under way to a peer, and what the envelope and the status of its answer mean."""

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, cast

import msgspec

from dragoman.client.cards.cards import printable
from dragoman.client.file_encoding import EncodingRefused
from dragoman.client.http import Http, HttpExchange, read_all, wish
from dragoman.dialects import errors as error_table
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    Overloaded,
    ParseFailed,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
    Unreachable,
)
from dragoman.model import operations as ops
from dragoman.telemetry import tracing
from dragoman.telemetry.tracing import Span
from dragoman.transports import json_text, jsonrpc

EVENT_STREAM = "text/event-stream"
# What shows that a place does not serve the binding at all, so that another may.
_NOT_SERVED = frozenset({404, 405, 501})
_RESET = "x-dragoman-resume"
# What a bearer token does not grant, in the words of RFC 6750.
_SCOPE = re.compile(r'\bscope="([!#-\[\]-~ ]{1,200})"', re.ASCII)


class NotServed(Unreachable):
    """There is no A2A at this address"""


class NotDialled(Unreachable):
    """The address is not one that is called"""


class Exchanged(msgspec.Struct, frozen=True):
    """One exchange that went over the wire, for `--debug` and other observers."""

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
    # Tells requests that are under way at the same time apart.
    request: int = 0


Observer = Callable[[Exchanged], None]
# From the address and the headers of a request to those it is made with.
CompleteRequest = Callable[[str, dict[str, str]], Awaitable[tuple[str, dict[str, str]]]]


class _Observe:
    """Tells an observer what one request led to."""

    def __init__(self, observer: Observer, method: str, url: str) -> None:
        self._observer = observer
        self._method = method
        self._url = url
        self._since = time.monotonic()

    def __call__(self, kind: str, **facts: Any) -> None:
        facts |= {"elapsed": time.monotonic() - self._since, "request": id(self)}
        self._observer(Exchanged(kind, self._method, self._url, **facts))


class OutgoingRequest(msgspec.Struct, frozen=True):
    """What is sent: an operation in the shape of an interface."""

    operation: ops.Operation
    verb: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    # None: not in an envelope.
    id: jsonrpc.Id


class RequestContext(msgspec.Struct, frozen=True):
    """What all requests to one interface share."""

    http: Http
    binding: str
    complete_request: CompleteRequest | None
    observer: Observer | None
    # The largest answer, in bytes and in values.
    most: int
    most_values: int


class PendingRequest:
    """A request under way, and what the envelope and the status of its answer mean."""

    # Set here and not in the constructor: few requests have them.
    _opened: AbstractAsyncContextManager[HttpExchange] | None = None
    _span: Span | None = None
    _observe: _Observe | None = None
    # Of an answer that is no stream, once it was read.
    body = b""
    _exchange: HttpExchange

    def __init__(
        self, context: RequestContext, request: OutgoingRequest, version: str, *, reuse: bool
    ) -> None:
        self._context = context
        self._request = request
        self._version = version
        self._reuse = reuse
        self._id = request.id
        self._is_rpc = request.id is not None
        self._is_send = isinstance(request.operation, ops.SendMessage)
        if context.observer is not None:
            self._observe = _Observe(context.observer, request.verb, request.url)

    def observe(self, kind: str, **facts: Any) -> None:
        """Tell the observer, if there is one, what the request led to."""
        if self._observe is not None:
            self._observe(kind, **facts)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return self._exchange.headers

    async def refusal(self) -> EncodingRefused:
        """Return how the peer answered, whatever it says."""
        body, is_cut = await read_all(self._exchange, self._context.most)
        self.observe("event", body=body)
        try:
            value = None if is_cut else await json_text.read(body, self._context.most_values)
        except ParseFailed:
            value = None
        return EncodingRefused(self._exchange.headers, value)

    async def __aenter__(self) -> Self:
        """Send it, and wait for the head of the answer."""
        context, request = self._context, self._request
        url, headers = request.url, request.headers
        if context.complete_request is not None:
            url, headers = await context.complete_request(url, headers)
        if tracing.on:
            self._span = self._begin_span(headers)
            headers = {**headers, **self._span.trace.headers}
        try:
            if self._observe is not None:
                self._observe("request", headers=headers, body=request.body or b"")
            opened = context.http.open(
                request.verb, url, headers=headers, body=request.body, reuse=self._reuse
            )
            exchange = self._exchange = await opened.__aenter__()
            self._opened = opened
            if self._observe is not None:
                self._observe("answer", status=exchange.status, headers=exchange.headers)
        except BaseException as error:
            # An observer may have failed.
            await self._close(error)
            raise self._failed(error) from None
        if self._span is not None:
            self._span.set({"http.response.status_code": exchange.status})
            if exchange.status >= 400:
                self._span.fail(str(exchange.status))
        return self

    def _begin_span(self, headers: Mapping[str, str]) -> Span:
        """Begin the span of the request, below what its headers say it belongs to."""
        name = type(self._request.operation).__name__
        names = {
            "a2a.operation": name,
            "a2a.version": self._version,
            "a2a.binding": self._context.binding,
            "server.address": _host(self._request.url),
        }
        parent = tracing.parse(headers.get("traceparent", ""), headers.get("tracestate", ""))
        return tracing.begin(name, names, kind="client", parent=parent)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        return kind == EVENT_STREAM and 200 <= status < 300

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
        body, is_cut = await read_all(self._exchange, self._context.most)
        self.observe("event", body=body)
        self.body = body
        if is_cut:
            raise InvalidAgentResponse(f"the answer has more than {self._context.most} bytes")
        if not body.strip() and 200 <= status < 300 and not self._is_rpc:
            return None
        try:
            value = await json_text.read(body, self._context.most_values)
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
        body = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if self._is_rpc and status not in (401, 403):
            code = jsonrpc.code_of(body.get("error"))
            # Positive codes are HTTP statuses: the peer does not speak JSON-RPC there.
            if code is not None and code < 0:
                error = error_table.decode_jsonrpc(body["error"])
                error.code = code
                return self._with_patience(error)
        if status in (401, 403):
            # Who is not known is told nothing worth repeating.
            error = Unauthenticated() if status == 401 else _denial(body)
            if challenge := self._exchange.headers.get("www-authenticate", ""):
                error.facts["wwwAuthenticate"] = challenge
                if status == 403 and (scope := _SCOPE.search(challenge)):
                    error.facts["scope"] = scope[1]
        elif not self._is_rpc and _names_an_error(body):
            error = error_table.decode_rest(status, body)
        elif not self._is_rpc and (worded := error_table.by_words(body)) is not None:
            error = worded
        elif status in _NOT_SERVED:
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


def _denial(value: dict[str, Any]) -> PermissionDenied:
    """Return what a peer says to a caller it knows, made fit to be shown."""
    error = error_table.decode_rest(403, value)
    scope = error.facts.get("scope", "")
    denial = PermissionDenied(
        printable(error.public), **({"scope": printable(scope)} if scope else {})
    )
    denial.is_quoted = error.is_quoted
    return denial


def _names_an_error(value: dict[str, Any]) -> bool:
    """Say whether a REST body is an error of the protocol, and not of a server in between."""
    inner = value.get("error")
    return (
        isinstance(inner, dict | str)
        or type(value.get("code")) is int
        or str(value.get("type", "")).startswith("https://a2a-protocol.org/")
    )


def _not_json(error: ParseFailed) -> InvalidAgentResponse:
    # Of a limit that it breaks its author can make use.
    is_plain = error.public == ParseFailed().public
    detail = "" if is_plain else f": {error.public}"
    return InvalidAgentResponse(f"The agent's answer is not JSON{detail}")


def _host(url: str) -> str:
    """Return what may be shown of an address."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]
