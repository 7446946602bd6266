"""How readers follow the log of a task: subscribers, callers that wait, receivers of posts.

A reader holds a position and nothing else. What it has not read waits in the store, so a slow
reader costs no memory. Recent events come from the log that this process writes, all others from
the store.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import compress, count
from operator import attrgetter, methodcaller, not_
from typing import Self

import msgspec

from dragoman.engine.gathered_reads import GatheredReads
from dragoman.engine.live_tasks import LiveTasks
from dragoman.engine.log import TaskLog
from dragoman.engine.reading import TaskReader
from dragoman.errors import StoreUnavailable, UnsupportedOperation
from dragoman.model import operations as ops
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import Scope, TaskId
from dragoman.model.record import ARTIFACT_EVENT, PUBLIC_EVENTS, STATUS_EVENT, Recorded
from dragoman.model.task import TaskState
from dragoman.service import Batch, Call, Opening, TaskReply
from dragoman.stores.interface import Push, Store, TaskRow

# Seconds until a store that was away is read again.
_AWAY_PAUSE = 0.5


class LogPosition(msgspec.Struct, frozen=True):
    """Where a reader stands: a task and a position in its log."""

    scope: Scope
    task_id: TaskId
    number: int
    after: int

    @classmethod
    def of(cls, head: TaskRow, after: int) -> "LogPosition":
        """Return a position in the log of a stored task."""
        return cls(head.scope, head.task_id, head.number, after)


class Following:
    """Follows the logs of one agent's tasks, wherever they are written."""

    def __init__(self, store: Store, live: LiveTasks, reader: TaskReader) -> None:
        self._store = store
        self._reads = GatheredReads(store)
        self._live = live
        self._reader = reader

    def events(self, position: LogPosition, log: TaskLog | None) -> "LogReader":
        """Return what reads all events after a position, without end."""
        return LogReader(self._reads, self._live, log, position)

    def stream(self, position: LogPosition, call: Call, log: TaskLog | None) -> "StreamReader":
        """Return what reads what the stream of a call shows after a position."""
        return StreamReader(
            self._reads, self._live, log, position, closes_on_input=call.closes_on_input
        )

    async def look(self) -> None:
        """Wake readers of tasks that another process wrote without our hearing of it."""
        places = self._live.bell.places()
        if not places:
            return
        for number, last in (await self._store.last_seqs(list(places))).items():
            if last > places[number]:
                self._live.bell.ring_number(number)

    async def subscribe(
        self, scope: Scope, call: Call, operation: ops.SubscribeToTask
    ) -> AsyncGenerator[Batch]:
        """Answer `SubscribeToTask`."""
        head = await self._reader.find(scope, operation.task_id)
        upto = resume_position(call.after, head)
        if upto is None and head.standing.state.is_terminal and not call.shows_ended:
            raise UnsupportedOperation("The task has ended; there is nothing to follow")
        reading = await self._reader.read(head, upto)
        position, state = LogPosition.of(head, reading.seq), reading.task.status.state
        opening = Opening(TaskReply(reading), is_reset=call.after is not None and upto is None)
        # A stream may last for days: it does not keep the task that it began with.
        del reading, head
        yield opening
        del opening
        if state.is_terminal:
            return
        log = self._live.get(position.scope, position.task_id)
        async for batch in self.stream(position, call, log):
            yield batch
            # Nor what it showed last.
            del batch

    async def follow_push(self, push: Push) -> AsyncGenerator[Sequence[Recorded]]:
        """Yield a task's events after a receiver's cursor, until there will be no more."""
        head = await self._store.head(push.scope, push.config.task_id)
        if head is None or (
            head.standing.state.is_terminal and push.cursor >= head.standing.last_seq
        ):
            return
        log = self._live.get(head.scope, head.task_id)
        position = LogPosition.of(head, push.cursor)
        async for batch in StreamReader(
            self._reads, self._live, log, position, closes_on_input=False
        ):
            yield batch

    async def rest_elsewhere(
        self, scope: Scope, task_id: TaskId, after: int = 0, *, at_end: bool = False
    ) -> None:
        """Wait until a task that another process writes rests, or until its end."""
        head = await self._reader.find(scope, task_id)
        state = head.standing.state
        if state.is_terminal or (state.is_resting and not at_end):
            return
        position = LogPosition.of(head, after or head.standing.last_seq)
        async for batch in self.events(position, None):
            for event in (recorded.event for recorded in batch):
                if isinstance(event, StatusUpdate) and (
                    event.status.state.is_terminal or (event.status.state.is_resting and not at_end)
                ):
                    return


