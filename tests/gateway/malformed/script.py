"""What a script is, and the good values that bad ones are made of.

Every script has `MARK` wherever its agent says something that no caller may see.
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.gateway.raw_peer import STREAM, Answer, Asked, Move, http

MARK = "upstream-7f3a91"
LEGAL = "a good answer"
INVALID = "not valid A2A"
UNREACHABLE = "could not be reached"
NO_A2A = "There is no A2A at this address"
REFUSED = "refused the task"
UNKNOWN = "Delivery unknown"
GONE = "does not know the task"
Ending = Literal["failed", "completed"]
Answering = Callable[[Asked], Answer]


def refused(asked: Asked) -> Answer:
    """What an agent says to whatever the script has no word for."""
    error = {"code": -32601, "message": f"Method not found {MARK}"}
    if asked.id is None:
        return [http(json.dumps({"error": error | {"code": 404}}).encode(), "404 Not Found")]
    return [http(json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode())]


@dataclass(frozen=True)
class Script:
    """What an agent answers to a message and to what is asked afterwards."""

    name: str
    send: Answering
    later: Answering = refused
    # How its task has to end, and one of what it has to say then.
    ends: Ending = "failed"
    says: tuple[str, ...] = (INVALID,)
    version: str = "1.0"
    binding: str = "JSONRPC"
    streaming: bool = False
    extensions: tuple[str, ...] = ()
    house: Literal["", "nexus", "corvid"] = ""
    # For scripts that go on for ever.
    timeout: float = 0.0

    def answer(self, asked: Asked) -> Answer:
        return self.send(asked) if asked.operation == "send" else self.later(asked)


# Good values

T, C = "t-1", "c-1"
PART = {"text": LEGAL}
AGENT = {"messageId": "m-9", "role": "ROLE_AGENT", "parts": [PART]}


def task(state: str = "COMPLETED", **more: Any) -> dict[str, Any]:
    """Return a task of 1.0; one that completed has an artifact."""
    made: dict[str, Any] = {
        "id": T,
        "contextId": C,
        "status": {"state": f"TASK_STATE_{state}", "timestamp": "2026-01-01T00:00:00Z"},
    }
    if state == "COMPLETED":
        made["artifacts"] = [{"artifactId": "a-1", "parts": [PART]}]
    return made | more


def status(state: str = "WORKING", task_id: str = T, **more: Any) -> dict[str, Any]:
    inner = {"taskId": task_id, "contextId": C, "status": {"state": f"TASK_STATE_{state}"}}
    return {"statusUpdate": inner | more}


def chunk(text: str = LEGAL, *, append: bool = False, **more: Any) -> dict[str, Any]:
    artifact = {"artifactId": "a-1", "parts": [{"text": text}]}
    inner: dict[str, Any] = {"taskId": T, "contextId": C, "artifact": artifact, "append": append}
    return {"artifactUpdate": inner | more}


def old_task(state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return a task of 0.3."""
    part = {"kind": "text", "text": LEGAL}
    made: dict[str, Any] = {
        "kind": "task",
        "id": T,
        "contextId": C,
        "status": {"state": state},
        "artifacts": [{"artifactId": "a-1", "parts": [part]}],
    }
    return made | more


def flat_task(status: Any = "completed", **more: Any) -> dict[str, Any]:
    """Return a task of NEXUS."""
    made: dict[str, Any] = {
        "id": T,
        "status": status,
        "messages": [{"role": "agent", "parts": [{"type": "text", "data": LEGAL}]}],
        "artifacts": [{"parts": [{"type": "text", "data": LEGAL}]}],
    }
    return made | more


def corvid_task(state: Any = "completed", **more: Any) -> dict[str, Any]:
    said = {"role": "agent", "parts": [{"type": "text", "text": LEGAL}]}
    return {"id": T, "state": state, "messages": [said], "sessionId": None} | more


# Answers


def dumped(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def result(value: Any) -> Answering:
    """Answer with a result in the envelope that was asked in, or bare over REST."""

    def answer(asked: Asked) -> Answer:
        if asked.id is None:
            return [http(dumped(value))]
        inner = dumped(value)
        return [http(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (dumped(asked.id), inner))]

    return answer


def body(value: Any, **how: Any) -> Answering:
    """Answer with a body as it is; `%ID` stands for the id of the request."""

    def answer(asked: Asked) -> Answer:
        return [http(dumped(value).replace(b"%ID", dumped(asked.id)), **how)]

    return answer


def raw(*moves: Move) -> Answering:
    return lambda asked: moves


def event(asked: Asked, value: Any, *, id: Any = None, kind: str = "") -> bytes:
    """Return an event of a stream; bytes are its data as they are."""
    data = value
    if not isinstance(value, bytes):
        inner = {"jsonrpc": "2.0", "id": asked.id, "result": value}
        data = json.dumps(inner if asked.id is not None else value).encode()
    lines = [b"data: " + data]
    if id is not None:
        lines.insert(0, f"id: {id}".encode())
    if kind:
        lines.insert(0, f"event: {kind}".encode())
    return b"\n".join(lines) + b"\n\n"


def stream(*events: Any, last: Move = "end") -> Answering:
    """Answer with a stream of events; bytes are written as they are, pairs have a position."""

    def answer(asked: Asked) -> Iterable[Move]:
        yield STREAM
        for one in events:
            if isinstance(one, bytes | float):
                yield one
            elif isinstance(one, tuple):
                yield event(asked, one[1], id=one[0])
            else:
                yield event(asked, one)
        yield last

    return answer


def operations(**answers: Answering) -> Answering:
    """Answer by the operation that is asked for."""

    def answer(asked: Asked) -> Answer:
        return answers.get(asked.operation, refused)(asked)

    return answer


def at(value: Any, path: str, new: Any) -> Any:
    """Return a copy with something else at a place `a.b.0`; `...` takes the place out."""
    copied = copy.deepcopy(value)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = copied
    for key in way:
        place = place[key]
    if new is ...:
        del place[last]
    else:
        place[last] = new
    return copied


def each(prefix: str, cases: Mapping[str, Answering], **how: Any) -> list[Script]:
    """Return a script for each answer."""
    return [Script(f"{prefix}: {name}", answer, **how) for name, answer in cases.items()]
