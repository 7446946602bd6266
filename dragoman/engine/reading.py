"""Reads tasks from the store: one as of a position, the states it went through, pages of a list.

A reader takes no lock and holds no log: it folds what is durable, so it sees the same task in every
process that shares the store.
"""

from collections.abc import Sequence

import msgspec

from dragoman.engine.lifecycle import Draft
from dragoman.engine.log import READ_AT_ONCE
from dragoman.engine.receivers import refused
from dragoman.engine.seal import load_cipher, seal, unseal
from dragoman.errors import InvalidParams, StoreUnavailable, TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import Scope, TaskId
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import (
    MAX_TRANSITIONS,
    TRANSITIONS_URI,
    Task,
    TaskState,
    Transition,
    Transitions,
)
from dragoman.service import LARGE_BYTES, Call, TaskPage, TaskReply, off_loop, reserve
from dragoman.stores.interface import Bodies, Query, Store, TaskRow

# What is folded in one go, so that none of it is held.
_FOLD_BYTES = 1024 * 1024
# Bytes of memory reserved for each byte of a large batch while it is decoded.
_DECODING_BYTES = 5
# A page of a list ends after the task that exceeds this.
_PAGE_BYTES = 16 * 1024 * 1024


class TaskReader:
    """Answers the reading operations of one agent's tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, scope: Scope, task_id: TaskId) -> TaskRow:
        """Return a task's row; raises `TaskNotFound`."""
        try:
            head = await self._store.head(scope, task_id)
        except StoreUnavailable as error:
            raise refused(error) from None
        if head is None:
            raise TaskNotFound(taskId=task_id)
        return head

    async def read(self, head: TaskRow, upto: int | None = None) -> TaskReading:
        """Return a task as of a position, or as its row was found: a reader of the newest event
        would never catch up with an agent that writes faster than it reads."""
        return await self.read_at(head.number, head.standing.last_seq if upto is None else upto)

    async def read_at(self, number: int, upto: int | None) -> TaskReading:
        """Return a task as of a position; None: as of the end of its log."""
        try:
            found = await read_task(self._store, number, upto=upto)
        except StoreUnavailable as error:
            raise refused(error) from None
        if found is None:
            raise TaskNotFound
        return found

    async def get(self, scope: Scope, call: Call, operation: ops.GetTask) -> TaskReply:
        """Answer `GetTask`."""
        found = await self._store.at_rest(scope, operation.task_id)
        if found is None:
            raise TaskNotFound(taskId=operation.task_id)
        number, last, reading = found
        reply = TaskReply(reading or await self.read_at(number, last), operation.history)
        if TRANSITIONS_URI not in call.extensions:
            return reply
        after = call.after or 0
        if after < 0:
            raise InvalidParams("is not a position", field="lastEventId")
        upto = reply.reading.seq
        transitions = await read_transitions(self._store, number, after=after, upto=upto)
        return msgspec.structs.replace(reply, transitions=transitions)

    async def list(self, scope: Scope, operation: ops.ListTasks) -> TaskPage:
        """Answer `ListTasks`."""
        since = operation.status_since
        found = await self._store.page(
            Query(
                scope=scope,
                # One more than asked tells whether there is a next page.
                limit=operation.page_size + 1,
                context_id=operation.context_id,
                state=operation.state,
                # The wire shows whole milliseconds; a finer bound rounds up to the next one.
                status_since=None if since is None else -(-since // 1000),
                ordered_from=operation.agent,
                after=await self._unseal(scope, operation),
            ),
            bodies=Bodies(_PAGE_BYTES, artifacts=operation.include_artifacts),
        )
        heads = found.heads[: operation.page_size]
        tasks: list[TaskReply] = []
        size = 0
        for index, head in enumerate(heads):
            if size > _PAGE_BYTES:
                # The token of a page that ends early continues from here.
                heads = heads[:index]
                break
            reading = found.readings[index] or await read_task(
                self._store,
                head.number,
                upto=head.standing.last_seq,
                artifacts=operation.include_artifacts,
            )
            if reading is not None:
                size += len(reading.body)
                tasks.append(TaskReply(reading, operation.history))
        next_token = ""
        if len(found.heads) > len(heads):
            last = heads[-1]
            position = (last.standing.status_at, last.number)
            await self._prepare_sealing()
            next_token = seal(position, self._store.secret, scope, operation)
        return TaskPage(
            tasks, next_token, operation.page_size, found.total, operation.include_artifacts
        )

    async def _unseal(self, scope: Scope, operation: ops.ListTasks) -> tuple[int, int] | None:
        if not operation.page_token:
            return None
        await self._prepare_sealing()
        return unseal(operation.page_token, self._store.secret, scope, operation)

    async def _prepare_sealing(self) -> None:
        await self._store.prepare()
        await load_cipher()


async def read_task(
    store: Store,
    number: int,
    *,
    upto: int | None = None,
    artifacts: bool = True,
    ended_at: int | None = None,
) -> TaskReading | None:
    """Return the task as of a position, by default the end of its log.

    Folding starts at the stored snapshot unless the position lies before it. If the log was seen to
    end at `ended_at`, a batch that reaches it is the last one: it may have more, if the task moved
    on, but no further query asks for that.
    """
    draft: Draft | None = None
    seq = 0
    reading = await store.snapshot(number, artifacts=artifacts)
    if reading is not None and (upto is None or reading.seq <= upto):
        seq = reading.seq
    else:
        reading = None
    size = 0 if reading is None else reading.size
    while True:
        batch = await store.read(
            number, after=seq, limit=READ_AT_ONCE, artifacts=artifacts, size=_FOLD_BYTES
        )
        if upto is not None:
            batch = [recorded for recorded in batch if recorded.seq <= upto]
        if not batch:
            break
        size += (batch_bytes := sum([len(recorded.body) for recorded in batch]))
        if batch_bytes > LARGE_BYTES:
            reserve(_DECODING_BYTES * batch_bytes)
            await off_loop(_decode, batch)
        for recorded in batch:
            event = recorded.event
            if draft is None:
                draft = Draft(reading.task) if reading is not None else None
            if draft is None:
                assert isinstance(event, Task), "a log begins with its task"
                draft = Draft(event)
            else:
                draft.apply(event)
        seq = batch[-1].seq
        last = ended_at if upto is None else upto
        if last is not None and seq >= last:
            break
    if draft is not None:
        return TaskReading(seq, draft.task(), size=size)
    return reading


def _decode(batch: Sequence[Recorded]) -> None:
    """Decode each event once; the record caches its value."""
    for recorded in batch:
        _ = recorded.event


async def read_transitions(store: Store, number: int, *, after: int, upto: int) -> Transitions:
    """Return the state changes of a task between two positions, at most `MAX_TRANSITIONS`.

    A status update that repeats the current state is not a change.
    """
    found: list[Transition] = []
    state: TaskState | None = None
    read = 0
    while read < upto:
        # Artifacts are most of a log and hold no state.
        batch = await store.read(number, after=read, limit=READ_AT_ONCE, artifacts=False)
        for recorded in batch:
            if recorded.seq > upto:
                return Transitions(found)
            # Judged by its bytes, so that most other events are not decoded.
            if not (recorded.is_status or recorded.seq == 1):
                continue
            event = recorded.event
            if not isinstance(event, Task | StatusUpdate) or event.status.state is state:
                continue
            state = event.status.state
            if recorded.seq <= after:
                continue
            if len(found) == MAX_TRANSITIONS:
                return Transitions(found, found[-1].position)
            found.append(Transition(recorded.seq, state, event.status.timestamp))
        if not batch:
            break
        read = batch[-1].seq
    return Transitions(found)
