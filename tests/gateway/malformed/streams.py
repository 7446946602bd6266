"""Streams that break off, go on, go back, or tell of something else."""

import json
from collections.abc import Iterator
from typing import Any

from dragoman.model.card import ONCE_URI, RESUME_URI
from tests.gateway.malformed.script import (
    AGENT,
    INVALID,
    LEGAL,
    MARK,
    REFUSED,
    UNKNOWN,
    UNREACHABLE,
    Answering,
    C,
    Script,
    T,
    at,
    body,
    chunk,
    event,
    operations,
    raw,
    result,
    status,
    stream,
    task,
)
from tests.gateway.raw_peer import STREAM, Answer, Asked, http

BEGUN = {"task": task("WORKING")}
DONE = status("COMPLETED")
_M = MARK.encode()
# Events of a task, at the gateway that plays these.
MOST = 2_000
BROKEN = (INVALID, UNREACHABLE, UNKNOWN, REFUSED)


def _events(count: int) -> Answering:
    def answer(asked: Asked) -> Answer:
        yield STREAM
        yield event(asked, BEGUN)
        piece = event(asked, chunk("x", append=True))
        yield event(asked, chunk("x"))
        for _ in range(count // 100):
            yield piece * 100
        yield event(asked, DONE)
        yield "end"

    return answer


def _endless(value: Any) -> Answering:
    def answer(asked: Asked) -> Answer:
        yield STREAM
        yield event(asked, BEGUN)
        yield event(asked, chunk())
        while True:
            yield event(asked, value)
            yield 0.02

    return answer


def _comments(asked: Asked) -> Answer:
    yield STREAM
    while True:
        yield b": " + _M + b"\n\n"
        yield 0.02


def _long_line(asked: Asked) -> Answer:
    yield STREAM + b"data: "
    # More than an event may have; nobody reads that far.
    for _ in range(100):
        yield b"x" * 0x10000


# Before the agent has said anything that counts.
BEFORE: dict[str, Answering] = {
    "nothing": stream(),
    "only comments": stream(b": " + _M + b"\n\n"),
    "a word": stream(_M),
    "data that is no JSON": stream(b"data: " + _M + b"\n\n"),
    "data cut within": stream(b'data: {"jsonrpc":"2.0","result":{"task"' + _M),
    "an event that is cut": stream(b'data: {"jsonrpc"'),
    "bytes that are no UTF-8": stream(b"data: \xff\xfe" + _M + b"\n\n"),
    "NUL": stream(b"data: \0" + _M + b"\n\n"),
    "duplicate keys": stream(b'data: {"jsonrpc":"2.0","jsonrpc":"' + _M + b'"}\n\n'),
    "NaN": stream(b'data: {"jsonrpc":"2.0","result":NaN}\n\n'),
    "another request's id": stream(
        b'data: {"jsonrpc":"2.0","id":"' + _M + b'","result":{"task":{}}}\n\n'
    ),
    "an error": stream(
        b'data: {"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"' + _M + b'"}}\n\n'
    ),
    "null": stream(b"data: null\n\n"),
    "a list": stream(b'data: ["' + _M + b'"]\n\n'),
    "an empty result": stream({}),
    "two kinds in one": stream({"task": task(), "message": AGENT}),
    "a task without a state": stream({"task": {"id": T, "contextId": C}}),
    "a state nobody knows": stream(at(BEGUN, "task.status.state", MARK)),
    "JSON in place of a stream": body(b'{"x":"' + _M + b'"}'),
    "HTML in place of a stream": body(b"<html>" + _M, kind="text/html"),
    "a stream that is called HTML": raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\ndata: " + _M, "end"
    ),
    "204": raw(http(b"", "204 No Content")),
    "302": raw(http(_M, "302 Found", "text/html", f"location: /{MARK}")),
    "500": raw(http(_M, "500 Oops")),
    "silence": stream(last="hang"),
    "comments for ever": _comments,
    "a line without end": _long_line,
}
# After the task was shown: what comes is wrong, and the agent cannot tell how the task stands.
AFTER: dict[str, list[Any]] = {
    "the end": [],
    "a word": [_M],
    "no JSON": [b"data: " + _M + b"\n\n"],
    "a status of another task": [status("COMPLETED", MARK)],
    "a chunk of another task": [chunk(MARK, taskId=MARK)],
    "another task": [{"task": task(id=MARK)}],
    "a message": [{"message": AGENT | {"parts": [{"text": MARK}]}}],
    "a state nobody knows": [at(DONE, "statusUpdate.status.state", MARK)],
    "no state": [at(DONE, "statusUpdate.status", {})],
    "a text for a status": [at(DONE, "statusUpdate.status", MARK)],
    "no status": [at(DONE, "statusUpdate.status", ...)],
    "no artifact": [at(chunk(), "artifactUpdate.artifact", ...)],
    "a text for an artifact": [at(chunk(), "artifactUpdate.artifact", MARK)],
    "parts that are none": [at(chunk(), "artifactUpdate.artifact.parts", [MARK])],
    "a part of two kinds": [
        at(chunk(), "artifactUpdate.artifact.parts.0", {"text": MARK, "data": 1})
    ],
    "a word for append": [chunk(append=True) | {"artifactUpdate": {"append": MARK}}],
    "two kinds in one": [DONE | chunk(MARK)],
    "no kind": [{MARK: 1}],
    "an error": [
        b'data: {"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"' + _M + b'"}}\n\n'
    ],
    "another request's id": [
        b"data: " + json.dumps({"jsonrpc": "2.0", "id": MARK, "result": DONE}).encode() + b"\n\n"
    ],
    "a chunk of an artifact that nobody began": [chunk(append=True), DONE],
    "submitted again": [status("SUBMITTED")],
    "unspecified": [status("UNSPECIFIED")],
}
# Good in the end, whatever else was said.
FINE: dict[str, list[Any]] = {
    "after the end": [DONE, chunk(MARK), status("FAILED"), {"task": task("FAILED")}],
    "a message after the end": [DONE, {"message": AGENT | {"parts": [{"text": MARK}]}}],
    "rubbish after the end": [DONE, b"data: " + _M + b"\n\n"],
    "submitted, then done": [status("SUBMITTED"), DONE],
    "a chunk after the last one": [
        chunk(lastChunk=True),
        chunk(append=True, lastChunk=True),
        DONE,
    ],
    "the task twice": [BEGUN, DONE],
    "comments": [b": " + _M + b"\n\n", DONE],
    "fields nobody knows": [b"x-" + _M + b": 1\nretry: 1e99\nretry: " + _M + b"\n", DONE],
    "an id with NUL": [b"id: \0" + _M + b"\n", DONE],
    "data in lines": [b"data:\ndata:\n\n", DONE],
    "a late task": [{"task": task()}],
}


