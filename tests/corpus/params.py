"""Category 3: requests whose envelope is right and whose parameters are not.

Each field of each request is absent, null, of a wrong type, out of range or contradicted: in 1.0
over JSON-RPC and REST, in 0.3 over JSON-RPC. A 1.0 refusal must name the field. Legal oddities
(other spelling, integer enums, unknown members, nulls) get past validation to an unknown task.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

from tests.corpus import schema
from tests.corpus.case import (
    CONTENT_TYPE,
    INVALID_PARAMS,
    NO_EXTENDED_CARD,
    PUSH_UNSUPPORTED,
    TASK_NOT_FOUND,
    UNKNOWN,
    UNSUPPORTED,
    V1,
    Case,
    Expect,
    call,
    codes,
    rest,
    rpc,
    text,
    words,
)
from tests.corpus.schema import Field, snaked

BAD = INVALID_PARAMS
ABSENT = object()

MINIMAL = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
RICH = {
    "message": {
        "messageId": "m-1",
        "contextId": "c-1",
        "role": "ROLE_USER",
        "parts": [
            {"text": "hello", "mediaType": "text/plain", "metadata": {"k": 1}},
            {"data": {"a": [1, None]}},
            {"raw": "aGk=", "filename": "b.bin"},
            {"url": "https://example.com/x"},
        ],
        "metadata": {"k": "v"},
        "extensions": ["urn:x"],
        "referenceTaskIds": [UNKNOWN],
    },
    "configuration": {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 3,
        "returnImmediately": False,
    },
    "metadata": {"skillId": "echo"},
}
OLD_MINIMAL = {
    "message": {
        "kind": "message",
        "messageId": "m-1",
        "role": "user",
        "parts": [{"kind": "text", "text": "hello"}],
    }
}
OLD_RICH = {
    "message": {
        **OLD_MINIMAL["message"],
        "contextId": "c-1",
        "parts": [
            {"kind": "text", "text": "hello", "metadata": {"k": 1}},
            {"kind": "data", "data": {"a": 1}},
            {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "text/plain", "name": "b"}},
            {"kind": "file", "file": {"uri": "https://example.com/x"}},
        ],
        "metadata": {"k": "v"},
    },
    "configuration": {"acceptedOutputModes": ["text/plain"], "blocking": True},
    "metadata": {"k": "v"},
}
SURROUNDINGS = {"minimal": MINIMAL, "rich": RICH}
OLD_SURROUNDINGS = {"minimal": OLD_MINIMAL, "rich": OLD_RICH}
SENDS = ("SendMessage", "SendStreamingMessage")
OLD_SENDS = ("message/send", "message/stream")
REST_SENDS = ("/message:send", "/message:stream")

# kind, detail, parameters, the field a 1.0 refusal names
Bad = tuple[str, str, dict[str, Any], tuple[str, ...]]


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield every single fault, then random pairs of faults up to `count`."""
    made = 0
    for case in itertools.chain(_sends(), _old_sends(), _reads(), _queries(), legal()):
        made += 1
        yield case
    rng = random.Random(seed)
    new = [bad for around in SURROUNDINGS.values() for bad in faults(around, schema.SEND)]
    old = [bad for around in OLD_SURROUNDINGS.values() for bad in faults(around, schema.OLD_SEND)]
    while made < count:
        made += 1
        yield _pair(rng, made, new, old)


def put(value: dict[str, Any], path: str, item: Any) -> dict[str, Any]:
    """Return a copy with the member at a dotted path replaced, or removed for ABSENT."""
    found = copy.deepcopy(value)
    *parents, last = path.split(".")
    inner: Any = found
    for name in parents:
        inner = inner.setdefault(name, {})
    if item is ABSENT:
        inner.pop(last, None)
    else:
        inner[last] = item
    return found


def faults(around: dict[str, Any], fields: list[Field]) -> Iterator[Bad]:
    """Yield the request with one field at a time broken in every way its type can be."""
    for field in fields:
        for item in schema.WRONG[field.type]:
            yield "wrong", f"{field.path}={item!r}", put(around, field.path, item), (field.path,)
        for item in schema.ELEMENT.get(field.type, []):
            for before in (0, 1, 7):
                fill = "a" if field.type == "strings" else {"text": "a", "kind": "text"}
                value = put(around, field.path, [fill] * before + [item])
                name = f"{field.path}[{before}]"
                yield "element", f"{name}={item!r}", value, (name,)
        if field.required:
            for item in (ABSENT, None, *([""] if field.type == "id" else [])):
                detail = "absent" if item is ABSENT else repr(item)
                value = put(around, field.path, item)
                yield "missing", f"{field.path} {detail}", value, (field.path,)


