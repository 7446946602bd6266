"""What was said before in a conversation: read from its tasks, so nothing else has to be kept.

A memory belongs to one owner and one context of one agent, as the tasks themselves do, and it is
gone when they are: pruning a task forgets it here too. Only what the caller said and what was
answered is remembered, not what tools did in between. What was said before in the same task counts,
whatever became of it.
"""

import msgspec

from dragoman.agents.models import Said, text_of
from dragoman.model.artifact import Artifact
from dragoman.model.message import Message, Role
from dragoman.model.task import Task, TaskState
from dragoman.server.turn import Turn
from dragoman.stores.interface import Query


class ContextMemory(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a conversation the model is reminded of: the latest exchanges, and no more
    characters than this."""

    exchanges: int = 20
    characters: int = 60_000

    async def recall(self, turn: Turn) -> list[Said]:
        """Return what was said in the turn's context before, oldest first."""
        # The engine's own record: authors have no use for it, and no other module of ours reads it
        # through a turn.
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
        while (left := self.characters - sum(len(said.text) for said in past)) < 0:
            past = past[1:]
        # Latest first: what no longer fits is the oldest.
        for head in (await store.page(query)).heads:
            reading = await store.snapshot(head.number)
            exchange = _exchange(reading.task) if reading is not None else []
            left -= sum(len(said.text) for said in exchange)
            if left < 0:
                break
            past = exchange + past
        return past


def _before(task: Task, message: Message) -> list[Said]:
    """Return what was said in a task that goes on, before a message to it came."""
    said: list[Said] = []
    for one in task.history:
        if one.message_id == message.message_id:
            break
        if one.role is Role.USER:
            said.append(Said("user", text_of(one)))
    answer = _answer(task) if said else ""
    return [*said, Said("assistant", answer)] if answer else said


def _answer(task: Task) -> str:
    return "\n\n".join(filter(None, map(_text, task.artifacts)))


def _exchange(task: Task) -> list[Said]:
    """Return what a task's caller said and what came of it."""
    said = [Said("user", text_of(one)) for one in task.history if one.role is Role.USER]
    answer = _answer(task)
    if not answer and task.status.message is not None:
        answer = text_of(task.status.message)
    return [*said, Said("assistant", answer)] if answer else []


def _text(artifact: Artifact) -> str:
    """Return an artifact's chunks of text as one."""
    return "".join(part.text for part in artifact.parts if isinstance(part.text, str))
