"""Bodies that are too large, or become so once they are unpacked: refused before they are read or
unpacked, with the memory they were after left alone.
"""

import asyncio
import gzip
import json
import os
import zlib
from pathlib import Path

import pytest
from harness.waiting import within

from tests.http.wire import HOST, Answer, Place, call, guarding, is_problem, message, post

LIMIT = 10 * 1024 * 1024
SEND = b"/message:send"


def _resident() -> int:
    """Return the bytes this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _head(path: bytes, *fields: bytes) -> bytes:
    fixed = (b"Content-Type: application/json", b"A2A-Version: 1.0")
    line = b"POST %b HTTP/1.1" % path
    return b"\r\n".join([line, b"Host: " + HOST, *fixed, *fields, b"", b""])


async def _flood(place: Place, head: bytes, piece: bytes, times: int) -> tuple[Answer, int]:
    """Return the answer, and how much of what was sent the server had taken by then."""
    async with place.peer() as peer:
        writer = peer._writer
        writer.write(head)
        answering = asyncio.ensure_future(peer.answer())
        for _ in range(times):
            writer.write(piece)
            if answering.done():
                break
            try:
                await within(writer.drain())
            except ConnectionError:
                break
            await asyncio.sleep(0)
        answer = await answering
        (one,) = place.connections._open or [None]
        taken = one._body_bytes if one is not None else 0
        assert await peer.rest() == b""
        return answer, taken


@pytest.mark.parametrize("path", [b"/", SEND])
async def test_a_body_too_large_is_refused_without_reading_it(path: bytes) -> None:
    async with guarding() as place:
        for length in (LIMIT + 1, 100 * LIMIT, 10**17):
            field = b"Content-Length: %d" % length
            answer, taken = await _flood(place, _head(path, field), b"a" * 65_536, 1600)
            assert answer.status == (200 if path == b"/" else 413), answer
            assert "error" in answer.value
            assert answer.headers["connection"] == "close"
            assert taken <= 512 * 1024
        await place.echo()


@pytest.mark.parametrize("path", [b"/", SEND])
async def test_chunks_are_counted_while_they_are_read(path: bytes) -> None:
    async with guarding(max_body_bytes=1024 * 1024) as place:
        piece = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
        head = _head(path, b"Transfer-Encoding: chunked")
        answer, taken = await _flood(place, head, piece, 1600)
        assert answer.status == (200 if path == b"/" else 413), answer
        assert "error" in answer.value
        assert answer.headers["connection"] == "close"
        assert taken <= 1024 * 1024 + 512 * 1024
        await place.echo()


def _packed() -> dict[str, tuple[bytes, bytes]]:
    """Return bodies that grow when unpacked, with what they say they are packed with."""
    zeros = b"\0" * (30 * 1024 * 1024)
    text = json.dumps(call("SendMessage", message("must not run"))).encode()
    bomb = gzip.compress(zeros)
    # A frame of one compressed block that repeats a byte; and a stream of one such meta-block.
    frame = b"\x28\xb5\x2f\xfd\xa4\x00\x00\x00\x40" + b"\x02\x00\x10\x00" * 400
    return {
        "gzip": (b"gzip", bomb),
        "gzip of a good message": (b"gzip", gzip.compress(text)),
        "gzip in gzip": (b"gzip, gzip", gzip.compress(bomb)),
        "gzip in gzip, said once": (b"gzip", gzip.compress(bomb)),
        "three times": (b"gzip, gzip, gzip", gzip.compress(gzip.compress(bomb))),
        "x-gzip": (b"x-gzip", bomb),
        "capitals": (b"GZIP", bomb),
        "spaces": (b" gzip ", bomb),
        "deflate": (b"deflate", zlib.compress(zeros)),
        "deflate without a head": (b"deflate", zlib.compress(zeros, wbits=-15)),
        "br": (b"br", b"\x9b\xff\xff\xff\x03" + b"\x00" * 64),
        "zstd": (b"zstd", frame),
        "compress": (b"compress", b"\x1f\x9d\x90" + b"\0" * 500),
        "identity and gzip": (b"identity, gzip", bomb),
        "gzip and identity": (b"gzip, identity", bomb),
        "many": (b", ".join([b"gzip"] * 50), bomb),
        "unknown": (b"cow", text),
        "said but not so": (b"gzip", text),
        "cut off": (b"gzip", bomb[:100]),
        "checksum wrong": (b"gzip", bomb[:-8] + b"12345678"),
    }


async def test_packed_bodies_are_refused_and_not_unpacked() -> None:
    packed = _packed()
    wrong: list[str] = []
    async with guarding() as place:
        await place.echo()
        total, before = await place.total(), _resident()
        for name, (coding, body) in packed.items():
            field = b"Content-Encoding: " + coding
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            chunked = _head(SEND, field, b"Transfer-Encoding: chunked") + chunks
            for way, data in {
                "rest": post(body, field, path=SEND),
                "jsonrpc": post(body, field),
                "chunked": chunked,
            }.items():
                answer = await place.exchange(data)
                if answer.status != 415 or not is_problem(answer):
                    wrong.append(f"{name}, {way}: {answer.status} {answer.body[:100]!r}")
        assert await place.total() == total
        assert _resident() - before < 20 * 1024 * 1024
        await place.echo()
    assert len(packed) == 20
    assert not wrong, "\n".join(wrong)
