"""Receivers of a task's events, how far each is, and what one never took."""

from typing import Protocol

import msgspec

from dragoman.model.identity import Scope, TaskId
from dragoman.model.push import PushConfig

# Why what became of a post is refused.
NOT_OURS = "another worker delivers, or the receiver was dropped"


class Push(msgspec.Struct, frozen=True, gc=False):
    """A receiver of a task's events, and how far it is."""

    number: int
    # The task's number and scope; the public id is in the configuration.
    task: int
    scope: Scope
    config: PushConfig
    # The last event that is dealt with; how often the next one was tried.
    cursor: int
    tries: int = 0
    # Milliseconds since the epoch: the next try, and since when every try failed (0: it did not).
    due_at: int = 0
    failing_since: int = 0
    # Whether there may be anything more to deliver.
    is_open: bool = True
    problem: str = ""

    def without_secrets(self) -> "Push":
        """Return it for people: where its posts go, and not what they show there."""
        config = self.config
        shown = PushConfig(config.url, config.id, config.task_id, version=config.version)
        return msgspec.structs.replace(self, config=shown)


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """An event that a receiver never took."""

    push: int
    task_id: TaskId
    config_id: str
    url: str
    seq: int
    tries: int
    at: int
    problem: str


class PushStore(Protocol):
    """The receivers of all tasks."""

    async def put_push(
        self, number: int, config: PushConfig, after: int, *, most: int
    ) -> Push | None:
        """Store a receiver for the events of a task after a position. One of the same id is
        replaced, and its successor goes on where it was. None: the task has `most` already."""
        ...

    async def drop_push(self, number: int, config_id: str) -> None:
        """Forget a receiver, if there is one."""
        ...

    async def pushes(self, number: int) -> list[Push]:
        """Return a task's receivers in the order of their ids."""
        ...

    async def claim_pushes(self, limit: int) -> list[Push]:
        """Take over open receivers whose holder's lease has ended."""
        ...

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is, and what it never took. `StoreConflict`: it was dropped, or
        another worker has it."""
        ...

    async def drop_letter(self, push: int, seq: int) -> None:
        """Forget a dead letter: it was delivered after all."""
        ...

    async def reopen_push(self, push: int) -> None:
        """Have a receiver that was given up delivered to again, by the worker that claims it."""
        ...

    async def dead_letters(
        self, limit: int, *, before: tuple[int, int, int] | None = None
    ) -> list[DeadLetter]:
        """Return what receivers never took, latest first; before a time, receiver and event."""
        ...

    async def letters_of(self, number: int) -> list[DeadLetter]:
        """Return what receivers of a task never took, by receiver and event."""
        ...

    async def receivers(
        self, *, limit: int, before: int = 0, failing: bool = False
    ) -> list[tuple[Push, int]]:
        """Return receivers of all tasks without their secrets, latest first, each with the last
        event of its task; before the number of one. `failing`: only those whose last try failed and
        that were not dealt with since."""
        ...