def before() -> Iterator[Script]:
    for name, answer in BEFORE.items():
        yield Script(f"stream: {name}", answer, streaming=True, says=BROKEN)
    for name in ("nothing", "data that is no JSON", "silence", "an error", "a word"):
        yield Script(
            f"stream of one that works once: {name}",
            BEFORE[name],
            streaming=True,
            extensions=(ONCE_URI, RESUME_URI),
            says=BROKEN,
        )


def after() -> Iterator[Script]:
    rubbish = operations(get=body(_M), subscribe=body(_M))
    for name, events in AFTER.items():
        yield Script(
            f"after the task: {name}",
            stream(BEGUN, *events),
            rubbish,
            streaming=True,
            says=BROKEN,
        )
    still = operations(get=result(task("FAILED")), subscribe=stream({"task": task("FAILED")}))
    for name in ("the end", "no JSON", "another task", "an error", "no artifact"):
        yield Script(
            f"after the task, which failed: {name}",
            stream(BEGUN, *AFTER[name]),
            still,
            streaming=True,
            says=(),
        )
    good = operations(get=result(task()), subscribe=stream({"task": task()}))
    for name in ("the end", "no JSON", "an error"):
        yield Script(
            f"after the task, which completed: {name}",
            stream(BEGUN, *AFTER[name]),
            good,
            streaming=True,
            ends="completed",
            says=(),
        )


def positions() -> Iterator[Script]:
    """Positions that go back, stay, or are none."""
    both = (ONCE_URI, RESUME_URI)
    for name, numbers in {
        "going back": (5, 4, 3),
        "staying": (1, 1, 1),
        "without end": (1, 10**18, 10**17),
        "far beyond": (1, "9" * 40, "9" * 41),
        "negative": (1, -2, -3),
        "words": ("a", MARK, "c"),
    }.items():
        events = [(numbers[0], BEGUN), (numbers[1], chunk()), (numbers[2], DONE)]
        good = operations(get=result(task()), subscribe=stream((numbers[2], {"task": task()})))
        yield Script(
            f"positions: {name}",
            stream(*events),
            good,
            streaming=True,
            extensions=both,
            ends="completed",
            says=(),
        )


SCRIPTS = [
    *before(),
    *after(),
    *positions(),
    *(
        Script(f"fine: {name}", stream(BEGUN, *events), streaming=True, ends="completed", says=())
        for name, events in FINE.items()
    ),
    Script("stream: many events", _events(MOST // 2), streaming=True, ends="completed", says=()),
    Script(
        "stream: more events than a task may have",
        _events(MOST * 2),
        streaming=True,
        says=("limit",),
    ),
    Script(
        "stream: news for ever",
        _endless(status("WORKING", metadata={"x": "y"})),
        streaming=True,
        timeout=3.0,
        says=("time",),
    ),
    Script(
        "stream: chunks for ever",
        _endless(chunk(LEGAL, append=True)),
        streaming=True,
        timeout=3.0,
        says=("time",),
    ),
    Script(
        "stream of 0.3: events of 1.0",
        stream(BEGUN, DONE),
        streaming=True,
        version="0.3",
        ends="completed",
        says=(),
    ),
]
