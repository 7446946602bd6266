"""Requests to a gateway, with retries where they are safe.

A read may always be repeated, and so may a request with an `Idempotency-Key`. Any other request is
retried only if it did not arrive, or the gateway deferred it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from dragoman.client.gateway_api import GatewayRefused, credential, data_of, exchange
from dragoman.client.http import read_all, wish
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed
from dragoman.egress.targets import Anywhere, NotCanonical, read_target
from dragoman.errors import ConfigError, ParseFailed
from dragoman.model.identity import new_id
from dragoman.security.json_values import check_document
from dragoman.transports import sse

# Seconds before the second try; each further one waits twice as long.
_FIRST_PAUSE = 0.5
# Statuses of a request that the gateway did not begin; and of proxies, when it may have.
_DEFERRED = frozenset({429, 503})
_UNCLEAR = frozenset({502, 504})
# Codes for refusals without a body: they come before the API is reached.
_CODES = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 429: "RATE_LIMIT_EXCEEDED"}
_LARGEST_EVENT = 16 * 1024 * 1024
_LONGEST_WAIT = 60


class NexusError(Exception):
    """A request that failed. `code` is the gateway's, such as `AGENT_NOT_FOUND`, with the HTTP
    status as `status_code` and what it says besides as `details`; or `NETWORK_ERROR`, with 0."""

    def __init__(self, message: str, code: str, status_code: int = 0, details: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.status_code = status_code
        self.details = details


class NexusConnection:
    """The connection to one gateway."""

    def __init__(
        self,
        url: str,
        token: str,
        retries: int,
        timeout: float,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        try:
            self._url = read_target(url).url.rstrip("/")
        except NotCanonical as error:
            raise ConfigError(f"base_url {url!r} is no address of a gateway: {error}") from None
        if not token.isprintable():
            raise ConfigError("api_key has a character that no header can have")
        if retries < 0 or timeout <= 0:
            raise ConfigError("max_retries is 0 or more, and timeout more than 0")
        self._headers = credential(token)
        self._retries = retries
        self._timeout = timeout
        self._pause = pause
        # The author chose the address.
        self._http = Egress(policy=Anywhere(), keep_alive=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def request(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
    ) -> Any:
        """Return the gateway's answer. `key` is the idempotency key of a request that may be
        repeated; an empty one is replaced by a new one."""
        given = {
            name: _query_text(value) for name, value in (query or {}).items() if value is not None
        }
        url = f"{self._url}/api/v1{path}" + (f"?{urlencode(given)}" if given else "")
        headers = dict(self._headers)
        if key is not None:
            headers["idempotency-key"] = key or new_id()
        may_repeat = verb == "GET" or key is not None
        for tried in range(self._retries + 1):
            try:
                async with asyncio.timeout(self._timeout):
                    answer = await exchange(self._http, verb, url, headers=headers, body=body)
            except (EgressError, TimeoutError) as error:
                is_sent = not isinstance(error, EgressFailed) or error.is_sent
                if tried == self._retries or (is_sent and not may_repeat):
                    raise _unreached(error) from None
                await self._pause(_FIRST_PAUSE * 2**tried)
                continue
            is_later = answer.status in _DEFERRED or (may_repeat and answer.status in _UNCLEAR)
            if tried < self._retries and is_later:
                wanted = min(int(wish(answer.headers).get("retryAfter", 0)), _LONGEST_WAIT)
                await self._pause(max(_FIRST_PAUSE * 2**tried, wanted))
                continue
            try:
                return data_of(answer.status, answer.body)
            except GatewayRefused as refused:
                raise _refusal(refused) from None
        raise AssertionError("the last try returns or raises")

    async def events(self, path: str, after: str) -> AsyncGenerator[sse.ServerSentEvent]:
        """Yield the events of a stream; a broken one is resumed. The reader recognises the last
        event, and stops there."""
        failures = 0
        while True:
            problem: EgressError = EgressFailed("it ended the stream too early")
            try:
                async for sent in self._stream(path, after):
                    failures, after = 0, sent.id or after
                    yield sent
            except EgressError as error:
                problem = error
            if failures == self._retries:
                raise _unreached(problem)
            await self._pause(_FIRST_PAUSE * 2**failures)
            failures += 1

    async def _stream(self, path: str, after: str) -> AsyncGenerator[sse.ServerSentEvent]:
        headers = {"accept": "text/event-stream", **self._headers}
        if after:
            headers["last-event-id"] = after
        url = f"{self._url}/api/v1{path}"
        async with self._http.open("GET", url, headers=headers) as answer:
            if answer.status >= 400:
                body, _ = await read_all(answer, _LARGEST_EVENT)
                try:
                    data_of(answer.status, body)
                except GatewayRefused as refused:
                    raise _refusal(refused) from None
            reader = sse.SseReader(_LARGEST_EVENT)
            try:
                async for chunk in answer.chunks():
                    for sent in reader.feed(chunk):
                        yield sent
            except sse.TooLong:
                message = "An event of the gateway is too long"
                raise NexusError(message, "PROTOCOL_ERROR") from None


def failed(value: Any) -> NexusError:
    """Return the error in a stream."""
    facts = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return _refusal(GatewayRefused(0, facts))


def decoded(data: bytes) -> Any:
    """Return the data of an event."""
    try:
        check_document(data)
        return msgspec.json.decode(data)
    except (ParseFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NexusError("An event of the gateway is no JSON", "PROTOCOL_ERROR") from None


def _refusal(refused: GatewayRefused) -> NexusError:
    message = refused.message or f"HTTP {refused.status}, and no reason; is this a gateway?"
    code = refused.code or _CODES.get(refused.status, "PROTOCOL_ERROR")
    return NexusError(message, code, refused.status, refused.details)


def _unreached(error: Exception) -> NexusError:
    reason = error.reason if isinstance(error, EgressError) else "it did not answer in time"
    return NexusError(f"The gateway could not be reached: {reason}", "NETWORK_ERROR")


def _query_text(value: Any) -> str:
    """Return a value as in a query."""
    if isinstance(value, list | tuple):
        return ",".join(str(one) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any values of the caller
    return str(value).lower() if isinstance(value, bool) else str(value)
