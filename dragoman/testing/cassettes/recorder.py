"""A proxy that records the conversation of an agent and its caller.

It shows the agent's card with its own addresses, forwards everything unchanged, credentials
included, and writes a cassette without them.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from dragoman.client.cards.interfaces import addressed, has_grpc
from dragoman.client.http import Http, HttpExchange
from dragoman.egress.errors import EgressError
from dragoman.egress.outgoing import OUR_HEADERS
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC, AgentCard, AgentInterface
from dragoman.testing.cassettes.cassette import (
    BASE,
    FORMAT,
    PLACE,
    Blocks,
    CassetteHead,
    Content,
    Interface,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
    content,
)
from dragoman.testing.cassettes.redaction import CassetteRedaction
from dragoman.testing.scripted import cards
from dragoman.testing.scripted.connection import Scope, ScriptedConnection, attend
from dragoman.testing.scripted.stage import now
from dragoman.transports import sse
from dragoman.transports.grpc import tables

PREFIX = "/up/"
_DROPPED = OUR_HEADERS | {"content-encoding"}


class Sink(Protocol):
    """Receives exchanges."""

    def add(self, exchange: RecordedExchange) -> None:
        """Add an exchange."""
        ...


class Recorder:
    """The proxy, an ASGI app."""

    def __init__(
        self,
        card: AgentCard,
        raw: dict[str, Any],
        http: Http,
        redaction: CassetteRedaction,
        origin: str = "",
    ) -> None:
        """`raw` is the card as received, from `origin`."""
        self._addresses: list[str] = []
        # Addresses of gRPC interfaces, by the path of their service.
        self._rpcs = _rpc_addresses(card, origin)
        self._card, self._interfaces = _rewritten(card, raw, self._addresses)
        self._http = http
        self._redaction = redaction
        self._number = 0
        self.sink: Sink | None = None
        # How many exchanges were forwarded.
        self.count = 0

    @property
    def head(self) -> CassetteHead:
        """The first line of the cassette."""
        return CassetteHead(FORMAT, now(), self._redaction.value(self._card), self._interfaces)

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        await attend(scope, receive, send, self._serve)

    async def _serve(self, connection: ScriptedConnection) -> None:
        if connection.path in cards.PATHS:
            await serve_card(connection, self._card)
            return
        service = connection.path.rpartition("/")[0]
        if "grpc" in (connection.scope.get("extensions") or {}) and service in self._rpcs:
            await self._forward(connection, self._rpcs[service], "", is_rpc=True)
            return
        number, _, rest = connection.path.removeprefix(PREFIX).partition("/")
        if not (
            connection.path.startswith(PREFIX)
            and number.isdecimal()
            and int(number) < len(self._addresses)
        ):
            await connection.answer(404, b'{"error":{"message":"Nothing is recorded here"}}')
            return
        await self._forward(connection, self._addresses[int(number)], rest)

    async def _forward(
        self, connection: ScriptedConnection, address: str, rest: str, *, is_rpc: bool = False
    ) -> None:
        """Forward a request, and its answer back."""
        began = time.monotonic()
        self._number += 1
        number = self._number
        query = connection.scope["query_string"].decode("latin-1")
        url = _joined(address, _raw_rest(connection, rest), query)
        self._redaction.see(connection.headers)
        asked = RecordedRequest(
            connection.verb,
            connection.path,
            self._redaction.query(query),
            self._redaction.headers(connection.headers),
            content(connection.body, connection.headers.get("content-type", ""), self._redaction),
        )
        headers = {
            name: value for name, value in connection.headers.items() if name not in _DROPPED
        }
        body = connection.body if connection.verb not in ("GET", "HEAD", "DELETE") else None
        answer = _ForwardedAnswer(self._redaction, began)
        try:
            async with (
                _open_rpc(self._http, address, connection, headers)
                if is_rpc
                else self._http.open(connection.verb, url, headers=headers, body=body or None)
            ) as exchange:
                await answer.forward(connection, exchange)
        except EgressError as error:
            answer.is_cut = True
            if not connection.is_open:
                problem = {"error": {"message": f"The agent cannot be reached: {error.reason}"}}
                await connection.answer(502, msgspec.json.encode(problem))
                return
            await connection.break_off()
        finally:
            if answer.status:
                self.count += 1
                if self.sink is not None:
                    self.sink.add(RecordedExchange(number, asked, answer.recorded()))


class _ForwardedAnswer:
    """One answer while it is forwarded."""

    def __init__(self, redaction: CassetteRedaction, began: float) -> None:
        self._redaction = redaction
        self._began = began
        self._blocks = Blocks(redaction)
        self._body = bytearray()
        self._headers: Mapping[str, str] = {}
        self._after = 0.0
        self.status = 0
        self.is_cut = True

    @property
    def is_stream(self) -> bool:
        return self._headers.get("content-type", "").startswith("text/event-stream")

    def _at(self) -> float:
        return time.monotonic() - self._began

    async def forward(self, connection: ScriptedConnection, exchange: HttpExchange) -> None:
        """Read the answer and write it to the caller, until either leaves."""
        self.status, self._headers = exchange.status, exchange.headers
        self._after = round(self._at(), 3)
        sent = [
            (name.encode(), value.encode("latin-1"))
            for name, value in self._headers.items()
            if name not in _DROPPED and name != "content-type"
        ]
        if not self.is_stream:
            async for chunk in exchange.chunks():
                self._body += chunk
            kind = self._headers.get("content-type", "application/json")
            await connection.answer(self.status, bytes(self._body), kind, sent)
            self.is_cut = False
            return
        await connection.write_until_gone(self._stream(connection, exchange, sent))

    async def _stream(
        self,
        connection: ScriptedConnection,
        exchange: HttpExchange,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        kept = [pair for pair in headers if pair[0] not in (b"cache-control", b"x-accel-buffering")]
        await connection.open(kept)
        async for chunk in exchange.chunks():
            self._blocks.feed(chunk, self._at())
            await connection.write(chunk)
        self.is_cut = False
        await connection.close()

    def recorded(self) -> RecordedAnswer:
        """Return the answer as it is recorded."""
        kind = self._headers.get("content-type", "")
        if self.is_stream:
            blocks = list(self._blocks.finish(self._at()))
            body = Content()
        else:
            blocks = []
            body = content(bytes(self._body), kind, self._redaction)
        return RecordedAnswer(
            self.status,
            self._redaction.headers(self._headers),
            body,
            blocks,
            self._after,
            self.is_cut,
        )


def _open_rpc(
    http: Http, address: str, connection: ScriptedConnection, headers: Mapping[str, str]
) -> AbstractAsyncContextManager[HttpExchange]:
    # Loads protobuf, which an rpc has loaded already.
    from dragoman.testing.cassettes.rpc_exchanges import open_as_json

    return open_as_json(http, address, connection.path, headers, connection.body)


def _rewritten(
    card: AgentCard, raw: dict[str, Any], addresses: list[str]
) -> tuple[dict[str, Any], list[Interface]]:
    """Return a card with addresses below `{base}`, and its interfaces; add the real addresses."""
    interfaces: list[Interface] = []
    paths: dict[str, str] = {}
    kept_interfaces: list[tuple[AgentInterface, str]] = []
    for interface in card.supported_interfaces:
        binding = interface.protocol_binding.upper()
        if binding == GRPC and has_grpc():
            path = _service(interface)
            kept_interfaces.append((interface, path))
            interfaces.append(Interface(path, GRPC, interface.protocol_version))
        if binding not in (JSONRPC, HTTP_JSON):
            continue
        if interface.url not in paths:
            paths[interface.url] = f"{PREFIX}{len(addresses)}"
            addresses.append(interface.url)
        path = paths[interface.url]
        kept_interfaces.append((interface, path))
        interfaces.append(Interface(path, interface.protocol_binding, interface.protocol_version))
    # The signature covers the original addresses: it would be invalid.
    shown = {name: item for name, item in raw.items() if name != "signatures"}
    if "supportedInterfaces" in shown or "supported_interfaces" in shown:
        shown.pop("supported_interfaces", None)
        shown["supportedInterfaces"] = [
            msgspec.to_builtins(interface) | {"url": _shown_url(interface, path)}
            for interface, path in kept_interfaces
        ]
    older = [
        entry for entry in kept_interfaces if entry[0].protocol_version.startswith("0.")
    ] or kept_interfaces
    if "url" in shown and older:
        shown["url"] = _shown_url(*older[0])
        if "preferredTransport" in shown:
            shown["preferredTransport"] = older[0][0].protocol_binding
    if "additionalInterfaces" in shown:
        shown["additionalInterfaces"] = [
            {"url": _shown_url(interface, path), "transport": interface.protocol_binding}
            for interface, path in older
        ]
    return shown, interfaces


def _shown_url(interface: AgentInterface, path: str) -> str:
    return PLACE if interface.protocol_binding.upper() == GRPC else BASE + path


def _service(interface: AgentInterface) -> str:
    """Return the path that the rpcs of an interface are below."""
    schema = tables.V1_0 if interface.protocol_version.startswith("1.") else tables.V0_3
    return f"/{schema.service}"


def _rpc_addresses(card: AgentCard, origin: str) -> dict[str, str]:
    """Return the addresses of gRPC interfaces; of several the card's first is used."""
    if not has_grpc():
        return {}
    return {
        _service(interface): addressed(interface, card, origin).url
        for interface in reversed(card.supported_interfaces)
        if interface.protocol_binding.upper() == GRPC
    }


async def serve_card(connection: ScriptedConnection, card: dict[str, Any]) -> None:
    """Answer with a card that has the address of this server."""
    base = connection.base.encode()
    place = base.partition(b"://")[2].partition(b"/")[0]
    body = msgspec.json.encode(card).replace(BASE.encode(), base).replace(PLACE.encode(), place)
    await connection.answer(200, body, headers=[(b"cache-control", b"no-cache")])


def _raw_rest(connection: ScriptedConnection, rest: str) -> str:
    """Return the rest of a path as received: an id may contain an escaped slash."""
    raw = connection.scope.get("raw_path") or b""
    text = raw.decode("latin-1")
    if not text.startswith(PREFIX):
        return rest
    return text.removeprefix(PREFIX).partition("/")[2]


def _joined(address: str, rest: str, query: str) -> str:
    base, mark, own = address.partition("?")
    url = f"{base.rstrip('/')}/{rest}" if rest else base
    found = "&".join(part for part in (own if mark else "", query) if part)
    return f"{url}?{found}" if found else url
