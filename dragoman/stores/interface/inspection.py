"""What an operator's tools read of a store: no worker, and no write.

A store has no order of events across tasks, only within each. A reader of all tasks therefore holds
a `TailPosition`: the highest task seen and, of those that had not ended, how far each was. Ended
tasks never change, so that is all it takes to miss nothing. Contents of messages are read only by
`TaskInspection`. Of a file nothing is waited for, so commands need no event loop for one.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec

from dragoman.model.identity import ContextId, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState
from dragoman.stores.interface.pushes import DeadLetter, Push
from dragoman.stores.interface.tasks import READ_BYTES

_EVERYTHING = (1 << 62) - 1
# Events of a log that are read in one go.
_AT_ONCE = 500


class TaskLine(NamedTuple):
    """A task as its row has it."""

    number: int
    task_id: TaskId
    context_id: ContextId
    state: TaskState
    # Milliseconds.
    status_at: int
    last_seq: int
    agent: str
    tenant: str
    owner: str


class TaskFilter(msgspec.Struct, frozen=True, array_like=True):
    """Which tasks are wanted."""

    agent: str = ""
    context_id: str = ""
    state: TaskState | None = None
    # Milliseconds.
    since: int = 0


class TailFilter(msgspec.Struct, frozen=True, array_like=True):
    """Whose events a reader of all tasks wants; empty: of all."""

    agent: str = ""
    context_id: str = ""
    task_id: str = ""

    def takes(self, line: TaskLine) -> bool:
        """Tell whether a task is wanted; that of another agent is not even looked at."""
        return self.context_id in ("", line.context_id) and self.task_id in ("", line.task_id)


class TailPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a reader of all tasks is."""

    highest: int
    # Of those that had not ended, the last event that was read.
    seen: dict[int, int]
    # Where tasks with numbers below the highest may still come to be, and the highest seen there.
    # Only a store that gives numbers in blocks, to several processes, has such.
    blocks: Mapping[int, int] = MappingProxyType({})

    def __str__(self) -> str:
        return f"p{self.highest}{_pairs('_', self.seen)}{_pairs('-', self.blocks)}"

    @classmethod
    def parse(cls, text: str) -> "TailPosition":
        """Return the position of a text; raises ValueError."""
        if not text.startswith("p"):
            raise ValueError("is not a position")
        tasks, *blocks = text[1:].split("-")
        first, *seen = tasks.split("_")
        return cls(int(first), _numbers(seen), _numbers(blocks))


def _pairs(mark: str, numbers: Mapping[int, int]) -> str:
    return "".join(f"{mark}{number}.{last}" for number, last in sorted(numbers.items()))


def _numbers(pairs: list[str]) -> dict[int, int]:
    found = [pair.partition(".") for pair in pairs]
    return {int(number): int(last) for number, _, last in found}


class WorkerFacts(NamedTuple):
    """A process that has a row in the file."""

    number: int
    # Frozen: it runs, but gave no sign of life in time. Dead: it has ended.
    state: Literal["live", "frozen", "dead"]
    # Whether another worker should have taken over what it held.
    is_due: bool
    # Tasks under way whose lease it has. One that rests needs none.
    tasks: int = 0


class OrphanFacts(msgspec.Struct, frozen=True, array_like=True):
    """Unfinished tasks that no worker holds."""

    number: int
    agents: list[str]
    # All unfinished ones.
    unfinished: int


class NoteFacts(msgspec.Struct, frozen=True, array_like=True):
    """What processes left for a task's holder."""

    late: int  # the task had ended
    stuck: int  # no worker is there to read them
    number: int


class ReceiverFacts(NamedTuple):
    """Receivers of webhooks that do not get them."""

    failing: int
    given_up: int
    abandoned: int  # no worker delivers


class TaskInspection(Protocol):
    """Tasks and their logs."""

    async def version(self) -> int:
        """Return a number that changes when another process wrote."""
        ...

    async def page(
        self, wanted: TaskFilter, limit: int, after: tuple[int, int] | None = None
    ) -> list[TaskLine]:
        """Return the tasks whose status changed last, after a time and number."""
        ...

    async def find(self, task_id: str, agent: str = "") -> list[TaskLine]:
        """Return the tasks of an id: one, unless agents or owners share it."""
        ...

    async def here(self, agent: str = "") -> TailPosition:
        """Return the position of a reader that has seen everything."""
        ...

    async def follow(
        self, position: TailPosition, wanted: TailFilter, limit: int
    ) -> tuple[list[tuple[TaskLine, Recorded]], TailPosition]:
        """Return events after a position, those of one task in their order, and where that ends.
        Fewer than `limit` means that there are no more yet."""
        ...

    # The two reads of a store by which a task is folded from its log.

    async def read(
        self,
        number: int,
        *,
        after: int,
        limit: int,
        artifacts: bool = True,
        size: int = READ_BYTES,
    ) -> list[Recorded]:
        """Return the events after a position."""
        ...

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        ...


async def last_events(reading: TaskInspection, line: TaskLine, count: int) -> list[Recorded]:
    """Return the last events of a task that streams show."""
    window = count
    while True:
        after = max(0, line.last_seq - window)
        found = await reading.read(line.number, after=after, limit=window, size=_EVERYTHING)
        public = [one for one in found if one.is_public]
        if len(public) >= count or not after:
            return public[-count:]
        # Some of them are for us alone: look further back.
        window *= 2


async def whole_log(reading: TaskInspection, line: TaskLine) -> list[Recorded]:
    """Return all events of a task."""
    events: list[Recorded] = []
    while batch := await reading.read(
        line.number, after=events[-1].seq if events else 0, limit=_AT_ONCE
    ):
        events += batch
    return events


class HealthInspection(Protocol):
    """Facts for an operator, judged elsewhere."""

    async def tasks(self) -> int:
        """Return how many tasks there are."""
        ...

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers that have a row, dead or alive."""
        ...

    async def orphans(self) -> OrphanFacts:
        """Return unfinished tasks that a worker should have taken over by now."""
        ...

    async def notes(self) -> NoteFacts:
        """Return how many messages and cancels wait in notes."""
        ...

    async def overdue(self) -> int:
        """Return how many tasks should have ended by their deadline."""
        ...

    async def receivers(self) -> ReceiverFacts:
        """Return how many receivers do not get their posts."""
        ...

    async def pushes(self) -> list[tuple[Push, int]]:
        """Return all receivers without their secrets, each with the last event of its task."""
        ...

    async def letters(self) -> list[DeadLetter]:
        """Return all dead letters by receiver and event."""
        ...

    async def dead_letters(self) -> tuple[int, int]:
        """Return how many events no receiver took, and when the latest was given up."""
        ...

    async def stuck(self, before: int) -> int:
        """Return how many receivers of ended tasks a live worker should have posted to before a
        time."""
        ...

    async def newest(self) -> int:
        """Return when a task's status last changed, in milliseconds; 0: never."""
        ...
