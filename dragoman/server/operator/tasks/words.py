"""Tasks by words of their first message and of their error, and by what a gateway gave away.

An index has them once a worker with the duty came by; a search looks itself at what is not in it
yet. A word is a run of letters and digits in small letters, in scripts without spaces a single
character. A search finds a task if each of its words begins one of the task's. Beside the words,
the index has marks of the agents that a gateway gave a task to and of its tasks there.
"""

import asyncio
import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.model.events import Forwarded
from dragoman.model.record import Recorded
from dragoman.server.operator.tasks.budget import ReadBudget
from dragoman.server.operator.tasks.items import WITH_REASON, openings_of, read_openings
from dragoman.stores.interface import LATEST, Store, Survey, TaskRow, TaskWords

# Han, kana and Hangul.
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
# Characters of a text that are looked at, words of a task, and characters of a word.
_CHARACTERS = 20_000
_WORDS = 1000
_LENGTH = 40
# Tasks that are added at once, and that a search reads for itself.
_ADDED = 200
_READ = 5000
_READ_AT_ONCE = 250
# How marks begin. Words are letters and digits: no text has a mark.
_AGENT, _TASK = "→", "↳"
# First events of a task that are read: mostly all. Of a gateway's task so many are looked at for
# whom it was given to, without artifacts.
_FIRST = 12
_GIVEN = 1000


@functools.cache
def _word() -> re.Pattern[str]:
    # Made when a task is first indexed or searched: it takes longer than any other of ours.
    return re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, each once."""
    small = unicodedata.normalize("NFKC", text[:_CHARACTERS]).casefold()
    return list(dict.fromkeys(word[:_LENGTH] for word in _word().findall(small)))[:_WORDS]


def agent_mark(agent: str) -> str:
    """Return the mark of tasks that a gateway gave to an agent, by its id."""
    return _mark(_AGENT, agent)


def task_mark(task_id: str) -> str:
    """Return the mark of the task for which a gateway had an agent begin one of this id."""
    return _mark(_TASK, task_id)


def _mark(kind: str, id: str) -> str:
    # All are of one length: none begins another one.
    return kind + hashlib.blake2b(id.encode(), digest_size=8).hexdigest()


async def _all_words(store: Store, heads: Sequence[TaskRow]) -> list[frozenset[str]]:
    """Return the words and the marks of tasks."""
    found: list[frozenset[str]] = []
    async for head, texts, log in read_openings(store, heads, _FIRST):
        marks = await _marks(store, head, log) if texts.to else []
        found.append(frozenset([*words_of(texts.said), *words_of(texts.error), *marks]))
    return found


async def _marks(store: Store, head: TaskRow, log: list[Recorded]) -> list[str]:
    """Return the marks of a gateway's task, of which the first events were read."""
    if len(log) < head.standing.last_seq:
        log = await store.read(head.number, after=0, limit=_GIVEN, artifacts=False)
    marks: list[str] = []
    for recorded in log:
        # Judged by its bytes: the others are not decoded.
        if recorded.body.startswith(b'{"forwarded"') and isinstance(
            event := recorded.event, Forwarded
        ):
            marks.append(agent_mark(event.agent))
            marks += [task_mark(event.task_id)] if event.task_id else []
    return marks


def _has_words(there: frozenset[str], words: Sequence[str]) -> bool:
    """Tell whether each of the words begins one of a task's."""
    return all(any(one.startswith(word) for one in there) for word in words)


async def index_some(store: Store) -> bool:
    """Add the words of some tasks that the index does not have; tell whether there may be more."""
    heads = await store.unindexed(_ADDED)
    if not heads:
        return False
    words = await _all_words(store, heads)
    await store.index_words(
        [
            TaskWords(head.number, one, head.standing.state.is_terminal)
            for head, one in zip(heads, words, strict=True)
        ]
    )
    return len(heads) >= _ADDED


async def search(
    store: Store, survey: Survey, words: Sequence[str]
) -> tuple[list[TaskRow], int, bool]:
    """Return tasks with all words and marks, the highest number first and at most `survey.limit`;
    below which number the search goes on, 0 for nowhere; and whether tasks were left out that are
    not indexed."""
    budget = ReadBudget()
    below = LATEST if survey.after is None else survey.after[1]
    # Before the index is asked: what is added to it meanwhile is found in both.
    waiting = await store.unindexed(_READ, newest=True)
    is_partial = len(waiting) >= _READ
    asked = [head for head in waiting if head.number < below and survey.covers(head)]
    found: dict[int, TaskRow] = {}
    for begin in range(0, len(asked), _READ_AT_ONCE):
        if begin and budget.is_spent:
            is_partial = True
            break
        for head in await _those_with(store, asked[begin : begin + _READ_AT_ONCE], words):
            found[head.number] = head
    rest = below
    # Once at least, however much was found: then it is known how far the index was read.
    while rest:
        some = await store.search(replace(survey, after=(0, rest)), words)
        found |= {head.number: head for head in some.heads}
        rest = some.below
        if len(found) > survey.limit or budget.is_spent:
            break
    heads = sorted(found.values(), key=lambda head: head.number, reverse=True)
    # What is below the place where the index goes on comes then, from either.
    heads = [head for head in heads if head.number >= rest]
    if len(heads) > survey.limit:
        heads = heads[: survey.limit]
        rest = heads[-1].number
    return heads, rest, is_partial


async def _those_with(
    store: Store, heads: Sequence[TaskRow], words: Sequence[str]
) -> list[TaskRow]:
    """Return those tasks that have all words and marks. Most others are told by the bytes of their
    first event, which are not decoded."""
    said = [word for word in words if not word.startswith((_AGENT, _TASK))]
    openings = await openings_of(store, heads) if said else [b""] * len(heads)
    chosen = [
        head
        for head, body in zip(heads, openings, strict=True)
        if head.standing.state in WITH_REASON or _may_have(body, said)
    ]
    there = await _all_words(store, chosen)
    # A file is read without waiting.
    await asyncio.sleep(0)
    return [head for head, one in zip(chosen, there, strict=True) if _has_words(one, words)]


def _may_have(body: bytes, words: Sequence[str]) -> bool:
    """Tell whether an event may say words. Beyond ASCII large and small letters are not as many
    bytes."""
    if not body.isascii():
        return True
    small = body.lower()
    return all(word.isascii() and word.encode() in small for word in words)
