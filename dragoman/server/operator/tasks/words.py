"""Tasks by words of their first message and of their error.

An index has them once a worker with the duty came by; a search looks itself at what is not in it
yet. A word is a run of letters and digits in small letters, in scripts without spaces a single
character. A search finds a task if each of its words begins one of the task's.
"""

import asyncio
import functools
import re
import unicodedata
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.server.operator.tasks.budget import ReadBudget
from dragoman.server.operator.tasks.items import WITH_REASON, TaskTexts, openings_of, texts_of
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


@functools.cache
def _word() -> re.Pattern[str]:
    # Made when a task is first indexed or searched: it takes longer than any other of ours.
    return re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, each once."""
    small = unicodedata.normalize("NFKC", text[:_CHARACTERS]).casefold()
    return list(dict.fromkeys(word[:_LENGTH] for word in _word().findall(small)))[:_WORDS]


def has_words(texts: TaskTexts, words: Sequence[str]) -> bool:
    """Tell whether each word begins a word of a task's texts."""
    there = _words(texts)
    return all(any(one.startswith(word) for one in there) for word in words)


def _words(texts: TaskTexts) -> frozenset[str]:
    return frozenset([*words_of(texts.said), *words_of(texts.error)])


async def index_some(store: Store) -> bool:
    """Add the words of some tasks that the index does not have; tell whether there may be more."""
    heads = await store.unindexed(_ADDED)
    if not heads:
        return False
    texts = await texts_of(store, heads)
    await store.index_words(
        [
            TaskWords(head.number, _words(one), head.standing.state.is_terminal)
            for head, one in zip(heads, texts, strict=True)
        ]
    )
    return len(heads) >= _ADDED


async def search(
    store: Store, survey: Survey, words: Sequence[str]
) -> tuple[list[TaskRow], int, bool]:
    """Return tasks with all words, the highest number first and at most `survey.limit`; below which
    number the search goes on, 0 for nowhere; and whether tasks were left out that are not indexed.
    """
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
    """Return those tasks that have all words. Most others are told by the bytes of their first
    event, which are not decoded."""
    openings = await openings_of(store, heads)
    chosen = [
        head
        for head, body in zip(heads, openings, strict=True)
        if head.standing.state in WITH_REASON or _may_have(body, words)
    ]
    texts = await texts_of(store, chosen)
    # A file is read without waiting.
    await asyncio.sleep(0)
    return [head for head, one in zip(chosen, texts, strict=True) if has_words(one, words)]


def _may_have(body: bytes, words: Sequence[str]) -> bool:
    """Tell whether an event may say words. Beyond ASCII large and small letters are not as many
    bytes."""
    if not body.isascii():
        return True
    small = body.lower()
    return all(word.isascii() and word.encode() in small for word in words)
