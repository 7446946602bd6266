"""Results that are JSON in the right envelope and still no answer, in every dialect."""

from collections.abc import Iterator
from typing import Any

from tests.gateway.malformed.script import (
    AGENT,
    GONE,
    INVALID,
    MARK,
    PART,
    REFUSED,
    UNKNOWN,
    UNREACHABLE,
    Answering,
    Script,
    at,
    body,
    corvid_task,
    flat_task,
    old_task,
    operations,
    raw,
    result,
    task,
)
from tests.gateway.raw_peer import http

GOOD = task(history=[AGENT])
WHOLE: dict[str, Any] = {
    "null": None,
    "a number": 7,
    "a text": MARK,
    "a list": [MARK],
    "an empty object": {},
    "a member nobody knows": {MARK: {"x": MARK}},
    "no task in its place": {"task": None},
    "a list for a task": {"task": [MARK]},
    "an empty task": {"task": {}},
    "a text for a task": {"task": MARK},
    "task and message": {"task": GOOD, "message": AGENT},
    "a message without parts": {"message": {"messageId": MARK, "role": "ROLE_AGENT"}},
    "a message without a part": {"message": {"messageId": MARK, "role": "ROLE_AGENT", "parts": []}},
    "a message of nobody": {"message": {"messageId": MARK, "role": MARK, "parts": [PART]}},
    "a list for a message": {"message": [MARK]},
    "an event of a stream": {"statusUpdate": {"taskId": MARK}},
    "a card": {"name": MARK, "skills": []},
}
# Places of a good task, and what does not belong there.
PLACES: dict[str, list[Any]] = {
    "id": [..., "", None, 7, [MARK], {"x": MARK}, f"{MARK}\0", MARK * 1000],
    "contextId": [7, [MARK], {"x": MARK}],
    "status": [..., None, MARK, [], 7],
    "status.state": [..., None, "", MARK, 99, "TASK_STATE_UNHEARD_OF", [MARK]],
    "status.timestamp": [[MARK], {"x": MARK}],
    "status.message": [MARK, [MARK], {"x": MARK}],
    "artifacts": [MARK, {"x": MARK}, 7, [MARK], [[MARK]], [{}]],
    "artifacts.0.artifactId": [7, [MARK]],
    "artifacts.0.parts": [..., MARK, {"x": MARK}, [MARK], [7], [{}]],
    "artifacts.0.parts.0": [
        {"text": 7},
        {"text": MARK, "raw": "aGk="},
        {"raw": f"!{MARK}!"},
        {"raw": 7},
        {"url": [MARK]},
        {"data": 1, "text": MARK},
        {"x": MARK},
    ],
    "history": [MARK, {"x": MARK}, [MARK], [[MARK]]],
    "history.0.role": [MARK, 7, [MARK]],
    "metadata": [MARK, [MARK], 7],
}


def results() -> Iterator[Script]:
    for name, value in WHOLE.items():
        yield Script(f"result: {name}", result(value))
    for place, values in PLACES.items():
        for number, value in enumerate(values):
            given = at(GOOD | {"metadata": {}}, place, value)
            # A state of a later version is work, and then the agent is asked how it goes on.
            says = (INVALID, REFUSED) if value == "TASK_STATE_UNHEARD_OF" else (INVALID,)
            yield Script(f"task: {place} {number}", result({"task": given}), says=says)


def houses() -> Iterator[Script]:
    """What the other dialects make of the same."""
    olds = {
        "status": [..., MARK, []],
        "status.state": [..., MARK, 7],
        "id": [..., 7, ""],
        "artifacts": [MARK, [MARK]],
        "artifacts.0.parts.0": [{"kind": MARK}, {"kind": "text"}, {"kind": "file", "file": MARK}],
        "kind": [MARK, 7],
    }
    flats = {
        "status": [..., 7, MARK, [MARK]],
        "id": [..., 7, [MARK]],
        "messages": [MARK, [MARK], 7],
        "artifacts": [MARK, [MARK]],
        "artifacts.0.parts": [MARK, [MARK], 7],
    }
    corvids = {
        "state": [..., 7, MARK, [MARK]],
        "id": [..., 7, [MARK]],
        "messages": [MARK, [MARK], 7],
        "messages.0.parts": [..., MARK, [MARK], [{"type": "text"}]],
    }
    for name, good, places, how in (
        ("0.3", old_task(), olds, {"version": "0.3"}),
        ("REST of 0.3", {"task": {}}, {"task": [MARK]}, {"version": "0.3", "binding": "HTTP+JSON"}),
        ("nexus", flat_task(), flats, {"house": "nexus", "version": "0.2"}),
        ("corvid", corvid_task(), corvids, {"house": "corvid", "version": "0.2"}),
    ):
        for place, values in places.items():
            for number, value in enumerate(values):
                yield Script(f"{name}: {place} {number}", result(at(good, place, value)), **how)
    for name, how in (
        ("REST", {"binding": "HTTP+JSON"}),
        ("nexus", {"house": "nexus", "version": "0.2"}),
        ("corvid", {"house": "corvid", "version": "0.2"}),
    ):
        for said in (b"", b"[]", MARK.encode(), b"{" + MARK.encode(), b'{"a":1,"a":2}', b"NaN"):
            yield Script(f"{name}: {said[:6]!r}", body(said), **how)


