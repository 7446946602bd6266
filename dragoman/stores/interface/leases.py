"""Which worker may write a task.

An open store is a worker: it has a number of its own and holds the tasks it writes. Its lease on
them is valid while it keeps renewing; then any other worker of the same store may claim them, which
raises their fence, and from then on every write under the old fence is refused.
"""

from enum import StrEnum
from typing import Protocol

from dragoman.stores.interface.inspection import WorkerFacts
from dragoman.stores.interface.tasks import TaskRow


class Duty(StrEnum):
    """What one worker at a time does for all."""

    # Seals the transfers that other workers left; each seals its own.
    SEAL = "seal"
    # Checks the agents of the registry.
    WATCH_AGENTS = "watch agents"
    # Deletes what is older than is kept.
    PRUNE = "prune"
    # Adds the words of tasks to the index.
    INDEX_WORDS = "index words"
    # Takes over the receivers of workers that are gone.
    CLAIM_PUSHES = "claim pushes"
    # Begins the tasks of triggers that are due.
    RUN_TRIGGERS = "run triggers"
    # Compares the answers of new versions of agents, and counts.
    RUN_ROLLOUTS = "run rollouts"


def died_alone(held_by: int) -> bool:
    """Tell by the holder that `claim` returned whether the task was the only one under way when
    that worker died."""
    return held_by > 0


class Leases(Protocol):
    """The lease of this worker, and those of the others."""

    @property
    def worker(self) -> int:
        """Our number among the workers of this store, while it is open. It changes with a lapse
        where a number that was given up cannot be had again."""
        ...

    @property
    def knows_all(self) -> bool:
        """Whether no other worker can write at present, so that this one knows of every task and
        key. False never harms: the code of a task then waits until its first write is durable."""
        ...

    @property
    def clock_offset(self) -> int:
        """By how many milliseconds the clock that all workers share is ahead of this machine's; 0:
        they have one machine, or clocks that agree."""
        ...

    @property
    def lapses(self) -> int:
        """How often our lease had ended without our knowing; what we held may be another's."""
        ...

    async def renew(self) -> None:
        """Prolong the lease on everything this worker holds, and find out which others live."""
        ...

    async def is_live(self, worker: int) -> bool:
        """Tell whether a worker's lease is valid. Never from a cache that may say dead: a wrong
        answer takes a task from a worker that lives."""
        ...

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers of this store that have a row, dead or alive."""
        ...

    async def claim(self, agent: str, limit: int) -> list[tuple[TaskRow, int]]:
        """Take over tasks of an agent whose holder's lease has ended: those that do not rest, and
        those with a note. Return each as it is from here on, its fence raised, and its former
        holder's number: negative if that worker had other tasks under way too, of any agent."""
        ...

    async def lead(self, duty: Duty) -> bool:
        """Become the worker that has a duty, or stay it, unless another that lives has it. It is
        free again when that one closes its store or its lease ends.

        Ask before every deed: a leader that was frozen has a successor. What must not be done twice
        is fenced besides, by what the store checks in the transaction of the deed."""
        ...
