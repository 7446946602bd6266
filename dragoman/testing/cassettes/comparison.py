"""Sends recorded requests to a live agent and reports different answers.

Ids of the live agent replace the recorded ones in later requests, and each message gets a new id:
an agent that recognises a message would not work on it again.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.client.cards.interfaces import addressed
from dragoman.client.credentials.credentials import Credential, choose
from dragoman.client.credentials.origins import Origins
from dragoman.client.http import Http, HttpExchange
from dragoman.egress.errors import EgressError
from dragoman.errors import ConfigError
from dragoman.model.card import GRPC, AgentCard, AgentInterface
from dragoman.model.identity import new_id
from dragoman.testing.cassettes.cassette import (
    Cassette,
    Interface,
    RecordedExchange,
    RecordedRequest,
)
from dragoman.testing.cassettes.matching import differences, plain
from dragoman.testing.cassettes.redaction import HIDDEN, parsed
from dragoman.transports import sse

LARGEST_EVENT = 64 * 1024 * 1024
_SENT = ("a2a-version", "a2a-extensions", "x-a2a-extensions", "accept", "content-type")


class Difference(msgspec.Struct, frozen=True):
    """A difference of a live answer from the recorded one; UNSET: a missing member."""

    number: int
    method: str
    path: str
    at: str
    recorded: Any
    live: Any


class Comparison:
    """One run of a cassette against a live agent."""

    def __init__(
        self,
        cassette: Cassette,
        card: AgentCard,
        http: Http,
        credentials: Sequence[Credential] = (),
        origins: Origins | None = None,
        origin: str = "",
    ) -> None:
        """Credentials are sent to these origins only. The card came from `origin`."""
        self._cassette = cassette
        self._card = card
        self._http = http
        self._credentials = credentials
        self._origins = origins or Origins()
        self._origin = origin
        # From recorded ids to those of this run.
        self._ids: dict[str, str] = {}
        self.count = 0

    async def run(self) -> AsyncIterator[Difference]:
        """Send the requests in their order and yield each difference."""
        for exchange in self._cassette.exchanges:
            self.count += 1
            async for difference in self._compare(exchange):
                yield difference

    async def _compare(self, exchange: RecordedExchange) -> AsyncIterator[Difference]:
        request, answered = exchange.request, exchange.response
        try:
            status, live = await self._ask(request)
        except EgressError as error:
            yield _difference(exchange, "", answered.status, f"no answer: {error.reason}")
            return
        if status != answered.status:
            yield _difference(exchange, "status", answered.status, status)
        recorded = (
            _events(b"".join(block.text.encode() or block.raw for block in answered.blocks))
            if answered.blocks
            else _body(answered.body.encode())
        )
        self._learn(recorded, live)
        found = differences(
            plain(_without_number(recorded), ignore_ids=True),
            plain(_without_number(live), ignore_ids=True),
        )
        for at, before, after in found:
            if before != HIDDEN:
                yield _difference(exchange, at, before, after)

    async def _ask(self, request: RecordedRequest) -> tuple[int, Any]:
        interface, rest = self._interface(request)
        if interface.protocol_binding.upper() == GRPC:
            return await self._ask_rpc(interface, request)
        url = interface.url.rstrip("/") + self._with_live_text(rest) if rest else interface.url
        if request.query:
            url += ("&" if "?" in url else "?") + self._with_live_text(request.query)
        headers = {name: value for name, value in request.headers.items() if name in _SENT}
        chosen = choose(self._card, self._credentials, url)
        attached = await chosen.attach(url, self._http, self._origins)
        url, headers = attached.onto(headers)
        async with self._http.open(
            request.method, url, headers=headers, body=self._request_body(request)
        ) as answer:
            return await _whole(answer)

    async def _ask_rpc(
        self, interface: AgentInterface, request: RecordedRequest
    ) -> tuple[int, Any]:
        # Loads protobuf, which other cassettes do without.
        from dragoman.testing.cassettes.rpc_exchanges import open_as_json

        url = addressed(interface, self._card, self._origin).url
        headers = {name: value for name, value in request.headers.items() if name in _SENT}
        chosen = choose(self._card, self._credentials, url)
        attached = await chosen.attach(url, self._http, self._origins)
        url, headers = attached.onto(headers)
        body = self._request_body(request) or b""
        async with open_as_json(self._http, url, request.path, headers, body) as answer:
            return await _whole(answer)

    def _interface(self, request: RecordedRequest) -> tuple[AgentInterface, str]:
        """Return the live interface that has the binding and version of the recorded one."""
        for recorded in self._cassette.head.interfaces:
            if request.path == recorded.path or request.path.startswith(recorded.path + "/"):
                version = request.headers.get("a2a-version", "")
                found = self._live(recorded, version)
                return found, request.path.removeprefix(recorded.path)
        raise ConfigError(f"the cassette has a request to {request.path}, which is no interface")

    def _live(self, recorded: Interface, version: str) -> AgentInterface:
        fitting = [
            interface
            for interface in self._card.supported_interfaces
            if interface.protocol_binding == recorded.binding
        ]
        if not fitting:
            raise ConfigError(f"the live agent offers no {recorded.binding}")
        wanted = version or recorded.version
        return next((item for item in fitting if item.protocol_version == wanted), fitting[0])

    def _request_body(self, request: RecordedRequest) -> bytes | None:
        body = request.body
        if body.json is UNSET:
            return body.encode() or None
        return msgspec.json.encode(self._with_live_ids(body.json))

    def _with_live_ids(self, value: Any) -> Any:
        """Return a body with the ids of this run."""
        if isinstance(value, list):
            return [self._with_live_ids(item) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return self._ids.get(value, value) if isinstance(value, str) else value
        found: dict[str, Any] = {}
        for name, item in cast(dict[str, Any], value).items():
            if name == "messageId" and isinstance(item, str):
                item = self._ids.setdefault(item, new_id())
            found[name] = self._with_live_ids(item)
        return found

    def _with_live_text(self, text: str) -> str:
        for recorded, live in self._ids.items():
            text = text.replace(recorded, live)
        return text

    def _learn(self, recorded: Any, live: Any) -> None:
        """Pair the ids at the same positions of two answers."""
        if isinstance(recorded, dict) and isinstance(live, dict):
            before, after = cast(dict[str, Any], recorded), cast(dict[str, Any], live)
            for name in before.keys() & after.keys():
                old, new = before[name], after[name]
                is_id = name in ("id", "taskId", "contextId", "nextPageToken")
                if is_id and isinstance(old, str) and isinstance(new, str) and old and old != new:
                    self._ids.setdefault(old, new)
                self._learn(old, new)
        elif isinstance(recorded, list) and isinstance(live, list):
            for old, new in zip(cast(list[Any], recorded), cast(list[Any], live), strict=False):
                self._learn(old, new)


async def _whole(answer: HttpExchange) -> tuple[int, Any]:
    """Return the status of an answer and what it says."""
    body = bytearray()
    async for chunk in answer.chunks():
        body += chunk
        if len(body) > LARGEST_EVENT:
            raise ConfigError("the live agent's answer is too long to compare")
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    return answer.status, _events(bytes(body)) if is_stream else _body(bytes(body))


def _difference(exchange: RecordedExchange, at: str, recorded: Any, live: Any) -> Difference:
    body = exchange.request.body.json
    method = exchange.request.method
    if isinstance(body, dict) and "method" in body:
        method = str(cast(dict[str, Any], body)["method"])
    return Difference(exchange.number, method, exchange.request.path, at, recorded, live)


def _body(body: bytes) -> Any:
    if not body:
        return None
    value = parsed(body)
    return body.decode("utf-8", "backslashreplace") if value is UNSET else value


def _events(body: bytes) -> list[Any]:
    return [_body(sent.data) for sent in sse.SseReader(LARGEST_EVENT).feed(body)]


def _without_number(value: Any) -> Any:
    """Return an answer without the number of its request."""
    if isinstance(value, list):
        return [_without_number(item) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    return fields | {"id": None} if "jsonrpc" in fields else fields