SAID_NO = (INVALID, REFUSED, GONE, UNREACHABLE, UNKNOWN)


def readings() -> Iterator[Script]:
    """What is read of a task that the agent took."""
    working = result({"task": task("WORKING")})
    cases = {
        "another task": result(task(id=f"{MARK}")),
        "no JSON": body(MARK.encode()),
        "HTML": body(f"<html>{MARK}</html>".encode(), kind="text/html"),
        "no task": result({"x": MARK}),
        "null": result(None),
        "a task in a wrapper": result({"task": task(id=MARK)}),
        "a state nobody knows": result(at(task(), "status.state", MARK)),
        "a page": result({"tasks": [task()]}),
        "nothing": body(b""),
        "a wrong id": body({"jsonrpc": "2.0", "id": MARK, "result": task()}),
        "that it never was": body(
            b'{"jsonrpc":"2.0","id":%ID,"error":{"code":-32001,"message":"' + MARK.encode() + b'"}}'
        ),
        "that it may not be seen": raw(http(MARK.encode(), "403 Forbidden")),
        "a redirect": raw(http(MARK.encode(), "302 Found", "text/html", f"location: /{MARK}")),
        "silence": raw("hang"),
        "the end": raw("end"),
        "503": raw(http(MARK.encode(), "503 Busy")),
    }
    for name, answer in cases.items():
        yield Script(f"reading: {name}", working, operations(get=answer), says=SAID_NO)


def _at_second(first: Answering) -> Answering:
    """Answer well, but not the first time: such agents are asked again."""
    good = result(flat_task())
    return lambda asked: good(asked) if asked.before else first(asked)


RETRIED = {
    "a reset": raw("reset"),
    "503": raw(http(MARK.encode(), "503 Busy")),
    "500": raw(http(MARK.encode(), "500 Oops")),
    "silence": raw("hang"),
}

SCRIPTS = [
    *(
        Script(
            f"nexus: {name} at first",
            _at_second(answer),
            operations(get=result(flat_task())),
            house="nexus",
            version="0.2",
            ends="completed",
            says=(),
        )
        for name, answer in RETRIED.items()
    ),
    *results(),
    *houses(),
    *readings(),
    Script(
        "reading: it is done",
        result({"task": task("SUBMITTED")}),
        operations(get=result(task())),
        ends="completed",
        says=(),
    ),
    Script("0.3: good", result(old_task()), version="0.3", ends="completed", says=()),
    # In the shape of another version: read for what it means.
    Script("result: a task of 0.3", result(old_task()), ends="completed", says=()),
    Script(
        "task: a state of 0.3",
        result({"task": at(GOOD, "status.state", "completed")}),
        ends="completed",
        says=(),
    ),
    Script(
        "0.3: a state of 1.0",
        result(old_task("TASK_STATE_COMPLETED")),
        version="0.3",
        ends="completed",
        says=(),
    ),
    Script("REST: good", result({"task": task()}), binding="HTTP+JSON", ends="completed", says=()),
    Script(
        "nexus: good",
        result(flat_task()),
        operations(get=result(flat_task())),
        house="nexus",
        version="0.2",
        ends="completed",
        says=(),
    ),
    Script(
        "corvid: good",
        result(corvid_task()),
        operations(get=result(corvid_task())),
        house="corvid",
        version="0.2",
        ends="completed",
        says=(),
    ),
]
