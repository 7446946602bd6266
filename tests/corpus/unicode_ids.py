"""Category 7: characters that no id may hold, in every field that is an id.

Ids are 1 to 256 visible ASCII characters. The same characters in text, data, names and metadata are
content and must come back byte for byte; `TEXTS` holds what the test sends and compares.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.corpus.case import INVALID_PARAMS, UNKNOWN, V1, Case, call, codes, rest, rpc, text
from tests.corpus.params import MINIMAL, OLD_MINIMAL, put

CONTROLS = [chr(c) for c in (*range(0x20), 0x7F, 0x80, 0x85, 0x9F)]
BIDI = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ZERO_WIDTH = list("\u00ad\u034f\u180e\u200b\u200c\u200d\u2060\u2061\u2064\ufeff\ufe0f\u17b4")
SPACES = list(" \u00a0\u1680\u2000\u2003\u2007\u2009\u202f\u205f\u3000\u2028\u2029")
LETTERS = [
    "é", "e\u0301", "Å", "A\u030a", "\u212b", "ﬁ", "ß", "İ", "ı", "а", "Ω", "אב", "مرحبا",
    "日本", "한국",
    "\u1112\u1161\u11ab", "ａ", "１", "٣", "½", "²", "𝒜", "😀", "👨\u200d👩\u200d👧", "🇳🇴",
    "\U000e0041",
    "\ue000", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\U0001fffe", "\U0010ffff", "\U0010fffd",
    "\u0300" * 20, "\u0e49" * 30,
]  # fmt: skip
BAD = {
    "control": CONTROLS,
    "bidi": BIDI,
    "zero-width": ZERO_WIDTH,
    "space": SPACES,
    "non-ascii": LETTERS,
}
TOO_LONG = ["a" * 257, "a" * 300, "~" * 1024, "é" * 256, "a" * 4096, "a" * 65_536]

# field, how a 1.0 JSON-RPC request carries the id
FIELDS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("SendMessage", "message.messageId", "message.messageId", MINIMAL),
    ("SendMessage", "message.contextId", "message.contextId", MINIMAL),
    ("SendMessage", "message.taskId", "message.taskId", MINIMAL),
    ("GetTask", "id", "id", {}),
    ("CancelTask", "id", "id", {}),
    ("SubscribeToTask", "id", "id", {}),
    ("ListTasks", "contextId", "contextId", {}),
]
OLD_FIELDS: list[tuple[str, str, dict[str, Any]]] = [
    ("message/send", "message.messageId", OLD_MINIMAL),
    ("message/send", "message.contextId", OLD_MINIMAL),
    ("message/stream", "message.taskId", OLD_MINIMAL),
    ("tasks/get", "id", {}),
    ("tasks/cancel", "id", {}),
]

# What an author or a caller may legitimately write; kept byte for byte.
TEXTS = [f"a{bad}b" for group in BAD.values() for bad in group]
TEXTS += ["", " ", "\n", "\r\n", "\x00", "a" * 70_000, "😀" * 5000, "".join(BIDI + ZERO_WIDTH)]
TEXTS += ["</script>", "\\u0000", "\\", '"', "\x1b]0;x\x07", "data: x\n\ndata: y", "\u2028\u2029"]


def values() -> Iterator[tuple[str, str]]:
    """Yield illegal ids: the character alone, inside, first and last."""
    for group, found in BAD.items():
        for bad in found:
            for value in (bad, f"a{bad}b", f"{bad}a", f"a{bad}"):
                yield group, value
    for value in TOO_LONG:
        yield "too-long", value


def cases() -> Iterator[Case]:
    """Yield each illegal id in every field of every binding that carries one."""
    for number, (group, value) in enumerate(values()):
        detail = f"{value[:12]!r}"
        # Each value meets every field over the run; four at a time keep the product small.
        for turn in range(4):
            method, path, field, base = FIELDS[(number + turn * 2) % len(FIELDS)]
            params = put(copy.deepcopy(base), path, value)
            expect = codes(INVALID_PARAMS, ids=(7,), fields=(field,), modern=True)
            body = text(call(method, params))
            yield rpc(7, f"v1/{group}", f"{method}.{path}={detail}", body, expect, headers=V1)
        method, path, base = OLD_FIELDS[number % len(OLD_FIELDS)]
        body = text(call(method, put(copy.deepcopy(base), path, value)))
        expect = codes(INVALID_PARAMS, ids=(7,), modern=False)
        yield rpc(7, f"v03/{group}", f"{method}.{path}={detail}", body, expect)
        if len(value) < 1000:
            yield _path(group, detail, value, number)
            query = f"contextId={quote(value, safe='')}"
            expect = codes(INVALID_PARAMS, fields=("contextId",))
            yield rest(7, f"query/{group}", detail, "GET", "/tasks", expect, query=query)


def _path(group: str, detail: str, value: str, number: int) -> Case:
    expect = codes(INVALID_PARAMS)
    target = f"/tasks/{quote(value, safe='')}"
    match number % 3:
        case 0:
            return rest(7, f"path/{group}", detail, "GET", target, expect)
        case 1:
            return rest(7, f"path/{group}", detail, "POST", f"{target}:cancel", expect, body=b"{}")
        case _:
            return rest(7, f"path/{group}", detail, "POST", f"{target}:subscribe", expect)


def kept(value: str) -> dict[str, Any]:
    """Return a send whose every place for content holds the value."""
    short = value[:1000]
    part = {"text": value, "filename": short, "metadata": {"k" + short: short}}
    data = {"data": {"k" + value: [value, {value: value}]}, "metadata": {"k": short}}
    return {
        "message": {
            "messageId": "kept",
            "contextId": UNKNOWN,
            "role": "ROLE_USER",
            "parts": [part, data],
            "metadata": {"k" + short: {"v": short}},
        },
        "metadata": {"k": short},
    }
