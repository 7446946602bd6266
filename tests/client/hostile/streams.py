"""Event streams: good ones in every spelling and cut at every byte, and bad ones of every kind."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dragoman.model.card import JSONRPC
from dragoman.model.events import Event
from dragoman.model.task import TaskState
from tests.client.hostile.mutations import NO_JSON, mutations, text
from tests.client.stub import (
    EVENTS,
    Asked,
    Said,
    artifact,
    chunk,
    enveloped,
    got,
    said,
    status,
    task,
    wire,
)

END = task(TaskState.COMPLETED, "bye", artifacts=[artifact("a", "b")], history=[said("hello")])
GOOD: list[Event] = [
    task(),
    status(message="hello"),
    chunk("a", append=False),
    chunk("b"),
    status(TaskState.COMPLETED, "bye"),
]


class Case(NamedTuple):
    """How a stream is answered, and whether it has to come to the right end."""

    name: str
    answer: Callable[[Asked, bytes], Said]
    is_good: bool = False
    # Whether only the first stream is answered so, and a good one follows.
    once: bool = False


def frames(asked: Asked) -> list[bytes]:
    """The events of the good stream, each as it stands on the wire."""
    made: list[bytes] = []
    for seq, event in enumerate(GOOD, 1):
        data = wire(asked, event)
        data = enveloped(asked, data) if asked.id is not None else data
        made.append(b"id: %d\ndata: %b\n\n" % (seq, data))
    return made


def whole(*pieces: bytes, **more: Any) -> Said:
    return Said(headers=EVENTS, pieces=pieces, **more)


def is_get(asked: Asked) -> bool:
    is_rest_get = asked.verb == "GET" and ":subscribe" not in asked.url
    return asked.method in ("GetTask", "tasks/get") or is_rest_get


def peer(case: Case) -> Callable[[Asked], Said]:
    """A peer that streams as the case says, and answers well how the task stands."""
    count = 0

    def answer(asked: Asked) -> Said:
        nonlocal count
        if is_get(asked):
            if asked.id is not None:
                return got(asked, END)
            return Said(pieces=[wire(asked, END)[len(b'{"task":') : -1]])
        count += 1
        body = b"".join(frames(asked))
        return whole(body) if case.once and count > 1 else case.answer(asked, body)

    return answer


def cuts(length: int) -> Iterator[Case]:
    """The good stream, cut at every byte; then it comes again from its beginning."""
    for place in range(length):
        yield Case(
            f"cut at {place}",
            lambda asked, body, place=place: whole(body[:place], is_cut=True),
            is_good=True,
            once=True,
        )
        if place % 5 == 0:
            yield Case(
                f"ended at {place}",
                lambda asked, body, place=place: whole(body[:place]),
                is_good=place > 400,
                once=True,
            )


SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda body: body,
    "cr": lambda body: body.replace(b"\n", b"\r"),
    "crlf": lambda body: body.replace(b"\n", b"\r\n"),
    "mixed ends": lambda body: re.sub(rb"\n(data)", rb"\r\n\1", body).replace(b"}\n\n", b"}\r\n\r"),
    "a mark": lambda body: b"\xef\xbb\xbf" + body,
    "no space": lambda body: body.replace(b"data: ", b"data:"),
    "comments": lambda body: body.replace(b"data: ", b": junk\n:\ndata: "),
    "names": lambda body: body.replace(b"data: ", b"event: message\ndata: "),
    "unknown fields": lambda body: body.replace(b"data: ", b"retry: 1e99\nfoo: bar\nx\ndata: "),
    "retry": lambda body: b"retry: 99999999999999999999\n" + body,
    "empty events": lambda body: body.replace(b"\n\n", b"\n\ndata:\n\n\n\n\n"),
    "lines": lambda body: body.replace(b',"contextId"', b',\ndata: "contextId"'),
    "id last": lambda body: re.sub(rb"(id: \d+\n)(data: .*\n)", rb"\2\1", body),
    "bad utf-8 in a comment": lambda body: b": \xff\xfe\n" + body,
    "a nul in an unknown id": lambda body: b"id: a\0b\n" + body,
    "a huge comment": lambda body: b":" + b"x" * 200_000 + b"\n" + body,
    "many comments": lambda body: b": x\n" * 20_000 + body,
    "bytes after the end": lambda body: body + b"data: junk\n\n",
}


def spellings() -> Iterator[Case]:
    """The good stream in every spelling, in pieces of every kind."""
    for name, spell in SPELLINGS.items():
        for size in (1, 2, 3, 7, 64, 1000, 1 << 30):
            yield Case(
                f"{name} in pieces of {size}",
                lambda asked, body, spell=spell, size=size: whole(*pieces(spell(body), size)),
                is_good=True,
            )


def pieces(body: bytes, size: int) -> list[bytes]:
    if len(body) > 20_000:
        size = max(size, 1000)
    return [body[n : n + size] for n in range(0, len(body), size)]


TYPES = [
    "",
    "text/html",
    "application/json",
    "text/plain",
    "application/octet-stream",
    "text/event-streams",
    "application/x-ndjson",
    "TEXT/EVENT-STREAM; charset=latin-1",
    "text/event-stream;;;",
    " text/event-stream ",
    "\x7f",
    "multipart/mixed; boundary=" + "x" * 5000,
]
IDS = [
    b"",
    b"-1",
    b"1e99",
    b"9" * 500,
    b"\xff",
    b"0x10",
    b" 7",
    b"7 ",
    b"\xd9\xa3",
    b"a\0b",
    b"nan",
]


def junk() -> Iterator[Case]:
    """Streams that say nothing, or something else."""
    for name, bad in NO_JSON.items():
        data = bad.replace(b"\n", b" ").replace(b"\r", b" ")
        for before in range(3):
            yield Case(
                f"{name} after {before} events",
                lambda asked, body, data=data, before=before: whole(
                    b"".join(frames(asked)[:before]), b"data: " + data + b"\n\n"
                ),
            )
        yield Case(f"{name} as it is", lambda asked, body, bad=bad: whole(bad))
    for kind in TYPES:
        yield Case(
            f"the type {kind[:40]!r}",
            lambda asked, body, kind=kind: Said(headers={"content-type": kind}, pieces=[body]),
        )
    for id in IDS:
        yield Case(
            f"the id {id[:20]!r}",
            lambda asked, body, id=id: whole(re.sub(rb"id: \d+", b"id: " + id, body)),
        )
    for name in ("error", "ERROR", "x" * 1000, "\0"):
        yield Case(
            f"events called {name[:10]!r}",
            lambda asked, body, name=name: whole(
                body.replace(b"data: ", b"event: " + name.encode() + b"\ndata: ")
            ),
        )
    orders = {
        "backwards": [4, 3, 2, 1, 0],
        "without the task": [1, 2, 3, 4],
        "the end first": [4, 0, 1],
        "only the end": [4],
        "everything twice": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
        "the task again": [0, 1, 2, 0, 3, 4],
        "swapped": [0, 2, 1, 3, 4],
        "no end": [0, 1, 2, 3],
        "nothing": [],
    }
    for name, order in orders.items():
        yield Case(
            name,
            lambda asked, body, order=order: whole(b"".join(frames(asked)[n] for n in order)),
        )
    yield Case("comments only", lambda asked, body: whole(b": x\n\n" * 100))
    yield Case("no newline at all", lambda asked, body: whole(body.replace(b"\n", b"")))


def wrong_events(binding: str, asked: Asked) -> Iterator[Case]:
    """Each event of the good stream with each of its places wrong."""
    for number, event in enumerate(GOOD):
        value = json.loads(wire(asked, event))
        if binding == JSONRPC:
            value = {"jsonrpc": "2.0", "id": "ID", "result": value}
        for name, bad in mutations(value):
            # Every place, but not every pair of place and value with every event.
            if hash_of(f"{number}{name}") % 3:
                continue
            data = text(bad)
            yield Case(
                f"event {number}: {name}",
                lambda asked, body, number=number, data=data: whole(
                    *frames(asked)[:number],
                    b"data: " + data.replace(b'"ID"', text(asked.id)) + b"\n\n",
                    *frames(asked)[number + 1 :],
                ),
            )


def hash_of(name: str) -> int:
    """A number of a name that is the same in every run."""
    return sum(n * ord(character) for n, character in enumerate(name, 1))
