"""Answers that are no JSON, or JSON in no envelope, or an error, or a status."""

import json
from collections.abc import Iterator
from typing import Any

from tests.gateway.malformed.script import (
    GONE,
    INVALID,
    MARK,
    NO_A2A,
    REFUSED,
    UNKNOWN,
    UNREACHABLE,
    Answering,
    Script,
    body,
    each,
    result,
    task,
)
from tests.gateway.raw_peer import Answer, Asked, http

GOOD = json.dumps({"task": task()})
TEXTS: dict[str, bytes | str] = {
    "nothing": "",
    "spaces": "  \n ",
    "a word": MARK,
    "an open brace": "{" + MARK,
    "cut within the result": '{"jsonrpc":"2.0","id":%ID,"result":{"task":{"id":"' + MARK,
    "cut before its last brace": '{"jsonrpc":"2.0","id":%ID,"result":' + GOOD,
    "something behind it": '{"jsonrpc":"2.0","id":%ID,"result":' + GOOD + "}" + MARK,
    "twice": ('{"jsonrpc":"2.0","id":%ID,"result":' + GOOD + "}") * 2,
    "NaN": '{"jsonrpc":"2.0","id":%ID,"result":NaN,"x":"' + MARK + '"}',
    "Infinity": '{"jsonrpc":"2.0","id":%ID,"result":-Infinity,"x":"' + MARK + '"}',
    "a comment": '{"jsonrpc":"2.0",/*' + MARK + '*/"id":%ID,"result":' + GOOD + "}",
    "single quotes": "{'jsonrpc':'2.0','id':%ID,'result':'" + MARK + "'}",
    "a trailing comma": '{"jsonrpc":"2.0","id":%ID,"result":' + GOOD + ",}",
    "duplicate keys": '{"jsonrpc":"2.0","id":%ID,"result":' + GOOD + ',"result":' + GOOD + "}",
    "duplicate ids of the task": GOOD.replace('"id": "t-1"', '"id":"t-1","id":"t-2"'),
    "a byte order mark within": '{"jsonrpc":"2.0",\ufeff"id":%ID,"result":' + GOOD + "}",
    "UTF-16": json.dumps({"jsonrpc": "2.0", "id": 1, "result": MARK}).encode("utf-16"),
    "bytes that are no UTF-8": b'{"jsonrpc":"2.0","id":%ID,"result":"\xff' + MARK.encode() + b'"}',
    "an overlong slash": b'{"jsonrpc":"2.0","id":%ID,"result":"\xc0\xaf"}',
    "half a surrogate": '{"jsonrpc":"2.0","id":%ID,"result":"\\ud800' + MARK + '"}',
    "a control character": '{"jsonrpc":"2.0","id":%ID,"result":"\x01' + MARK + '"}',
    "100 levels": '{"jsonrpc":"2.0","id":%ID,"result":' + "[" * 100 + "]" * 100 + "}",
    "100,000 levels": '{"jsonrpc":"2.0","id":%ID,"result":' + "[" * 100_000 + "]" * 100_000 + "}",
    "levels without end": "[" * 500_000,
    "a number without end": '{"jsonrpc":"2.0","id":%ID,"result":' + "9" * 100_000 + "}",
    "a number that is too large": '{"jsonrpc":"2.0","id":%ID,"result":1e999999}',
    "XML": f"<?xml version='1.0'?><r>{MARK}</r>",
    "HTML": f"<!doctype html><title>{MARK}</title>",
    "a batch": '[{"jsonrpc":"2.0","id":%ID,"result":' + GOOD + "}]",
    "an empty list": "[]",
    "null": "null",
    "true": "true",
    "a number": "7",
    "a text": f'"{MARK}"',
    "an event in place of JSON": f"data: {MARK}\n\n",
}
KINDS = ["text/html", "text/plain", "application/octet-stream", "", "image/png", "a;b;c,,=/"]


def texts() -> Iterator[Script]:
    cases = {
        name: body(text.encode("utf-8") if isinstance(text, str) else text)
        for name, text in TEXTS.items()
    }
    yield from each("text", cases)
    for kind in KINDS:
        html = f"<html>{MARK}</html>".encode()
        yield Script(f"text: HTML as {kind or 'nothing'}", body(html, kind=kind))


