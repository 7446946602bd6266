"""Category 8: every limit one below, at and one above.

What is within the limits gets past validation and meets an unknown task; what is beyond meets the
documented refusal. Nothing is created on either side.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.corpus.case import (
    CONTENT_TYPE,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE,
    TASK_NOT_FOUND,
    UNKNOWN,
    V1,
    Case,
    Expect,
    call,
    codes,
    rest,
    rpc,
    text,
)
from tests.corpus.params import MINIMAL, put

BODY = 10 * 1024 * 1024
DEPTH = 64
KEYS = 1000
NUMBER = 64
PARTS = 1000
ID = 256
METADATA = 64 * 1024
INT32 = 2**31 - 1
URL = 8 * 1024

SEND = put(MINIMAL, "message.taskId", UNKNOWN)
OLD_SEND: dict[str, Any] = {
    "message": {
        "kind": "message",
        "messageId": "m",
        "taskId": UNKNOWN,
        "role": "user",
        "parts": [{"kind": "text", "text": "hello"}],
    }
}
UNKNOWN_TASK = codes(TASK_NOT_FOUND, ids=(7,))
ACCEPTED = codes(TASK_NOT_FOUND, ids=(7,), accepted=True)


def cases() -> Iterator[Case]:
    """Yield the table of limits, in each binding that has them."""
    yield from _bodies()
    yield from _texts()
    yield from _fields()


def url_cases() -> Iterator[Case]:
    """Yield targets around the longest URL; the HTTP guard counts them, so they need a socket."""
    for length in (URL - 1, URL, URL + 1, URL + 100, 4 * URL):
        query = "x=" + "a" * (length - len("/tasks?x="))
        if length <= URL:
            expect = codes(accepted=True)
        else:
            expect = codes(INVALID_REQUEST, statuses=frozenset({414}))
        yield rest(8, "url", str(length), "GET", "/tasks", expect, query=query)


def _rpc(kind: str, detail: str, params: Any, expect: Expect, method: str = "SendMessage") -> Case:
    return rpc(8, kind, f"{method}/{detail}", text(call(method, params)), expect, headers=V1)


def _bodies() -> Iterator[Case]:
    too_large = codes(INVALID_REQUEST, ids=(None, 7))
    for length in (BODY - 1, BODY, BODY + 1, BODY + 65_536, 2 * BODY):
        fits = length <= BODY
        detail = f"{length - BODY:+d}"
        body = _padded(call("SendMessage", SEND), length)
        expect = UNKNOWN_TASK if fits else too_large
        yield rpc(8, "body", detail, body, expect, headers=V1)
        spaces = text(call("GetTask", {"id": UNKNOWN}))
        spaces += b" " * (length - len(spaces))
        yield rpc(8, "body-spaces", detail, spaces, expect, headers=V1)
        old = text(call("message/send", OLD_SEND))
        yield rpc(8, "body-0.3", detail, b" " * (length - len(old)) + old, expect)
        if fits:
            expect = codes(TASK_NOT_FOUND)
        else:
            expect = codes(INVALID_REQUEST, statuses=frozenset({413}))
        yield rest(
            8, "body-rest", detail, "POST", "/message:send", expect, body=_padded(SEND, length)
        )
    # Too large and broken as well: size is judged first, before anything is parsed.
    yield rpc(8, "body-broken", "zeros", bytes(BODY + 1), too_large)
    yield rpc(8, "body-broken", "brackets", b"[" * (BODY + 1), too_large)
    yield rpc(8, "body-broken", "brackets that fit", b"[" * BODY, codes(PARSE))
    yield rpc(8, "body-broken", "quote that fits", b'"' + b"a" * (BODY - 1), codes(PARSE))
    yield rpc(8, "body-broken", "digits that fit", b"1" * BODY, codes(PARSE))


def _padded(value: dict[str, Any], length: int) -> bytes:
    """Return the request grown to a length by the text of its first part."""
    found = copy.deepcopy(value)
    part = found.get("params", found)["message"]["parts"][0]
    part["text"] = ""
    part["text"] = "a" * (length - len(text(found)))
    return text(found)


def _texts() -> Iterator[Case]:
    # A send with metadata nests three deep around the value: request, params, metadata.
    for depth in (DEPTH - 1, DEPTH, DEPTH + 1):
        for shape in ("arrays", "objects"):
            expect = UNKNOWN_TASK if depth <= DEPTH else codes(PARSE)
            params = {**SEND, "metadata": {"k": _nest(depth - 3, shape)}}
            yield _rpc("depth", f"{shape}/{depth}", params, expect)
            params = {**SEND, "metadata": {"k": _nest(depth - 2, shape)}}
            body = text(params)
            yield rest(
                8, "depth-rest", f"{shape}/{depth}", "POST", "/message:send", expect, body=body
            )
            params = {**OLD_SEND, "metadata": {"k": _nest(depth - 3, shape)}}
            body = text(call("message/send", params))
            yield rpc(8, "depth-0.3", f"{shape}/{depth}", body, expect)
    for length in (NUMBER - 1, NUMBER, NUMBER + 1):
        expect = UNKNOWN_TASK if length <= NUMBER else codes(PARSE)
        numbers = {
            "integer": "7" * length,
            "negative": "-" + "7" * (length - 1),
            "fraction": "0." + "3" * (length - 2),
            "exponent": "1e" + "0" * (length - 3) + "1",
        }
        for shape, digits in numbers.items():
            body = text(call("SendMessage", {**SEND, "metadata": {"k": "@"}}))
            body = body.replace(b'"@"', digits.encode())
            yield rpc(8, "number", f"{shape}/{length}", body, expect, headers=V1)
    for keys in (KEYS - 1, KEYS, KEYS + 1):
        # Too many keys is a fault of the text or of the field: both readings are documented.
        expect = UNKNOWN_TASK if keys <= KEYS else codes(PARSE, INVALID_PARAMS, ids=(None, 7))
        params = {**SEND, "metadata": {str(n): 1 for n in range(keys)}}
        yield _rpc("keys", f"metadata/{keys}", params, expect)
        params = put(SEND, "message.parts", [{"data": {"d": {str(n): 1 for n in range(keys)}}}])
        loose = codes(*expect.codes, CONTENT_TYPE, ids=expect.ids)
        yield _rpc("keys", f"data/{keys}", params, loose if keys <= KEYS else expect)
        params = {"id": UNKNOWN, **{f"x{n}": 1 for n in range(keys - 1)}}
        yield _rpc("keys", f"params/{keys}", params, expect, "GetTask")


def _nest(depth: int, shape: str) -> Any:
    value: Any = [] if shape == "arrays" else {}
    for _ in range(depth - 1):
        value = [value] if shape == "arrays" else {"a": value}
    return value


def _refusal(field: str) -> Expect:
    return codes(INVALID_PARAMS, ids=(7,), fields=(field,), modern=True)


def _fields() -> Iterator[Case]:
    for number in (1, 2, PARTS - 1, PARTS, PARTS + 1, 10 * PARTS):
        expect = UNKNOWN_TASK if number <= PARTS else _refusal("message.parts")
        params = put(SEND, "message.parts", [{"text": "a"}] * number)
        yield _rpc("parts", str(number), params, expect)
        yield _rpc("parts", str(number), params, expect, "SendStreamingMessage")
        old = put(OLD_SEND, "message.parts", [{"kind": "text", "text": "a"}] * number)
        loose = codes(*expect.codes, ids=(7,), modern=False)
        yield rpc(8, "parts-0.3", str(number), text(call("message/send", old)), loose)
    for length in (1, ID - 1, ID, ID + 1):
        value = "~" * length
        for path in ("message.taskId", "message.contextId", "message.messageId"):
            expect = UNKNOWN_TASK if length <= ID else _refusal(path)
            yield _rpc("id", f"{path}/{length}", put(SEND, path, value), expect)
        expect = UNKNOWN_TASK if length <= ID else _refusal("id")
        yield _rpc("id", f"id/{length}", {"id": value}, expect, "GetTask")
        expect = ACCEPTED if length <= ID else _refusal("contextId")
        yield _rpc("id", f"contextId/{length}", {"contextId": value}, expect, "ListTasks")
        expect = codes(TASK_NOT_FOUND if length <= ID else INVALID_PARAMS)
        yield rest(8, "id-rest", str(length), "GET", f"/tasks/{value}", expect)
    for length in (METADATA - 1, METADATA, METADATA + 1, 4 * METADATA):
        blob = {"k": "a" * (length - len(text({"k": ""})))}
        for path in ("metadata", "message.metadata"):
            expect = UNKNOWN_TASK if length <= METADATA else _refusal(path)
            yield _rpc("metadata", f"{path}/{length}", put(SEND, path, blob), expect)
        expect = UNKNOWN_TASK if length <= METADATA else _refusal("message.parts[0].metadata")
        params = put(SEND, "message.parts", [{"text": "a", "metadata": blob}])
        yield _rpc("metadata", f"part/{length}", params, expect)
        expect = UNKNOWN_TASK if length <= METADATA else _refusal("metadata")
        params = {"id": UNKNOWN, "metadata": blob}
        yield _rpc("metadata", f"cancel/{length}", params, expect, "CancelTask")
    for size in (-1, 0, 1, 2, 99, 100, 101):
        good = 1 <= size <= 100
        expect = ACCEPTED if good else _refusal("pageSize")
        yield _rpc("pageSize", str(size), {"pageSize": size}, expect, "ListTasks")
        expect = codes(INVALID_PARAMS, accepted=good, fields=("pageSize",))
        query = f"pageSize={size}"
        yield rest(8, "pageSize-rest", str(size), "GET", "/tasks", expect, query=query)
    for length in (-1, 0, 1, INT32 - 1, INT32, INT32 + 1):
        good = 0 <= length <= INT32
        expect = UNKNOWN_TASK if good else _refusal("historyLength")
        params = {"id": UNKNOWN, "historyLength": length}
        yield _rpc("historyLength", f"get/{length}", params, expect, "GetTask")
        expect = UNKNOWN_TASK if good else _refusal("configuration.historyLength")
        params = put(SEND, "configuration.historyLength", length)
        yield _rpc("historyLength", f"send/{length}", params, expect)
        expect = ACCEPTED if good else _refusal("historyLength")
        yield _rpc(
            "historyLength", f"list/{length}", {"historyLength": length}, expect, "ListTasks"
        )
        expect = codes(TASK_NOT_FOUND if good else INVALID_PARAMS)
        query = f"historyLength={length}"
        path = f"/tasks/{UNKNOWN}"
        yield rest(8, "historyLength-rest", str(length), "GET", path, expect, query=query)
        loose = codes(TASK_NOT_FOUND if good else INVALID_PARAMS, ids=(7,), modern=False)
        body = text(call("tasks/get", {"id": UNKNOWN, "historyLength": length}))
        yield rpc(8, "historyLength-0.3", str(length), body, loose)
