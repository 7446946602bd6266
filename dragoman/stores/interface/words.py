"""Words by which tasks are found, written behind the tasks.

No write of a task touches the index: a worker that has the duty reads tasks that are not in it, and
adds their words. What a word is, and of which texts, is decided by the caller; a store only knows
that words are letters and digits, in small letters.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dragoman.stores.interface.tasks import Survey, TaskRow


class TaskWords(msgspec.Struct, frozen=True, gc=False):
    """The words of a task as it was when they were read."""

    number: int
    # None: those that the index has stay.
    words: frozenset[str] | None
    # Whether it had ended: its words change no more.
    is_final: bool


class TasksFound(msgspec.Struct, frozen=True, gc=False):
    """Some of the tasks that a search finds, the highest number first."""

    heads: list[TaskRow]
    # The search goes on below this number; 0: there are no more.
    below: int


class TaskWordIndex(Protocol):
    """Tasks by their words."""

    async def unindexed(self, limit: int, *, newest: bool = False) -> list[TaskRow]:
        """Return tasks whose words the index does not have as they are now: at most `limit` that
        are new, the oldest (or the newest) of them, and at most `limit` that ended since."""
        ...

    async def index_words(self, tasks: Sequence[TaskWords]) -> None:
        """Record words of all tasks that `unindexed` returned, the oldest first. Those of tasks
        that were forgotten meanwhile are not."""
        ...

    async def search(self, survey: Survey, words: Sequence[str]) -> TasksFound:
        """Return indexed tasks of which each of the words begins a word, below the number of
        `survey.after`. It ends after a bounded number of tasks, found or not; `below` tells where
        to go on. The event loop does not wait for it."""
        ...
