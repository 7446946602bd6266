"""Tasks in memory: for tests and for agents whose tasks need not outlive the process."""

import asyncio
import bisect
import heapq
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol

import msgspec

from dragoman.errors import HoldRefused, StoreBroken, StoreConflict
from dragoman.model.events import ArtifactUpdate
from dragoman.model.identity import Principal, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import TaskState
from dragoman.stores.interface import (
    LATEST,
    READ_BYTES,
    Append,
    Bodies,
    Create,
    DeadLetter,
    Done,
    Duty,
    Heard,
    KeepReply,
    Known,
    LeaveNote,
    Note,
    Push,
    Query,
    Rung,
    Snapshot,
    StoreSize,
    StoreTrouble,
    Survey,
    TaskRow,
    TaskRows,
    TasksFound,
    TaskWords,
    Write,
)
from dragoman.stores.interface.inspection import WorkerFacts
from dragoman.stores.interface.pushes import NOT_OURS
from dragoman.stores.memory.words import MemoryWords


class _Stored:
    __slots__ = ("deadline", "events", "head", "notes", "snapshot", "withheld")

    def __init__(self, head: TaskRow, deadline: int) -> None:
        self.head = head
        self.deadline = deadline
        self.events: list[Recorded] = []
        self.notes: list[Note] = []
        self.snapshot: Snapshot | None = None
        self.withheld: dict[int, bytes] = {}

    def hold(self, worker: int) -> None:
        self.head = msgspec.structs.replace(self.head, holder=worker)


class _Receiver:
    __slots__ = ("holder", "letters", "push")

    def __init__(self, push: Push, holder: int) -> None:
        self.push = push
        self.holder = holder
        self.letters: dict[int, DeadLetter] = {}


class MemoryOrders(Protocol):
    """Orders of the tasks: `memory.accounting`."""

    def record(self, write: Create | Append, number: int) -> None:
        """Record what a write means to its order; raises `HoldRefused`."""
        ...

    def forget(self, number: int) -> None:
        """Note that a task is gone."""
        ...

    def agent_of(self, number: int) -> str:
        """Return the agent that a task was ordered from."""
        ...


