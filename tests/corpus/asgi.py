"""Calls an ASGI app in process: no sockets, so that twenty thousand cases take seconds.

The caller behaves as a server would: the body comes in pieces, headers are lowercase bytes, and a
stream is read until enough blocks arrived, then the client is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from tests.corpus.answer import Answer
from tests.corpus.case import Case

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

PIECE = 64 * 1024
# A refusal is due at once; whoever needs longer hangs.
PATIENCE = 30.0


async def request(app: AsgiApp, case: Case, *, blocks: int = 0) -> Answer:
    """Send one case; with `blocks`, disconnect after that many SSE blocks."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": case.method,
        "scheme": "http",
        "path": unquote(case.path),
        "raw_path": case.path.encode(),
        "query_string": case.query.encode(),
        "root_path": "",
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"content-length", str(len(case.body)).encode()),
            *((name.encode(), value.encode()) for name, value in case.headers),
        ],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    pulled = 0
    gone = asyncio.Event()
    status = 0
    headers: dict[str, str] = {}
    body = bytearray()

    async def receive() -> dict[str, Any]:
        nonlocal pulled
        if pulled < len(case.body) or pulled == 0:
            piece = case.body[pulled : pulled + PIECE]
            more = pulled + len(piece) < len(case.body)
            pulled += len(piece) or 1
            return {"type": "http.request", "body": piece, "more_body": more}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update((k.decode(), v.decode()) for k, v in message["headers"])
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if not message.get("more_body") or (blocks and body.count(b"\n\n") >= blocks):
                gone.set()

    # What it costs us: how long it takes depends on who else uses the machine.
    started = time.process_time()
    async with asyncio.timeout(PATIENCE):
        await app(scope, receive, send)
    return Answer(status, headers, bytes(body), time.process_time() - started, pulled)
