"""Answers that are no HTTP, or HTTP that lies, or bodies that grow when they are unpacked."""

import gzip
import zlib
from collections.abc import Iterable

from tests.gateway.malformed.script import (
    INVALID,
    MARK,
    UNKNOWN,
    UNREACHABLE,
    Answering,
    Script,
    dumped,
    each,
    raw,
    task,
)
from tests.gateway.raw_peer import Answer, Asked, Move, http

BROKEN = (UNREACHABLE, UNKNOWN, INVALID)
_M = MARK.encode()
_TYPE = b"content-type: application/json\r\n"
_OK = b"HTTP/1.1 200 OK\r\n" + _TYPE


def _good(asked: Asked) -> bytes:
    return dumped({"jsonrpc": "2.0", "id": asked.id, "result": {"task": task()}})


def _packed(pack: str) -> Answering:
    """Answer with a body that is packed although nobody asked for that."""

    def answer(asked: Asked) -> Answer:
        body = _good(asked)
        found = gzip.compress(body) if pack == "gzip" else zlib.compress(body)
        return [http(found, "200 OK", "application/json", f"content-encoding: {pack}")]

    return answer


def _bomb(layers: int = 1) -> Answering:
    body = b'{"x":"' + b"a" * 8_000_000
    for _ in range(layers):
        body = gzip.compress(body, 1)
    named = ", ".join(["gzip"] * layers)
    return raw(http(body, "200 OK", "application/json", f"content-encoding: {named}"))


def _drip(data: bytes, pause: float) -> Iterable[Move]:
    for place in range(len(data)):
        yield data[place : place + 1]
        yield pause


def _dripped(asked: Asked) -> Answer:
    yield b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n" + _TYPE + b"\r\n"
    yield from _drip(_M * 1000, 0.05)


def _short(asked: Asked) -> Answer:
    body = _good(asked)
    yield b"HTTP/1.1 200 OK\r\n" + _TYPE + b"content-length: %d\r\n\r\n" % (len(body) + 100)
    yield body
    yield "end"


def _long(asked: Asked) -> Answer:
    body = _good(asked)
    yield b"HTTP/1.1 200 OK\r\n" + _TYPE + b"content-length: %d\r\n\r\n" % (len(body) // 2)
    yield body
    yield "end"


def _two_answers(asked: Asked) -> Answer:
    second = http(b'{"jsonrpc":"2.0","id":1,"result":"' + _M + b'"}')
    yield http(_good(asked)) + second


def _informed(count: int) -> Answering:
    def answer(asked: Asked) -> Answer:
        for _ in range(count):
            yield b"HTTP/1.1 103 Early Hints\r\nlink: " + _M + b"\r\n\r\n"
        yield http(_good(asked))

    return answer


def _endless_head(asked: Asked) -> Answer:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(100_000):
        yield b"x-%d: %b\r\n" % (number, _M) * 100


def _endless_body(asked: Asked) -> Answer:
    yield _OK + b"transfer-encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    # More than an answer may have; nobody reads that far.
    for _ in range(100):
        yield piece


def _chunked(*lines: bytes) -> Answering:
    return raw(_OK + b"transfer-encoding: chunked\r\n\r\n", *lines, "end")


_LENGTH = b"content-length: "
WIRES: dict[str, Answering] = {
    "the end at once": raw("end"),
    "a reset at once": raw("reset"),
    "silence": raw("hang"),
    "a head without an end": raw(_OK, "hang"),
    "a head that ends within": raw(b"HTTP/1.1 200", "end"),
    "a word for a status line": raw(_M + b"\r\n\r\n", "end"),
    "a status that is no number": raw(b"HTTP/1.1 OK " + _M + b"\r\n\r\n", "end"),
    "a status of four digits": raw(b"HTTP/1.1 2000 OK\r\n\r\n" + _M, "end"),
    "a status of one digit": raw(b"HTTP/1.1 2 OK\r\n\r\n" + _M, "end"),
    "another version": raw(b"HTTP/9.9 200 OK\r\ncontent-length: 2\r\n\r\n{}", "end"),
    "the preface of HTTP/2": raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "end"),
    "TLS": raw(b"\x15\x03\x01\x00\x02\x02\x28", "end"),
    "the greeting of another protocol": raw(b"220 " + _M + b" ESMTP\r\n", "end"),
    "a header without a colon": raw(_OK + _M + b"\r\ncontent-length: 2\r\n\r\n{}", "end"),
    "a header with NUL": raw(_OK + b"x: \0" + _M + b"\r\ncontent-length: 2\r\n\r\n{}", "end"),
    "a header of a megabyte": raw(_OK + b"x: " + _M * 70_000 + b"\r\n\r\n", "end"),
    "headers without end": _endless_head,
    "a negative length": raw(_OK + _LENGTH + b"-1\r\n\r\n" + _M, "end"),
    "a word for a length": raw(_OK + _LENGTH + _M + b"\r\n\r\n{}", "end"),
    "a length without end": raw(_OK + _LENGTH + b"9" * 40 + b"\r\n\r\n{}", "end"),
    "two lengths": raw(_OK + _LENGTH + b"2\r\n" + _LENGTH + b"5\r\n\r\n{}" + _M, "end"),
    "less than was promised": _short,
    "less than was said": _long,
    "no chunk size": _chunked(_M + b"\r\n"),
    "a chunk size without end": _chunked(b"f" * 40 + b"\r\n" + _M),
    "a negative chunk size": _chunked(b"-5\r\nhello\r\n"),
    "chunks without a last": _chunked(b"5\r\n" + _M[:5] + b"\r\n"),
    "a chunk without its end": _chunked(b"5\r\nhelloX" + _M),
    "a body without end": _endless_body,
    "a drip": _dripped,
    "another protocol": raw(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n" + _M, "end"),
    "hints and no answer": raw(*[b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 100, "end"),
    "hints without end": raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 5_000, "end"),
    "a gzip bomb": _bomb(),
    "a gzip bomb in gzip": _bomb(2),
    "gzip that is none": raw(http(_M, "200 OK", "application/json", "content-encoding: gzip")),
    "half of a gzip": raw(
        http(gzip.compress(_M * 99)[:40], "200 OK", "application/json", "content-encoding: gzip")
    ),
    "br": raw(http(_M, "200 OK", "application/json", "content-encoding: br")),
    "an encoding nobody knows": raw(
        http(_M, "200 OK", "application/json", f"content-encoding: {MARK}")
    ),
}

SCRIPTS = [
    *each("wire", WIRES, says=BROKEN),
    # What follows an answer is nobody's; what was asked was answered.
    *each(
        "wire",
        {
            "two answers": _two_answers,
            "more than was said": lambda asked: [http(_good(asked)) + _M, "end"],
            "packed without being asked": _packed("gzip"),
            "deflated without being asked": _packed("deflate"),
        },
        ends="completed",
        says=(),
    ),
    Script("wire: hints before the answer", _informed(3), ends="completed", says=()),
    Script(
        "wire: a large answer",
        lambda asked: [
            http(
                dumped(
                    {
                        "jsonrpc": "2.0",
                        "id": asked.id,
                        "result": {"task": task(metadata={"x": ["y" * 100] * 500})},
                    }
                )
            )
        ],
        ends="completed",
        says=(),
    ),
]
