"""Category 16: page tokens and stream cursors that we did not give, or not for this.

A page token is sealed and bound to its filter: any other is refused. A bad Last-Event-ID is as
none: the stream opens with the task of this moment, never somewhere in between.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.corpus.case import (
    INVALID_PARAMS,
    UNSUPPORTED,
    V1,
    Case,
    Expect,
    call,
    codes,
    rest,
    rpc,
    text,
)


class Token(NamedTuple):
    """A genuine page token and the filter it was given for."""

    value: str
    filter: dict[str, Any]


PLAIN = [
    "0", "1", "-1", "50", "999999999999", "-999999999999", "1.5", "NaN", "null", "true",
    "undefined", "page2", "next", "first", " ", "\t", "=", "==", "====", "%", "%00", ".", "..",
    "../..", "/", "\\", "'", "' OR '1'='1", "1;DROP TABLE tasks", "{}", "[]",
    '{"offset":10}', "offset:10", "\x00", "\u202e", "é", "😀", "a", "A" * 16, "A" * 32,
    "A" * 64, "-" * 40, "_" * 40,
    "eyJhbGciOiJub25lIn0..", "2024-01-01T00:00:00Z", "no-such-task", "\n", "AAAA\x00", "ﾠ", "*",
    "?", "&x=1", "a&pageSize=1",
]  # fmt: skip
SEALED = [
    b"", b"\x00", b"0", b"{}", b'{"offset":0}', b'{"after":["2024-01-01T00:00:00Z","x"]}',
    b"\xff" * 8,
    bytes(12), bytes(16), bytes(28), bytes(32), bytes(64), b"\x80\x04N.", b"2024|no-such-task",
    b"[1,2]", b"0:0", b"-1", b"\x00" * 255, b"\x93\x01\x02\x03", b"1700000000000000:no-such-task",
]  # fmt: skip
HUGE = [300, 1000, 4096, 7000, 65_536, 1_000_000]

OTHER_FILTERS: list[dict[str, Any]] = [
    {"contextId": "corpus-a"},
    {"contextId": "corpus-b"},
    {"contextId": "corpus-none"},
    {"status": "TASK_STATE_COMPLETED"},
    {"status": "TASK_STATE_WORKING"},
    {"contextId": "corpus-a", "status": "TASK_STATE_COMPLETED"},
    {"contextId": "corpus-b", "status": "TASK_STATE_COMPLETED"},
    {"statusTimestampAfter": "2020-01-01T00:00:00Z"},
    {"statusTimestampAfter": "2020-01-02T00:00:00Z", "contextId": "corpus-a"},
]

# A header value cannot hold more than visible text, so that is what is forged.
LAST_EVENT_IDS = [
    "abc", "-1", "-0", "1.5", "1e3", "0x1", "1,2", "1;2", "999999", "999999999999999999999",
    "9" * 300, "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "null", "None", "NaN", "true",
    "[]", "{}", "1 2", "--1", "1-", "²", "٣", "１", "é", "😀", "'1'", '"1"', "latest", "first",
    "*", "$",
    "0-0", "1-1", "1:1", "no-such-task:1", "no-such-task/1", "a" * 4000, "1_0", "+-1", "∞",
    "%31", "1\t2",
]  # fmt: skip


def plain_cases(seed: int, count: int = 150) -> Iterator[Case]:
    """Yield tokens that need no genuine one: invented, sealed by nobody, huge, random."""
    for value in PLAIN:
        yield from _everywhere("invented", value, {})
    for raw in SEALED:
        for name, value in _spellings(raw):
            yield from _everywhere("sealed-by-nobody", value, {}, name)
    for length in HUGE:
        yield _rpc("huge", "A" * length, {})
        if length < 8000:
            yield _query("huge", "A" * length, {})
    rng = random.Random(seed)
    for _ in range(count):
        raw = rng.randbytes(rng.choice((1, 8, 16, 24, 29, 32, 40, 48, 64, 100)))
        yield from _everywhere("random", base64.urlsafe_b64encode(raw).decode().rstrip("="), {})


def token_cases(tokens: list[Token], foreign: list[Token], seed: int) -> Iterator[Case]:
    """Yield genuine tokens cut, changed, joined, and used for another filter or server."""
    rng = random.Random(seed)
    for token in tokens:
        value, own = token
        for cut in range(1, len(value)):
            if cut % 3 == 0 or cut > len(value) - 4:
                yield from _everywhere("truncated", value[:cut], own, str(cut))
        for cut in range(1, min(len(value), 20)):
            yield from _everywhere("headless", value[cut:], own, str(cut))
        # The last character of base64 may hold unused bits, so changing it need not change a byte.
        for spot in range(len(value) - 2):
            other = rng.choice([c for c in "ABCabc019-_" if c != value[spot]])
            changed = value[:spot] + other + value[spot + 1 :]
            yield from _everywhere("changed", changed, own, str(spot))
        joined = [value + value, value + "A", "A" + value, value[::-1], value.swapcase()]
        joined += [value + tail for tail in ("=A", " ", "\n", ".", "%00", "\x00", ",1", "é")]
        joined += [" " + value, value[: len(value) // 2] + " " + value[len(value) // 2 :]]
        for number, wrong in enumerate(joined):
            if wrong != value:
                yield from _everywhere("joined", wrong, own, str(number))
        for other in ({}, *OTHER_FILTERS):
            if other != own:
                yield from _everywhere("other-filter", value, other, json.dumps(other))
    for token in foreign:
        yield from _everywhere("other-server", token.value, token.filter)
    for first, second in itertools.pairwise(tokens):
        half = len(first.value) // 2
        mixed = first.value[:half] + second.value[half:]
        if mixed not in (first.value, second.value):
            yield from _everywhere("mixed", mixed, first.filter)


def subscriptions(task_id: str, last_event_id: str | None) -> Iterator[Case]:
    """Yield each way to follow a task, with a cursor or without."""
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    opened = Expect(frozenset(), ids=(7,), accepted=True)
    detail = repr(last_event_id)[:40]
    body = text(call("SubscribeToTask", {"id": task_id}))
    yield rpc(16, "cursor/v1", detail, body, opened, headers={**V1, **headers})
    path = f"/tasks/{task_id}:subscribe"
    yield rest(16, "cursor/rest-get", detail, "GET", path, opened, headers=headers)
    yield rest(16, "cursor/rest-post", detail, "POST", path, opened, headers=headers)
    body = text(call("tasks/resubscribe", {"id": task_id}))
    yield rpc(16, "cursor/v03", detail, body, opened, headers=headers)


def finished(task_id: str) -> Iterator[Case]:
    """Yield bad cursors on a task that ended: as without one, there is nothing to follow."""
    refused = codes(UNSUPPORTED, ids=(7,), modern=True)
    for value in LAST_EVENT_IDS:
        body = text(call("SubscribeToTask", {"id": task_id}))
        headers = {**V1, "last-event-id": value}
        yield rpc(16, "cursor/finished", repr(value)[:40], body, refused, headers=headers)


def _everywhere(kind: str, token: str, own: dict[str, Any], detail: str = "") -> Iterator[Case]:
    yield _rpc(kind, token, own, detail)
    yield _query(kind, token, own, detail)


def _rpc(kind: str, token: str, own: dict[str, Any], detail: str = "") -> Case:
    expect = codes(INVALID_PARAMS, ids=(7,), fields=("pageToken",), modern=True)
    body = text(call("ListTasks", {**own, "pageSize": 2, "pageToken": token}))
    name = f"{detail or repr(token)[:40]}"
    return rpc(16, f"token/{kind}", name, body, expect, headers=V1)


def _query(kind: str, token: str, own: dict[str, Any], detail: str = "") -> Case:
    expect = codes(INVALID_PARAMS, fields=("pageToken",))
    pairs = {**own, "pageSize": 2, "pageToken": token}
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs.items())
    name = f"{detail or repr(token)[:40]}"
    return rest(16, f"token-query/{kind}", name, "GET", "/tasks", expect, query=query)


def _spellings(raw: bytes) -> Iterator[tuple[str, str]]:
    for name, encode in (
        ("urlsafe", base64.urlsafe_b64encode),
        ("standard", base64.b64encode),
        ("base32", base64.b32encode),
        ("hex", base64.b16encode),
    ):
        value = encode(raw).decode()
        if value:
            yield f"{raw[:20]!r}/{name}", value
            yield f"{raw[:20]!r}/{name}/bare", value.rstrip("=")
