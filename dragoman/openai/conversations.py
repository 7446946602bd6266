"""Which task a prompt continues, and in which context a new one begins.

Nothing is remembered for it: the tasks of the caller are the memory, so it is the caller's alone,
survives restarts, and is the same in every process. In this order:

1. Results of tool calls go to the task that made the calls: its id is in theirs.
2. An answer that the request names (`previous_response_id`) is of a task. While that waits, it gets
   the message; else a new task begins in its context.
3. In a conversation that the request names, the task that waits gets the message, the latest of
   several; else a new task begins in the context of that name.
4. Otherwise the messages say it: a task gets the message if it waits, was begun by the same
   messages, and asked what the last message of the assistant says. Tasks that had the same messages
   are the same to their caller. The latest 100 that wait are looked at. A new task begins in
   a context of its own, or in that of the `user`.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from dragoman.errors import TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Role
from dragoman.model.task import Task, TaskState
from dragoman.openai.answers import artifact_texts, question_of
from dragoman.openai.errors import ChatError
from dragoman.openai.prompts import CHAT_URI, ChatMessage, Prompt, fingerprint
from dragoman.service import Call, Service, TaskPage, TaskReply

_MOST_WAITING = 100
_MOST_REPEATED = 50
_WAITING = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
_RESPONSE, _IN_CONTEXT = "resp_", "resp_ctx_"


class TaskPlace(msgspec.Struct, frozen=True):
    """Where a message goes: to a task, or into a context; empty: into one of its own."""

    task_id: TaskId = TaskId("")
    context_id: ContextId = ContextId("")
    # What earlier answers of the task showed of its artifacts, by their ids.
    shown: dict[str, str] = {}


def response_id(task_id: str, context_id: str) -> str:
    """Return the id of an answer, by which a later request continues it."""
    return f"{_RESPONSE}{task_id}" if task_id else f"{_IN_CONTEXT}{context_id}"


def task_of_response(id: str) -> str:
    """Return the task of an answer by its id; empty: it has none."""
    is_of_task = id.startswith(_RESPONSE) and not id.startswith(_IN_CONTEXT)
    return id.removeprefix(_RESPONSE) if is_of_task else ""


class Conversations:
    """The tasks of one caller at one agent."""

    def __init__(self, service: Service, call: Call) -> None:
        """`call` is whose operations are asked for, with its tenant."""
        self._service = service
        self._call = call

    async def place(self, prompt: Prompt, repeated_id: MessageId | None) -> TaskPlace:
        """Return where a prompt goes. `repeated_id` is the id of a message that the caller may
        have sent before."""
        if repeated_id is not None:
            task = await self._given(repeated_id)
            if task is not None:
                return _as_before(task, prompt, repeated_id)
        if answered := prompt.answered_task():
            return await self._waiting_task(answered)
        if prompt.previous:
            return await self._after(prompt.previous)
        if prompt.conversation:
            context = ContextId(prompt.conversation)
            waiting = await self._waiting(1, context)
            return _continued(waiting[0]) if waiting else TaskPlace(context_id=context)
        return await self._same_chat(prompt)

    async def _waiting_task(self, task_id: str) -> TaskPlace:
        """Return the task of tool calls; raises `ChatError` if it does not wait for them."""
        try:
            task = await self._task(task_id)
        except TaskNotFound:
            task = None
        if task is None or not task.status.state.is_interrupted:
            message = "No task waits for the result of this call."
            raise ChatError(message, status=400, code="unknown_tool_call", param="messages")
        return _continued(task)

    async def _after(self, previous: str) -> TaskPlace:
        if previous.startswith(_IN_CONTEXT):
            return TaskPlace(context_id=ContextId(previous.removeprefix(_IN_CONTEXT)))
        try:
            task = await self._task(previous.removeprefix(_RESPONSE))
        except TaskNotFound:
            raise ChatError(
                "There is no such previous response.",
                status=400,
                code="previous_response_not_found",
                param="previous_response_id",
            ) from None
        if task.status.state.is_interrupted:
            return _continued(task)
        return TaskPlace(context_id=task.context_id)

    async def _same_chat(self, prompt: Prompt) -> TaskPlace:
        if prompt.begins_at:
            for task in await self._waiting(_MOST_WAITING):
                if _is_of(task, prompt):
                    return _continued(task)
        if not prompt.user:
            return TaskPlace()
        # What a user is called may be private, and is not for agents.
        digest = hashlib.blake2b(prompt.user.encode(), digest_size=16).hexdigest()
        return TaskPlace(context_id=ContextId(f"user-{digest}"))

    async def _given(self, message_id: MessageId) -> Task | None:
        """Return the task that was given a message before, among the latest."""
        for task in await self._list(_MOST_REPEATED):
            if any(one.message_id == message_id for one in task.history):
                return task
        return None

    async def _waiting(self, most: int, context: ContextId = ContextId("")) -> list[Task]:
        found = [await self._list(most, state, context) for state in _WAITING]
        tasks = [task for some in found for task in some]
        return sorted(tasks, key=lambda task: task.status.timestamp, reverse=True)

    async def _list(
        self, most: int, state: TaskState | None = None, context: ContextId = ContextId("")
    ) -> list[Task]:
        operation = ops.ListTasks(
            tenant=self._call.operation.tenant,
            context_id=context,
            state=state,
            page_size=most,
            include_artifacts=True,
        )
        page = await self._service.answer(msgspec.structs.replace(self._call, operation=operation))
        assert isinstance(page, TaskPage), "tasks are listed in pages"
        return [one.reading.task for one in page.tasks]

    async def _task(self, task_id: str) -> Task:
        operation = ops.GetTask(tenant=self._call.operation.tenant, task_id=TaskId(task_id))
        reply = await self._service.answer(msgspec.structs.replace(self._call, operation=operation))
        assert isinstance(reply, TaskReply), "a task is read as one"
        return reply.reading.task


def _as_before(task: Task, prompt: Prompt, message_id: MessageId) -> TaskPlace:
    """Return the place that a message had when it was first sent: only the same message is
    recognised as the same."""
    if task.history[0].message_id != message_id:
        return TaskPlace(task.id, task.context_id)
    is_named = bool(prompt.conversation or prompt.previous or prompt.user)
    return TaskPlace(context_id=task.context_id if is_named else ContextId(""))


def _continued(task: Task) -> TaskPlace:
    return TaskPlace(task.id, task.context_id, artifact_texts(task.artifacts))


def _is_of(task: Task, prompt: Prompt) -> bool:
    """Tell whether a waiting task was given the same messages as the chat of a prompt, and asked
    what the assistant said last."""
    given = [one for one in task.history if one.role is Role.USER]
    turns = _turns(prompt.messages)
    # The last turn is the new one, and the task had none of it.
    if not given or len(turns) <= len(given):
        return False
    start = len(turns) - 1 - len(given)
    first = prompt.messages[: turns[start].end]
    if given[0].metadata.get(CHAT_URI, {}).get("fingerprint") != fingerprint(first):
        return False
    # Results that came before a question are shown before it.
    last = f"\n{prompt.messages[prompt.begins_at - 1].text.strip()}"
    return last.endswith(f"\n{question_of(task).strip()}") and all(
        _is_same(message, turn)
        for message, turn in zip(given[1:], turns[start + 1 : -1], strict=True)
    )


class _Turn(msgspec.Struct, frozen=True):
    """What was said between two messages of the assistant."""

    text: str
    # The place of the message after it.
    end: int


def _turns(messages: Sequence[ChatMessage]) -> list[_Turn]:
    found: list[_Turn] = []
    texts: list[str] = []
    for place, one in enumerate(messages):
        if one.role == "assistant" and texts:
            found.append(_Turn("\n".join(texts), place))
            texts = []
        elif one.role in ("user", "tool"):
            texts.append(one.text)
    if texts:
        found.append(_Turn("\n".join(texts), len(messages)))
    return found


def _is_same(message: Message, turn: _Turn) -> bool:
    """Tell whether a message has the text of a turn. That of a secret answer is not shown."""
    is_shown = CHAT_URI in message.metadata
    return not is_shown or not message.text or message.text == turn.text