def resume_position(after: int | None, head: TaskRow) -> int | None:
    """Return where a reader left off; None for a position that the log never had."""
    if after is None or not 0 <= after <= head.standing.last_seq:
        return None
    # The log begins with its task, so a reader that has seen nothing begins there.
    return max(after, 1)


class LogReader:
    """Reads the log of a task, batch by batch, without end.

    Not a generator: a loop keeps a list of those, and each needs something to close it. While it
    waits, a reader is a position and one future.
    """

    __slots__ = ("_after", "_live", "_log", "_position", "_reads")

    def __init__(
        self, reads: GatheredReads, live: LiveTasks, log: TaskLog | None, position: LogPosition
    ) -> None:
        self._reads = reads
        self._live = live
        self._log = log
        self._position = position
        self._after = position.after

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Recorded]:
        """Wait for the next events, and return them."""
        position = self._position
        while True:
            ring: asyncio.Future[None] | None = None
            try:
                batch = self._recent()
                if batch is None:
                    # Listen before reading: what is written in between rings.
                    ring = self._listen()
                    batch = await self._reads.read(position.number, self._after)
                if batch:
                    self._after = batch[-1].seq
                    return batch
                ring = ring or self._listen()
                await ring
            except StoreUnavailable:
                # The reader stays: what it has not seen is still there when the store is back.
                await asyncio.sleep(_AWAY_PAUSE)
            finally:
                if ring is not None:
                    self._live.bell.leave(position.task_id, ring)

    def _recent(self) -> list[Recorded] | None:
        """Return what memory has behind the position; None: it has to be read."""
        after, log, position = self._after, self._log, self._position
        if log is not None and (log.is_retired or log.failure) and after >= log.durable_seq:
            log = self._live.get(position.scope, position.task_id)
            if log is not None and log.failure:
                log = None
        batch = log.recent(after) if log is not None else None
        if batch is None:
            log = log or self._live.get(position.scope, position.task_id)
        self._log = log
        return batch

    def _listen(self) -> asyncio.Future[None]:
        position = self._position
        after = None if self._log else self._after
        return self._live.bell.listen(position.task_id, position.number, after)


class StreamReader(LogReader):
    """Reads what a stream shows of a log, until the task ends or the reader's dialect stops."""

    __slots__ = ("_closes_on_input", "_is_over")

    def __init__(
        self,
        reads: GatheredReads,
        live: LiveTasks,
        log: TaskLog | None,
        position: LogPosition,
        *,
        closes_on_input: bool,
    ) -> None:
        super().__init__(reads, live, log, position)
        self._closes_on_input = closes_on_input
        self._is_over = False

    async def __anext__(self) -> Sequence[Recorded]:
        """Wait for the next events that are shown, and return them."""
        while not self._is_over:
            batch = await super().__anext__()
            shown = _shown_of(batch, closes_on_input=self._closes_on_input)
            self._is_over = shown.is_last
            if shown.events:
                return shown.events
        raise StopAsyncIteration


# Without a step of Python for each event.
_body_of = attrgetter("body")
_is_artifact = methodcaller("startswith", ARTIFACT_EVENT)


class ShownBatch(msgspec.Struct, frozen=True):
    """What a stream shows of a batch, and whether it ends there."""

    events: Sequence[Recorded]
    is_last: bool


def _shown_of(batch: Sequence[Recorded], *, closes_on_input: bool) -> ShownBatch:
    shown: list[Recorded] = []
    # Artifacts are most of what streams show. They are taken together, up to the next other event.
    taken = 0
    for place in compress(count(), map(not_, map(_is_artifact, map(_body_of, batch)))):
        shown += batch[taken:place]
        taken = place + 1
        recorded = batch[place]
        body = recorded.body
        if not body.startswith(PUBLIC_EVENTS):
            continue
        shown.append(recorded)
        if body.startswith(STATUS_EVENT) and isinstance(event := recorded.event, StatusUpdate):
            state = event.status.state
            if state.is_terminal or (state is TaskState.INPUT_REQUIRED and closes_on_input):
                return ShownBatch(shown, True)
    return ShownBatch([*shown, *batch[taken:]] if taken else batch, False)