def part_faults() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield broken 1.0 parts and the member that is wrong, empty for the part as a whole."""
    content: dict[str, Any] = {
        "text": "a",
        "raw": "aGk=",
        "url": "https://x.test/",
        "data": {"b": 1},
    }
    for number in (2, 3, 4):
        for chosen in itertools.combinations(content, number):
            yield f"both {chosen}", {name: content[name] for name in chosen}, ""
    for alone in ({}, {"filename": "f"}, {"mediaType": "text/plain"}, {"metadata": {}}, {"x": 1}):
        yield f"none {alone}", alone, ""
    for name in ("text", "raw", "url"):
        yield f"null {name}", {name: None}, ""
    yield "old file", {"kind": "file", "file": {"bytes": "aGk="}}, ""
    yield "text and null data", {"text": "a", "data": None}, ""
    for field in schema.PART:
        for item in schema.WRONG[field.type]:
            part = {field.path: item}
            if field.path in ("metadata", "filename", "mediaType"):
                part["text"] = "a"
            yield f"{field.path}={item!r}", part, field.path


def old_part_faults() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield broken 0.x parts."""
    for kind in ("image", "", "TEXT", "Text", "txt", "message", "task", 0, 1.5, True, [], {}):
        yield f"kind={kind!r}", {"kind": kind, "text": "a"}
    for item in schema.NOT_STRING:
        yield f"text={item!r}", {"kind": "text", "text": item}
        yield f"uri={item!r}", {"kind": "file", "file": {"uri": item}}
        yield f"name={item!r}", {"kind": "file", "file": {"uri": "https://x.test/", "name": item}}
        file = {"uri": "https://x.test/", "mimeType": item}
        yield f"mimeType={item!r}", {"kind": "file", "file": file}
    for item in schema.NOT_BASE64:
        yield f"bytes={item!r}", {"kind": "file", "file": {"bytes": item}}
    for item in (*schema.NOT_OBJECT, None, {}, {"name": "f"}, {"mimeType": "text/plain"}):
        yield f"file={item!r}", {"kind": "file", "file": item}
    both = {"bytes": "aGk=", "uri": "https://x.test/"}
    yield "both bytes and uri", {"kind": "file", "file": both}
    yield "no text", {"kind": "text"}
    yield "null text", {"kind": "text", "text": None}
    yield "no data", {"kind": "data"}
    yield "no file", {"kind": "file"}
    yield "nothing", {}
    for item in schema.NOT_OBJECT:
        yield f"metadata={item!r}", {"kind": "text", "text": "a", "metadata": item}


def _expect(fields: tuple[str, ...] = ()) -> Expect:
    return codes(BAD, ids=(7,), fields=fields, modern=True)


def _v1(kind: str, detail: str, method: str, params: Any, expect: Expect) -> Case:
    body = text(call(method, params))
    return rpc(3, f"v1/{kind}", f"{method}/{detail}", body, expect, headers=V1)


def _v03(kind: str, detail: str, method: str, params: Any, *wanted: int) -> Case:
    expect = codes(*wanted, ids=(7,), modern=False)
    return rpc(3, f"v03/{kind}", f"{method}/{detail}", text(call(method, params)), expect)


def _rest(kind: str, detail: str, path: str, params: Any, expect: Expect) -> Case:
    return rest(3, f"rest/{kind}", f"{path}/{detail}", "POST", path, expect, body=text(params))


def _everywhere(kind: str, detail: str, params: dict[str, Any], expect: Expect) -> Iterator[Case]:
    """Yield a 1.0 send on both operations, both bindings and in both spellings."""
    for method, path in zip(SENDS, REST_SENDS, strict=True):
        yield _v1(kind, detail, method, params, expect)
        yield _v1(kind, f"snake/{detail}", method, snaked(params), expect)
        yield _rest(kind, detail, path, params, expect)
        yield _rest(kind, f"snake/{detail}", path, snaked(params), expect)


