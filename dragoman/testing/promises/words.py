"""What the index of words promises: all tasks come to it, and a search finds what it may."""

from collections.abc import Sequence
from typing import Any

from dragoman.model.identity import Principal, Scope
from dragoman.model.task import TaskState
from dragoman.stores.interface import LATEST, Store, Survey, TaskRow, TaskWords
from dragoman.testing.promises.samples import (
    END_OF_TIME,
    HERE,
    addition,
    creation,
    head_of,
    status,
    write,
)
from dragoman.testing.promises.suite import StoreSuite

_MOST = 100


def words_of(head: TaskRow, *words: str) -> TaskWords:
    """Return words of a task, beside the id that all of these have for one."""
    return TaskWords(
        head.number, frozenset([head.task_id, *words]), head.standing.state.is_terminal
    )


async def index(store: Store, **words: str) -> None:
    """Index what is not indexed yet, each task by its id and words of its own."""
    while heads := await store.unindexed(_MOST):
        await store.index_words(
            [words_of(head, *words.get(head.task_id, "").split()) for head in heads]
        )


async def found(store: Store, *words: str, limit: int = _MOST, **asked: Any) -> list[str]:
    """Return the ids of what a search finds, look by look."""
    ids: list[str] = []
    below = LATEST
    while below:
        survey = Survey(limit=limit, after=(0, below), **asked)
        some = await store.search(survey, words)
        assert not some.below or some.below < below, "a search goes on"
        assert len(some.heads) <= survey.limit
        ids += [head.task_id for head in some.heads]
        below = some.below
    return ids


async def waiting(store: Store, limit: int = _MOST, **asked: Any) -> list[str]:
    """Return the ids of what is not indexed."""
    return [head.task_id for head in await store.unindexed(limit, **asked)]


async def created(store: Store, ids: Sequence[str], **how: Any) -> None:
    """Make tasks."""
    for task_id in ids:
        await write(store, creation(task_id, **how))


class WordPromises(StoreSuite):
    """The index of words."""

    async def test_tasks_wait_for_the_index_until_their_words_are_recorded(
        self, store: Store
    ) -> None:
        """The oldest first, or the newest; none is found before."""
        await created(store, "abc")
        assert await waiting(store, limit=2) == ["a", "b"]
        assert await waiting(store, limit=2, newest=True) == ["c", "b"]
        assert await found(store, "a") == []
        await store.index_words([words_of(await head_of(store, "a"))])
        assert await found(store, "a") == ["a"]
        assert await waiting(store, limit=1) == ["b"]
        await index(store)
        await created(store, "d")
        assert await found(store, "d") == []
        assert await waiting(store, newest=True) == ["d"]

    async def test_every_word_begins_a_word_of_what_is_found(self, store: Store) -> None:
        """In whatever order, with letters of every language, the newest task first."""
        await created(store, "abc")
        await index(store, a="red fox", b="reddish wolf", c="größe 漢 字 fox2")
        assert await found(store, "red") == ["b", "a"]
        assert await found(store, "fo", "re") == ["a"]
        assert await found(store, "fox") == ["c", "a"]
        assert await found(store, "grö") == ["c"]
        assert await found(store, "字", "漢") == ["c"]
        assert await found(store, "ox") == await found(store, "red", "nothing") == []

    async def test_a_search_shows_no_tasks_of_others(self, store: Store) -> None:
        """Of an owner, a tenant, an agent; a principal sees what is its own."""
        rooms = {
            "a": HERE,
            "b": Scope(HERE.agent, "acme", "anna"),
            "c": Scope("other", "acme", "bert"),
        }
        for task_id, scope in rooms.items():
            await write(store, creation(task_id, scope=scope))
        await index(store, a="word", b="word", c="word")
        assert await found(store, "wor") == ["c", "b", "a"]
        assert await found(store, "wor", agent="other") == ["c"]
        assert await found(store, "wor", tenant="acme") == ["c", "b"]
        assert await found(store, "wor", owner="anna") == ["b"]
        assert await found(store, "wor", principal=Principal("", HERE.owner)) == ["a"]
        assert await found(store, "wor", principal=Principal("acme", "bert")) == ["c"]
        assert await found(store, "wor", principal=Principal("acme", "other")) == []
        assert await found(store, "wor", agent="no such\0agent") == []

    async def test_what_is_found_is_narrowed_as_in_a_survey(self, store: Store) -> None:
        """By state, context and time."""
        for number, state in enumerate((TaskState.FAILED, TaskState.COMPLETED, TaskState.FAILED)):
            await write(store, creation(f"t{number}", state=state, at=number + 1))
        await index(store)
        assert await found(store, "t", state=TaskState.FAILED) == ["t2", "t0"]
        assert await found(store, "t", status_since=2) == ["t2", "t1"]
        assert await found(store, "t", status_before=2) == ["t0"]
        context = (await head_of(store, "t1")).context_id
        assert "t1" in await found(store, "t", context_id=context)
        assert await found(store, "t", context_id="another") == []

    async def test_a_search_is_read_page_by_page(self, store: Store) -> None:
        """Nothing is missed, and nothing comes twice."""
        ids = [f"t{number}" for number in range(7)]
        await created(store, ids)
        await index(store)
        assert await found(store, "t", limit=2) == ids[::-1]
        assert await found(store, "t", limit=7) == ids[::-1]

    async def test_a_task_that_ended_comes_to_the_index_again(self, store: Store) -> None:
        """With other words, or with those it has."""
        await created(store, "ab", state=TaskState.WORKING)
        await index(store, a="begun", b="begun")
        assert await waiting(store) == []
        for task_id in "ab":
            head = await head_of(store, task_id)
            failed = status(task_id, TaskState.FAILED)
            await write(store, addition(head, failed, state=TaskState.FAILED))
        assert sorted(await waiting(store)) == ["a", "b"]
        one, other = sorted(await store.unindexed(_MOST), key=lambda head: head.number)
        await store.index_words([words_of(one, "broken"), TaskWords(other.number, None, True)])
        assert await waiting(store) == []
        assert await found(store, "begun") == ["b"]
        assert await found(store, "broken") == ["a"]

    async def test_a_forgotten_task_has_no_words(self, store: Store) -> None:
        """Not those it had, nor those that come late."""
        await created(store, "ab", state=TaskState.COMPLETED, at=1)
        await index(store, a="old", b="old")
        await created(store, "c", state=TaskState.COMPLETED, at=1)
        await created(store, "d", state=TaskState.WORKING)
        late = await store.unindexed(_MOST)
        assert await store.prune(ended_before=END_OF_TIME, keep=0) == 3
        assert await found(store, "old") == []
        await store.index_words([words_of(head, "late") for head in late])
        assert await found(store, "late") == ["d"]
        assert await waiting(store) == []
        await created(store, "e")
        assert await waiting(store) == ["e"]

    async def test_tasks_of_all_workers_come_to_the_index(self, store: Store) -> None:
        """Also those that a worker makes once later ones of another are in it."""
        await created(store, "a")
        await index(store)
        other = await self.successor(store)
        await created(other, "b")
        await index(other, b="late")
        await created(other, "c")
        assert await waiting(other) == ["c"]
        assert await found(other, "late") == ["b"]
