"""Raw requests that are not to be served: the rows of the table of bad HTTP, each in variants.

A case is bytes, the statuses that may answer it, and whether the connection has to be closed.
Every request carries a message that would create a task if it were let through.
"""

import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.http.wire import HOST, call, message

NO = frozenset({400})
VERSION = frozenset({505})


class Case(NamedTuple):
    """One request, named by the rule it breaks."""

    name: str
    data: bytes
    statuses: frozenset[int]


def _body() -> bytes:
    return json.dumps(call("SendMessage", message("must not run"))).encode()


def _head(*fields: bytes, line: bytes = b"POST / HTTP/1.1", host: bytes | None = HOST) -> bytes:
    own = [] if host is None else [b"Host: " + host]
    fixed = [b"Content-Type: application/json", b"A2A-Version: 1.0"]
    return b"\r\n".join([line, *own, *fixed, *fields, b"", b""])


def _sized(*fields: bytes, **more: bytes | None) -> bytes:
    body = _body()
    return _head(*fields, b"Content-Length: %d" % len(body), **more) + body  # type: ignore[arg-type]


def _chunked(*fields: bytes, **more: bytes | None) -> bytes:
    return _head(*fields, b"Transfer-Encoding: chunked", **more) + _chunks(_body())  # type: ignore[arg-type]