def _sends() -> Iterator[Case]:
    for name, around in SURROUNDINGS.items():
        for kind, detail, params, fields in faults(around, schema.SEND):
            # The snake spelling of rich requests adds nothing to that of minimal ones.
            found = _everywhere(kind, f"{name}/{detail}", params, _expect(fields))
            yield from found if name == "minimal" else itertools.islice(found, 0, None, 2)
    for detail, part, member in part_faults():
        for before in (0, 1, 12):
            where = f"message.parts[{before}]"
            parts = [{"text": "a"}] * before + [part]
            params = put(MINIMAL, "message.parts", parts)
            expect = _expect((f"{where}.{member}" if member else where,))
            found = _everywhere("part", f"{before}/{detail}", params, expect)
            yield from found if before == 0 else itertools.islice(found, 0, None, 2)
    for kind, detail, params, _ in faults({}, [Field("x", "object")]):
        push = put(MINIMAL, "configuration.taskPushNotificationConfig", params["x"])
        expect = codes(BAD, PUSH_UNSUPPORTED, ids=(7,))
        yield from _everywhere(f"push-{kind}", detail, push, expect)
    for field in (f for f in (*schema.SEND, *schema.PART) if f.type in schema.DOUBTFUL):
        path = field.path if "." in field.path else "message.parts"
        for item in schema.DOUBTFUL[field.type]:
            known = put(MINIMAL, "message.taskId", UNKNOWN)
            value = item if "." in field.path else [{field.path: item}]
            expect = codes(BAD, TASK_NOT_FOUND, CONTENT_TYPE, ids=(7,))
            detail = f"{field.path}={item!r}"
            yield from _everywhere("doubtful", detail, put(known, path, value), expect)
    for path, twin in (("message.messageId", "message_id"), ("message.contextId", "context_id")):
        for item in ("m-1", "m-2", None, 1):
            known = put(put(MINIMAL, "message.taskId", UNKNOWN), path, "m-1")
            known["message"][twin] = item
            expect = codes(BAD, TASK_NOT_FOUND, ids=(7,))
            yield _v1("both-spellings", f"{path}={item!r}", SENDS[0], known, expect)
            yield _rest("both-spellings", f"{path}={item!r}", REST_SENDS[0], known, expect)
    for path in ("metadata", "message.metadata"):
        for name in ("skillId", "skill"):
            for item in (
                "nope",
                "",
                "ECHO",
                "echo ",
                "../echo",
                "é",
                0,
                1.5,
                True,
                [],
                ["echo"],
                {},
            ):
                params = put(MINIMAL, path, {name: item})
                expect = _expect((f"{path}.{name}",))
                yield from _everywhere("skill", f"{path}.{name}={item!r}", params, expect)
    for context in ("c-1", "other"):
        both = put(put(MINIMAL, "message.taskId", UNKNOWN), "message.contextId", context)
        yield from _everywhere("unknown-task", context, both, codes(TASK_NOT_FOUND, ids=(7,)))


def _old_sends() -> Iterator[Case]:
    for method in OLD_SENDS:
        for name, around in OLD_SURROUNDINGS.items():
            for kind, detail, params, _ in faults(around, schema.OLD_SEND):
                loose = kind == "missing" and detail.startswith("message.role")
                if loose:
                    params = put(params, "message.taskId", UNKNOWN)
                wanted = (BAD, TASK_NOT_FOUND) if loose else (BAD,)
                yield _v03(kind, f"{name}/{detail}", method, params, *wanted)
        for detail, part in old_part_faults():
            for before in (0, 2):
                parts = [{"kind": "text", "text": "a"}] * before + [part]
                params = put(OLD_MINIMAL, "message.parts", parts)
                yield _v03("part", f"{before}/{detail}", method, params, BAD)
        for kind in ("task", "Message", "text", "status-update", "messages", 1, True, [], {}):
            params = put(OLD_MINIMAL, "message.kind", kind)
            yield _v03("kind", repr(kind), method, params, BAD)
        known = put(OLD_MINIMAL, "message.taskId", UNKNOWN)
        doubtful: list[tuple[str, Any]] = [("message.messageId", ABSENT), ("message.messageId", "")]
        doubtful += [("message.role", item) for item in schema.DOUBTFUL["old-role"]]
        doubtful += [("configuration.blocking", item) for item in schema.DOUBTFUL["bool"]]
        data = [{"kind": "data", "data": item} for item in ("a", 1, True, None, [1])]
        doubtful += [("message.parts", [part]) for part in data]
        for path, item in doubtful:
            detail = f"{path}={'absent' if item is ABSENT else repr(item)}"
            wanted = (BAD, TASK_NOT_FOUND, CONTENT_TYPE)
            yield _v03("doubtful", detail, method, put(known, path, item), *wanted)


