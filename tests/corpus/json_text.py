"""Category 1: texts that are not JSON, or not JSON within our limits.

Every text is proven illegal by `strict_json` before it becomes a case. The answer is always a parse
error with a null id, because nothing in a broken text can be trusted, an id least of all.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from tests.corpus.case import (
    INVALID_PARAMS,
    PARSE,
    UNKNOWN,
    V1,
    Case,
    call,
    codes,
    rest,
    rpc,
    text,
    words,
)
from tests.corpus.strict_json import is_legal

HERE = "@@here@@"
HERE_TEXT = f'"{HERE}"'.encode()

MESSAGE = {
    "messageId": "m-1",
    "role": "ROLE_USER",
    "contextId": "c-1",
    "parts": [{"text": "hello"}, {"data": {"a": [1, 2.5, None, True], "b": "c"}}],
    "metadata": {"k": "v", "n": 12},
}
OLD_MESSAGE = {
    "kind": "message",
    "messageId": "m-1",
    "role": "user",
    "parts": [{"kind": "text", "text": "hello"}],
    "metadata": {"k": {"deep": [1]}},
}
SEND = {"message": MESSAGE, "configuration": {"historyLength": 2}, "metadata": {"k": 1}}

BASES: dict[str, Any] = {
    "SendMessage": call("SendMessage", SEND, "id-1"),
    "SendStreamingMessage": call("SendStreamingMessage", {"message": MESSAGE}),
    "GetTask": call("GetTask", {"id": UNKNOWN, "historyLength": 3}),
    "ListTasks": call("ListTasks", {"pageSize": 5, "includeArtifacts": True}),
    "message/send": call("message/send", {"message": OLD_MESSAGE}, "old"),
    "message/stream": call("message/stream", {"message": OLD_MESSAGE}),
    "tasks/get": call("tasks/get", {"id": UNKNOWN}),
}
# The first two are the objects REST takes; the rest of the paths have no body.
REST_BASES = {"/message:send": SEND, "/message:stream": {"message": MESSAGE}}

LITERALS = words(
    "True False None undefined nil NaN -NaN Infinity -Infinity +Infinity Inf nan infinity null0 "
    "+1 01 -01 00 1. .5 -.5 - + 1e 1e+ 1E- 1.e5 0x10 0b1 0o7 1_000 1,000.5 1f 1L --1 1-1 1+1 1e1.5 "
    "'x' `x` x tru nul fals TRUE NULL <a> @ # $1 ${x} \\ / % [1 [1,] [,1] [,] {,} {a:1} {1:2} "
    '{"a"} {"a":} {"a":1,} {:1} {"a"1} {"a"=1} {"a":1;"b":2} [1;2] [1:2] [1}2] [1)] (1) "a" "b" '
    '"a"b {"a":1 "b":2} {null:1} {[]:1} ... !1 ~1 *a &a ｛｝ “x” −1 １'
)
# Space is a separator above, so the literals that hold one are here.
LITERALS += ["1 2", "- 1", '"a" "b"', "[1 2]", '{"a" 1}', "", " ", ",", ":", '"', '"""', "''"]

ESCAPES = words(
    r"\x41 \a \v \0 \' \u \u1 \u12 \u123 \u12g4 \uzzzz \U0041 \u{41} \u 041 \8 \N \e \c \( \/\x "
    r"\u+041 \u-041 \u００４１"
)

SURROGATES = words(
    r"\ud800 \udbff \udc00 \udfff \ud83d \ude00\ud83d \ud800\ud800 \udc00\udc00 \ud800x \ud800\n "
    r"\uD83D\u0041 \ud83d\ud83d\ude00 \ud83d\ude00\ude00 \ud800\u0000 \uDBFF\uDBFF"
)

BAD_UTF8 = {
    "overlong-nul": b"\xc0\x80",
    "overlong-slash": b"\xc0\xaf",
    "overlong-quote": b"\xc0\xa2",
    "overlong-c1": b"\xc1\xbf",
    "overlong-3": b"\xe0\x80\xaf",
    "overlong-3-high": b"\xe0\x9f\xbf",
    "overlong-4": b"\xf0\x80\x80\xaf",
    "overlong-4-high": b"\xf0\x8f\xbf\xbf",
    "surrogate-high": b"\xed\xa0\x80",
    "surrogate-low": b"\xed\xbf\xbf",
    "surrogate-pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond-unicode": b"\xf4\x90\x80\x80",
    "five-bytes": b"\xf8\x88\x80\x80\x80",
    "six-bytes": b"\xfc\x84\x80\x80\x80\x80",
    "lone-80": b"\x80",
    "lone-bf": b"\xbf",
    "cut-2": b"\xc3",
    "cut-3": b"\xe2\x82",
    "cut-4": b"\xf0\x9f\x98",
    "fe": b"\xfe",
    "ff": b"\xff",
    "latin-1": "é".encode("latin-1"),
    "cp1252": b"\x93x\x94",
    "f5": b"\xf5\x80\x80\x80",
}

