"""Answers that lie, drip or never end, and how failures are told."""

import asyncio
import gzip
import socket
import traceback
import tracemalloc
from collections.abc import Sequence
from functools import cache

import pytest
from harness.waiting import within

from dragoman.egress.egress import Egress, Resolve
from dragoman.egress.errors import EgressError, EgressFailed, EgressRefused
from tests.egress.servers import PUBLIC, Dials, Peer, answering, serving, silence


async def test_refused_unreachable_and_silent_sound_alike() -> None:
    sentences: set[str] = set()
    reasons: set[str] = set()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        async with (
            serving(silence) as silent,
            serving(b"not HTTP\r\n\r\n") as babbling,
            Egress(allow=["127.0.0.1"], resolver=answering(), connect_timeout=1) as egress,
        ):
            urls = [
                nobody,
                silent.url(),
                babbling.url(),
                "https://10.0.0.1/",
                "https://no.example/",
            ]
            for url in urls:
                with pytest.raises(EgressError) as failed:
                    await egress.get(url, timeout=0.3 if url == silent.url() else 10.0)
                sentences.add(str(failed.value))
                reasons.add(failed.value.reason)
    assert sentences == {EgressError.public}
    assert len(reasons) == len(urls)


async def _failing(host: str) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def _never(host: str) -> Sequence[str]:
    return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "resolver",
    [
        answering("10.0.0.1"),
        answering(PUBLIC, "127.0.0.1"),
        answering(),
        answering("x"),
        _failing,
        _never,
    ],
    ids=["private", "in part private", "no address", "nonsense", "no such name", "silence"],
)
async def test_a_name_that_leads_nowhere_ends_when_the_time_is_over_whether_it_exists_or_not(
    resolver: Resolve, dials: Dials
) -> None:
    clock = asyncio.get_running_loop().time
    async with Egress(resolver=resolver, connect_timeout=0.2) as egress:
        began = clock()
        with pytest.raises(EgressFailed) as failed:
            await egress.get("https://vault.example.com/")
    # Not sooner: no resolver tells anything by being quick.
    assert clock() - began >= 0.19
    assert not failed.value.is_sent and str(failed.value) == EgressError.public
    assert dials == []


async def test_where_the_network_is_open_a_name_that_leads_nowhere_ends_at_once() -> None:
    async with Egress(allow_private=True, resolver=_failing, connect_timeout=3600) as egress:
        with pytest.raises(EgressFailed):
            await within(egress.get("https://vault.example.com/"))


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nHost: b"},
        {"X": "a\nb"},
        {"X": "a\x00"},
        {"X\r\nY": "a"},
        {"": "a"},
        {"X Y": "a"},
        {"Host": "b"},
        {"transfer-encoding": "chunked"},
        {"Content-Length": "0"},
        {"TE": "a"},
    ],
)
async def test_a_header_that_changes_the_request_is_refused(
    headers: dict[str, str], dials: Dials
) -> None:
    async with Egress(allow_private=True) as egress:
        with pytest.raises(EgressRefused):
            await egress.post("http://127.0.0.1:8000/", b"", headers)
        with pytest.raises(EgressRefused):
            await egress.get("http://127.0.0.1:8000/", headers=headers)
    assert dials == []


async def endless(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
    piece = bytes(1 << 20)
    for _ in range(10 * 1024):
        writer.write(piece)
        await writer.drain()


@cache
def bomb() -> bytes:
    """Fifty megabytes as an answer of fifty kilobytes."""
    body = gzip.compress(bytes(50 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


async def packed(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(bomb())
    await writer.drain()


async def long_head(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: " + b"a" * 4096 + b"\r\n")
        await writer.drain()


async def long_line(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def drip(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)  # the drip itself


async def dripping_head(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)  # the drip itself


async def informed(head: bytes, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Hints\r\n\r\n" * 100)
        await writer.drain()


@pytest.mark.parametrize("peer", [endless, packed])
async def test_an_answer_is_cut_at_its_limit(peer: Peer) -> None:
    async with serving(peer) as server, Egress(allow_private=True) as egress:
        answer = await within(egress.get(server.url(), max_answer=1000))
        assert (answer.status, len(answer.body), answer.is_cut) == (200, 1000, True)
        answer = await within(egress.post(server.url(), b"{}", {}, max_answer=0))
        assert (answer.status, answer.body, answer.is_cut) == (200, b"", True)


@pytest.mark.parametrize("peer", [silence, drip, dripping_head, long_head, long_line, informed])
async def test_a_hostile_answer_ends_in_time_and_in_bounds(peer: Peer) -> None:
    async with serving(peer) as server, Egress(allow_private=True) as egress:
        tracemalloc.start()
        try:
            with pytest.raises(EgressFailed):
                await within(egress.get(server.url(), timeout=0.5))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 16 << 20


async def test_a_packed_answer_is_unpacked_only_as_far_as_it_is_read() -> None:
    async with serving(bomb()) as server, Egress(allow_private=True) as egress:
        tracemalloc.start()
        try:
            answer = await egress.get(server.url(), max_answer=256 * 1024)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert answer.is_cut
    assert peak < 16 << 20


async def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    async with Egress(resolver=resolve, connect_timeout=0.1) as egress:
        with pytest.raises(EgressFailed):
            await within(egress.get("https://example.com/"))


async def test_a_cancelled_request_is_cancelled_and_not_failed() -> None:
    heard = asyncio.Event()

    async def peer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heard.set()
        await asyncio.Event().wait()

    async with serving(peer) as server, Egress(allow_private=True) as egress:
        request = asyncio.create_task(egress.get(server.url()))
        await within(heard.wait())
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense \x1b[31m PEER\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nPEER: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: PEER\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"P" * 9000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nPEER\r\n",
    ],
)
async def test_a_failure_is_told_without_the_url_and_without_bytes_of_the_peer(
    answer: bytes,
) -> None:
    async with serving(answer) as server, Egress(allow=["127.0.0.1"]) as egress:
        url = server.url(path="/SECRET?key=SECRET")
        with pytest.raises(EgressFailed) as failed:
            await egress.post(url, b"{}", {})
    reason = failed.value.reason
    assert reason.isprintable() and reason.isidentifier(), "the kind of the error and nothing else"
    trace = "".join(traceback.format_exception(failed.value))
    assert "SECRET" not in trace and "PEER" not in trace


async def test_a_failure_says_what_the_system_said() -> None:
    async with serving() as server:
        port = server.port
    async with Egress(allow=["127.0.0.1"]) as egress:
        with pytest.raises(EgressFailed) as failed:
            await egress.get(f"http://127.0.0.1:{port}/SECRET")
    assert failed.value.reason == "NotConnected: Connection refused"
