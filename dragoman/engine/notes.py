"""Notes between processes that share a store.

Only the process that holds a task writes its log. Another process leaves a note for it in the
store: a message to the task, or that the task is to be canceled. The note is deleted in the same
transaction that records the event it became.
"""

import asyncio
import contextlib
import logging

import msgspec

from dragoman.engine.following import Following, LogPosition
from dragoman.engine.lifecycle import TaskIsFinished
from dragoman.engine.live_tasks import EngineContext, LiveTasks
from dragoman.engine.log import LogIsFull, TaskLog
from dragoman.engine.recovery import Recovery, plan_further
from dragoman.errors import (
    A2AError,
    Overloaded,
    StoreConflict,
    StoreRefused,
    UnsupportedOperation,
)
from dragoman.model.events import MessageAdded, StatusUpdate
from dragoman.model.identity import Caller, Scope, TaskId
from dragoman.model.operations import SendMessage
from dragoman.model.record import encode
from dragoman.model.task import TaskState
from dragoman.stores.interface import LeaveNote, Note, Rung, TaskRow, write

logger = logging.getLogger("dragoman")

# Seconds that another process may take beyond a lease, or beyond the grace of a cancel.
_PATIENCE = 5.0


class NoteBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process tells another about a task: a message, or without one a cancel."""

    operation: SendMessage | None = None
    # What the sender's credential grants.
    scopes: list[str] = []

    def encoded(self) -> bytes:
        """Return it as it is stored."""
        return encode(self)

    @staticmethod
    def decoded(body: bytes) -> "NoteBody":
        """Return what was stored."""
        return _decode_note(body)


_decode_note = msgspec.json.Decoder(NoteBody).decode


def task_ended(state: TaskState | None = None) -> UnsupportedOperation:
    """Return the refusal of a message to a task that has ended."""
    return UnsupportedOperation(
        "The task has ended; start a new one in the same context",
        reason="TASK_TERMINAL",
        **({"state": state.value} if state is not None else {}),
    )


class Notes:
    """Leaves notes for other processes, and takes in those left for this one."""

    def __init__(
        self, context: EngineContext, live: LiveTasks, recovery: Recovery, following: Following
    ) -> None:
        self._context = context
        self._store = context.store
        self._live = live
        self._recovery = recovery
        self._following = following
        # Notes that were taken in and are still in the store, each with the log whose write deletes
        # it; None: no write will.
        self._taken_notes: dict[int, TaskLog | None] = {}
        self._is_taking = asyncio.Lock()
        # Whether a note came while notes were read: they are read once more.
        self._is_wanted = False
        self._store.listen(self._others_wrote)

    # For tasks of other processes

    async def leave(
        self, caller: Caller, operation: SendMessage, head: TaskRow, key: bytes | None
    ) -> int:
        """Leave a message for the process that holds a task; return the position from which on the
        task is as the message leaves it."""
        keys = [] if key is None else [key]
        body = NoteBody(operation, sorted(caller.scopes)).encoded()
        await write(self._store, LeaveNote(head.scope, head.number, keys, body))
        # Not earlier: a task that ends without reading the note has not received the message.
        return await self._taken_in_time(head, operation.message.message_id)

    async def wait_for(self, scope: Scope, task_id: TaskId, message_id: str) -> None:
        """Wait until a message that was left for another process is taken in, if it is not yet."""
        head = await self._store.head(scope, task_id)
        if head is None or head.standing.state.is_terminal:
            return
        for note in await self._store.notes(head.number):
            operation = NoteBody.decoded(note.body).operation
            if operation is not None and operation.message.message_id == message_id:
                await self._taken_in_time(head, message_id)

    async def _taken_in_time(self, head: TaskRow, message_id: str) -> int:
        taking = self._taken_in(head, message_id)
        try:
            return await asyncio.wait_for(taking, self._context.settings.engine.lease + _PATIENCE)
        except TimeoutError:
            raise Overloaded from None

    async def _taken_in(self, head: TaskRow, message_id: str) -> int:
        state = head.standing.state
        position = LogPosition.of(head, head.standing.last_seq)
        async for batch in self._following.events(position, None):
            for recorded in batch:
                event = recorded.event
                if isinstance(event, MessageAdded) and event.message.message_id == message_id:
                    # A message that wakes the task is followed by that status, in one write.
                    return recorded.seq + state.is_resting
                if isinstance(event, StatusUpdate):
                    state = event.status.state
                    if state.is_terminal:
                        raise task_ended(state)
        raise Overloaded

    async def cancel(self, head: TaskRow) -> None:
        """Have the process that holds a task cancel it, and wait for its end."""
        # Refused: it ended a moment ago, and that end is awaited.
        with contextlib.suppress(StoreConflict):
            note = LeaveNote(head.scope, head.number, [], NoteBody().encoded())
            await write(self._store, note)
        ending = self._following.rest_elsewhere(head.scope, head.task_id, at_end=True)
        await asyncio.wait_for(ending, self._context.settings.engine.cancel_grace + _PATIENCE)

    # For tasks of this process

    def _others_wrote(self, rung: Rung | None) -> None:
        """Wake readers and take notes; `rung` says of which tasks, None that this is not known."""
        if self._live.is_stopped:
            return
        if rung is None:
            self._live.bell.ring_all()
        else:
            for number in rung.tasks:
                self._live.bell.ring_number(number)
        if rung is None or rung.noted:
            self._is_wanted = True
            if not self._is_taking.locked():
                self._live.in_background(self.take())

    async def take(self) -> None:
        """Take in what other processes left for the tasks held here."""
        self._is_wanted = True
        async with self._is_taking:
            while self._is_wanted:
                self._is_wanted = False
                await self._take_all()

    async def _take_all(self) -> None:
        stored: set[int] = set()
        for head in await self._store.noted(self._context.code.name):
            for note in await self._store.notes(head.number):
                stored.add(note.number)
                log = self._taken_notes.get(note.number)
                if note.number not in self._taken_notes or (log is not None and log.failure):
                    try:
                        await self._take_one(head, note)
                    except Exception:
                        # The others wait too; this one is read again after a restart.
                        logger.exception("a note for task %s cannot be read", head.task_id)
        self._taken_notes = {
            number: log for number, log in self._taken_notes.items() if number in stored
        }

    async def _take_one(self, head: TaskRow, note: Note) -> None:
        body = NoteBody.decoded(note.body)
        operation = body.operation
        self._taken_notes[note.number] = None
        if operation is None:
            self._live.in_background(self._cancel(head, note.number))
            return
        try:
            worker = await self._recovery.worker_of(head)
            if worker is None:
                raise TaskIsFinished
            if worker.queued >= self._context.settings.engine.max_queued_messages:
                # Its caller waits until there is room, and is refused if there is none.
                del self._taken_notes[note.number]
                return
            # It was checked where it came in; its purpose is decided as after a crash.
            plan = plan_further(self._context.code, operation, worker.replay, None)
            worker.log.use_note(note.number)
            worker.add_message(operation, plan, head.scope.caller(frozenset(body.scopes)))
            self._taken_notes[note.number] = worker.log
        except (StoreRefused, TaskIsFinished):
            # Its end may not be written yet, and may never be: the next call of `take` tells.
            del self._taken_notes[note.number]
        except (A2AError, LogIsFull) as error:
            logger.warning("a message to task %s cannot be taken in: %s", head.task_id, error)

    async def _cancel(self, head: TaskRow, number: int) -> None:
        try:
            await self._recovery.cancel(head, number)
        except StoreRefused:
            # The next call of `take` finds it again.
            self._taken_notes.pop(number, None)
            raise
