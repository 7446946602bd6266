"""Words of tasks in memory."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from dragoman.stores.interface import TaskRow, TaskWords


class _HasRow(Protocol):
    @property
    def head(self) -> TaskRow: ...


_Stored = TypeVar("_Stored", bound=_HasRow)


class MemoryWords:
    """Which tasks have a word."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._words: dict[int, frozenset[str]] = {}
        # Indexed before they had ended.
        self._unfinished: set[int] = set()
        self._highest = 0

    def unindexed(self, tasks: dict[int, _Stored], limit: int, newest: bool) -> list[TaskRow]:
        """Return tasks that are new, and that ended since."""
        # Numbers ascend in the order in which tasks came to be.
        fresh: list[TaskRow] = []
        for number in reversed(tasks):
            if number <= self._highest:
                break
            fresh.append(tasks[number].head)
        if not newest:
            fresh.reverse()
        heads = [tasks[number].head for number in sorted(self._unfinished)]
        ended = [head for head in heads if head.standing.state.is_terminal]
        return fresh[:limit] + ended[:limit]

    def add(self, tasks: Sequence[TaskWords]) -> None:
        """Record words, and that these tasks were looked at."""
        for task in tasks:
            if task.words is not None:
                self._drop_words(task.number)
                self._words[task.number] = task.words
                for word in task.words:
                    self._numbers.setdefault(word, set()).add(task.number)
            (self._unfinished.discard if task.is_final else self._unfinished.add)(task.number)
        self._highest = max([self._highest, *(task.number for task in tasks)])

    def having(self, words: Iterable[str]) -> set[int]:
        """Return the tasks of which each of the words begins a word."""
        found: set[int] | None = None
        for begin in words:
            these: set[int] = set()
            for word, numbers in self._numbers.items():
                if word.startswith(begin):
                    these |= numbers
            found = these if found is None else found & these
        return found or set()

    def forget(self, number: int) -> None:
        """Forget a task."""
        self._drop_words(number)
        self._unfinished.discard(number)

    def _drop_words(self, number: int) -> None:
        for word in self._words.pop(number, ()):
            numbers = self._numbers[word]
            numbers.discard(number)
            if not numbers:
                del self._numbers[word]
