"""Responses that were begun before: `GET /v1/responses/{id}`, and `POST` of its `cancel`.

A response is a task, so nothing is stored for it: it can be read as long as the task is there, by
its caller, in every process and after a restart.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import InvalidParams, TaskNotCancelable, TaskNotFound
from dragoman.http.documents import document
from dragoman.http.request import HttpRequest
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.message import Role
from dragoman.model.record import TaskReading
from dragoman.model.task import Task
from dragoman.openai.answers import ChatAnswer
from dragoman.openai.conversations import task_of_response
from dragoman.openai.errors import ChatError
from dragoman.openai.prompts import CHAT_URI, Prompt
from dragoman.openai.response_encoding import ResponseEncoder
from dragoman.server.endpoints.responder import Responder
from dragoman.server.mounts import AgentMount
from dragoman.service import Opening, TaskReply
from dragoman.transports import rest

CANCEL = "/cancel"
# Agents of this process whose tasks a request may be about.
MountsOf = Callable[[HttpRequest], Iterable[AgentMount]]


class StoredResponses:
    """The responses of callers, read from their tasks."""

    def __init__(self, responder: Responder, mounts: MountsOf, path: str) -> None:
        self._responder = responder
        self._mounts = mounts
        self._path = f"{path}/"

    async def answer(self, request: HttpRequest) -> None:
        """Show a response, or cancel it; raises `ChatError` and `A2AError`."""
        below = request.path.rpartition(self._path)[2]
        is_cancel = below.endswith(CANCEL)
        verbs = ("POST",) if is_cancel else ("GET", "HEAD")
        if request.verb not in verbs:
            await request.refuse_verb(", ".join(verbs))
            return
        if b"stream=true" in request.scope["query_string"]:
            raise InvalidParams("a response that was begun before is read whole", field="stream")
        id = rest.segment(below.removesuffix(CANCEL))
        task_id = TaskId(task_of_response(id))
        for mount in self._mounts(request) if task_id else ():
            request.mount = mount
            try:
                task = await self._task(request, ops.GetTask(task_id=task_id))
                if is_cancel:
                    task = await self._canceled(request, task)
            except TaskNotFound:
                continue
            await document(request, response_document(task, mount.name))
            return
        message = f"Response with id '{id[:128]}' not found."
        raise ChatError(message, status=404, code="response_not_found", param="response_id")

    async def _canceled(self, request: HttpRequest, task: Task) -> Task:
        try:
            return await self._task(request, ops.CancelTask(task_id=task.id))
        except TaskNotCancelable:
            # It has ended meanwhile; a caller that cancels twice is told how.
            return await self._task(request, ops.GetTask(task_id=task.id))

    async def _task(self, request: HttpRequest, operation: ops.Operation) -> Task:
        call = self._responder.call(request, operation, V1_0)
        reply = await request.mount.service.answer(msgspec.structs.replace(call, after=None))
        assert isinstance(reply, TaskReply), "a task is read as one"
        return reply.reading.task


def response_document(task: Task, agent: str) -> dict[str, Any]:
    """Return a task as the response that its last message asked for."""
    asked = next((one for one in reversed(task.history) if one.role is Role.USER), None)
    facts: Any = None if asked is None else asked.metadata.get(CHAT_URI)
    try:
        # What a task holds came from a caller, here or over A2A: it may be anything.
        known = msgspec.convert(facts, _ChatFacts)
    except msgspec.ValidationError:
        known = _ChatFacts()
    tools = {one["name"]: one for one in known.tools if isinstance(one.get("name"), str)}
    prompt = Prompt(model=known.model or agent, messages=[], tools=tools)
    answer = ChatAnswer(tools)
    answer.take(Opening(TaskReply(TaskReading(0, task))))
    return ResponseEncoder(prompt).stored(answer, task.status.state)


class _ChatFacts(msgspec.Struct):
    """What is read of the chat of a message."""

    model: str = ""
    tools: list[dict[str, Any]] = []
