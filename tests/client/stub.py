"""A peer made of answers: what is asked goes to a function, and nothing to a socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dragoman.client.agent_connection import AgentConnection, Options
from dragoman.client.cards.cards import Cards
from dragoman.client.client import Client
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.egress.errors import EgressFailed
from dragoman.model import operations as ops
from dragoman.model.artifact import Artifact
from dragoman.model.card import (
    HTTP_JSON,
    JSONRPC,
    ONCE_URI,
    RESUME_URI,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
)
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.service import Reply, TaskPage, TaskReply

URL = "http://agent.test"
T, C = TaskId("t-1"), ContextId("c-1")
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass
class Asked:
    """A request as it came."""

    verb: str
    url: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body) if self.body else {}

    @property
    def method(self) -> str:
        return self.json.get("method", "")

    @property
    def id(self) -> Any:
        # Over REST the body may have an id of its own.
        return self.json.get("id") if self.method else None


@dataclass
class Said:
    """An answer: its body is in pieces, may break off, may hang."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: dict(JSON))
    pieces: Sequence[bytes] = ()
    is_cut: bool = False
    hangs: bool = False
    # No answer at all; whether the request may have arrived.
    is_lost: bool = False
    is_sent: bool = True


class Exchange:
    def __init__(self, said: Said) -> None:
        self._said = said
        self.status = said.status
        self.headers = {name.lower(): value for name, value in said.headers.items()}

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._said.pieces:
            yield piece
        if self._said.hangs:
            await asyncio.Event().wait()
        if self._said.is_cut:
            raise EgressFailed("cut")


class Stub:
    """Carries requests to a function."""

    identity = ""

    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self._answer = answer
        self.requests: list[Asked] = []
        self.open_now = 0

    def count(self, method: str) -> int:
        return sum(asked.method == method for asked in self.requests)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        reuse: bool = False,
    ) -> AsyncGenerator[Exchange]:
        asked = Asked(method, url, dict(headers), body or b"")
        self.requests.append(asked)
        # Whoever asks without end is still to be stopped.
        await asyncio.sleep(0)
        said = self._answer(asked)
        if said.is_lost:
            raise EgressFailed("lost", is_sent=said.is_sent)
        self.open_now += 1
        try:
            yield Exchange(said)
        finally:
            self.open_now -= 1

    async def close(self) -> None:
        pass


def card(
    *,
    streaming: bool = True,
    positions: bool = False,
    once: bool = False,
    version: str = "1.0",
    binding: str = JSONRPC,
) -> AgentCard:
    uris = [RESUME_URI] * positions + [ONCE_URI] * once
    return AgentCard(
        name="Stub",
        description="Says what it is told to.",
        supported_interfaces=[AgentInterface(URL, binding, version)],
        version="1",
        capabilities=AgentCapabilities(
            streaming=streaming,
            push_notifications=True,
            extensions=[AgentExtension(uri) for uri in uris],
            extended_agent_card=True,
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[],
    )


def client(stub: Stub, agent: AgentCard, **options: Any) -> Client:
    """A client whose second tries come at once, and whose requests go to a stub."""
    made = Client(agent)
    made._http = stub
    made._connection = AgentConnection(
        agent, stub, Cards(), Options(**{"backoff": 0.001} | options)
    )
    return made


def rest_card(**more: Any) -> AgentCard:
    return card(binding=HTTP_JSON, **more)


# What peers say


def task(state: TaskState = TaskState.WORKING, message: str = "", **more: Any) -> Task:
    return Task(T, C, TaskStatus(state, said(message) if message else None), **more)


def said(name: str, role: Role = Role.AGENT) -> Message:
    return Message(MessageId(name), role, [Part(text=name)])


def status(state: TaskState = TaskState.WORKING, message: str = "", id: str = T) -> StatusUpdate:
    return StatusUpdate(TaskId(id), C, TaskStatus(state, said(message) if message else None))


def chunk(text: str, *, append: bool = True, name: str = "a") -> ArtifactUpdate:
    return ArtifactUpdate(T, C, Artifact(name, [Part(text=text)]), append=append)


def artifact(*texts: str, name: str = "a") -> Artifact:
    return Artifact(name, [Part(text=text) for text in texts])


def dialect(asked: Asked) -> Dialect:
    return V1_0 if asked.headers["a2a-version"] == "1.0" else V0_3


def wire(asked: Asked, event: Event) -> bytes:
    """An event as JSON of the request's version."""
    spoken = dialect(asked)
    if isinstance(event, Task):
        return spoken.encode_opening(TaskReply(TaskReading(0, event)))
    return spoken.encode_event(Recorded.of_event(0, event))


def enveloped(asked: Asked, value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(asked.id), value)


def stream(asked: Asked, *events: Event | tuple[int, Event], **more: Any) -> Said:
    """A stream: events, or pairs of a position and an event, all in one piece."""
    body = b""
    for item in events:
        seq, event = item if isinstance(item, tuple) else (None, item)
        data = enveloped(asked, wire(asked, event))
        body += (b"" if seq is None else b"id: %d\n" % seq) + b"data: " + data + b"\n\n"
    return Said(headers=EVENTS, pieces=[body] if body else [], **more)


def reply(asked: Asked, operation: ops.Operation, value: Reply, **more: Any) -> Said:
    body = enveloped(asked, dialect(asked).encode_reply(operation, value))
    return Said(pieces=[body], **more)


def got(asked: Asked, value: Task) -> Said:
    """The answer to GetTask."""
    return reply(asked, ops.GetTask(task_id=T), TaskReply(TaskReading(0, value)))


def listed(asked: Asked, *tasks: Task) -> Said:
    replies = [TaskReply(TaskReading(0, one)) for one in tasks]
    return reply(asked, ops.ListTasks(), TaskPage(replies, "", 20, len(replies), False))


def error(asked: Asked, code: int, message: str = "no", **more: Any) -> Said:
    body = {"jsonrpc": "2.0", "id": asked.id, "error": {"code": code, "message": message}}
    return Said(pieces=[msgspec.json.encode(body)], **more)