TRAILERS = [
    b"}", b"]", b",", b":", b"x", b"0", b"{}", b"[]", b" null", b"\x00", b"\n{}", b"//", b"// c",
    b"/**/", b"# c", b";", b"\xef\xbb\xbf", b'"', b"'", b"\\", b"\x1a", b"\x7f", b"\xc2\xa0",
    b"\n\n1", b"--", b"<!-- -->", b"\xe2\x80\xa8", b"\x0b", b"\x0c", b")", b"\xff", b"\x1e",
]  # fmt: skip
SPACES = ["\u00a0", "\u2028", "\u2029", "\u200b", "\ufeff", "\u3000", "\v", "\f", "\u0085", "\x00"]
COMMENTS = [b"//c\n", b"/*c*/", b"#c\n", b"<!--c-->", b"--c\n", b";c\n"]
ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-7-bom"]

DEPTHS = [*range(65, 81), 90, 100, 127, 128, 129, 200, 256, 257, 500, 512, 999, 1000, 1001, 1024]
DEPTHS += [2000, 5000, 10_000, 32_768, 65_536, 100_000]
LENGTHS = [*range(65, 81), 100, 128, 256, 309, 310, 400, 1000, 4300, 4301, 5000, 10_000, 100_000]


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield every named text, then random damage up to `count`."""
    made = 0
    for kind, detail, where, body in _named():
        made += 1
        yield _case(kind, detail, where, body)
    rng = random.Random(seed)
    targets = _targets()
    while made < count:
        where, base = rng.choice(targets)
        body = _damaged(rng, base)
        if not is_legal(body):
            made += 1
            yield _case("damage", str(made), where, body)


def _case(kind: str, detail: str, where: str, body: bytes) -> Case:
    if where.startswith("/"):
        # No body at all is an empty request on REST, and then a field is missing.
        wanted = codes(PARSE) if body else codes(INVALID_PARAMS)
        return rest(1, f"{kind}/rest", detail, "POST", where, wanted, body=body)
    # With the header the version is known even though the text is not.
    if where[0].isupper():
        expect = codes(PARSE, modern=True)
        return rpc(1, kind, f"{where}/{detail}", body, expect, headers=V1)
    return rpc(1, kind, f"{where}/{detail}", body, codes(PARSE), path="/a2a")


def _targets() -> list[tuple[str, bytes]]:
    found = [(name, text(value)) for name, value in BASES.items()]
    return found + [(path, text(value)) for path, value in REST_BASES.items()]


def _named() -> Iterator[tuple[str, str, str, bytes]]:
    for kind, detail, where, body in _candidates():
        if not is_legal(body):
            yield kind, detail, where, body


def _candidates() -> Iterator[tuple[str, str, str, bytes]]:
    for where, base in _targets():
        step = 1 + len(base) // 60
        for cut in range(0, len(base), step):
            yield "truncated", str(cut), where, base[:cut]
        for trailer in TRAILERS:
            yield "trailing", repr(trailer), where, base + trailer
        for name in ENCODINGS:
            yield "encoding", name, where, _encoded(base, name)
        yield "encoding", "utf-8-bom", where, b"\xef\xbb\xbf" + base
        yield "encoding", "two-boms", where, b"\xef\xbb\xbf\xef\xbb\xbf" + base
        yield "encoding", "gzip-magic", where, b"\x1f\x8b\x08\x00" + base
        yield "twice", "", where, base + base
        yield "python-repr", "", where, repr(json.loads(base)).encode()
        for offset in _boundaries(base)[::5]:
            for comment in COMMENTS:
                body = base[:offset] + comment + base[offset:]
                yield "comment", f"{offset}/{comment!r}", where, body
            for space in SPACES:
                body = base[:offset] + space.encode() + base[offset:]
                yield "whitespace", f"{offset}/{space!r}", where, body
        yield from _repeated_keys(where, base)
    for where, place, template in _templates():
        for literal in LITERALS:
            yield "literal", f"{place}/{literal}", where, _put(template, literal.encode())
        for escape in (*ESCAPES, *(chr(c) for c in range(32))):
            yield "escape", f"{place}/{escape!r}", where, _put(template, f'"a{escape}b"'.encode())
        for escape in SURROGATES:
            yield "surrogate", f"{place}/{escape}", where, _put(template, f'"{escape}"'.encode())
        for name, bad in BAD_UTF8.items():
            yield "utf-8", f"{place}/{name}", where, _put(template, b'"a' + bad + b'b"')
            yield "utf-8", f"{place}/{name}/bare", where, _put(template, bad)
        for key in (*SURROGATES[:6], *ESCAPES[:6]):
            value = f'{{"{key}":1}}'.encode()
            yield "bad-key", f"{place}/{key}", where, _put(template, value)
        for depth in DEPTHS:
            for shape, value in _nests(depth):
                yield "depth", f"{place}/{shape}/{depth}", where, _put(template, value)
        for length in LENGTHS:
            for shape, value in _numbers(length):
                yield "number", f"{place}/{shape}/{length}", where, _put(template, value)


def _templates() -> Iterator[tuple[str, str, bytes]]:
    """Yield requests with a hole for a value, at places where any JSON may stand."""
    hole = {**MESSAGE, "metadata": {"k": HERE}}
    yield "SendMessage", "metadata", text(call("SendMessage", {"message": hole}))
    yield "GetTask", "id", text(call("GetTask", {"id": UNKNOWN}, HERE))
    yield "GetTask", "unknown-field", text(call("GetTask", {"id": UNKNOWN, "x": [HERE]}))
    old = {**OLD_MESSAGE, "metadata": {"k": [HERE]}}
    yield "message/send", "metadata", text(call("message/send", {"message": old}))
    part = {**MESSAGE, "parts": [{"data": HERE}]}
    yield "/message:send", "data", text({"message": part})


def _put(template: bytes, value: bytes) -> bytes:
    return template.replace(HERE_TEXT, value)


def _encoded(base: bytes, name: str) -> bytes:
    if name == "utf-7-bom":
        return b"+/v8-" + base
    return base.decode().encode(name)


def _boundaries(base: bytes) -> list[int]:
    """Return the offsets next to structure, where whitespace would be legal."""
    bare = re.sub(rb'"[^"]*"', lambda m: b"s" * len(m.group()), base)
    return [m.start() for m in re.finditer(rb"[{}\[\]:,]", bare)]


def _repeated_keys(where: str, base: bytes) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield the text with one member given twice: same value, other value, escaped name."""
    for match in re.finditer(rb'"(\w+)":', base):
        key = match.group(1)
        escaped = b"\\u%04x" % key[0] + key[1:]
        for form, name in (("plain", key), ("escaped", escaped)):
            for value in (b"1", b'"m-1"', b"null"):
                body = base[: match.start()] + b'"' + name + b'":' + value + b","
                detail = f"{match.start()}/{key.decode()}/{form}/{value.decode()}"
                yield "repeated-key", detail, where, body + base[match.start() :]