def _reads() -> Iterator[Case]:
    for methods, more in ((schema.READS, ()), (schema.PUSH, (PUSH_UNSUPPORTED, TASK_NOT_FOUND))):
        for method, fields in methods.items():
            base = {f.path: UNKNOWN for f in fields if f.required}
            for kind, detail, params, named in faults(base, fields):
                expect = codes(BAD, *more, ids=(7,), fields=named, modern=True)
                yield _v1(kind, detail, method, params, expect)
                if snaked(params) != params:
                    yield _v1(kind, f"snake/{detail}", method, snaked(params), expect)
    for item in schema.NOT_STRING:
        expect = codes(BAD, UNSUPPORTED, NO_EXTENDED_CARD, ids=(7,))
        yield _v1("wrong", f"tenant={item!r}", "GetExtendedAgentCard", {"tenant": item}, expect)
    for methods, more in (
        (schema.OLD_READS, ()),
        (schema.OLD_PUSH, (PUSH_UNSUPPORTED, TASK_NOT_FOUND)),
    ):
        for method, fields in methods.items():
            base = {f.path: UNKNOWN for f in fields if f.required}
            for kind, detail, params, _ in faults(base, fields):
                yield _v03(kind, detail, method, params, BAD, *more)


# Query text that is wrong for a type; a query knows no types but text.
QUERY: dict[str, list[str]] = {
    "length": words(
        "abc 1.5 -1 -2147483648 2147483648 99999999999999999999 true null [] {} 0x10 1_000 --1 "
        "%D9%A3 %00 %0A1 1%00 1,2 %C2%BD NaN Infinity 1e99 %FF 1%202 '1' \"1\""
    ),
    "size": words("0 101 1000 2147483647 -0.5"),
    "bool": words("maybe 2 -1 yes%00 null [] {} TrUe%20x %FF truefalse 0.0"),
    "state": words(
        "done TASK_STATE_FOO TASK_STATE_ Completed%20x 9 99 -1 1.5 true [] %00 "
        "TASK_STATE_WORKING%00 TASK_STATE_WORKING,TASK_STATE_FAILED %FF "
        "task_state_working ROLE_USER"
    ),
    "time": words(
        "yesterday 2024-13-01T00:00:00Z 2024-02-30T00:00:00Z 2024-01-01T25:00:00Z 1704067200 0 -1 "
        "true [] {} %00 10000-01-01T00:00:00Z 2024-01-01T00:00:00Z%00 2024/01/01 T %FF "
        "2024-01-01T99 2024-01-01T00:00:00%2B99:00"
    ),
    "id": words("%00 a%00b %0A %20 a%20b %E2%80%AE %E2%80%8B %C3%A9 %F0%9F%98%80 %7F %FF %C0%80"),
}
QUERY["id"] += ["a" * 257, "a" * 1000]
QUERY["size"] += QUERY["length"]


def _queries() -> Iterator[Case]:
    for field in schema.LIST:
        for name in {field.path, schema.snake(field.path)}:
            for item in QUERY.get(field.type, []):
                query = f"{name}={item}"
                yield _get("query", "/tasks", query, (field.path,))
                yield _get("query", "/tasks", f"y=%20&{query}", (field.path,))
                yield _get("query", "/tasks", f"{query}&x=1", (field.path,))
    for item in QUERY["length"]:
        for name in ("historyLength", "history_length"):
            query = f"{name}={item}"
            yield _get("query", f"/tasks/{UNKNOWN}", query, ("historyLength",))
            yield _get("query", f"/tasks/{UNKNOWN}", f"x=%00&{query}", ("historyLength",))
    for detail, value in (*enumerate(schema.NOT_OBJECT), ("batch", [MINIMAL])):
        for path in REST_SENDS:
            expect = codes(BAD, -32600)
            yield _rest("not-object", f"{detail}={value!r}", path, value, expect)
    for item in schema.NOT_OBJECT:
        params = {"metadata": item}
        yield _rest("wrong", f"metadata={item!r}", f"/tasks/{UNKNOWN}:cancel", params, _expect())
    for first, second in (("t-1", "t-2"), ("a", "b")):
        path, params = f"/{first}/message:send", {**MINIMAL, "tenant": second}
        yield _rest("tenant", f"{first}≠{second}", path, params, codes(BAD, TASK_NOT_FOUND))


