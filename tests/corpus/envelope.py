"""Category 2: JSON that is no JSON-RPC request, names no method, or carries no parameters object.

The requests under the broken envelopes name a task nobody has, so even a server that reads them
leniently creates nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.corpus.case import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NO_EXTENDED_CARD,
    PUSH_UNSUPPORTED,
    TASK_NOT_FOUND,
    UNKNOWN,
    UNSUPPORTED,
    V1,
    VERSION,
    Case,
    codes,
    rpc,
    text,
)


class Base(NamedTuple):
    """A well-formed request and the refusals it earns when its envelope is right."""

    method: str
    params: Any
    headers: dict[str, str]
    refusals: tuple[int, ...]

    @property
    def modern(self) -> bool:
        return "/" not in self.method


MESSAGE = {
    "messageId": "m",
    "taskId": UNKNOWN,
    "role": "ROLE_USER",
    "parts": [{"text": "hello"}],
}
OLD_MESSAGE = {
    "kind": "message",
    "messageId": "m",
    "taskId": UNKNOWN,
    "role": "user",
    "parts": [{"kind": "text", "text": "hello"}],
}
PUSH = (PUSH_UNSUPPORTED, TASK_NOT_FOUND)
CONFIG = "tasks/pushNotificationConfig/"
V03 = {"a2a-version": "0.3"}

BASES = [
    Base("GetTask", {"id": UNKNOWN}, V1, (TASK_NOT_FOUND,)),
    Base("CancelTask", {"id": UNKNOWN}, V1, (TASK_NOT_FOUND,)),
    Base("SubscribeToTask", {"id": UNKNOWN}, V1, (TASK_NOT_FOUND,)),
    Base("SendMessage", {"message": MESSAGE}, V1, (TASK_NOT_FOUND,)),
    Base("SendStreamingMessage", {"message": MESSAGE}, V1, (TASK_NOT_FOUND,)),
    Base("ListTaskPushNotificationConfigs", {"taskId": UNKNOWN}, V1, PUSH),
    Base("GetExtendedAgentCard", {}, V1, (UNSUPPORTED, NO_EXTENDED_CARD)),
    Base("message/send", {"message": OLD_MESSAGE}, V03, (TASK_NOT_FOUND,)),
    Base("message/stream", {"message": OLD_MESSAGE}, {}, (TASK_NOT_FOUND,)),
    Base("tasks/get", {"id": UNKNOWN}, {}, (TASK_NOT_FOUND,)),
    Base("tasks/cancel", {"id": UNKNOWN}, V03, (TASK_NOT_FOUND,)),
    Base("tasks/resubscribe", {"id": UNKNOWN}, {}, (TASK_NOT_FOUND,)),
    Base(CONFIG + "list", {"id": UNKNOWN}, {}, PUSH),
]

NOT_JSONRPC = [
    None, True, False, 2, 2.0, -2, 20, 1.0, "", "2", "2.", "2.0.0", "2.00", "02.0", " 2.0", "2.0 ",
    "2.0\n", "1.0", "1.1", "3.0", "2,0", "v2.0", "２.0", "2.0\u200b", "2.0\x00", "jsonrpc", "JSON",
    [], ["2.0"], {}, {"2.0": "2.0"}, [2, 0],
]  # fmt: skip
NOT_ID = [True, False, [], [1], ["a"], {}, {"id": 1}, [[]], {"a": {"b": []}}, [None]]
# Legal by the letter of JSON-RPC though unwise: echoed unchanged, or refused with a null id.
ODD_ID = [
    None, 1.5, -0.5, 1e300, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1,
    10**40, 10**63, "x" * 257, "x" * 5000,
]  # fmt: skip
PLAIN_ID = [
    "", " ", "0", "null", "true", "1", 0, -1, 1, 2**31, 2**32, -(2**31), "a" * 64, "é", "日本",
    "😀", "\u202e", "\u200b", "a\nb", "\t", '"', "\\", "</script>", "\x7f", "\x00", "{}",
    "[]", "id", "-",
]  # fmt: skip
NOT_METHOD = [None, True, False, 0, 1, -1, 1.5, [], ["GetTask"], {}, {"method": "GetTask"}, ""]
NO_METHOD = [
    "getTask", "gettask", "GETTASK", "Gettask", "get_task", "GetTask ", " GetTask", "GetTask\n",
    "GetTask\x00", "GetTasks", "Get Task", "GetTask()", "A2AService.GetTask", "GetTask;CancelTask",
    "lf.a2a.v1.A2AService/GetTask", "/lf.a2a.v1.A2AService/GetTask", "Task", "Send", "SendMessages",
    "sendMessage", "Send\u200bMessage", "ＧetTask", "GetTаsk", "DeleteTask", "CreateTask", "Ping",
    "ResubscribeTask", "TaskSubscription", "ListTask", "GetAgentCard", "rpc.discover", "*", "?",
    "%",
    "GetTaskPushNotification", "SetTaskPushNotificationConfig", "\u202eksaTteG", "😀", "..",
    "a" * 64,
    "a" * 4096, "😀" * 1000, "null", "0", "-32601", "GetTask\u0301", "<b>GetTask</b>",
    "' OR 1=1 --",
    "${jndi:ldap://x}", "{{7*7}}", "%00", "%s%s%s%n", "\r\nX: y", "\\", '"', "message.send", "send",
]  # fmt: skip
NO_OLD_METHOD = [
    "tasks/list", "tasks/get/", "/tasks/get", "tasks//get", "tasks/Get", "TASKS/GET", "tasks/get ",
    "task/get", "tasks/delete", "tasks/create", "message", "message/", "/", "//", "message/sent",
    "messages/send", "message/Send", "message:send", "message\\send", "tasks/get\x00",
    "tasks/../get",
    "tasks/pushNotificationConfig", CONFIG, CONFIG + "put", CONFIG + "Set", "agent/getCard",
    "agent/", "tasks/resubscribe/x", "tasks/get?id=1", "tasks／get", "tasks/gеt", "initialize",
    "notifications/initialized", "tools/list", "message/stream/x", "a/" * 1000,
]  # fmt: skip
NOT_PARAMS = [
    [], [1], ["a"], [{"id": UNKNOWN}], "", "params", "{}", 0, 1, -1, 1.5, True, False, [[]], [None],
]  # fmt: skip
EXTRA = [
    {"x": 1}, {"result": {}}, {"error": {"code": 1}}, {"meta": None}, {"params2": []},
    {"$ref": "#"},
    {"auth": "x"}, {"jsonrpc2": "2.0"}, {"A2A-Version": "9.9"}, {"": 1}, {"\u202e": 1},
    {"extra": "e"},
]  # fmt: skip
RENAMED = {
    "jsonrpc": ["JSONRPC", "jsonRpc", "json-rpc", "jsonrpc ", "version"],
    "method": ["Method", "METHOD", "methods", "method ", "action"],
}
SCALARS = [None, True, False, 0, 1, -1, 2.5, "", "x", "{}", '{"jsonrpc":"2.0"}', {}, 10**30]

BAD_VERSIONS = [
    "INVALID", "2", "2.0", "99.0", "9.9", "0.0", "0.1", "3.1", "-1.0", "1.0-beta", "v1.0", "1,0",
    "1.0, 2.0", "0x1.0", "1.x", "latest", "*", "one", "1.0;q=1", '"1.0"', "10.0", "1..0", ".", "1.",
    ".0", "1e0", "null", "None", "00.0", "2026-11-16", "1" * 64, "1." + "0" * 2000 + "x",
]  # fmt: skip


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield each broken member alone, then random combinations up to `count`."""
    made = 0
    for case in _alone():
        made += 1
        yield case
    rng = random.Random(seed)
    while made < count:
        made += 1
        yield _combined(rng, made)


