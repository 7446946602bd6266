"""Serves a cassette: each request gets its recorded answer, with the recorded delays."""

import asyncio
from typing import Any, cast

import msgspec
from msgspec import UNSET

from dragoman.testing.cassettes.cassette import (
    Block,
    Cassette,
    RecordedAnswer,
    RecordedRequest,
    content,
)
from dragoman.testing.cassettes.matching import ExchangeIndex, Match
from dragoman.testing.cassettes.recorder import serve_card
from dragoman.testing.cassettes.redaction import CassetteRedaction, parsed
from dragoman.testing.scripted import cards
from dragoman.testing.scripted.connection import Headers, Scope, ScriptedConnection, attend
from dragoman.transports import jsonrpc, sse

_NO_MATCH = "No recording fits this request"


class Replayer:
    """The agent of a cassette, an ASGI app."""

    def __init__(self, cassette: Cassette, *, match: Match = "loose", speed: float = 1.0) -> None:
        """`speed` 2 is twice as fast as recorded, 0 is without delays."""
        self._cassette = cassette
        self._index = ExchangeIndex(cassette.exchanges, match)
        self._speed = speed
        # Requests are redacted like the recorded ones.
        self._redaction = CassetteRedaction(card=cassette.head.card)
        # Requests without a recording.
        self.missed: list[RecordedRequest] = []

    @property
    def unused(self) -> int:
        """How many recordings were not requested."""
        return self._index.unused

    async def __call__(self, scope: Scope, receive: sse.Receive, send: sse.Send) -> None:
        await attend(scope, receive, send, self._serve)

    async def _serve(self, connection: ScriptedConnection) -> None:
        if connection.path in cards.PATHS:
            await serve_card(connection, self._cassette.head.card)
            return
        kind = connection.headers.get("content-type", "")
        self._redaction.see(connection.headers)
        asked = RecordedRequest(
            connection.verb,
            connection.path,
            self._redaction.query(connection.scope["query_string"].decode("latin-1")),
            self._redaction.headers(connection.headers),
            content(connection.body, kind, self._redaction),
        )
        id = jsonrpc.request_id(parsed(connection.body))
        exchange = self._index.find(asked)
        if exchange is None:
            self.missed.append(asked)
            await _refuse(connection, id)
            return
        await self._play(connection, exchange.response, id)

    async def _play(
        self, connection: ScriptedConnection, answered: RecordedAnswer, id: jsonrpc.Id
    ) -> None:
        await self._wait(answered.after)
        headers: Headers = [
            (name.encode(), value.encode("latin-1"))
            for name, value in answered.headers.items()
            if name not in ("content-type", "cache-control")
        ]
        kind = answered.headers.get("content-type", "application/json")
        if not kind.startswith("text/event-stream"):
            if answered.cut:
                await connection.break_off(at_once=True)
            body = answered.body
            encoded = body.encode() if body.json is UNSET else _renumbered(body.json, id)
            await connection.answer(answered.status, encoded, kind, headers)
            return
        await connection.open(headers)
        at = answered.after
        for block in answered.blocks:
            await self._wait(block.at - at)
            at = max(at, block.at)
            await connection.write(_block(block, id))
        if answered.cut:
            await connection.break_off()
        await connection.close()

    async def _wait(self, seconds: float) -> None:
        if self._speed > 0 and seconds > 0:
            await asyncio.sleep(seconds / self._speed)


async def _refuse(connection: ScriptedConnection, id: jsonrpc.Id) -> None:
    if id is not None:
        error = {"code": -32603, "message": _NO_MATCH}
        await connection.answer(200, jsonrpc.failure(id, error))
        return
    body = {"error": {"code": 404, "status": "NOT_FOUND", "message": _NO_MATCH}}
    await connection.answer(404, msgspec.json.encode(body))


def _renumbered(value: Any, id: jsonrpc.Id) -> bytes:
    """Return the JSON of an answer with the id of the present request."""
    if isinstance(value, dict) and "jsonrpc" in value:
        value = cast(dict[str, Any], value) | {"id": id}
    return msgspec.json.encode(value)


def _block(block: Block, id: jsonrpc.Id) -> bytes:
    if block.raw:
        return block.raw
    if '"jsonrpc"' not in block.text:
        return block.text.encode()
    lines: list[bytes] = []
    for line in block.text.encode().split(b"\n"):
        value = parsed(line[5:]) if line.startswith(b"data:") else UNSET
        lines.append(line if value is UNSET else b"data: " + _renumbered(value, id))
    return b"\n".join(lines)