def _nests(depth: int) -> Iterator[tuple[str, bytes]]:
    yield "arrays", b"[" * depth + b"]" * depth
    yield "objects", b'{"a":' * depth + b"1" + b"}" * depth
    if depth < 2000:
        yield "mixed", b'[{"a":' * (depth // 2 + 1) + b"1" + b"}]" * (depth // 2 + 1)
        yield "siblings", b"[1,[]," * depth + b"0" + b"]" * depth
    if depth % 2 == 0:
        yield "unclosed-arrays", b"[" * depth
        yield "unclosed-objects", b'{"a":' * depth


def _numbers(length: int) -> Iterator[tuple[str, bytes]]:
    yield "integer", b"7" * length
    yield "negative", b"-" + b"7" * (length - 1)
    yield "fraction", b"0." + b"3" * (length - 2)
    if length < 1000:
        yield "zeros", b"1." + b"0" * (length - 2)
        yield "exponent", b"1e" + b"0" * (length - 3) + b"1"
        yield "round", b"1" + b"0" * (length - 1)


def _damaged(rng: random.Random, base: bytes) -> bytes:
    """Return the text after one to three random edits."""
    body = bytearray(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spot = rng.randrange(len(body))
        match rng.randrange(6):
            case 0:
                del body[spot : spot + rng.choice((1, 1, 2, 5))]
            case 1:
                body[spot:spot] = rng.choice(b'{}[]:,"\\/0-+.eE \x00\x1f\x7f\xff').to_bytes()
            case 2:
                body[spot] = rng.randrange(256)
            case 3:
                body[spot] ^= 1 << rng.randrange(8)
            case 4:
                other = rng.randrange(len(body))
                body[spot], body[other] = body[other], body[spot]
            case _:
                body[spot:spot] = body[spot : spot + rng.randrange(1, 12)]
    return bytes(body)
