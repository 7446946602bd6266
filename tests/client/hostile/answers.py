"""Single answers: good ones to every operation with every place wrong, errors of every shape and
code, statuses without a body."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from dragoman.client.client import Client
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.message import Role
from dragoman.model.push import PushConfig
from dragoman.model.record import TaskReading
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply
from tests.client.hostile.mutations import DEEP, NO_JSON, mutations, text
from tests.client.hostile.streams import END, frames, hash_of
from tests.client.stub import EVENTS, JSON, Asked, Said, T, card, chunk, said, task


class Call(NamedTuple):
    """One call of the client, and what a good peer answers to it."""

    name: str
    make: Callable[[Client], Awaitable[Any]]
    operation: ops.Operation
    reply: Reply


async def _all(items: Any) -> list[Any]:
    async with items:
        return [item async for item in items]


async def _pages(items: Any) -> list[Any]:
    return [item async for item in items]


REPLY = TaskReply(TaskReading(0, END))
CONFIG = PushConfig(id="p", url="https://receiver.test/", task_id=T)
CALLS = [
    Call(
        "send",
        lambda client: client.send("hi"),
        ops.SendMessage(message=said("m", Role.USER)),
        REPLY,
    ),
    Call("get", lambda client: client.get(T), ops.GetTask(task_id=T), REPLY),
    Call("cancel", lambda client: client.cancel(T), ops.CancelTask(task_id=T), REPLY),
    Call(
        "list",
        lambda client: _pages(client.list()),
        ops.ListTasks(),
        TaskPage([REPLY], "", 50, 1, True),
    ),
    Call(
        "push",
        lambda client: client.create_push(T, CONFIG),
        ops.CreatePush(task_id=T, config=CONFIG),
        CONFIG,
    ),
    Call("pushes", lambda client: client.list_push(T), ops.ListPush(task_id=T), PushPage([CONFIG])),
    Call(
        "delete",
        lambda client: client.delete_push(T, "p"),
        ops.DeletePush(task_id=T, config_id="p"),
        Nothing(),
    ),
    Call("card", lambda client: client.extended_card(), ops.GetExtendedCard(), card()),
]
STREAMS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "stream": lambda client: _all(client.stream("hi")),
    "subscribe": lambda client: _all(client.subscribe(T)),
}


class Case(NamedTuple):
    """An answer to a call; good ones have to be read."""

    name: str
    answer: Callable[[Asked], Said]
    is_good: bool = False


def good(call: Call, dialect: Dialect = V1_0) -> Any:
    return json.loads(dialect.encode_reply(call.operation, call.reply) or b"null")


def enveloped(asked: Asked, value: Any) -> Any:
    return value if asked.id is None else {"jsonrpc": "2.0", "id": asked.id, "result": value}


def spoken(asked: Asked, value: Any, **more: Any) -> Said:
    return Said(pieces=[text(value)], **more)


def wrong_values(call: Call, dialect: Dialect, sample: int) -> Iterator[Case]:
    """The good answer with every place wrong."""
    value = good(call, dialect)
    yield Case("good", lambda asked: spoken(asked, enveloped(asked, value)), is_good=True)
    for name, bad in mutations(value):
        if hash_of(f"{call.name}{name}") % sample == 0:
            yield Case(name, lambda asked, bad=bad: spoken(asked, enveloped(asked, bad)))


def envelopes(call: Call, dialect: Dialect) -> Iterator[Case]:
    """What may be wrong about an answer as a whole."""
    value = good(call, dialect)
    failure = {"code": -32001, "message": "no"}
    wrong: dict[str, Callable[[Asked], Any]] = {
        "wrong id": lambda asked: {"jsonrpc": "2.0", "id": "other", "result": value},
        "no id": lambda asked: {"jsonrpc": "2.0", "result": value},
        "null id": lambda asked: {"jsonrpc": "2.0", "id": None, "result": value},
        "list id": lambda asked: {"jsonrpc": "2.0", "id": [asked.id], "result": value},
        "both": lambda asked: enveloped(asked, value) | {"error": failure},
        "neither": lambda asked: {"jsonrpc": "2.0", "id": asked.id},
        "null error": lambda asked: {"jsonrpc": "2.0", "id": asked.id, "error": None},
        "null result": lambda asked: {"jsonrpc": "2.0", "id": asked.id, "result": None},
        "a request": lambda asked: {"jsonrpc": "2.0", "id": asked.id, "method": "x"},
        "old": lambda asked: {"jsonrpc": "1.0", "id": asked.id, "result": value},
        "bare": lambda asked: value,
        "twice": lambda asked: enveloped(asked, enveloped(asked, value)),
        "in a list": lambda asked: [enveloped(asked, value)],
        "deep": lambda asked: enveloped(asked, DEEP),
    }
    for name, make in wrong.items():
        yield Case(name, lambda asked, make=make: spoken(asked, make(asked)))
    for name, bad in NO_JSON.items():
        yield Case(name, lambda asked, bad=bad: Said(pieces=[bad]))
        yield Case(
            f"{name} in an envelope",
            lambda asked, bad=bad: Said(
                pieces=[b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (text(asked.id), bad)]
            ),
        )
        yield Case(
            f"{name} as a page",
            lambda asked, bad=bad: Said(headers={"content-type": "text/html"}, pieces=[bad]),
        )
    whole = text(value)
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        yield Case(f"ends at {place}", lambda asked, place=place: Said(pieces=[whole[:place]]))
        yield Case(
            f"cut at {place}",
            lambda asked, place=place: Said(pieces=[whole[:place]], is_cut=True),
        )
    yield Case(
        "as a stream",
        lambda asked: Said(headers=EVENTS, pieces=[b"data: " + text(enveloped(asked, value))]),
    )
    yield Case("a stream", lambda asked: Said(headers=EVENTS, pieces=frames(asked)))


def statuses() -> Iterator[Case]:
    """Every status without a body."""
    for status in range(100, 600):
        yield Case(f"status {status}", lambda asked, status=status: Said(status, {}))


HEADERS = [
    {"retry-after": "-1"},
    {"retry-after": "1e9"},
    {"retry-after": "٣"},
    {"retry-after": "9" * 400},
    {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"},
    {"www-authenticate": ""},
    {"www-authenticate": 'Bearer realm="' + "x" * 5000},
    {"www-authenticate": '"' * 2000},
    {"content-type": "application/problem+json"},
    {"location": "http://127.0.0.1:1/"},
]


def refusals() -> Iterator[Case]:
    """Errors of every code in every shape, with headers that make no sense."""
    codes = [*range(-32099, -32000), -32700, *range(-32603, -32599), 0, 1, 404, 500]
    codes += [2**70, 1.5, "x", "404", None, True, [], {}]
    for code in codes:
        for name, shape in shapes(code).items():
            status = code if isinstance(code, int) and 400 <= code < 600 else 400
            for http in (200, status) if hash_of(f"{code}{name}") % 4 == 0 else (200,):
                yield Case(
                    f"error {code} {name} {http}",
                    lambda asked, shape=shape, http=http: spoken(
                        asked, wrapped(asked, shape), status=http, headers=JSON
                    ),
                )
    for status in (401, 403, 404, 429, 500, 502, 503):
        for headers in HEADERS:
            yield Case(
                f"{status} with {headers}",
                lambda asked, status=status, headers=headers: Said(status, headers, [b"{}"]),
            )


def wrapped(asked: Asked, shape: Any) -> Any:
    is_enveloped = isinstance(shape, dict) and set(shape) == {"error"}
    return {"jsonrpc": "2.0", "id": asked.id} | shape if asked.id and is_enveloped else shape


def shapes(code: Any) -> dict[str, Any]:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}
    return {
        "jsonrpc": {"error": {"code": code, "message": "no"}},
        "no message": {"error": {"code": code}},
        "odd message": {"error": {"code": code, "message": {"a": [1]}}},
        "data": {"error": {"code": code, "message": "no", "data": [info, 7, None]}},
        "odd data": {"error": {"code": code, "message": "no", "data": "text"}},
        "google": {"error": {"code": code, "status": "NOT_FOUND", "details": [info]}},
        "odd google": {"error": {"code": code, "status": 7, "details": {"@type": 1}}},
        "odd info": {"error": {"code": code, "details": [info | {"metadata": [1], "reason": []}]}},
        "bare google": {"code": code, "message": "no", "details": [info]},
        "problem": {
            "type": "https://a2a-protocol.org/errors/task-not-found",
            "status": code,
            "title": None,
        },
        "odd problem": {"type": code, "status": "x", "detail": []},
        "a text": {"error": str(code)},
        "a value": {"error": code},
        "a list": {"error": [code]},
    }


def sequences() -> Iterator[tuple[str, list[Any]]]:
    """Streams whose events do not belong together; whatever comes, it ends."""
    other = msgspec.structs.replace(task(), id="t-2")
    elsewhere = msgspec.structs.replace(task(), context_id="c-2")
    yield "another task", [(1, task()), (2, other)]
    yield "another context", [(1, task()), (2, elsewhere), (3, chunk("x"))]
    yield "event before the task", [(1, chunk("x")), (2, task())]
    yield "message after the task", [(1, task()), (2, said("m"))]
    yield "task after a message", [(1, said("m")), (2, task())]
    yield "positions backwards", [(9, task()), (8, chunk("x")), (7, chunk("y"))]
    yield "one position", [(1, task()), (1, chunk("x")), (1, chunk("y"))]


SERVED: list[tuple[AgentCard, Dialect]] = [
    (card(), V1_0),
    (card(binding="HTTP+JSON"), V1_0),
    (card(version="0.3"), V0_3),
]
