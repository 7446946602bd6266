"""The hooks of one task's log: what they make of its events before and after these are written.

The log hands over each batch before it is written, and the hooks submit what they made of it. So
every event passes here, be its origin the code, a cancel, a deadline or an agent behind a gateway.
Where no hook is registered, a log has none of this.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from dragoman.engine.event_hooks import (
    Changeable,
    EventContext,
    EventHook,
    HookCalls,
    HookFailed,
    HookTimeout,
    Seen,
    tell_failure,
)
from dragoman.engine.lifecycle import Draft
from dragoman.engine.log import STREAMED_AT_ONCE, LogBatch, TaskLog
from dragoman.engine.running.failures import incident_sentence
from dragoman.errors import StoreRefused, TaskFailed
from dragoman.model.events import (
    ArtifactUpdate,
    Event,
    EventDropped,
    Forwarded,
    StatusUpdate,
)
from dragoman.model.identity import new_id
from dragoman.model.message import Message, Part, Role, agent_message
from dragoman.model.record import Recorded, decode_event, encode_event
from dragoman.model.task import Task, TaskState

WITHHELD = "The agent's answer was withheld."


class LogHooks:
    """Has the events of one log transformed and observed."""

    def __init__(self, calls: HookCalls, log: TaskLog, task: Task | None = None) -> None:
        """`task` is what a resumed log already holds."""
        self._calls = calls
        self._log = log
        self._transforms = calls.transforms
        self._observers = calls.observers
        # The task as it is recorded, which may differ from what the code made.
        self._draft: Draft | None = None
        if task is not None and self._transforms:
            self._draft = Draft(task)
            self._lighten()
        # Hooks that took too long for an event of this task: they are not called again.
        self._late: set[EventHook] = set()
        # Why nothing more is shown of the task; empty: everything is.
        self._refusal = ""
        self._forwarded_to = ""
        # The last event that observers have seen, and whether they are being called.
        self._observed_seq = log.seq
        self._is_watching = False
        if self._transforms:
            log.transform = self._transform_batch
        if self._observers:
            log.on_recorded = self._recorded

    @property
    def _context(self) -> EventContext:
        log = self._log
        scope = log.scope
        return EventContext(
            scope.agent, log.task_id, log.context_id, scope.principal, self._forwarded_to
        )

    # Before they are recorded

    def _transform_batch(self, batch: LogBatch) -> None:
        self._calls.start(self._prepare(batch))

    async def _prepare(self, batch: LogBatch) -> None:
        """Transform the events of a write, then write them."""
        log = self._log
        try:
            for place, recorded in enumerate(batch.events):
                event = recorded.event
                if isinstance(event, Forwarded):
                    self._forwarded_to = event.agent
                if isinstance(event, StatusUpdate | ArtifactUpdate):
                    # Always encoded anew: a transform may have changed the event in place.
                    changed = Recorded.of_event(recorded.seq, await self._recordable(event))
                    more = len(changed.body) - len(recorded.body)
                    batch.size += more
                    log.grow(more)
                    batch.events[place] = changed
                    event = changed.event
                self._fold(event)
        except BaseException as error:
            # A fault of ours, or the process ends: code that runs again makes it again.
            log.fail(StoreRefused(f"the events of the task could not be prepared: {error!r}"))
            raise
        log.submit(batch, self._draft)
        if self._refusal and not log.is_over and log.on_refused is not None:
            log.on_refused(self._refusal)

    def _fold(self, event: Event) -> None:
        if self._draft is None:
            assert isinstance(event, Task), "a log begins with its task"
            self._draft = Draft(event)
            return
        self._draft.apply(event)
        self._lighten()

    def _lighten(self) -> None:
        """Drop the contents once the log has."""
        own, draft = self._log.draft, self._draft
        if own is not None and own.is_light and draft is not None and not draft.is_light:
            draft.lighten()

    async def _recordable(self, event: StatusUpdate | ArtifactUpdate) -> Event:
        """Return what is recorded of an event."""
        made: Changeable | None = None
        if not self._refusal:
            try:
                made = await self._transformed(event)
            except HookFailed as error:
                self._refusal = self._incident(error)
        if self._refusal:
            return self._refused(event)
        if made is None:
            return self._dropped(event)
        if isinstance(made, ArtifactUpdate):
            return self._as_begun(made)
        assert isinstance(made, StatusUpdate), "checked: a transform keeps the type"
        return made

    def _refused(self, event: StatusUpdate | ArtifactUpdate) -> Event:
        """Return what is recorded once a transform failed: only the end of the task."""
        if not isinstance(event, StatusUpdate) or not event.status.state.is_terminal:
            return EventDropped()
        state = event.status.state
        if state is TaskState.COMPLETED:
            state = TaskState.FAILED
        message = agent_message(
            [Part(text=self._refusal)], context_id=event.context_id, task_id=event.task_id
        )
        status = msgspec.structs.replace(event.status, state=state, message=message)
        return StatusUpdate(event.task_id, event.context_id, status)

    def _dropped(self, event: StatusUpdate | ArtifactUpdate) -> Event:
        """Return what is recorded of a dropped event: a change of state and the end of an artifact
        stay, without their contents."""
        draft = self._draft
        if isinstance(event, StatusUpdate):
            if draft is not None and event.status.state is draft.state:
                return EventDropped()
            status = msgspec.structs.replace(event.status, message=None)
            return StatusUpdate(event.task_id, event.context_id, status)
        artifact = event.artifact
        is_text = isinstance(artifact.parts[-1].text, str)
        is_begun = draft is not None and draft.has_artifact(artifact.artifact_id)
        if not (event.last_chunk and event.append and is_text and is_begun):
            return EventDropped()
        end = msgspec.structs.replace(artifact, parts=[Part(text="")])
        return msgspec.structs.replace(event, artifact=end)

    def _as_begun(self, event: ArtifactUpdate) -> ArtifactUpdate:
        """Let a chunk begin its artifact if those before it were dropped."""
        if event.append and not (
            self._draft is not None and self._draft.has_artifact(event.artifact.artifact_id)
        ):
            return msgspec.structs.replace(event, append=False)
        return event

    async def reply(self, message: Message) -> Message:
        """Return the transformed reply of code that made no task; raises `TaskFailed` if it was
        dropped."""
        try:
            made = await self._transformed(message)
        except HookFailed as error:
            raise TaskFailed(self._incident(error)) from None
        if made is None:
            raise TaskFailed(WITHHELD)
        assert isinstance(made, Message), "checked: a transform keeps the type"
        return made

    def _incident(self, error: HookFailed) -> str:
        """Log a failure; return what the caller is told."""
        incident = new_id()
        tell_failure(error, self._log.task_id, incident)
        return incident_sentence(incident)

    async def _transformed(self, event: Changeable) -> Changeable | None:
        """Return what all transforms make of an event; None: it is dropped. Raises `HookFailed`."""
        for hook in self._transforms:
            try:
                if hook in self._late:
                    raise HookTimeout(f"{hook.name} took too long before")
                made = await self._calls.call(hook, event, self._context)
                if made is not None:
                    self._check(hook, event, made)
            except HookFailed as error:
                if isinstance(error, HookTimeout):
                    self._late.add(hook)
                if hook.on_error == "fail":
                    raise
                tell_failure(error, self._log.task_id, new_id())
                made = event if hook.on_error == "keep" else None
            if made is None:
                return None
            event = made
        return event

    def _check(self, hook: EventHook, before: Changeable, after: object) -> None:
        """Raise `HookFailed` if a transform changed what it may not, or made what cannot be
        recorded."""
        if type(after) is not type(before):
            raise HookFailed(f"{hook.name} returned {type(after).__name__}")
        assert isinstance(after, StatusUpdate | ArtifactUpdate | Message)
        try:
            if not _keeps_identity(before, after):
                raise HookFailed(f"{hook.name} changed an id, a state or the mark of a chunk")
            if not _has_content(after):
                raise HookFailed(f"{hook.name} returned an event without content")
            body = encode_event(after)
            # The types of its fields are checked nowhere else.
            decode_event(body)
        except (TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            raise HookFailed(f"{hook.name} returned what cannot be recorded") from error
        if len(body) > self._log.most_bytes:
            raise HookFailed(f"{hook.name} returned more than a task may have")

    # Once they are recorded

    def _recorded(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._calls.start(self._watch())

    async def _watch(self) -> None:
        """Show observers what is durable. They hold a position: a slow observer costs no memory."""
        log = self._log
        try:
            while self._observed_seq < log.durable_seq:
                batch: Sequence[Recorded] | None = log.recent(self._observed_seq)
                if batch is None:
                    batch = await log.read(self._observed_seq, STREAMED_AT_ONCE)
                if not batch:
                    return
                for recorded in batch:
                    if recorded.is_public:
                        event = recorded.event
                        assert isinstance(event, StatusUpdate | ArtifactUpdate | Task | Message)
                        await self._show(event)
                    self._observed_seq = recorded.seq
        finally:
            self._is_watching = False

    async def _show(self, event: Seen) -> None:
        for hook in self._observers:
            if hook in self._late:
                continue
            try:
                await self._calls.call(hook, event, self._context)
            except HookFailed as error:
                if isinstance(error, HookTimeout):
                    self._late.add(hook)
                tell_failure(error, self._log.task_id, new_id())

    def replied(self, message: Message) -> None:
        """Show observers a reply that made no task."""
        if self._observers:
            self._calls.start(self._show(message))


def _keeps_identity(before: Changeable, after: Changeable) -> bool:
    """Tell whether a transform kept the ids, the state and the mark of a chunk."""
    match before, after:
        case StatusUpdate(), StatusUpdate():
            old, new = before.status.message, after.status.message
            is_agents_message = new is None or (
                (new.task_id, new.context_id, new.role)
                == (before.task_id, before.context_id, Role.AGENT)
                # A question may be answered by the id of its message.
                and (old is None or new.message_id == old.message_id)
            )
            return is_agents_message and (
                (before.task_id, before.context_id, before.status.state, before.status.timestamp)
                == (after.task_id, after.context_id, after.status.state, after.status.timestamp)
            )
        case ArtifactUpdate(), ArtifactUpdate():
            return before.artifact.artifact_id == after.artifact.artifact_id and (
                (before.task_id, before.context_id, before.append, before.last_chunk)
                == (after.task_id, after.context_id, after.append, after.last_chunk)
            )
        case Message(), Message():
            return (before.message_id, before.role, before.task_id, before.context_id) == (
                after.message_id,
                after.role,
                after.task_id,
                after.context_id,
            )
        case _:
            return False


def _has_content(event: Changeable) -> bool:
    """Tell whether an event has parts, each with exactly one kind of content."""
    match event:
        case StatusUpdate():
            message = event.status.message
            return message is None or _are_parts(message.parts)
        case ArtifactUpdate():
            return _are_parts(event.artifact.parts)
        case Message():
            return _are_parts(event.parts)


def _are_parts(parts: list[Part]) -> bool:
    return bool(parts) and all(
        sum(one is not UNSET for one in (part.text, part.raw, part.url, part.data)) == 1
        for part in parts
    )
