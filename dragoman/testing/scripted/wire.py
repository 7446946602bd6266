"""Encodes the answers of a scripted agent, for each binding and version."""

from typing import Any, cast

import msgspec

from dragoman import errors as tree
from dragoman.dialects import errors
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.reading import Object
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import A2AError, InternalError
from dragoman.model.events import Event
from dragoman.model.operations import Operation
from dragoman.model.record import Recorded, TaskReading, encode
from dragoman.model.task import Task
from dragoman.service import Reply, TaskPage, TaskReply
from dragoman.testing.scripted.connection import Headers, ScriptedConnection
from dragoman.testing.scripted.script import ScriptStep
from dragoman.testing.scripted.stage import UNSPECIFIED, Stage, StageEvent, filled
from dragoman.transports import jsonrpc, rest, sse

_UNSPECIFIED_IN_V0 = "unknown"
_CLASSES = {
    name.lower(): kind
    for name, kind in vars(tree).items()
    if isinstance(kind, type) and issubclass(kind, A2AError)
}


class ScriptedWire:
    """The encoding of one answer: a dialect, and an envelope if there is one."""

    def __init__(self, dialect: Dialect, id: jsonrpc.Id = None, *, is_rpc: bool) -> None:
        self.dialect = dialect
        self.is_rpc = is_rpc
        self._id = id
        self._before, self._after = jsonrpc.success_frame(id) if is_rpc else (b"", b"")

    @property
    def headers(self) -> Headers:
        """The headers of every answer."""
        return [(b"a2a-version", self.dialect.version.encode())]

    @property
    def kind(self) -> str:
        """The media type of its answers."""
        return "application/json" if self.is_rpc else "application/a2a+json"

    def wrapped(self, body: bytes) -> bytes:
        """Return a result in its envelope."""
        return self._before + body + self._after

    def reply(self, operation: Operation, reply: Reply, tasks: dict[str, Stage]) -> bytes:
        """Return the body of an answer."""
        body = self.dialect.encode_reply(operation, reply)
        if isinstance(reply, TaskReply):
            body = self._odd(body, tasks[reply.reading.task.id].odd_state)
        elif isinstance(reply, TaskPage):
            body = self._odd_page(body, tasks)
        return self.wrapped(body) if self.is_rpc else rest.content(body)

    def opening(
        self, stage: Stage, history: int | None, seq: int | None, task: Task | None = None
    ) -> bytes:
        """Return the Task that opens a stream, at present or as of an event."""
        shown = task or stage.task
        reply = TaskReply(TaskReading(stage.seq, shown), history)
        odd = stage.odd_state if shown is stage.task else ""
        body = self._odd(self.dialect.encode_opening(reply), odd)
        return sse.frame(self.wrapped(body), seq)

    def event(self, entry: StageEvent, event: Event, *, with_id: bool) -> bytes:
        """Return one event of a stream."""
        body = self._odd(
            self.dialect.encode_event(Recorded.of_event(entry.seq, event)), entry.odd_state
        )
        return sse.frame(self.wrapped(body), entry.seq if with_id else None)

    def any_event(self, value: Any) -> bytes:
        """Return any JSON as an event."""
        return sse.frame(self.wrapped(msgspec.json.encode(value)))

    def failure(self, error: A2AError) -> tuple[int, bytes]:
        """Return the status and the body of an error."""
        if self.is_rpc:
            body = jsonrpc.failure(self._id, errors.jsonrpc(error, self.dialect.version))
            return _http_of(error), body
        is_new = self.dialect.version == V1_0.version
        status, content = errors.rest(error) if is_new else errors.rest_0_x(error)
        return status, encode(content)

    def scripted(self, step: ScriptStep, words: dict[str, str]) -> tuple[int, bytes, Headers]:
        """Return status, body and headers of the error of a step."""
        text = filled(step.text or "", words)
        name = filled(str(step.error), words)
        if name.lstrip("-").isdecimal():
            status, body = self._numbered(int(name), text, step)
        else:
            status, body = self.failure(error_named(name, text))
        headers = list(self.headers)
        if step.retry_after:
            headers.append((b"retry-after", step.retry_after.encode()))
        if step.challenge or status == 401:
            headers.append((b"www-authenticate", (step.challenge or "Bearer").encode()))
        return step.http or status, body, headers

    def _numbered(self, code: int, text: str, step: ScriptStep) -> tuple[int, bytes]:
        inner: Object = {"code": code, "message": text or "Scripted error"}
        if step.data is not msgspec.UNSET:
            inner["data" if self.is_rpc else "details"] = step.data
        if self.is_rpc:
            return 200, jsonrpc.failure(self._id, inner)
        return 500, encode({"error": inner})

    async def refuse(self, connection: ScriptedConnection, error: A2AError) -> None:
        """Answer with an error."""
        status, body = self.failure(error)
        headers = list(self.headers)
        if status == 401:
            headers.append((b"www-authenticate", error.facts.get("challenge", "Bearer").encode()))
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await connection.answer(status, body, self.kind, headers)

    def _odd(self, body: bytes, state: str) -> bytes:
        """Return the JSON of a task or an event with a state that the model does not have."""
        if not state:
            return body
        value = msgspec.json.decode(body)
        self._set_state(value, state)
        return msgspec.json.encode(value)

    def _odd_page(self, body: bytes, tasks: dict[str, Stage]) -> bytes:
        value: Any = msgspec.json.decode(body)
        # 0.3 has a bare list.
        shown: list[Object] = value["tasks"] if body.startswith(b"{") else value
        for task in shown:
            if state := tasks[task["id"]].odd_state:
                self._set_state(task, state)
        return msgspec.json.encode(value)

    def _set_state(self, value: Any, state: str) -> None:
        for holder in (value, *value.values()):
            status = cast(Object, holder).get("status") if isinstance(holder, dict) else None
            if not isinstance(status, dict):
                continue
            name = state
            if state == UNSPECIFIED:
                is_new = str(cast(Object, status).get("state")).startswith("TASK_STATE_")
                name = f"TASK_STATE_{UNSPECIFIED}" if is_new else _UNSPECIFIED_IN_V0
            status["state"] = name


def error_named(name: str, text: str) -> A2AError:
    """Return an error by its class, with or without the suffix `Error`, or by its reason."""
    for row in errors.ROWS:
        if row.reason == name:
            return row.error(text)
    plain = name.lower()
    kind = _CLASSES.get(plain) or _CLASSES.get(plain.removesuffix("error"))
    return kind(text) if kind is not None else InternalError(text or name)


def _http_of(error: A2AError) -> int:
    """Return the status beside a JSON-RPC body: errors of the protocol are 200, HTTP's are not."""
    status = errors.http_status(error)
    return status if status in (401, 403, 429, 503) else 200