def _envelope(base: Base, **members: Any) -> dict[str, Any]:
    found = {"jsonrpc": "2.0", "id": "e-1", "method": base.method, "params": base.params}
    found.update(members)
    return found


def _case(
    kind: str, detail: str, base: Base, value: Any, *wanted: int, ids: tuple[Any, ...] = ("e-1",)
) -> Case:
    modern = _modern(base, value)
    expect = codes(*wanted, ids=ids, modern=modern)
    return rpc(2, kind, f"{base.method}/{detail}", text(value), expect, headers=base.headers)


def _modern(base: Base, value: Any) -> bool | None:
    """Say whether 1.0 details are due: by the header, else by the method while it can be read."""
    if base.headers:
        return base.headers == V1
    return False if value.get("method") == base.method else None


def _alone() -> Iterator[Case]:
    for base in BASES:
        yield from _broken_members(base)
        yield from _methods(base)
        yield from _versions(base)
        for extra in EXTRA:
            value = {**_envelope(base), **extra}
            yield _case("extra-member", json.dumps(extra), base, value, *base.refusals)
    yield from _not_objects()


def _broken_members(base: Base) -> Iterator[Case]:
    bad = INVALID_REQUEST
    for member in ("jsonrpc", "method"):
        value = _envelope(base)
        del value[member]
        yield _case("absent", member, base, value, bad)
        for name in RENAMED[member]:
            renamed = {name if k == member else k: v for k, v in _envelope(base).items()}
            yield _case("renamed", f"{member}={name}", base, renamed, bad)
    for wrong in NOT_JSONRPC:
        yield _case("jsonrpc", repr(wrong), base, _envelope(base, jsonrpc=wrong), bad)
    for wrong in NOT_METHOD:
        yield _case("method-type", repr(wrong), base, _envelope(base, method=wrong), bad)
    for wrong in NOT_ID:
        yield _case("id-type", repr(wrong), base, _envelope(base, id=wrong), bad, ids=(None,))
    notification = _envelope(base)
    del notification["id"]
    yield _case("notification", "no id", base, notification, bad, ids=(None,))
    for name in ("ID", "Id", "id ", "identifier"):
        value = {name if k == "id" else k: v for k, v in _envelope(base).items()}
        yield _case("notification", f"id={name}", base, value, bad, ids=(None,))
    for odd in ODD_ID:
        ids = (odd, None)
        wanted = (*base.refusals, bad)
        yield _case("odd-id", repr(odd)[:40], base, _envelope(base, id=odd), *wanted, ids=ids)
    for plain in PLAIN_ID:
        value = _envelope(base, id=plain)
        yield _case("plain-id", repr(plain)[:40], base, value, *base.refusals, ids=(plain,))
    for wrong in NOT_PARAMS:
        value = _envelope(base, params=wrong)
        yield _case("params-type", repr(wrong), base, value, INVALID_PARAMS)
    if base.params:
        value = _envelope(base, params=None)
        yield _case("params-null", "", base, value, INVALID_PARAMS)
        del value["params"]
        yield _case("params-absent", "", base, value, INVALID_PARAMS)
        yield _case("params-empty", "", base, _envelope(base, params={}), INVALID_PARAMS)


