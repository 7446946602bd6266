"""The codes and statuses of our errors in house dialects, where they are not those of 0.3.

One row per class, as `dialects.errors` has it; whatever has no row keeps its official code. The
words are the official ones: only codes and statuses differ, and what is told beside them.
"""

import re
from typing import NamedTuple

from dragoman import errors as classes
from dragoman.dialects import errors
from dragoman.dialects.errors import RestError
from dragoman.dialects.reading import Object
from dragoman.errors import A2AError, InvalidParams
from dragoman.model.patterns import late_pattern
from dragoman.model.task import TaskState, TaskStatus


class HouseErrorRow(NamedTuple):
    """One error in the houses; 0: as 0.3 has it."""

    error: type[A2AError]
    nexus: int = 0
    rx: int = 0
    rx_http: int = 0
    selectools: int = 0
    corvid: int = 0


_INVALID, _NO_METHOD, _NO_REQUEST = -32602, -32601, -32600

ROWS = (
    HouseErrorRow(classes.NoAgentAvailable, rx_http=400, corvid=404),
    HouseErrorRow(classes.InvalidParams, rx_http=400),
    HouseErrorRow(classes.TaskNotFound, _INVALID, rx=-32004, corvid=404),
    HouseErrorRow(classes.TaskNotCancelable, _INVALID, _INVALID, rx_http=409),
    HouseErrorRow(
        classes.UnsupportedOperation, _NO_METHOD, _NO_METHOD, 501, _NO_METHOD, corvid=405
    ),
    HouseErrorRow(classes.VersionNotSupported, _NO_REQUEST, _NO_REQUEST, 400, _NO_REQUEST, 400),
    HouseErrorRow(classes.ExtensionRequired, _INVALID, _INVALID, 400, _INVALID, 400),
)
_BY_CLASS = {row.error: row for row in ROWS}
# What is a failed task in all other dialects: how R calls it, and how such a task ends. R has a
# code for unknown contexts too; here a context is whatever a caller names.
_RX_FAILURES = (
    # Stores of earlier releases have the other words.
    (
        -32001,
        "Input timeout",
        late_pattern(r"Input timeout: (?:no answer|nobody answered) within ([\d.e+-]+) s\."),
    ),
    (-32002, "Tool execution failed", late_pattern(r"The tool \S+ has no answer: .*", re.DOTALL)),
)
# What a corvid client is told, where a word of theirs is known for it.
_CORVID_WORDS: dict[type[A2AError], str] = {
    classes.NoAgentAvailable: "Agent with default project not found",
    classes.TaskNotFound: "Task not found",
}


def row_of(error: A2AError) -> HouseErrorRow:
    """Return the row of an error."""
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            return _BY_CLASS[kind]
    return HouseErrorRow(type(error))


def nexus(error: A2AError) -> Object:
    """Return the `error` member of an answer to a NEXUS peer."""
    return _encoded(error, row_of(error).nexus)


def rx_failure(task_id: str, status: TaskStatus) -> A2AError | None:
    """Return the error that a task's failure is to an R peer; None: it has no code for it."""
    if status.state is not TaskState.FAILED or status.message is None:
        return None
    text = status.message.text
    for code, words, pattern in _RX_FAILURES:
        if found := pattern.fullmatch(text):
            about = {"timeoutSeconds": found[1]} if found.groups() else {"error": text}
            # No class of its own: nothing went wrong with the call, and only R says that it did.
            error = A2AError(words, taskId=task_id, **about)
            error.code = code
            return error
    return None


def rx(error: A2AError) -> Object:
    """Return the `error` member of an answer to an R peer, which looks for a reason in it."""
    if type(error) is A2AError and error.code is not None:
        facts: Object = dict(error.facts)
        if "timeoutSeconds" in facts:
            seconds = float(facts["timeoutSeconds"])
            facts["timeoutSeconds"] = int(seconds) if seconds.is_integer() else seconds
        return {"code": error.code, "message": error.public, "data": facts}
    member = _encoded(error, row_of(error).rx)
    data: Object = dict(member.get("data", {}))
    if isinstance(error, InvalidParams | classes.InvalidRequest | classes.ParseFailed):
        data["reason"] = error.public
    elif isinstance(error, classes.PermissionDenied):
        data["reason"] = "FORBIDDEN"
    elif isinstance(error, classes.InternalError):
        data["error"] = error.public
    return {**member, "data": data} if data else member


def rx_rest(error: A2AError, task_id: str = "") -> RestError:
    """Return the HTTP status and the body of a REST answer to an R peer; those of other peers with
    the same bodies find the members of 0.3 beside theirs."""
    usual, body = errors.rest_0_x(error)
    status = row_of(error).rx_http or usual
    inner: Object = {"code": status, "message": body["message"]}
    if task_id:
        inner["data"] = {"taskId": task_id}
    return RestError(status, {"error": inner, **body})


def selectools(error: A2AError) -> Object:
    """Return the `error` member of an answer to a selectools peer."""
    return _encoded(error, row_of(error).selectools)


def corvid(error: A2AError) -> RestError:
    """Return the HTTP status and the body of an answer to a corvid peer: one sentence."""
    row = row_of(error)
    sentence = _CORVID_WORDS.get(row.error, error.public)
    return RestError(row.corvid or errors.http_status(error), {"error": sentence})


def _encoded(error: A2AError, code: int) -> Object:
    official = errors.jsonrpc(error, "0.3")
    return {**official, "code": code} if code else official
