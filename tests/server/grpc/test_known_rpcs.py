"""Rpcs whose headers were let in before on the same connection: their head is not judged again, but
what can change is judged each time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.frames import DATA, HEADERS, frame, greeted, head, next_frame
from harness.passes import RevocableWay
from harness.rpcs import message
from harness.serving import hosting, serving

from dragoman import Agent, App
from dragoman.config import load_settings
from dragoman.http.access_control import AccessControl
from dragoman.transports.grpc import tables
from dragoman.transports.grpc.framing import PREFIX_BYTES, framed
from dragoman.transports.grpc.plain_values import shape_of

pytestmark = pytest.mark.usefixtures("one_loop")

AS_ALICE = "Bearer alice"
# Statuses of gRPC.
OK, EXHAUSTED, UNAUTHENTICATED = b"0", b"8", b"16"


def agent(name: str) -> Agent:
    found = Agent(name, "Says its name.")

    @found.skill
    async def say(text: str) -> str:
        return name

    return found


class RpcPeer:
    """One connection, of which each rpc has the same headers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next = 1

    async def send(self, data: bytes, **metadata: str) -> tuple[bytes, bytes]:
        """Make an rpc; return its status and its message."""
        begun = frame(HEADERS, 4, self._next, head("SendMessage", **metadata))
        self._writer.write(begun + frame(DATA, 1, self._next, framed(data)))
        self._next += 2
        answer = b""
        while True:
            one = await next_frame(self._reader)
            if one.kind == DATA:
                answer += one.body
            elif one.kind == HEADERS and one.flags & 1:
                said = one.body.partition(b"grpc-status")[2]
                return said[1 : 1 + said[0]], answer[PREFIX_BYTES:]


@asynccontextmanager
async def peer_of(url: str) -> AsyncGenerator[RpcPeer]:
    reader, writer = await greeted(int(url.rpartition(":")[2]))
    try:
        yield RpcPeer(reader, writer)
    finally:
        writer.close()


def request(id: str, tenant: str = "") -> bytes:
    said = message("hello", id) | {"tenant": tenant}
    return shape_of(tables.V1_0, "SendMessageRequest").encode(said)


def said(answer: bytes) -> Any:
    found: Any = shape_of(tables.V1_0, "SendMessageResponse").decode(answer)
    return found["task"]["artifacts"][0]["parts"][0]["text"]


@asynccontextmanager
async def authenticating(way: RevocableWay, **settings: Any) -> AsyncGenerator[RpcPeer]:
    chosen = load_settings({}, store="memory:", transport="jsonrpc,grpc", **settings)
    app = App(agent("one"), settings=chosen, authenticators=[way])
    assert app.site.gatekeeper is not None
    app.site.gatekeeper._now = lambda: 0.0
    async with hosting(app) as url, peer_of(url) as peer:
        yield peer


async def test_a_head_is_judged_until_it_has_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = 0
    judge = AccessControl.answer

    def counting(self: AccessControl, *given: Any) -> Any:
        nonlocal judged
        judged += 1
        return judge(self, *given)

    monkeypatch.setattr(AccessControl, "answer", counting)
    async with serving(agent("one"), transport="jsonrpc,grpc") as site, peer_of(site.url) as peer:
        answers = [await peer.send(request(f"m-{n}")) for n in range(5)]
    assert [(status, said(answer)) for status, answer in answers] == [(OK, "one")] * 5
    assert judged == 2


async def test_a_revoked_credential_is_refused_where_its_head_is_known() -> None:
    way = RevocableWay()
    async with authenticating(way) as peer:
        for n in range(3):
            status, _ = await peer.send(request(f"m-{n}"), authorization=AS_ALICE)
            assert status == OK
        way.is_revoked = True
        status, _ = await peer.send(request("m-4"), authorization=AS_ALICE)
        assert status == UNAUTHENTICATED


async def test_each_rpc_with_a_known_head_counts_for_its_caller() -> None:
    async with authenticating(RevocableWay(), rate_limit="3/h") as peer:
        found = [await peer.send(request(f"m-{n}"), authorization=AS_ALICE) for n in range(5)]
    assert [status for status, _ in found] == [OK] * 3 + [EXHAUSTED] * 2


async def test_a_known_head_leads_to_the_agent_that_each_request_names() -> None:
    async with (
        serving(agent("one"), agent("two"), transport="jsonrpc,grpc") as site,
        peer_of(site.url) as peer,
    ):
        tenants = ["", "", "", "agents/two", "agents/two", "agents/two", "agents/one", ""]
        found = [await peer.send(request(f"m-{n}", tenant)) for n, tenant in enumerate(tenants)]
        assert [status for status, _ in found] == [OK] * len(tenants)
        names = ["one"] * 3 + ["two"] * 3 + ["one"] * 2
        assert [said(answer) for _, answer in found] == names
        status, _ = await peer.send(request("m-long", "agents/" + "x" * 10_000))
        assert status == EXHAUSTED
