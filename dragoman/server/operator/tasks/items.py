"""Tasks as lists show them: their rows, and the first words of their logs."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from dragoman.model.events import Forwarded
from dragoman.model.message import Message
from dragoman.model.money import MICRO
from dragoman.model.record import Recorded, encode
from dragoman.model.task import Task, TaskState
from dragoman.server.operator.shapes import TaskItem, instant
from dragoman.server.site import Site
from dragoman.stores.interface import Store, TaskRow

# Characters of the first message, and of an error.
_WORDS = 200
# The first events of a log: the task, and whom it was given to.
FIRST_EVENTS = 6
FIRST_BYTES = 4096
# Reads of a file that follow each other without letting others at the event loop.
_AT_ONCE = 50
# Their last status says why.
WITH_REASON = frozenset({TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED})


class TaskTexts:
    """What people said at the start of a task, and what it ended with."""

    def __init__(self, first: Task | None, to: str, error: str) -> None:
        message = first.history[0] if first is not None and first.history else None
        # Callers name it with the message or with the request.
        skill = None if message is None else message.metadata.get("skillId")
        if skill is None and first is not None:
            skill = first.metadata.get("skillId")
        self.made_at = "" if first is None else first.status.timestamp
        self.said = "" if message is None else message.text
        # What lists show: of a message without text its data.
        self.words = _short(self.said or ("" if message is None else _data_of(message)))
        self.skill = skill if isinstance(skill, str) else ""
        self.to = to
        self.error = error


def _data_of(message: Message) -> str:
    """Return the data of a message as JSON, unless it is long."""
    found = next((part.data for part in message.parts if part.data is not UNSET), UNSET)
    text = b"" if found is UNSET else encode(found)
    return text.decode() if len(text) <= 8 * _WORDS else ""


def opening_texts(log: Sequence[Recorded], error: str = "") -> TaskTexts:
    """Return the texts that the first events of a log have."""
    return TaskTexts(_opening(log), agent_in(log), error)


async def texts_of(store: Store, heads: Sequence[TaskRow]) -> list[TaskTexts]:
    """Return the texts of tasks."""
    return [texts async for _, texts, _ in read_openings(store, heads)]


async def read_openings(
    store: Store, heads: Sequence[TaskRow], events: int = FIRST_EVENTS
) -> AsyncIterator[tuple[TaskRow, TaskTexts, list[Recorded]]]:
    """Yield tasks with their texts, and the first events of their logs."""
    for begin in range(0, len(heads), _AT_ONCE):
        some = heads[begin : begin + _AT_ONCE]
        places = [(head.number, 0) for head in some]
        logs = await store.read_many(places, limit=events, size=FIRST_BYTES)
        for head, log in zip(some, logs, strict=True):
            yield head, opening_texts(log, await _error(store, head)), log
        # A file is read without waiting.
        await asyncio.sleep(0)


async def openings_of(store: Store, heads: Sequence[TaskRow]) -> list[bytes]:
    """Return the first events of tasks as they are recorded; of one that is gone nothing."""
    found: list[bytes] = []
    for begin in range(0, len(heads), _AT_ONCE):
        some = heads[begin : begin + _AT_ONCE]
        logs = await store.read_many([(head.number, 0) for head in some], limit=1)
        found += [log[0].body if log else b"" for log in logs]
        # A file is read without waiting.
        await asyncio.sleep(0)
    return found


async def items_of(store: Store, heads: Sequence[TaskRow]) -> list[TaskItem]:
    """Return tasks as lists show them."""
    texts = await texts_of(store, heads)
    return [item_of(head, one) for head, one in zip(heads, texts, strict=True)]


async def priced(site: Site, heads: Sequence[TaskRow], items: list[TaskItem]) -> list[TaskItem]:
    """Return tasks with what they cost, where anything does."""
    given = [head.number for head, item in zip(heads, items, strict=True) if item.to]
    if site.costs is None or not given:
        return items
    costs = await site.costs(given)
    return [
        replace(item, cost=costs[head.number] / MICRO) if costs.get(head.number) else item
        for head, item in zip(heads, items, strict=True)
    ]


def item_of(head: TaskRow, texts: TaskTexts) -> TaskItem:
    """Return a task as lists show it."""
    return TaskItem(
        id=head.task_id,
        context_id=head.context_id,
        agent=head.scope.agent,
        tenant=head.scope.tenant,
        owner=head.scope.owner,
        state=head.standing.state,
        status_at=instant(head.standing.status_at),
        made_at=texts.made_at,
        events=head.standing.last_seq,
        words=texts.words,
        skill=_short(texts.skill),
        to=texts.to,
        error=_short(texts.error),
        worker=head.holder,
    )


def _opening(log: Sequence[Recorded]) -> Task | None:
    first = log[0].event if log else None
    return first if isinstance(first, Task) else None


def agent_in(log: Sequence[Recorded]) -> str:
    """Return the id of the agent that a gateway gave a task to, by the first events of its log."""
    for recorded in log:
        # Judged by its bytes: the others are not decoded.
        if recorded.body.startswith(b'{"forwarded"'):
            event = recorded.event
            assert isinstance(event, Forwarded), "by its bytes it is"
            return event.agent
    return ""


def place_of(head: TaskRow) -> tuple[int, int]:
    """Return the place of a task in lists."""
    return head.standing.status_at, head.number


async def _error(store: Store, head: TaskRow) -> str:
    if head.standing.state not in WITH_REASON:
        return ""
    reading = await store.snapshot(head.number, artifacts=False)
    if reading is None or reading.task.status.message is None:
        return ""
    return reading.task.status.message.text


def _short(text: str) -> str:
    """Return the first words of a text, in one line."""
    # Of a long text only the beginning is split.
    words = " ".join(text[: 8 * _WORDS].split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"
