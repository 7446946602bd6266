"""Drives a live agent with recorded requests and tells where it answers otherwise.

Ids the live agent gives take the place of the recorded ones in the requests that follow, and each
message gets an id of its own: an agent that knows a message again would not work on it.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.client.credentials import Credential, choose
from dragoman.client.http import Http
from dragoman.client.origins import Origins
from dragoman.errors import ConfigError
from dragoman.mock.cassette import Asked, Cassette, Exchange, Interface
from dragoman.mock.matching import differences, plain
from dragoman.mock.redaction import HIDDEN, parsed
from dragoman.model.card import AgentCard, AgentInterface
from dragoman.model.identity import new_id
from dragoman.security.egress import EgressError
from dragoman.transports import sse

LARGEST_EVENT = 64 * 1024 * 1024
_SENT = ("a2a-version", "a2a-extensions", "x-a2a-extensions", "accept", "content-type")


class Difference(msgspec.Struct, frozen=True):
    """Where a live answer is not what was recorded; UNSET: there is nothing."""

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
    ) -> None:
        """Credentials go to these origins and no others."""
        self._cassette = cassette
        self._card = card
        self._http = http
        self._credentials = credentials
        self._origins = origins or Origins()
        # From recorded ids to those of this run.
        self._ids: dict[str, str] = {}
        self.count = 0

    async def run(self) -> AsyncIterator[Difference]:
        """Make the requests in their order and yield each difference."""
        for exchange in self._cassette.exchanges:
            self.count += 1
            async for difference in self._compare(exchange):
                yield difference

    async def _compare(self, exchange: Exchange) -> AsyncIterator[Difference]:
        asked, answered = exchange.request, exchange.response
        try:
            status, live = await self._ask(asked)
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

    async def _ask(self, asked: Asked) -> tuple[int, Any]:
        interface, rest = self._place(asked)
        url = interface.url.rstrip("/") + self._renamed(rest) if rest else interface.url
        if asked.query:
            url += ("&" if "?" in url else "?") + self._renamed(asked.query)
        headers = {name: value for name, value in asked.headers.items() if name in _SENT}
        chosen = choose(self._card, self._credentials, url)
        attached = await chosen.attach(url, self._http, self._origins)
        url, headers = attached.onto(headers)
        async with self._http.open(
            asked.method, url, headers=headers, body=self._request_body(asked)
        ) as answer:
            body = bytearray()
            async for chunk in answer.chunks():
                body += chunk
                if len(body) > LARGEST_EVENT:
                    raise ConfigError("the live agent's answer is too long to compare")
            is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
            return answer.status, _events(bytes(body)) if is_stream else _body(bytes(body))

    def _place(self, asked: Asked) -> tuple[AgentInterface, str]:
        """Return the live interface that has the binding and version of the recorded one."""
        for place in self._cassette.head.interfaces:
            if asked.path == place.path or asked.path.startswith(place.path + "/"):
                version = asked.headers.get("a2a-version", "")
                found = self._live(place, version)
                return found, asked.path.removeprefix(place.path)
        raise ConfigError(f"the cassette has a request to {asked.path}, which is no interface")

    def _live(self, place: Interface, version: str) -> AgentInterface:
        fitting = [
            interface
            for interface in self._card.supported_interfaces
            if interface.protocol_binding == place.binding
        ]
        if not fitting:
            raise ConfigError(f"the live agent offers no {place.binding}")
        wanted = version or place.version
        return next((item for item in fitting if item.protocol_version == wanted), fitting[0])

    def _request_body(self, asked: Asked) -> bytes | None:
        body = asked.body
        if body.json is UNSET:
            return body.encode() or None
        return msgspec.json.encode(self._renewed(body.json))

    def _renewed(self, value: Any) -> Any:
        """Return a body with the ids of this run."""
        if isinstance(value, list):
            return [self._renewed(item) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return self._ids.get(value, value) if isinstance(value, str) else value
        found: dict[str, Any] = {}
        for name, item in cast(dict[str, Any], value).items():
            if name == "messageId" and isinstance(item, str):
                item = self._ids.setdefault(item, new_id())
            found[name] = self._renewed(item)
        return found

    def _renamed(self, text: str) -> str:
        for recorded, live in self._ids.items():
            text = text.replace(recorded, live)
        return text

    def _learn(self, recorded: Any, live: Any) -> None:
        """Pair the ids of two answers that have the same places."""
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


def _difference(exchange: Exchange, at: str, recorded: Any, live: Any) -> Difference:
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
    return [_body(sent.data) for sent in sse.Reader(LARGEST_EVENT).feed(body)]


def _without_number(value: Any) -> Any:
    """Return an answer without the number of its request."""
    if isinstance(value, list):
        return [_without_number(item) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    return fields | {"id": None} if "jsonrpc" in fields else fields
