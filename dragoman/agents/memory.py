"""The earlier messages of a conversation, read from its tasks: nothing else is stored.

A memory belongs to one owner and one context of one agent, as the tasks do; pruning a task removes
it here too. Messages of the caller and answers are included, tool calls are not. Earlier messages
of the same task are included whatever its state.
"""

import msgspec

from dragoman.agents.models import ModelMessage, text_of
from dragoman.authoring.turn import Turn
from dragoman.model.artifact import Artifact
from dragoman.model.message import Message, Role
from dragoman.model.task import Task, TaskState
from dragoman.stores.interface import Query


class ContextMemory(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a conversation the model gets: the latest exchanges, up to a number of
    characters."""

    exchanges: int = 20
    characters: int = 60_000

    async def recall(self, turn: Turn) -> list[ModelMessage]:
        """Return the earlier messages of the turn's context, oldest first."""
        # The engine's log is not part of the authoring API; this is its only reader through a turn.
        log = turn._worker.log  # pyright: ignore[reportPrivateUsage] - see above
        store = log._store  # pyright: ignore[reportPrivateUsage] - see above
        query = Query(log.scope, self.exchanges, context_id=turn.context, state=TaskState.COMPLETED)
        draft = log.draft
        if draft is not None and not draft.is_light:
            under_way: Task | None = draft.task()
        else:
            reading = await store.snapshot(log.number)
            under_way = reading.task if reading is not None else None
        past = _before(under_way, turn.message) if under_way is not None else []
        while (left := self.characters - sum(len(message.text) for message in past)) < 0:
            past = past[1:]
        # Latest first: the oldest exchanges are left out.
        for head in (await store.page(query)).heads:
            reading = await store.snapshot(head.number)
            exchange = _exchange(reading.task) if reading is not None else []
            left -= sum(len(message.text) for message in exchange)
            if left < 0:
                break
            past = exchange + past
        return past


def _before(task: Task, message: Message) -> list[ModelMessage]:
    """Return the messages of an unfinished task before a message."""
    earlier: list[ModelMessage] = []
    for one in task.history:
        if one.message_id == message.message_id:
            break
        if one.role is Role.USER:
            earlier.append(ModelMessage("user", text_of(one)))
    answer = _answer(task) if earlier else ""
    return [*earlier, ModelMessage("assistant", answer)] if answer else earlier


def _answer(task: Task) -> str:
    return "\n\n".join(filter(None, map(_text, task.artifacts)))


def _exchange(task: Task) -> list[ModelMessage]:
    """Return the messages of a task's caller, and the answer."""
    messages = [ModelMessage("user", text_of(one)) for one in task.history if one.role is Role.USER]
    answer = _answer(task)
    if not answer and task.status.message is not None:
        answer = text_of(task.status.message)
    return [*messages, ModelMessage("assistant", answer)] if answer else []


def _text(artifact: Artifact) -> str:
    """Return the text of an artifact."""
    return "".join(part.text for part in artifact.parts if isinstance(part.text, str))