ENVELOPES: dict[str, Any] = {
    "the id of another request": {"jsonrpc": "2.0", "id": "other", "result": {"task": task()}},
    "no id": {"jsonrpc": "2.0", "result": {"task": task()}},
    "null as id": {"jsonrpc": "2.0", "id": None, "result": {"task": task()}},
    "a number as id": {"jsonrpc": "2.0", "id": 1, "result": {"task": task()}},
    "a list as id": {"jsonrpc": "2.0", "id": [MARK], "result": {"task": task()}},
    "result and error": b'{"jsonrpc":"2.0","id":%ID,"result":{},"error":{"code":-32603,"message":"'
    + MARK.encode()
    + b'"}}',
    "neither": b'{"jsonrpc":"2.0","id":%ID,"' + MARK.encode() + b'":1}',
    "an empty object": {},
    "a request": b'{"jsonrpc":"2.0","id":%ID,"method":"SendMessage","params":{"x":"'
    + MARK.encode()
    + b'"}}',
}
ERRORS: dict[str, Any] = {
    "a text": MARK,
    "a number": 7,
    "a list": [MARK],
    "true": True,
    "an empty object": {},
    "no code": {"message": MARK},
    "no message": {"code": -32603},
    "a text as code": {"code": MARK, "message": MARK},
    "a fraction as code": {"code": -32603.5, "message": MARK},
    "a code without end": {"code": -(10**60), "message": MARK},
    "a list as message": {"code": -32603, "message": [MARK]},
    "an object as message": {"code": -32602, "message": {"x": MARK}},
    "data of any kind": {"code": -32602, "message": MARK, "data": [{"@type": MARK}, MARK, 7]},
    "a long message": {"code": -32603, "message": MARK * 10_000},
    "lines and escapes": {"code": -32603, "message": f"\x1b[2J{MARK}\r\nSet-Cookie: x"},
    "markup": {"code": -32602, "message": f"<script>{MARK}</script>"},
    "a reason of ours": {
        "code": "x",
        "message": MARK,
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "INVALID_AGENT_RESPONSE",
                "domain": "a2a-protocol.org",
            }
        ],
    },
    "facts": {
        "code": -32001,
        "message": MARK,
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "TASK_NOT_FOUND",
                "domain": "a2a-protocol.org",
                "metadata": {"taskId": MARK, "retryAfter": MARK},
            }
        ],
    },
}
CODES = [
    *(-32700, -32600, -32601, -32602, -32603),
    *range(-32009, -32000),
    *(-32055, -32057, -32099, -1, 0, 1, 404, 500, 503),
]
# An agent may say no, in any code; then its task has failed, in words of ours.
SAID_NO = (REFUSED, GONE, UNREACHABLE, INVALID, UNKNOWN)


def envelopes() -> Iterator[Script]:
    yield from each("envelope", {name: body(value) for name, value in ENVELOPES.items()})

    def failing(error: Any) -> Answering:
        inner = json.dumps(error).encode()
        return body(b'{"jsonrpc":"2.0","id":%ID,"error":' + inner + b"}")

    for name, error in ERRORS.items():
        yield Script(f"error: {name}", failing(error), says=SAID_NO)
    for code in CODES:
        error = {"code": code, "message": f"{MARK} {code}"}
        yield Script(f"error: {code}", failing(error), says=SAID_NO)


STATUSES = [
    *(201, 202, 203, 204, 205, 206, 226, 299),
    *(300, 301, 302, 303, 304, 305, 307, 308, 399),
    *(400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417),
    *(418, 421, 422, 423, 424, 425, 426, 428, 431, 451, 499),
    *(500, 501, 502, 504, 505, 506, 507, 508, 510, 511, 599),
]
# Said with 429 and 503, where it is a wish to be left alone.
WISHES = ["0", "-1", "1e99", "99999999999", MARK, "Thu, 01 Jan 1970 00:00:00 GMT", ""]


def statuses() -> Iterator[Script]:
    html = f"<html>{MARK}</html>".encode()

    def said(status: int, *headers: str, text: bytes = html) -> Answering:
        def answer(asked: Asked) -> Answer:
            whole = b"" if status in (204, 304) else text
            return [http(whole, f"{status} {MARK}", "text/html", *headers)]

        return answer

    for status in STATUSES:
        headers = [f"location: /{MARK}"] if 300 <= status < 400 else []
        if status == 401:
            headers.append(f'www-authenticate: Bearer realm="{MARK}", scope="{MARK}"')
        says = (NO_A2A,) if status in (404, 405, 501) else SAID_NO
        yield Script(f"status: {status}", said(status, *headers), says=says)
    for status in (429, 503):
        for wish in WISHES:
            answer = said(status, f"retry-after: {wish}")
            yield Script(f"status: {status} until {wish or 'nothing'}", answer, says=SAID_NO)
    error = json.dumps({"error": {"code": 400, "message": MARK, "status": MARK}}).encode()
    for status in (400, 404, 409, 500):
        answer = said(status, text=error)
        yield Script(f"status: {status} over REST", answer, binding="HTTP+JSON", says=SAID_NO)


SCRIPTS = [
    *texts(),
    *envelopes(),
    *statuses(),
    Script("a good answer", result({"task": task()}), ends="completed", says=()),
    Script(
        "a good message",
        result({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}}),
        ends="completed",
        says=(),
    ),
]