class MemoryStore:
    """The store that keeps its promises until the process ends."""

    is_far = False
    clock_offset = 0

    def __init__(self, *, orders: MemoryOrders | None = None) -> None:
        self._orders = orders
        self.secret = secrets.token_bytes(32)
        self._tasks: dict[int, _Stored] = {}
        self._numbers: dict[tuple[Scope, TaskId], int] = {}
        # What a key stands for, and since when (milliseconds).
        self._keys: dict[tuple[Scope, bytes], tuple[Known, int]] = {}
        # (status time, number) of every task of a scope, ascending.
        self._order: dict[Scope, list[tuple[int, int]]] = {}
        self._next_number = 1
        self._words = MemoryWords()
        # Receivers by their own number, which counts on.
        self._receivers: dict[int, _Receiver] = {}
        self._next_receiver = 1
        self._next_note = 1
        self.worker = 1
        # Workers before us that had more than one task under way when they died.
        self._crowds: set[int] = set()
        # No other process has this memory.
        self.knows_all = True
        # There is one worker.
        self.limits = None
        self.lapses = 0

    async def prepare(self) -> None:
        """Have `secret` at hand, as it always is."""

    async def open(self) -> None:
        """Begin as another worker: what the one before held and did not let go is abandoned."""
        under_way = Counter(
            stored.head.holder
            for stored in self._tasks.values()
            if not stored.head.standing.state.is_resting
        )
        self._crowds |= {holder for holder, count in under_way.items() if holder and count > 1}
        self.worker += 1

    async def close(self) -> None:
        """Let go of everything in good order."""
        for stored in self._tasks.values():
            if stored.head.holder == self.worker:
                stored.hold(0)
        for receiver in self._receivers.values():
            if receiver.holder == self.worker:
                receiver.holder = 0

    async def troubles(self) -> Sequence[StoreTrouble]:
        """Memory has no parts that could fail."""
        return ()

    async def size(self) -> StoreSize:
        """Memory has no size of its own."""
        return StoreSize(0, None)

    async def broken(self) -> StoreBroken:
        """Memory does not break."""
        return await asyncio.get_running_loop().create_future()

    def submit(self, write: Write, done: Done) -> None:
        """Apply the write at once; tell on the next turn of the loop, as durable stores do."""
        error: Exception | None = None
        number = 0
        try:
            number = self._apply(write)
        except (StoreConflict, HoldRefused) as refusal:
            error = refusal
        asyncio.get_running_loop().call_soon(done, error, number)

    def _apply(self, write: Write) -> int:
        match write:
            case KeepReply():
                self._use_keys(write.scope, [write.key], Known(reply=write.body))
                return 0
            case Create():
                return self._create(write)
            case Append():
                self._append(write)
                return write.number
            case LeaveNote():
                self._leave_note(write)
                return write.number

    def _create(self, write: Create) -> int:
        if (write.scope, write.task_id) in self._numbers:
            raise StoreConflict("the task exists")
        self._check_keys(write.scope, write.keys)
        if self._orders is not None:
            # Before anything changes: a hold may be refused.
            self._orders.record(write, self._next_number)
        self._use_keys(write.scope, write.keys, Known(task_id=write.task_id))
        number, self._next_number = self._next_number, self._next_number + 1
        head = TaskRow(
            number, write.task_id, write.context_id, write.scope, write.standing, 1, self.worker
        )
        stored = _Stored(head, write.deadline)
        stored.events.extend(write.events)
        stored.snapshot = write.snapshot
        self._tasks[number] = stored
        self._numbers[write.scope, write.task_id] = number
        bisect.insort(self._order.setdefault(write.scope, []), (write.standing.status_at, number))
        for config in write.pushes:
            self._receive(stored.head, config, 0)
        return number

    def _leave_note(self, write: LeaveNote) -> None:
        stored = self._tasks.get(write.number)
        if stored is None or stored.head.standing.state.is_terminal:
            raise StoreConflict("the task is gone or has ended")
        self._use_keys(write.scope, write.keys, Known(task_id=stored.head.task_id))
        stored.notes.append(Note(self._next_note, write.body))
        self._next_note += 1

    def _append(self, write: Append) -> None:
        stored = self._tasks.get(write.number)
        if stored is None:
            raise StoreConflict("the task is gone")
        head = stored.head
        if head.standing != write.before or head.fence != write.fence:
            raise StoreConflict("the log moved on")
        self._check_keys(write.scope, write.keys)
        if self._orders is not None:
            self._orders.record(write, write.number)
        self._use_keys(write.scope, write.keys, Known(task_id=head.task_id))
        stored.events.extend(write.events)
        stored.snapshot = write.snapshot or stored.snapshot
        stored.notes = [note for note in stored.notes if note.number not in write.notes]
        stored.withheld.update(write.withheld)
        if write.forgets:
            stored.withheld.clear()
        if write.deadline is not None:
            stored.deadline = write.deadline
        stored.head = msgspec.structs.replace(
            head, standing=write.standing, fence=write.next_fence, holder=self.worker
        )
        if head.standing.status_at != write.standing.status_at:
            order = self._order[head.scope]
            del order[bisect.bisect_left(order, (head.standing.status_at, head.number))]
            bisect.insort(order, (write.standing.status_at, head.number))

    def _check_keys(self, scope: Scope, keys: Sequence[bytes]) -> None:
        if any((scope, key) in self._keys for key in keys):
            raise StoreConflict("a key was used")

    def _use_keys(self, scope: Scope, keys: Sequence[bytes], known: Known) -> None:
        self._check_keys(scope, keys)
        for key in keys:
            self._keys[scope, key] = known, time.time_ns() // 1_000_000

    def is_new(self, key: bytes) -> bool:
        """Tell nothing: a look costs as little."""
        return False

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for."""
        entry = self._keys.get((scope, key))
        if entry is None:
            return None
        known, _ = entry
        return Known() if self._is_forgotten(scope, known) else known

    async def head(self, scope: Scope, task_id: TaskId) -> TaskRow | None:
        """Return a task's row."""
        number = self._numbers.get((scope, task_id))
        return None if number is None else self._tasks[number].head

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[int, int, TaskReading | None] | None:
        """Return a task's number and last position and, if it rests, the task."""
        head = await self.head(scope, task_id)
        if head is None:
            return None
        reading = await self.snapshot(head.number)
        last = head.standing.last_seq
        if reading is not None and reading.seq != last:
            reading = None
        return head.number, last, reading

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
        stored = self._tasks.get(number)
        if stored is None:
            return []
        # Sequence numbers have no gaps, so a position is an index.
        events = stored.events[after:]
        if not artifacts:
            events = [r for r in events if not isinstance(r.event, ArtifactUpdate)]
        return events[:limit]

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        stored = self._tasks.get(number)
        if stored is None or stored.snapshot is None:
            return None
        return stored.snapshot.reading(artifacts=artifacts)

    async def read_many(
        self, places: Sequence[tuple[int, int]], *, limit: int, size: int = READ_BYTES
    ) -> list[list[Recorded]]:
        """Return the events after each position."""
        return [await self.read(number, after=after, limit=limit) for number, after in places]

    async def last_seqs(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the last position of each task's log."""
        return {
            number: stored.head.standing.last_seq
            for number in numbers
            if (stored := self._tasks.get(number)) is not None
        }

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have."""
        return sum(
            len(recorded.body)
            for stored in self._tasks.values()
            if stored.head.scope.principal == principal
            for recorded in stored.events
        )

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show."""
        stored = self._tasks.get(number)
        return {} if stored is None else dict(stored.withheld)

    async def page(self, query: Query, *, bodies: Bodies | None = None) -> TaskRows:
        """Return one page, walking the order from its end."""
        heads = list(self._matching(query))
        place = query.after
        if place is not None:
            later = [h for h in heads if (h.standing.status_at, h.number) < place]
        else:
            later = heads
        rows = later[: query.limit]
        return TaskRows(rows, len(heads), [] if bodies is None else self._bodies(rows, bodies))

    def _bodies(self, rows: Sequence[TaskRow], bodies: Bodies) -> list[TaskReading | None]:
        left = bodies.size
        readings: list[TaskReading | None] = []
        for row in rows:
            snapshot = self._tasks[row.number].snapshot if left > 0 else None
            reading = None
            if snapshot is not None and snapshot.seq == row.standing.last_seq:
                reading = snapshot.reading(artifacts=bodies.artifacts)
                left -= len(reading.body)
            readings.append(reading)
        return readings

    def _matching(self, query: Query) -> Iterable[TaskRow]:
        for status_at, number in reversed(self._order.get(query.scope, [])):
            if query.status_since is not None and status_at < query.status_since:
                return
            head = self._tasks[number].head
            if query.context_id and head.context_id != query.context_id:
                continue
            if query.state is not None and head.standing.state is not query.state:
                continue
            if query.ordered_from and self._agent_of(number) != query.ordered_from:
                continue
            yield head

    def _agent_of(self, number: int) -> str:
        return "" if self._orders is None else self._orders.agent_of(number)

    async def survey(self, survey: Survey) -> list[TaskRow]:
        """Return tasks of all owners, latest status first."""
        below = survey.starts_below()
        heads = [stored.head for stored in self._tasks.values() if survey.covers(stored.head)]
        places = [(head.standing.status_at, head.number, head) for head in heads]
        later = [place for place in places if place[:2] < below]
        found = heapq.nlargest(survey.limit, later, key=lambda place: place[:2])
        return [head for _, _, head in found]

    async def counts(self) -> dict[TaskState, int]:
        """Return how many tasks are in each state."""
        return dict(Counter(stored.head.standing.state for stored in self._tasks.values()))

    # Words

    async def unindexed(self, limit: int, *, newest: bool = False) -> list[TaskRow]:
        """Return tasks whose words the index does not have as they are now."""
        return self._words.unindexed(self._tasks, limit, newest)

    async def index_words(self, tasks: Sequence[TaskWords]) -> None:
        """Record the words of tasks."""
        self._words.add([task for task in tasks if task.number in self._tasks])

    async def search(self, survey: Survey, words: Sequence[str]) -> TasksFound:
        """Return tasks by their words."""
        below = LATEST if survey.after is None else survey.after[1]
        numbers = sorted((n for n in self._words.having(words) if n < below), reverse=True)
        heads = [self._tasks[number].head for number in numbers]
        found = [head for head in heads if survey.covers(head)]
        rest = found[survey.limit - 1].number if len(found) > survey.limit else 0
        return TasksFound(found[: survey.limit], rest)

    # Leases

    async def renew(self) -> None:
        """No other worker could take over."""

    async def workers(self) -> list[WorkerFacts]:
        """Return the only worker."""
        under_way = sum(
            one.head.holder == self.worker and not one.head.standing.state.is_resting
            for one in self._tasks.values()
        )
        return [WorkerFacts(self.worker, "live", is_due=False, tasks=under_way)]

    async def is_live(self, worker: int) -> bool:
        """Tell whether a worker is the present one."""
        return worker == self.worker

    def listen(self, heard: Heard) -> None:
        """No other worker writes, so there is nothing to hear."""

    def ring(self, rung: Rung) -> None:
        """There is no other worker."""

    async def lead(self, duty: Duty) -> bool:
        """Every duty is the only worker's."""
        return True

    async def claim(self, agent: str, limit: int) -> list[tuple[TaskRow, int]]:
        """Take over what earlier workers left."""
        claimed: list[tuple[TaskRow, int]] = []
        for stored in self._of(agent):
            head = stored.head
            is_open = not head.standing.state.is_resting or (
                head.standing.state.is_interrupted and stored.notes
            )
            if is_open and head.holder != self.worker and len(claimed) < limit:
                stored.head = msgspec.structs.replace(
                    head, fence=head.fence + 1, holder=self.worker
                )
                held_by = -head.holder if head.holder in self._crowds else head.holder
                claimed.append((stored.head, held_by))
        return claimed

    async def notes(self, number: int) -> list[Note]:
        """Return what was left for the holder of a task."""
        stored = self._tasks.get(number)
        return [] if stored is None else list(stored.notes)

    async def noted(self, agent: str) -> list[TaskRow]:
        """Return the tasks we hold that have notes."""
        return [
            stored.head
            for stored in self._of(agent)
            if stored.notes
            and stored.head.holder == self.worker
            and not stored.head.standing.state.is_terminal
        ]

    async def overdue(self, agent: str, now: int) -> list[TaskRow]:
        """Return the tasks that should have ended."""
        return [
            stored.head
            for stored in self._of(agent)
            if 0 < stored.deadline <= now and not stored.head.standing.state.is_terminal
        ]

    def _of(self, agent: str) -> list[_Stored]:
        return [stored for stored in self._tasks.values() if stored.head.scope.agent == agent]

    # Pushes

    async def put_push(
        self, number: int, config: PushConfig, after: int, *, most: int
    ) -> Push | None:
        """Keep a receiver in place of one with the same id, if there is room."""
        kept = await self.pushes(number)
        before = next((push for push in kept if push.config.id == config.id), None)
        if before is None:
            if len(kept) >= most:
                return None
            return self._receive(self._tasks[number].head, config, after)
        letters = self._receivers.pop(before.number).letters
        push = self._receive(self._tasks[number].head, config, before.cursor)
        self._receivers[push.number].letters = {
            seq: msgspec.structs.replace(letter, push=push.number, url=config.url)
            for seq, letter in letters.items()
        }
        return push

    def _receive(self, head: TaskRow, config: PushConfig, after: int) -> Push:
        push = Push(self._next_receiver, head.number, head.scope, config, after)
        self._receivers[push.number] = _Receiver(push, self.worker)
        self._next_receiver += 1
        return push

    async def drop_push(self, number: int, config_id: str) -> None:
        """Forget a receiver and what it never took."""
        for push in await self.pushes(number):
            if push.config.id == config_id:
                del self._receivers[push.number]

    async def pushes(self, number: int) -> list[Push]:
        """Return a task's receivers."""
        found = [r.push for r in self._receivers.values() if r.push.task == number]
        return sorted(found, key=lambda push: push.config.id)

    async def claim_pushes(self, limit: int) -> list[Push]:
        """Take over the receivers of earlier workers."""
        found = [
            receiver
            for receiver in self._receivers.values()
            if receiver.push.is_open and receiver.holder != self.worker
        ][:limit]
        for receiver in found:
            receiver.holder = self.worker
        return [receiver.push for receiver in found]

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is, if it is still ours."""
        receiver = self._receivers.get(push.number)
        if receiver is None or receiver.holder != self.worker:
            raise StoreConflict(NOT_OURS)
        receiver.push = push
        if letter is not None:
            receiver.letters[letter.seq] = letter

    async def drop_letter(self, push: int, seq: int) -> None:
        """Forget a dead letter."""
        if (receiver := self._receivers.get(push)) is not None:
            receiver.letters.pop(seq, None)

    async def reopen_push(self, push: int) -> None:
        """Have a receiver that was given up delivered to again."""
        receiver = self._receivers.get(push)
        if receiver is not None and not receiver.push.is_open:
            before = receiver.push
            receiver.push = Push(
                before.number, before.task, before.scope, before.config, before.cursor
            )
            receiver.holder = 0

    async def dead_letters(
        self, limit: int, *, before: tuple[int, int, int] | None = None
    ) -> list[DeadLetter]:
        """Return what was never taken, latest first."""
        letters = [letter for r in self._receivers.values() for letter in r.letters.values()]
        places = [((letter.at, letter.push, letter.seq), letter) for letter in letters]
        left = [place for place in places if before is None or place[0] < before]
        return [letter for _, letter in sorted(left, key=itemgetter(0), reverse=True)[:limit]]

    async def letters_of(self, number: int) -> list[DeadLetter]:
        """Return what receivers of a task never took."""
        own = [receiver for receiver in self._receivers.values() if receiver.push.task == number]
        letters = [letter for receiver in own for letter in receiver.letters.values()]
        return sorted(letters, key=lambda letter: (letter.push, letter.seq))

    async def receivers(
        self, *, limit: int, before: int = 0, failing: bool = False
    ) -> list[tuple[Push, int]]:
        """Return receivers of all tasks, latest first."""
        found: list[tuple[Push, int]] = []
        for number in sorted(self._receivers, reverse=True):
            push = self._receivers[number].push
            last = self._tasks[push.task].head.standing.last_seq
            is_failing = push.failing_since > 0 and (push.is_open or push.cursor < last)
            if (not before or number < before) and (is_failing or not failing):
                found.append((push.without_secrets(), last))
        return found[:limit]

    # Forgetting

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget terminal tasks by age and number, unless a receiver still waits for events."""
        awaited = {r.push.task for r in self._receivers.values() if r.push.is_open}
        ended = sorted(
            (stored.head.standing.status_at, number)
            for number, stored in self._tasks.items()
            if stored.head.standing.state.is_terminal and number not in awaited
        )
        surplus = max(0, len(ended) - keep)
        doomed = [
            (status_at, number)
            for index, (status_at, number) in enumerate(ended)
            if index < surplus or status_at < ended_before
        ]
        for status_at, number in doomed:
            head = self._tasks.pop(number).head
            self._words.forget(number)
            if self._orders is not None:
                self._orders.forget(number)
            for push in await self.pushes(number):
                del self._receivers[push.number]
            del self._numbers[head.scope, head.task_id]
            order = self._order[head.scope]
            del order[bisect.bisect_left(order, (status_at, number))]
        gone = [
            (scope, key)
            for (scope, key), (known, made_at) in self._keys.items()
            if made_at < ended_before and (known.reply or self._is_forgotten(scope, known))
        ]
        for entry in gone:
            del self._keys[entry]
        return len(doomed)

    def _is_forgotten(self, scope: Scope, known: Known) -> bool:
        return bool(known.task_id) and (scope, known.task_id) not in self._numbers