def _get(kind: str, path: str, query: str, fields: tuple[str, ...]) -> Case:
    # Text that is not UTF-8 belongs to no field yet: the query as a whole is refused.
    whole = "%FF" in query or "%C0" in query
    expect = codes(BAD, fields=() if whole else fields)
    return rest(3, f"rest/{kind}", f"{path}?{query[:60]}", "GET", path, expect, query=query)


def legal() -> Iterator[Case]:
    """Yield odd requests that are legal: the answer is that the task is unknown."""
    base = put(MINIMAL, "message.taskId", UNKNOWN)
    fine = codes(TASK_NOT_FOUND, ids=(7,), modern=True)
    unset = [f for f in schema.SEND if not f.required and f.path != "message.taskId"]
    for field in unset:
        yield from _everywhere("legal", f"{field.path}=null", put(base, field.path, None), fine)
    for path in ("x", "message.x", "configuration.x", "message.kind", "configuration.blocking"):
        for item in ("a", 1, None, [], {"b": [1]}, True):
            yield from _everywhere("legal", f"{path}={item!r}", put(base, path, item), fine)
    for item in (1, "ROLE_USER", 2, "ROLE_AGENT"):
        params = put(base, "message.role", item)
        yield from _everywhere("legal", f"message.role={item!r}", params, fine)
    for item in (0, 1, 2**31 - 1, "0", "5", "2147483647", 3.0, 0.0):
        params = put(base, "configuration.historyLength", item)
        yield from _everywhere("legal", f"historyLength={item!r}", params, fine)
    for path in ("message.contextId", "tenant"):
        yield from _everywhere("legal", f"{path} empty", put(base, path, ""), fine)
    loose = codes(TASK_NOT_FOUND, CONTENT_TYPE, ids=(7,), modern=True)
    for part in (
        {"text": ""}, {"data": None}, {"data": 0}, {"data": []}, {"raw": ""}, {"raw": "-_-_"},
        {"raw": "aGk"}, {"raw": "aGk="}, {"text": "a", "kind": "text"}, {"text": "a", "raw": None},
        {"text": "a", "media_type": "text/plain"}, {"data": 1e300}, {"data": 2**63}, {"data": "x"},
    ):  # fmt: skip
        params = put(base, "message.parts", [part])
        yield from _everywhere("legal", f"part {part}", params, loose)


def _pair(rng: random.Random, number: int, new: list[Bad], old: list[Bad]) -> Case:
    """Return a request with two faults; either may be the one that is named."""
    if rng.random() < 0.3:
        _, detail, params, _ = rng.choice(old)
        params = _second_fault(rng, params, schema.OLD_SEND)
        return _v03("pair", f"{number}/{detail}", rng.choice(OLD_SENDS), params, BAD)
    _, detail, params, _ = rng.choice(new)
    params = _second_fault(rng, params, schema.SEND)
    if rng.random() < 0.3:
        return _rest("pair", f"{number}/{detail}", rng.choice(REST_SENDS), params, codes(BAD))
    spelled = snaked(params) if rng.random() < 0.3 else params
    return _v1("pair", f"{number}/{detail}", rng.choice(SENDS), spelled, _expect())


def _second_fault(
    rng: random.Random, params: dict[str, Any], fields: list[Field]
) -> dict[str, Any]:
    broken = {name for name in ("message", "configuration") if name in params}
    broken = {name for name in broken if not isinstance(params[name], dict)}
    free = [f for f in fields if f.path.split(".")[0] not in broken and "." in f.path]
    field = rng.choice(free or [Field("metadata", "object")])
    return put(params, field.path, rng.choice(schema.WRONG[field.type]))