def _chunks(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def cases() -> list[Case]:
    """Return all cases; their names are different."""
    found = list(
        itertools.chain(_lengths(), _codings(), _chunk_syntax(), _syntax(), _more_syntax())
    )
    found += itertools.chain(_hosts(), _versions(), _sizes(), _methods(), _targets(), _others())
    assert len({case.name for case in found}) == len(found)
    return found


def _lengths() -> Iterator[Case]:
    body = _body()
    size = b"%d" % len(body)
    length = b"Content-Length: " + size
    coding = b"Transfer-Encoding: chunked"
    for name, fields in {
        "length, then coding": (length, coding),
        "coding, then length": (coding, length),
        "length 0 and coding": (b"Content-Length: 0", coding),
        "length, others, coding": (length, b"X-A: b", coding),
        "names in capitals": (length.upper(), coding.upper()),
        "names in small letters": (length.lower(), coding.lower()),
    }.items():
        yield Case(f"both/{name}", _head(*fields) + _chunks(body), NO)
        yield Case(f"both, plain body/{name}", _head(*fields) + body, NO)
    for name, other in {
        "same": length,
        "different": b"Content-Length: 2",
        "zero": b"Content-Length: 0",
        "small letters": length.lower(),
    }.items():
        yield Case(f"twice/{name}", _head(length, other) + body, NO)
        yield Case(f"twice, swapped/{name}", _head(other, length) + body, NO)
    zeros = b"0" * 20 + size
    for name, value in {"zeros": zeros, "many zeros": b"0" * 5_000 + size}.items():
        yield Case(f"length/{name}", _head(b"Content-Length: " + value) + body, NO)
    values = [b"+2", b"-2", b"0x2", b"2, 2", b"2,2", b"2 2", b"2;", b"two", b"", b"2.0", b"1e2"]
    values += [b"\xb2", b"2a", b"a2", b"0b1", b"1_0", b"18446744073709551616", b"9" * 40, b'"2"']
    for value in values:
        yield Case(f"length/{value[:24]!r}", _head(b"Content-Length: " + value) + body, NO)


def _codings() -> Iterator[Case]:
    body = _chunks(_body())
    values = [b"xchunked", b"chunked, identity", b"identity", b"chunked;q=1", b"chunkedx", b"cow"]
    values += [
        b"chunked, chunked",
        b"chunked,",
        b"",
        b'"chunked"',
        b"chunked chunked",
        b"x, chunked",
    ]
    values += [b"\x0bchunked", b"chunked\x0b", b"identity, chunked", b"chunked, gzip"]
    for value in values:
        yield Case(f"coding/{value!r}", _head(b"Transfer-Encoding: " + value) + body, NO)
        name = f"coding, small/{value!r}"
        yield Case(name, _head(b"transfer-encoding:" + value) + body, NO)
    # They are codings, but none we undo.
    for value in (b"gzip, chunked", b"deflate,chunked", b"br, gzip, chunked", b"zstd, chunked"):
        data = _head(b"Transfer-Encoding: " + value) + body
        yield Case(f"coding/{value!r}", data, frozenset({400, 501}))
    one = b"Transfer-Encoding: chunked"
    yield Case("coding/twice", _head(one, one) + body, NO)
    yield Case(
        "coding/identity, then chunked", _head(b"Transfer-Encoding: identity", one) + body, NO
    )
    yield Case("coding/space before colon", _head(b"Transfer-Encoding : chunked") + body, NO)
    yield Case("coding/tab before colon", _head(b"Transfer-Encoding\t: chunked") + body, NO)
    yield Case("coding/folded", _head(b"Transfer-Encoding:\r\n chunked") + body, NO)
    yield Case("coding/HTTP 1.0", _chunked(line=b"POST / HTTP/1.0"), NO)
    yield Case("coding/HTTP 1.0 and length", _sized(one, line=b"POST / HTTP/1.0"), NO)


def _chunk_syntax() -> Iterator[Case]:
    head = _head(b"Transfer-Encoding: chunked")
    for name, chunks in {
        "size is no number": b"xyz\r\nabc\r\n0\r\n\r\n",
        "size is negative": b"-3\r\nabc\r\n0\r\n\r\n",
        "size has a sign": b"+3\r\nabc\r\n0\r\n\r\n",
        "size has a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
        "size is empty": b"\r\nabc\r\n0\r\n\r\n",
        "size overflows": b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "size overflows by far": b"f" * 200 + b"\r\nabc\r\n",
        "size has a space": b"3 \r\nabc\r\n0\r\n\r\n",
        "size has a space before": b" 3\r\nabc\r\n0\r\n\r\n",
        "size ends with LF": b"3\nabc\r\n0\r\n\r\n",
        "size ends with CR": b"3\rabc\r\n0\r\n\r\n",
        "content is longer": b"3\r\nabcd\r\n0\r\n\r\n",
        "content is shorter": b"5\r\nabc\r\n0\r\n\r\n",
        "no end of content": b"3\r\nabc0\r\n\r\n",
        "content ends with LF": b"3\r\nabc\n0\r\n\r\n",
        "content ends with CR": b"3\r\nabc\r0\r\n\r\n",
        "NUL in the size": b"3\x00\r\nabc\r\n0\r\n\r\n",
        "extension with LF": b"3;a=b\nabc\r\n0\r\n\r\n",
        "extension with NUL": b"3;a=\x00\r\nabc\r\n0\r\n\r\n",
        "extension with CR": b"3;a=\rb\r\nabc\r\n0\r\n\r\n",
        "trailer with NUL": b"3\r\nabc\r\n0\r\nX: \x00\r\n\r\n",
        "trailer without colon": b"3\r\nabc\r\n0\r\nnothing\r\n\r\n",
        "trailer with LF": b"3\r\nabc\r\n0\r\nX: y\nZ: z\r\n\r\n",
        "size in other digits": "٣\r\nabc\r\n0\r\n\r\n".encode(),
        "size of 17 digits": b"0" * 16 + b"3\r\nabc\r\n0\r\n\r\n",
        "size of thousands of zeros": b"0" * 5_000 + b"3\r\nabc\r\n0\r\n\r\n",
        "second size of zeros": b"3\r\nabc\r\n" + b"0" * 3_000 + b"3\r\nabc\r\n0\r\n\r\n",
        "last size of zeros": b"3\r\nabc\r\n" + b"0" * 3_000 + b"\r\n\r\n",
        "zeros before an extension": b"0" * 100 + b"3;a=b\r\nabc\r\n0\r\n\r\n",
        "zeros that do not end": b"0" * 2_000,
        "extension of 2,000 bytes": b"3;a=" + b"b" * 2_000 + b"\r\nabc\r\n0\r\n\r\n",
        "quoted extension without end": b'3;a="b\r\nabc\r\n0\r\n\r\n',
    }.items():
        yield Case(f"chunk/{name}", head + chunks, NO)
    yield Case("chunk/huge extension", head + b"3;" + b"a" * 200_000, NO)
    yield Case("chunk/many extensions", head + (b"1;" + b"a" * 1000 + b"\r\nx\r\n") * 300, NO)
    yield Case("chunk/huge trailer", head + b"0\r\nX: " + b"a" * 200_000, frozenset({400, 431}))
    yield Case("chunk/many tiny", head + b"1\r\nx\r\n" * 60_000, NO)
    trailers = b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    yield Case("chunk/many trailers", head + b"0\r\n" + trailers, frozenset({400, 431}))


def _syntax() -> Iterator[Case]:
    bad = {
        "folded": b"X-A: b\r\n c",
        "folded with tab": b"X-A: b\r\n\tc",
        "folded first": b" X-A: b",
        "LF alone": b"X-A: b\nX-B: c",
        "CR alone": b"X-A: b\rX-B: c",
        "CR at the end": b"X-A: b\r",
        "NUL in value": b"X-A: b\x00c",
        "NUL in name": b"X\x00A: b",
        "control in value": b"X-A: b\x01c",
        "delete in value": b"X-A: b\x7fc",
        "escape in value": b"X-A: \x1b[31m",
        "VT in value": b"X-A: \x0bb",
        "FF in value": b"X-A: \x0cb",
        "space before colon": b"X-A : b",
        "tab before colon": b"X-A\t: b",
        "space in name": b"X A: b",
        "no colon": b"X-A",
        "no name": b": b",
        "brackets in name": b"X[A]: b",
        "slash in name": b"X/A: b",
        "at in name": b"X@A: b",
        "quotes in name": b'"X-A": b',
        "not ASCII in name": "X-É: b".encode(),
        "comma in name": b"X,A: b",
        "braces in name": b"{X}: b",
        "equals in name": b"X=A: b",
    }
    for name, field in bad.items():
        yield Case(f"field/{name}", _sized(field), NO)
        yield Case(f"field, chunked/{name}", _chunked(field), NO)
        yield Case(
            f"field first/{name}", _sized(field).replace(b"Host:", field + b"\r\nHost:", 1), NO
        )


def _more_syntax() -> Iterator[Case]:
    good = _sized()
    yield Case("line/ends with LF", good.replace(b"\r\n", b"\n", 1), NO)
    yield Case("line/all ends are LF", good.replace(b"\r\n", b"\n"), NO)
    yield Case("line/ends with CR", good.replace(b"\r\n", b"\r", 1), NO)
    yield Case("line/head ends with LF", good.replace(b"\r\n\r\n", b"\r\n\n", 1), NO)
    for name, line in {
        "space at the end": b"POST / HTTP/1.1 ",
        "tab for space": b"POST\t/ HTTP/1.1",
        "three words more": b"POST / / HTTP/1.1",
        "space in target": b"POST /a b HTTP/1.1",
        "no target": b"POST HTTP/1.1",
        "NUL in target": b"POST /\x00 HTTP/1.1",
        "control in target": b"POST /\x01 HTTP/1.1",
        "not ASCII in target": "POST /é HTTP/1.1".encode(),
        "delete in target": b"POST /\x7f HTTP/1.1",
        "other protocol": b"POST / HTTX/1.1",
        "small protocol": b"POST / http/1.1",
        "no protocol": b"POST / 1.1",
        "space before": b" POST / HTTP/1.1",
    }.items():
        yield Case(f"line/{name}", _sized(line=line), frozenset({400, 501, 505}))
    for name, line in {
        "two spaces before the target": b"POST  / HTTP/1.1",
        "two spaces behind the target": b"POST /  HTTP/1.1",
        "two spaces twice": b"POST  /  HTTP/1.1",
        "many spaces": b"POST " + b" " * 100 + b"/ HTTP/1.1",
        "tab behind the method": b"POST \t/ HTTP/1.1",
        "tab behind the target": b"POST /\t HTTP/1.1",
        "tab before the version": b"POST / \tHTTP/1.1",
        "form feed behind the target": b"POST /\x0c HTTP/1.1",
        "two spaces, absolute": b"POST  http://127.0.0.1/ HTTP/1.1",
    }.items():
        yield Case(f"line/{name}", _sized(line=line), NO)
        yield Case(f"line, chunked/{name}", _chunked(line=line), NO)
        read = line.replace(b"POST", b"GET").replace(b"/ HTTP", b"/healthz HTTP")
        yield Case(f"line, read/{name}", _head(line=read), NO)
    yield Case(
        "line/TLS greeting", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100, NO
    )
    yield Case("line/zeros", b"\x00" * 64, NO)
    yield Case("line/SSH", b"SSH-2.0-OpenSSH_9.2\r\n", frozenset({400, 501}))
    yield Case("line/JSON", b'{"jsonrpc":"2.0"}\r\n\r\n', NO)


def _hosts() -> Iterator[Case]:
    yield Case("host/none", _sized(host=None), NO)
    yield Case("host/none, chunked", _chunked(host=None), NO)
    yield Case("host/none, read", b"GET /tasks HTTP/1.1\r\n\r\n", NO)
    for name, second in {
        "same": b"Host: " + HOST,
        "other": b"Host: evil.test",
        "small": b"host: " + HOST,
        "capitals": b"HOST: evil.test",
        "empty": b"Host:",
    }.items():
        yield Case(f"host twice/{name}", _sized(second), NO)
        yield Case(f"host twice, HTTP 1.0/{name}", _sized(second, line=b"POST / HTTP/1.0"), NO)
    values = [b"", b"a b", b"a/b", b"a,b", b"user@host", b"a:b", b"a:80:80", b"a:", b"a:123456"]
    values += [b"http://a", b"[::1", b"::1", b"[::1]x", b"a?b", b"a#b", b"a\\b", b'"a"', b"<a>"]
    values += ["hôte".encode(), b"a\tb", b"a:+80", b"{a}", b"a|b", b"a^b", b"[g::1]"]
    for value in values:
        yield Case(f"host/{value!r}", _sized(host=value), NO)


def _versions() -> Iterator[Case]:
    for version in (b"9.9", b"2.0", b"3.0", b"1.2", b"0.9", b"0.0", b"1.9", b"2.1"):
        yield Case(f"version/{version!r}", _sized(line=b"POST / HTTP/" + version), VERSION)
        yield Case(
            f"version, read/{version!r}", b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version, VERSION
        )
    for version in (b"1", b"11", b"1.", b".1", b"1.1.1", b"1,1", b"a.b", b"01.1", b"1.10", b"-1.1"):
        data = _sized(line=b"POST / HTTP/" + version)
        yield Case(f"version/{version!r}", data, frozenset({400, 505}))
    yield Case("version/preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", VERSION)
    yield Case("version/none", b"GET /\r\n\r\n", frozenset({400, 505}))


def _sizes() -> Iterator[Case]:
    large = frozenset({431})
    for size in (33_000, 100_000, 300_000, 1_000_000):
        yield Case(f"head/{size} bytes in one", _sized(b"X-A: " + b"a" * size), large)
        yield Case(f"head/{size} bytes in a name", _sized(b"X" * size + b": a"), large)
        many = [b"X-%d: %b" % (number, b"a" * 990) for number in range(size // 1000)]
        yield Case(f"head/{size} bytes in some", _sized(*many), large)
    for count in (101, 200, 1_000, 5_000):
        yield Case(f"head/{count} fields", _sized(*[b"X-%d: a" % n for n in range(count)]), large)
        yield Case(f"head/{count} equal fields", _sized(*[b"X: a"] * count), large)
    for size in (8_193, 10_000, 60_000, 70_000, 1_000_000):
        path = b"/" + b"a" * (size - 1)
        yield Case(
            f"url/{size} in the path", _sized(line=b"POST %b HTTP/1.1" % path), frozenset({414})
        )
        query = b"/?" + b"a" * (size - 2)
        yield Case(
            f"url/{size} in the query", _sized(line=b"POST %b HTTP/1.1" % query), frozenset({414})
        )
    yield Case("url/endless", b"GET /" + b"a" * 100_000, frozenset({414}))
    yield Case("head/endless value", b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000, large)
    yield Case("head/endless name", b"GET / HTTP/1.1\r\n" + b"a" * 100_000, large)
    endless = b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 20_000
    yield Case("head/endless fields", endless, large)
    yield Case("head/nothing but line ends", b"\r\n" * 50_000, large)


def _methods() -> Iterator[Case]:
    never = frozenset({501})
    for target in (b"/", b"example.com:443", b"127.0.0.1:22", b"http://example.com/"):
        yield Case(
            f"CONNECT/{target!r}",
            _sized(line=b"CONNECT %b HTTP/1.1" % target),
            frozenset({400, 501}),
        )
    for target in (b"/", b"/tasks", b"/.well-known/agent-card.json"):
        yield Case(f"TRACE/{target!r}", _sized(line=b"TRACE %b HTTP/1.1" % target), never)
    yield Case("TRACE/without a body", b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", never)
    for method in (b"FOO", b"GETS", b"POSTX", b"BREW", b"VERYLONGMETHODNAMEINDEED", b"GET-", b"P"):
        yield Case(f"method/{method!r}", _sized(line=method + b" / HTTP/1.1"), never)
    for method in (
        b"post",
        b"Post",
        b"P\x00ST",
        b"PO ST",
        b"P" * 5_000,
        b"\xff\xfe",
        b"P/T",
        b'"GET"',
    ):
        data = _sized(line=method + b" / HTTP/1.1")
        yield Case(f"method/{method[:16]!r}", data, frozenset({400, 501}))


def _targets() -> Iterator[Case]:
    for target in (
        b"http://evil.test/",
        b"http://127.0.0.1.evil.test/",
        b"http://127.0.0.1:1/",
        b"http://user@127.0.0.1/",
        b"http://user:word@127.0.0.1/",
        b"http:///path",
        b"http://",
        b"http://127.0.0.1#a",
        b"ftp://127.0.0.1/",
        b"ws://127.0.0.1/",
        b"file:///etc/passwd",
        b"https://evil.test/tasks",
        b"HTTP://EVIL.TEST/",
        b"127.0.0.1/",
        b"tasks",
        b"?a=b",
        b"*",
        b"/#x",
        b"/healthz#x",
        b"/tasks?a=b#c",
        b"/#",
        b"http://127.0.0.1/#x",
        b"#",
        b"\\",
        b"..",
    ):
        yield Case(f"target/{target!r}", _sized(line=b"POST %b HTTP/1.1" % target), NO)
    for target in (b"/healthz#x", b"/readyz#", b"/.well-known/agent-card.json#a?b", b"*"):
        yield Case(f"target, read/{target!r}", _head(line=b"GET %b HTTP/1.1" % target), NO)
    yield Case("target/all", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", NO)


def _others() -> Iterator[Case]:
    for value in (b"200-ok", b"100-continue, x", b"100", b"", b"100-continue;a=b", b"x"):
        yield Case(f"expect/{value!r}", _sized(b"Expect: " + value), frozenset({417}))
    twice = (b"Expect: 100-continue", b"Expect: 100-continue")
    yield Case("expect/twice", _sized(*twice), frozenset({400, 417}))