def _methods(base: Base) -> Iterator[Case]:
    if base.headers == V1:
        for name in NO_METHOD:
            # A slash names a 0.x method, which this version header rules out before the lookup.
            wanted = (METHOD_NOT_FOUND, VERSION) if "/" in name else (METHOD_NOT_FOUND,)
            yield _case("no-method", name[:40], base, _envelope(base, method=name), *wanted)
    elif base.headers == V03:
        for name in NO_OLD_METHOD:
            yield _case("no-method", name[:40], base, _envelope(base, method=name), -32601)
    else:
        for name in (*NO_OLD_METHOD, *NO_METHOD):
            value = _envelope(base, method=name)
            expect = codes(METHOD_NOT_FOUND, ids=("e-1",))
            yield rpc(2, "no-method", f"{base.method}/{name[:40]}", text(value), expect)


def _versions(base: Base) -> Iterator[Case]:
    value = text(_envelope(base))
    for wrong in BAD_VERSIONS:
        # 0.x has no such code: its sessions may be told in the words they know.
        older = not base.modern or wrong.startswith("0")
        wanted = (VERSION, INVALID_REQUEST) if older else (VERSION,)
        expect = codes(*wanted, ids=("e-1",))
        detail = f"{base.method}/{wrong[:40]}"
        yield rpc(2, "version-header", detail, value, expect, headers={"a2a-version": wrong})
        if all(c.isalnum() or c in ".-" for c in wrong):
            yield rpc(2, "version-query", detail, value, expect, query=f"A2A-Version={wrong}")
    other = {"a2a-version": "0.3"} if base.modern else V1
    wanted = (VERSION, INVALID_REQUEST, METHOD_NOT_FOUND) if base.modern else (VERSION,)
    expect = codes(*wanted, ids=("e-1",))
    yield rpc(2, "version-contradicts", base.method, value, expect, headers=other)


def _not_objects() -> Iterator[Case]:
    null = codes(INVALID_REQUEST)
    for headers in ({}, V1, V03):
        version = headers.get("a2a-version", "none")
        for path in ("/", "/rpc", "/a2a"):
            for value in SCALARS:
                detail = f"{version}{path}/{value!r}"[:60]
                yield rpc(2, "not-object", detail, text(value), null, headers=headers, path=path)
            for detail, batch in _batches():
                name = f"{version}{path}/{detail}"
                yield rpc(2, "batch", name, text(batch), null, headers=headers, path=path)


def _batches() -> Iterator[tuple[str, list[Any]]]:
    yield "empty", []
    yield "nested", [[]]
    yield "null", [None]
    yield "numbers", [1, 2, 3]
    yield "strings", ["GetTask"]
    for base in BASES[:10]:
        one = _envelope(base)
        yield f"one {base.method}", [one]
        yield f"two {base.method}", [one, {**one, "id": "e-2"}]
        yield f"mixed {base.method}", [one, 1, {}]
    yield "many", [_envelope(BASES[0], id=n) for n in range(200)]


def _combined(rng: random.Random, number: int) -> Case:
    """Return a request with several members broken at once; the envelope is judged first."""
    base = rng.choice(BASES)
    value = _envelope(base, id=rng.choice((number, f"e-{number}")))
    ids: tuple[Any, ...] = (value["id"],)
    broken = rng.sample(["jsonrpc", "method", "id", "params"], rng.choice((2, 2, 3, 4)))
    for member in broken:
        pool = {
            "jsonrpc": NOT_JSONRPC, "method": NOT_METHOD, "id": NOT_ID, "params": NOT_PARAMS,
        }[member]  # fmt: skip
        value[member] = rng.choice(pool)
        if rng.random() < 0.2:
            del value[member]
    if "id" in broken:
        ids = (None,)
    for _ in range(rng.randrange(3)):
        value.update(rng.choice(EXTRA))
    members = list(value.items())
    rng.shuffle(members)
    # At least one of them is not params, so the envelope decides; but that there is no id is said
    # after what is wrong with the params.
    is_silent = {*broken} == {"id", "params"} and "id" not in value
    is_wrong = "params" in value or bool(base.params)
    wanted = INVALID_PARAMS if is_silent and is_wrong else INVALID_REQUEST
    detail = f"{'+'.join(sorted(broken))}/{number}"
    return _case("combined", detail, base, dict(members), wanted, ids=ids)
