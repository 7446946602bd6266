"""An answer of the server, and the judgement whether it is one of those a case allows.

The judgement knows the error table of both bindings and the words that must never leave the house.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.corpus.case import (
    CONTENT_TYPE,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NO_EXTENDED_CARD,
    NOT_CANCELABLE,
    PARSE,
    PUSH_UNSUPPORTED,
    TASK_NOT_FOUND,
    UNSUPPORTED,
    VERSION,
    Case,
)

# code -> (REST status, ErrorInfo.reason), the 1.0.1 column.
TABLE = {
    PARSE: (400, "INVALID_REQUEST"),
    INVALID_REQUEST: (400, "INVALID_REQUEST"),
    METHOD_NOT_FOUND: (404, "METHOD_NOT_FOUND"),
    INVALID_PARAMS: (400, "INVALID_PARAMS"),
    TASK_NOT_FOUND: (404, "TASK_NOT_FOUND"),
    NOT_CANCELABLE: (400, "TASK_NOT_CANCELABLE"),
    PUSH_UNSUPPORTED: (400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    UNSUPPORTED: (400, "UNSUPPORTED_OPERATION"),
    CONTENT_TYPE: (400, "CONTENT_TYPE_NOT_SUPPORTED"),
    NO_EXTENDED_CARD: (400, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    VERSION: (400, "VERSION_NOT_SUPPORTED"),
}

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"

INTERNALS = re.compile(
    rb"traceback|msgspec|python|sqlite|apsw|uvicorn|uvloop|httptools|asyncio|starlette|pydantic"
    rb"|site-packages|dragoman[./]|\.py\b|object at 0x|<class|NoneType|__\w+__"
    rb"|(?:Key|Value|Type|Attribute|Index|Unicode\w*|Recursion|Overflow|Assertion|Runtime|Decode|"
    rb"Validation)Error|exception|codec can't|/(?:usr|home|work|tmp|etc|root)/"
    # Type names of the implementation language and paths in the library's own notation.
    rb"|Expected `|got `|at `\$|\b(?:str|int|dict|list|float|bool) \|",
    re.IGNORECASE,
)

# An error is a sentence with details, not a mirror of the request.
LONGEST_ERROR = 8 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and the whole body; `pulled` counts the body bytes the server took."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float = 0.0
    pulled: int = 0

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


def judge(case: Case, answer: Answer) -> str | None:
    """Return what is wrong with the answer, or None."""
    if answer.status >= 500:
        return f"status {answer.status}"
    if answer.seconds > 5:
        return f"answered after {answer.seconds:.1f} s"
    leak = INTERNALS.search(answer.body)
    if leak:
        return f"internals in the answer: {leak.group().decode(errors='replace')!r}"
    if answer.streams:
        return None if case.expect.accepted else "a stream was opened"
    try:
        value = json.loads(answer.body)
    except ValueError:
        return f"the answer is not JSON (status {answer.status})"
    if not isinstance(value, dict):
        return "the answer is not an object"
    return (
        _jsonrpc(case, answer, value) if case.binding == "jsonrpc" else _rest(case, answer, value)
    )


def _jsonrpc(case: Case, answer: Answer, value: dict[str, Any]) -> str | None:
    expect = case.expect
    if answer.status != 200:
        return f"status {answer.status} on JSON-RPC"
    if value.get("jsonrpc") != "2.0" or "id" not in value:
        return "not a JSON-RPC response"
    if "result" in value:
        if not expect.accepted or "error" in value:
            return "accepted"
        return None if _echoes(value["id"], expect.ids) else f"id {value['id']!r} echoed"
    error = value.get("error")
    if not isinstance(error, dict) or set(value) != {"jsonrpc", "id", "error"}:
        return "not a JSON-RPC error response"
    code = error.get("code")
    if code not in expect.codes:
        return f"code {code}"
    if not _echoes(value["id"], expect.ids):
        return f"id {str(value['id'])[:80]!r} echoed"
    if not isinstance(error.get("message"), str) or not error["message"]:
        return "error without a message"
    if len(answer.body) > LONGEST_ERROR + 2 * len(json.dumps(value["id"])):
        return f"an error of {len(answer.body)} bytes"
    data = error.get("data")
    if expect.modern is False and isinstance(data, list):
        return "1.0 details in a 0.x session"
    if expect.modern:
        return _details(data, {TABLE[code][1]}, expect.fields if code == INVALID_PARAMS else ())
    return None


def _rest(case: Case, answer: Answer, value: dict[str, Any]) -> str | None:
    expect = case.expect
    if answer.status < 400:
        return None if expect.accepted else "accepted"
    statuses = expect.statuses or {TABLE[code][0] for code in expect.codes}
    if answer.status not in statuses:
        return f"status {answer.status}"
    if len(answer.body) > LONGEST_ERROR:
        return f"an error of {len(answer.body)} bytes"
    error = value.get("error")
    if not isinstance(error, dict):
        return "not a REST error body"
    if error.get("code") != answer.status or not isinstance(error.get("status"), str):
        return "error.code or error.status is not the one sent"
    if not isinstance(error.get("message"), str) or not error["message"]:
        return "error without a message"
    if expect.statuses:
        return None
    reasons = {TABLE[code][1] for code in expect.codes}
    alone = expect.codes == {INVALID_PARAMS}
    return _details(error.get("details"), reasons, expect.fields if alone else ())


def _details(data: Any, reasons: set[str], fields: tuple[str, ...]) -> str | None:
    if not isinstance(data, list) or not all(isinstance(d, dict) and d.get("@type") for d in data):
        return "details are not a list of typed objects"
    info = [d for d in data if d["@type"] == ERROR_INFO]
    if len(info) != 1 or info[0].get("domain") != "a2a-protocol.org":
        return "no ErrorInfo in the details"
    if info[0].get("reason") not in reasons:
        return f"reason {info[0].get('reason')}"
    if not all(isinstance(v, str) for v in info[0].get("metadata", {}).values()):
        return "ErrorInfo.metadata holds a value that is no string"
    if not fields:
        return None
    named = [
        violation.get("field", "")
        for d in data
        if d["@type"] == BAD_REQUEST
        for violation in d.get("fieldViolations", [])
    ]
    if not named:
        return "no field violation"
    if any(_within(name, field) for name in named for field in fields):
        return None
    return f"field {named[0]!r} named instead of {fields[0]!r}"


def _within(name: str, field: str) -> bool:
    return name == field or name.startswith((field + ".", field + "["))


def _echoes(sent: Any, allowed: tuple[Any, ...]) -> bool:
    return any(type(sent) is type(one) and sent == one for one in allowed)
