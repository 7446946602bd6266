"""One task followed to where it rests, through every cut: no event twice, none left out.

Where the peer's streams have positions, a broken one is taken up at the last that was shown. Where
they have none, the peer is asked how the task stands, and the difference to what was shown is told
as events. A peer that cannot stream is asked again and again. One that is silent with its
connection open is asked too, and given up in the end: see `life_signs`.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Self

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.answer import Answer, is_empty, task_of
from dragoman.client.remote import Idle
from dragoman.client.second_tries import LONGEST_WAIT, TRIES, asked_wait
from dragoman.client.streams.breaks import Breaks, is_wrong
from dragoman.client.streams.life_signs import (
    LifeSigns,
    NoSignOfLife,
    Silence,
    SilenceWatch,
    StreamStalled,
)
from dragoman.client.streams.lost_messages import find_task
from dragoman.client.streams.presence import is_away, show_of_life
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.client.streams.shown_task import Shown, ShownTask, Until
from dragoman.errors import (
    A2AError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    MethodNotFound,
    Overloaded,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.events import Event, StatusUpdate
from dragoman.model.identity import TaskId
from dragoman.model.message import Message
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Task
from dragoman.service import Batch, Opening, Reply, TaskReply

# Seconds that a task under way may be out of reach before we say so.
PATIENCE = 60.0
POLL_EVERY, POLL_GROWTH, POLL_AT_MOST = 2.0, 1.5, 15.0
# In place of a stream.
POLL_SOON = 0.25
# So many failed polls in a row are the end; after each, twice as much time, of at least this.
FAILED_POLLS = 5
AFTER_FAILURE = 1.0
# What a stream may break with: a later try can find the task as good as ever.
_BREAKS = (Unreachable, TimedOut, Overloaded, InternalError, InvalidAgentResponse)
# What a peer answers that cannot stream, or where there is nothing left to stream.
_NO_STREAM = (UnsupportedOperation, MethodNotFound)


class Polling(msgspec.Struct, frozen=True):
    """How often a peer is asked that cannot stream; None: less and less often."""

    interval: float | None = None
    # How much history the last read asks for; the others ask for none.
    history: int | None = None
    # The wait between two polls; news of the task from elsewhere may cut it short. True:
    # the peer was heard from.
    pause: Callable[[float], Awaitable[bool | None]] = asyncio.sleep


class _TaskRests(StreamStalled):
    """The task came to rest, and its stream does not show it"""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task


class Stream:
    """The events of one task. Iterate over it; what was shown so far is in `task` and `answer`."""

    def __init__(
        self,
        connection: AgentConnection,
        operation: ops.SendMessage | ops.SubscribeToTask,
        *,
        after: int | None = None,
        until: Until = "rest",
        polling: Polling | None = None,
        patience: float = PATIENCE,
        polls_only: bool = False,
        begun: Task | ReplayFilter | None = None,
        is_light: bool = False,
        silence: Silence | None = None,
        signs: LifeSigns | None = None,
    ) -> None:
        """`begun` is what was shown before. One that `is_light` does not hold the contents of a
        large task, which are then not in `task` and `answer` either. `signs` is the clock of who
        follows the same task with several streams."""
        self._connection = connection
        self._operation = operation
        self._polling = polling or Polling()
        self._patience = patience
        self._polls_only = polls_only
        # With what is known already, and so not shown.
        if isinstance(begun, ReplayFilter):
            self._replay_filter = begun.copy()
        else:
            self._replay_filter = ReplayFilter(is_light=is_light)
            if begun is not None:
                self._replay_filter.apply(begun)
        self._shown = ShownTask(connection, operation, until, after, self._replay_filter)
        # The task of a message whose answer was lost.
        self._found_task_id = ""
        # Whether something was left out that looked like a repetition.
        self._is_doubtful = False
        # Whether a wait for an event was given up, so that its progress is unknown.
        self._is_interrupted = False
        self._is_closed = False
        self._silence = connection.options.silence if silence is None else silence.shortened()
        self._signs = signs or LifeSigns()
        self._watch = SilenceWatch(
            self._signs, self._silence, self._poll_silent_peer, self._is_begun
        )
        # Whether the last question showed what the stream had not.
        self._is_behind = False
        # Who waits for the next event.
        self._reader: asyncio.Task[object] | None = None
        self.message: Message | None = None
        # What of the agent's answers was not as its version has it, and read for what it means.
        self.leniencies: set[str] = set()
        # Waited for before anything is sent.
        self.before: Callable[[], Awaitable[None]] | None = None
        # Waited for whenever the agent has sent much that is nothing to show.
        self.idle: Idle | None = None
        self._events = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Shown:
        if self._is_closed:
            raise StopAsyncIteration
        self._reader = asyncio.current_task()
        self._signs.release()
        try:
            event = await anext(self._events)
            # The reader pauses here; until it asks again, silence is not the agent's.
            self._signs.hold_since_sign()
            return event
        except asyncio.CancelledError:
            self._signs.hold()
            if self._is_closed and self._reader is not None and not self._reader.uncancel():
                # It was another task that closed the stream.
                raise StopAsyncIteration from None
            # A wait that timed out has not given up the stream: the next
            # wait goes on from here.
            self._is_interrupted = True
            self._events = self._run()
            raise
        except A2AError as error:
            if self._task_id():
                error.facts.setdefault("taskId", self._task_id())
            raise
        finally:
            self._reader = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. The task goes on."""
        self._is_closed = True
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
            return
        await self._events.aclose()

    @property
    def cursor(self) -> int | None:
        """The position of the last event shown, for `subscribe(after=...)`; None: there is none."""
        return self._shown.cursor

    @property
    def task(self) -> Task | None:
        """The task as shown so far."""
        return self._replay_filter.task()

    @property
    def task_id(self) -> str:
        """The task's id, empty before the agent has said it."""
        return self._replay_filter.task_id

    @property
    def references(self) -> dict[str, list[str]]:
        """Which other tasks the agent referred to in its statuses, by the task that said so: those
        that it gave to others, for one."""
        return {task: list(others) for task, others in self._replay_filter.references.items()}

    @property
    def answer(self) -> Answer:
        """What the agent said so far."""
        return Answer(self._replay_filter.task(), self.message)

    # The way through

    async def _run(self) -> AsyncGenerator[Shown]:
        if self.before is not None:
            await self.before()
        await self._connection.open()
        try:
            if self._connection.can_stream and not self._polls_only:
                async with contextlib.aclosing(streamed := self._streamed()):
                    async for event in streamed:
                        yield event
            if not self._shown.is_done:
                async with contextlib.aclosing(polled := self._polled()):
                    async for event in polled:
                        yield event
        finally:
            self._watch.close()

    async def _streamed(self) -> AsyncGenerator[Shown]:
        """Follow by streams; returns before the end when the peer turns out to have none."""
        begun = await self._first_request()
        if begun is None:
            return
        operation, after = begun
        watch = self._watch
        breaks = Breaks(self._patience)
        while True:
            problem: A2AError | None = None
            opened_at = time.monotonic()
            is_alive = False
            following = self._connection.follow(
                operation, after, watch.note_sign, self.idle, self.leniencies.add
            )
            watch.opening()
            try:
                async with contextlib.aclosing(following) as batches:
                    while True:
                        # Not a function of its own: this is on the way of every event.
                        with watch:
                            batch = await anext(batches, None)
                        if batch is None:
                            break
                        self._is_behind = False
                        unseen = self._unseen(batch, is_first=not is_alive)
                        is_new = False
                        async with contextlib.aclosing(unseen) as events:
                            async for event in events:
                                breaks.note_shown()
                                is_new = True
                                yield event
                        if not is_new and is_alive and self.idle is not None:
                            await self.idle()
                        is_alive = True
                        if self._shown.is_done or self._shown.is_lagging:
                            return
            except (*_NO_STREAM, *_BREAKS, TaskNotFound) as error:
                problem = self._problem_of(error, operation)
                if problem is None:
                    return
            if isinstance(problem, _TaskRests):
                for event in self._shown.caught_up(problem.task):
                    breaks.tries = 0
                    yield event
                if self._shown.is_done:
                    return
            breaks.note(time.monotonic() - opened_at if is_alive else 0.0)
            if not self._replay_filter.task_id:
                found = await self._before_the_task(operation, problem, breaks.tries)
                if found is None:
                    return
                operation, after = found
                continue
            # An agent that does not stream, or not any more, still answers reads of the task.
            is_refused = isinstance(problem, _NO_STREAM)
            if not self._goes_on(problem, breaks, is_refused=is_refused):
                return
            if breaks.needs_pause:
                await self._connection.pause(max(1, breaks.tries - 1), problem or Unreachable())
            operation = ops.SubscribeToTask(task_id=TaskId(self._replay_filter.task_id))
            has_positions = self._connection.has_positions and not is_refused
            after = self._shown.cursor if has_positions else None
            if after is None and (problem is None or is_wrong(problem) or breaks.tries > 1):
                # The task may have come to rest meanwhile.
                task = await self._read_between(breaks)
                if task is None:
                    continue
                for event in self._shown.caught_up(task):
                    breaks.tries = 0
                    yield event
                if self._shown.is_done:
                    return
                if breaks.tries > 1 and not isinstance(problem, Unreachable):
                    # It ends its streams, or refuses them, while the task goes on.
                    return

    async def _first_request(self) -> tuple[ops.Operation, int | None] | None:
        """Return the operation that opens the first stream and its position; None: the peer cannot
        show what is missing by a stream."""
        if self._replay_filter.task_id:
            if not self._has_resumable_streams():
                return None
            task_id = TaskId(self._replay_filter.task_id)
            return ops.SubscribeToTask(task_id=task_id), self._shown.cursor
        if self._is_interrupted and isinstance(self._operation, ops.SendMessage):
            lost = DeliveryUnknown("The wait for the agent's answer was given up")
            return await self._before_the_task(self._operation, lost, 1)
        return self._operation, self._shown.cursor

    def _goes_on(self, problem: A2AError | None, breaks: Breaks, *, is_refused: bool) -> bool:
        """Tell whether to try a further stream after one that broke off, or ended before its task
        did. Raises what is the end."""
        if problem is not None and breaks.is_hopeless(problem) and not is_refused:
            raise problem
        if problem is None and self._shown.is_waiting():
            # Ended by the peer and not cut: waiting is its answer.
            self._shown.is_done = True
            return False
        if breaks.ends_too_often(problem):
            return False
        return self._has_resumable_streams(is_refused=is_refused)

    async def _read_between(self, breaks: Breaks) -> Task | None:
        """Return how the task stands between two streams; None: that could not be read just now,
        and there was a pause."""
        try:
            return await self._read_task()
        except NoSignOfLife:
            raise
        except _BREAKS as error:
            if breaks.is_late:
                raise
            await self._connection.pause(breaks.tries, error)
            return None

    def _has_resumable_streams(self, *, is_refused: bool = False) -> bool:
        """Whether a further stream shows all that happens from here on. One without positions
        begins with the Task, since 1.0. A widespread server of 0.3 adds every chunk to its task
        once more for each who subscribes again."""
        has_task = self._connection.version == "1.0" and not is_refused
        return self._connection.has_positions or has_task

    def _problem_of(self, error: A2AError, operation: ops.Operation) -> A2AError | None:
        """Return what is wrong after a stream broke with an error; None: the task goes on without
        streams. Raises what is the end."""
        match error:
            case UnsupportedOperation() | MethodNotFound():
                # A message that was refused did nothing, and goes another way; a task that ended
                # is read.
                is_unsent = not self._replay_filter.task_id and operation is self._operation
                return None if is_unsent else error
            case TaskNotFound() if isinstance(operation, ops.SubscribeToTask):
                # Some know tasks that have ended only by `GetTask`: that tells whether this one is
                # lost.
                return None
            case TaskNotFound() | NoSignOfLife():
                raise error
            case StreamStalled() if not isinstance(error, _TaskRests) and not self._is_begun():
                # Whether it has the message only its answer would have told.
                return DeliveryUnknown(error.public)
            case _:
                return error

    async def _before_the_task(
        self, operation: ops.Operation, problem: A2AError | None, tries: int
    ) -> tuple[ops.Operation, int | None] | None:
        """Return how to go on when nothing was shown yet; raises where that might repeat work."""
        if problem is None:
            problem = DeliveryUnknown("The agent's stream ended before it began")
        if tries >= TRIES * 2 or self._connection.options.sends_once:
            raise problem
        if not isinstance(operation, ops.SendMessage):
            if self._found_task_id and isinstance(problem, _NO_STREAM):
                # The task that was found has ended meanwhile: it is read.
                return None
            if not isinstance(problem, Unreachable | TimedOut | Overloaded):
                raise problem
            await self._connection.pause(tries, problem)
            return operation, self._shown.cursor
        if self._connection.may_repeat(operation, problem):
            await self._connection.pause(tries, problem)
            # Sent again, the message leads to its task; from its beginning, if that began here.
            is_resumable = self._connection.has_positions and not operation.message.task_id
            return operation, 0 if is_resumable else None
        if isinstance(problem, DeliveryUnknown):
            self._found_task_id = await find_task(self._connection, operation.message)
            if self._found_task_id:
                return ops.SubscribeToTask(task_id=TaskId(self._found_task_id)), None
        raise problem

    # What is shown

    async def _unseen(self, batch: Batch, *, is_first: bool) -> AsyncGenerator[Shown]:
        """Yield what of a batch was not shown yet; each is noted as shown when it is, so that
        a reader that stops between two has the cursor of the first."""
        match batch:
            case Message():
                if self._replay_filter.task_id:
                    raise InvalidAgentResponse("a message came where a task was under way")
                self.message = batch
                self._shown.is_done = True
                yield batch
                return
            case Opening():
                for event in self._shown.opened(await self._filled(batch)):
                    yield event
                return
            case _:
                pass
        if is_first and self._replay_filter.task_id and not self._connection.has_positions:
            # Back without a Task: what fell between cannot be told from this.
            self._shown.is_lagging = True
            return
        for recorded in batch:
            if self._shown.is_done:
                return
            for event in self._shown.deliver(await self._news(recorded)):
                self._shown.move(recorded.seq)
                yield event
            self._shown.move(recorded.seq)

    async def _news(self, recorded: Recorded) -> list[Event]:
        """Return what an event tells that was not shown."""
        is_placed = recorded.seq and self._connection.has_positions
        if is_placed and self._shown.cursor is not None and recorded.seq <= self._shown.cursor:
            return []
        event = recorded.event
        if isinstance(event, Message):
            raise InvalidAgentResponse("a message came where a task was under way")
        if isinstance(event, Task):
            self._shown.check(event.id, event.context_id)
            return self._replay_filter.missing(event)
        if self._replay_filter.is_repetition(event):
            # The peer told of it while it made the Task that this stream began with.
            self._is_doubtful = True
            return []
        if self._is_doubtful and isinstance(event, StatusUpdate) and event.status.state.is_terminal:
            # Two chunks may also be alike: the last look is the whole task.
            return self._replay_filter.missing(await self._get())
        if isinstance(event, StatusUpdate) and self._shown.ends_empty(event.status):
            again = await self._read_again()
            return [event] if again is None else self._replay_filter.missing(again)
        return [event]

    async def _filled(self, opening: Opening) -> Opening:
        """Return a task that opens a stream: one that is complete with nothing in it as the agent
        shows it when it is asked once more."""
        task = opening.reply.reading.task
        if self._connection.has_positions or self._replay_filter.task_id or not is_empty(task):
            return opening
        again = await self._connection.read_again(
            task.id, self._polling.history, self.leniencies.add
        )
        if again is None:
            return opening
        return Opening(TaskReply(TaskReading(0, again)), is_reset=opening.is_reset)

    async def _read_again(self) -> Task | None:
        return await self._connection.read_again(
            self._task_id(),
            self._polling.history,
            self.leniencies.add,
            has_spoken=self._replay_filter.has_spoken,
        )

    # Asking

    async def _get(self, history: int | None = None) -> Task:
        operation = ops.GetTask(task_id=TaskId(self._task_id()), history=history)
        reply = await self._connection.answer(operation, self.leniencies.add)
        task = task_of(reply)
        self._shown.check(task.id, task.context_id)
        return task

    async def _read_task(self, history: int | None = None) -> Task:
        """Return how the task stands; raises `NoSignOfLife` where patience ends before that."""
        self._watch.answering(may_ask=False)
        with self._watch:
            task = await self._get(history)
        self._watch.note_sign()
        return task

    async def _poll_silent_peer(self) -> A2AError | None:
        """Ask a peer that is silent how the task stands; return what its stream is to be broken
        off with, if anything. Raises what shows no life."""
        if not self._is_begun():
            await show_of_life(self._connection, self._operation)
            return None
        try:
            operation = ops.GetTask(task_id=TaskId(self._task_id()), history=0)
            task = task_of(await self._connection.answer_once(operation))
            self._shown.check(task.id, task.context_id)
            if self._shown.is_end(task.status):
                return _TaskRests(await self._get())
        except A2AError as error:
            if isinstance(error, TaskNotFound) or is_away(error):
                raise
            # It answers, if only that it will not tell.
            return None
        was_behind = self._is_behind
        self._is_behind = not self._replay_filter.is_ahead_of(task) and bool(
            self._replay_filter.missing(task)
        )
        # Twice: what the first time was on its way would be here by now.
        is_dead = was_behind and self._is_behind
        return StreamStalled("The stream does not show what the task has") if is_dead else None

    def _is_begun(self) -> bool:
        """Whether the peer has said which task it has."""
        return bool(self._task_id())

    async def _polled(self) -> AsyncGenerator[Shown]:
        """Send without waiting, or read, then ask until the task rests."""
        is_read = False
        if not self._replay_filter.task_id:
            is_read = isinstance(self._operation, ops.SubscribeToTask)
            first = await self._sent_or_read()
            async with contextlib.aclosing(self._unseen(first, is_first=True)) as events:
                async for event in events:
                    yield event
        # In place of a stream, what was said between two looks has to be told in its order.
        is_substitute = self._connection.can_stream and not self._polls_only
        history = None if is_substitute else 0
        interval = self._polling.interval or (POLL_SOON if is_substitute else POLL_EVERY)
        failures = 0
        answered_at = time.monotonic()
        # The first look is at once, unless there just was one.
        is_first = not is_read
        while not self._shown.is_done:
            if failures:
                await asyncio.sleep(_spread(max(interval, AFTER_FAILURE), failures))
            elif not is_first:
                await self._pause(interval)
            try:
                task = await self._read_task(history)
                if task.status.state.is_resting and history != self._polling.history:
                    # Polls leave the history out; the last look has what the caller wants of it.
                    task = await self._read_task(self._polling.history)
                failures = 0
                answered_at = time.monotonic()
            except NoSignOfLife:
                raise
            except _BREAKS as error:
                failures += 1
                is_late = time.monotonic() - answered_at > max(self._patience, interval)
                if failures >= FAILED_POLLS or is_late:
                    raise
                await asyncio.sleep(asked_wait(error))
                continue
            if not is_first:
                # It had its time to take the message: if it still waits, that is its answer.
                self._shown.waited_as = None
            for event in self._shown.caught_up(task):
                yield event
            if not is_first and self._polling.interval is None:
                longest = min(POLL_AT_MOST, self._silence.ask_after)
                interval = min(interval * POLL_GROWTH, max(longest, interval))
            is_first = False

    async def _pause(self, seconds: float) -> None:
        """Leave the peer alone between two looks, which is not its silence."""
        self._signs.hold()
        is_heard = await self._polling.pause(seconds)
        self._signs.release()
        if is_heard:
            self._signs.note()

    async def _sent_or_read(self) -> Batch:
        operation = self._operation
        if isinstance(operation, ops.SendMessage) and not self._found_task_id:
            reply = await self._send(operation)
        else:
            read = ops.GetTask(task_id=TaskId(self._task_id()), history=self._polling.history)
            self._watch.answering(may_ask=False)
            with self._watch:
                reply = await self._connection.answer(read, self.leniencies.add)
        self._watch.note_sign()
        if isinstance(reply, Message):
            return reply
        return Opening(TaskReply(reply.reading)) if isinstance(reply, TaskReply) else []

    async def _send(self, operation: ops.SendMessage) -> Reply:
        try:
            if self._is_interrupted and not self._connection.works_once:
                raise DeliveryUnknown("The wait for the agent's answer was given up")
            self._watch.answering(may_ask=True)
            with self._watch:
                return await self._connection.answer(_at_once(operation), self.leniencies.add)
        except DeliveryUnknown:
            if not self._connection.options.sends_once:
                self._found_task_id = await find_task(self._connection, operation.message)
            if not self._found_task_id:
                raise
            return await self._connection.answer(ops.GetTask(task_id=TaskId(self._found_task_id)))

    def _task_id(self) -> str:
        """Return the task's id as far as anybody knows it."""
        return self._replay_filter.task_id or self._shown.subscribed or self._found_task_id


def _at_once(operation: ops.SendMessage) -> ops.SendMessage:
    """Return a send that does not wait, whatever it was."""
    fields: dict[str, Any] = msgspec.structs.asdict(operation) | {"wait": False}
    return ops.SendMessage(**fields)


def _spread(interval: float, failures: int) -> float:
    return min(LONGEST_WAIT, interval * 2**failures) * (0.75 + random.random() / 2)
