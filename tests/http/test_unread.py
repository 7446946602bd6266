"""Nothing is read before the caller is known: every path of every app is sent a large body by
callers without credentials, and the memory of the process stays as it was."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, Settings
from dragoman.config import StoreSettings, load_settings
from dragoman.gateway.app import gateway_app, gateway_of
from dragoman.gateway.delivery.push_inbox import PATH as HOOKS
from dragoman.http.request import PUBLIC_BODY_BYTES
from dragoman.http.routes import Access
from dragoman.mcp.agent_tools import AgentTools
from dragoman.mcp.app import mcp_app
from dragoman.model.identity import Scope
from tests.corpus.agent import agent
from tests.http.wire import HOST, Answer, Place, guarding, post

TOKEN = "a-token-of-some-length"
CALLERS = 30
BODY = 10 * 1024 * 1024
PIECE = b"a" * 65_536
# So much is sent before an answer is waited for: several times what the sockets may hold.
SENT = 2 * 1024 * 1024
WEBHOOK = "/api/v1/billing/webhook"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _app(kind: str, folder: Path) -> App:
    given: dict[str, Any] = {"auth_token": TOKEN}
    if kind == "gateway":
        store = str(folder / "gateway.db")
        settings = load_settings({}, store=store, payment_secret="the secret of payments", **given)
        return gateway_app(settings=settings, is_local=True)
    settings = load_settings({}, store="memory:", push=False, **given)
    if kind == "mcp":
        return mcp_app(AgentTools([]), settings, is_local=True)
    return App(agent, settings=settings, is_local=True)


@contextlib.asynccontextmanager
async def _served(app: App) -> AsyncGenerator[Place]:
    async with app.running(), guarding(app) as place:
        yield place


def _paths(app: App) -> list[tuple[str, Access | None]]:
    found = [(route.name, route.access) for route in app.site.routes]
    return [
        (name.replace("*", "x").replace("{", "").replace("}", "") or "/nowhere", access)
        for name, access in found
    ]


async def _refused(place: Place, path: str, *, is_chunked: bool) -> Answer:
    """Return what a caller is told that sends and sends."""
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % BODY
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"Host: " + HOST, framing]
    piece = b"10000\r\n" + PIECE + b"\r\n" if is_chunked else PIECE
    async with place.peer() as peer:
        await peer.send(b"\r\n".join([*lines, b"Content-Type: application/json", b"", b""]))
        answering = asyncio.ensure_future(peer.answer())
        for _ in range(SENT // len(PIECE)):
            if answering.done():
                break
            await peer.send(piece)
            await asyncio.sleep(0)
        return await answering


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("kind", ["serve", "gateway", "mcp"])
async def test_no_path_reads_what_a_caller_without_credentials_sends(
    kind: str, is_chunked: bool, tmp_path: Path
) -> None:
    app = _app(kind, tmp_path)
    async with _served(app) as place:
        await _refused(place, "/", is_chunked=is_chunked)
        before, paths = _resident(), _paths(app)
        assert len(paths) >= {"serve": 15, "gateway": 20, "mcp": 4}[kind]
        for path, access in paths:
            asking = [_refused(place, path, is_chunked=is_chunked) for _ in range(CALLERS)]
            statuses = {answer.status for answer in await asyncio.gather(*asking)}
            is_open = access in (Access.PUBLIC, Access.PROBE)
            assert statuses <= ({200, 404, 405, 413} if is_open else {401}), (path, statuses)
            assert _resident() - before < 24 * 1024 * 1024, path


async def test_public_paths_read_so_much_and_no_more(tmp_path: Path) -> None:
    async with _served(_app("gateway", tmp_path)) as place:
        for size, status in ((PUBLIC_BODY_BYTES, 403), (PUBLIC_BODY_BYTES + 1, 413)):
            body = b"a" * size
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
            path = WEBHOOK.encode()
            head = b"POST %b HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (
                path,
                HOST,
            )
            for data in (post(body, path=path), head + chunks):
                answer = await place.exchange(data)
                assert answer.status == status, answer
                assert answer.value["error"]["code"]


async def test_a_post_at_the_address_of_a_task_may_be_large_and_nothing_of_it_is_kept(
    tmp_path: Path,
) -> None:
    app = _app("gateway", tmp_path)
    async with _served(app) as place:
        hooks = gateway_of(app).push_inbox
        hooks.base = "http://gateway.test"
        scope = Scope("gateway", "", "ada")
        url = hooks.url(scope, "a-task").removeprefix(hooks.base).encode()
        with hooks.expecting(scope, "a-task") as pause:
            async with place.peer() as peer:
                await peer.send(post(b"a" * 4 * 1024 * 1024, path=url))
                assert b" 204 " in await peer.line()
            assert pause._event.is_set()
        # Without knowing the address, not a byte.
        answer = await _refused(place, f"{HOOKS}no/address", is_chunked=True)
        assert answer.status == 404


async def test_without_a_payment_provider_there_is_no_path_for_payments(tmp_path: Path) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "gateway.db")))
    async with _served(gateway_app(settings=settings, is_local=True)) as place:
        unknown = await place.exchange(post(b"{}", path=b"/api/v1/billing/nothing"))
        for body in (b"{}", b"a" * 100_000):
            answer = await place.exchange(post(body, path=WEBHOOK.encode()))
            assert (answer.status, answer.body) == (404, unknown.body)
        get = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST
        assert WEBHOOK not in (await place.exchange(get)).value["paths"]
