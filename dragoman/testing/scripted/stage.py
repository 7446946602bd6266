"""One task of a scripted agent: its steps, its events and their readers.

Not built on the engine: a scripted agent may break rules that the engine enforces.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from dragoman.errors import ConfigError
from dragoman.model.artifact import Artifact
from dragoman.model.clock import stamp
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Metadata, Part, agent_message
from dragoman.model.push import PushConfig
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.testing.scripted.script import Rule, ScriptStep, seconds

UNSPECIFIED = "UNSPECIFIED"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_STATES = {state.name: state for state in TaskState} | {"CANCELLED": TaskState.CANCELED}

# Returns the first rule that a message fulfils, and the groups of its pattern.
Choose = Callable[[Sequence[Rule], Message], tuple[Rule, dict[str, str]] | None]


class ScriptedFault(msgspec.Struct):
    """A fault of a reader's connection, at the position of an event."""

    step: ScriptStep
    # How many readers it still affects; negative: all.
    left: int = -1


class StageEvent(msgspec.Struct):
    """An event, or a fault, for readers."""

    seq: int
    event: Event | None = None
    # The name of a state that the model does not have.
    odd_state: str = ""
    fault: ScriptedFault | None = None
    # The task as of the event, for readers that resume there.
    task: Task | None = None


class Cut(msgspec.Struct):
    """A cut of streams after some events or bytes, a number of times."""

    events: int
    byte: int
    left: int


def state_named(name: str) -> tuple[TaskState, str]:
    """Return a state by any of its names; one the model lacks counts as working, by its name."""
    plain = name.upper().replace("-", "_").removeprefix("TASK_STATE_")
    if plain in _STATES:
        return _STATES[plain], ""
    return TaskState.WORKING, UNSPECIFIED if plain in (UNSPECIFIED, "UNKNOWN") else name


def filled(text: str, words: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled; unknown ones stay."""
    return _PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), text)


def content(step: ScriptStep, text: str | None, words: Mapping[str, str]) -> list[Part]:
    """Return the parts of a step."""
    parts: list[Part] = []
    if text is not None:
        parts.append(Part(text=filled(text, words)))
    if step.data is not UNSET:
        parts.append(Part(data=step.data))
    for part in step.parts:
        if isinstance(part.text, str):
            part = msgspec.structs.replace(part, text=filled(part.text, words))
        parts.append(part)
    return parts


def now() -> str:
    """Return the present time in wire form."""
    return stamp(time.time_ns() // 1000)


class Stage:
    """One task."""

    def __init__(
        self, id: str, context_id: str, first: Message | None, metadata: Metadata | None = None
    ) -> None:
        self.messages: list[Message] = [] if first is None else [self._owned(first, id, context_id)]
        self.task = Task(
            id=TaskId(id),
            context_id=ContextId(context_id),
            status=TaskStatus(TaskState.SUBMITTED, timestamp=now()),
            history=list(self.messages),
            metadata=metadata or {},
        )
        self.odd_state = ""
        self.entries: list[StageEvent] = []
        self.cuts: list[Cut] = []
        self.configs: dict[str, PushConfig] = {}
        # Whether the steps are over or wait for the caller: a waiting request is answered.
        self.is_done = False
        self.player: asyncio.Task[None] | None = None
        # Microseconds since the epoch, of the last status.
        self.changed_at = 0
        self._bell = asyncio.Event()
        self._reply: asyncio.Future[Message] | None = None
        self._swapped: list[StageEvent] | None = None
        self._seq = 0
        self._append(self.task)

    @staticmethod
    def _owned(message: Message, id: str, context_id: str) -> Message:
        return msgspec.structs.replace(
            message, task_id=TaskId(id), context_id=ContextId(context_id)
        )

    @property
    def id(self) -> TaskId:
        """The id of the task."""
        return self.task.id

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return self.task.status.state

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return self._seq

    # Events

    def _append(self, event: Event) -> None:
        self._seq += 1
        odd = self.odd_state if _has_state(event) else ""
        entry = StageEvent(self._seq, event, odd, task=self.task)
        if self._swapped is None:
            self.entries.append(entry)
        else:
            self._swapped.append(entry)
            if len(self._swapped) == 2:
                self._release()
        self._ring()

    def _release(self) -> None:
        """Show the swapped events, the later first."""
        held, self._swapped = self._swapped, None
        self.entries += reversed(held or [])

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def set_state(
        self, name: str, message: Message | None = None, metadata: Metadata | None = None
    ) -> None:
        """Set the state; an ended task shows the event and keeps its state."""
        state, odd = state_named(name)
        status = TaskStatus(state, message=message, timestamp=now())
        if self.state.is_terminal:
            self._append(StatusUpdate(self.id, self.task.context_id, status, metadata or {}))
            return
        self.odd_state = odd
        earlier = self.task.status.message
        history = [*self.task.history, earlier] if earlier is not None else self.task.history
        self.task = msgspec.structs.replace(self.task, status=status, history=history)
        self._append(StatusUpdate(self.id, self.task.context_id, status, metadata or {}))
        self.changed_at = time.time_ns() // 1000
        if state.is_terminal:
            self._release()
            self.is_done = True
            self._ring()

    def add_artifact(self, step: ScriptStep, words: Mapping[str, str]) -> None:
        """Add a chunk of an artifact."""
        chunk = Artifact(
            artifact_id=filled(step.artifact or "", words),
            parts=content(step, step.text, words),
            name=filled(step.name, words),
            description=step.description,
            metadata=step.metadata,
        )
        self.task = msgspec.structs.replace(
            self.task, artifacts=_with_chunk(self.task.artifacts, chunk, append=step.append)
        )
        self._append(ArtifactUpdate(self.id, self.task.context_id, chunk, step.append, step.last))

    def add_fault(self, step: ScriptStep) -> None:
        """Add a fault for readers."""
        left = int(step.times) if step.verb == "cut" else -1
        self.entries.append(StageEvent(self._seq, fault=ScriptedFault(step, left)))
        self._ring()

    def add_message(self, message: Message) -> None:
        """Add a message of the caller; a step that waits gets it."""
        message = self._owned(message, self.id, self.task.context_id)
        self.messages.append(message)
        earlier = self.task.status.message
        added = [earlier, message] if earlier is not None else [message]
        status = msgspec.structs.replace(self.task.status, message=None)
        self.task = msgspec.structs.replace(
            self.task, history=[*self.task.history, *added], status=status
        )
        if self._reply is not None and not self._reply.done():
            # At once, so that no reader takes the task for one that still waits.
            self.is_done = False
            self.set_state("working")
            self._reply.set_result(message)

    # Steps

    async def play(
        self, steps: Sequence[ScriptStep], words: Mapping[str, str], choose: Choose
    ) -> None:
        """Run the steps, and complete the task if they did not end it."""
        try:
            self.cuts = [_cut(step, words) for step in steps if _cuts_streams(step)]
            await self._steps(steps, dict(words), choose)
            if not self.state.is_terminal and not (steps and steps[-1].verb == "close"):
                self.set_state("completed")
        except (ConfigError, ValueError) as error:
            # A placeholder was filled with an invalid value; the reader is told.
            step = ScriptStep(state="failed", text=f"The script makes no sense: {error}")
            self._speak("failed", step, step.text, {})
        finally:
            self.is_done = True
            self._release()
            self._ring()

    async def _steps(
        self, steps: Sequence[ScriptStep], words: dict[str, str], choose: Choose
    ) -> None:
        for step in steps:
            words |= self._words()
            await self._step(step, words, choose)

    def _words(self) -> dict[str, str]:
        return {
            "text": self.messages[-1].text if self.messages else "",
            "first": self.messages[0].text if self.messages else "",
            "task": self.id,
            "context": self.task.context_id,
        }

    async def _step(self, step: ScriptStep, words: dict[str, str], choose: Choose) -> None:
        match step.verb:
            case "state":
                self._speak(step.state or "", step, step.text, words)
            case "say":
                self._speak("working", step, step.say, words)
            case "artifact":
                self.add_artifact(step, words)
            case "wait":
                await asyncio.sleep(_length(step.wait, words))
            case "ask":
                await self._pause("input-required", step, step.ask, words, choose)
            case "auth":
                await self._pause("auth-required", step, step.auth, words, choose)
            case "repeat":
                for i in range(int(filled(str(step.repeat), words))):
                    await self._steps(step.steps, words | {"i": str(i + 1)}, choose)
            case "message":
                self._append(self.message(step, step.message, words))
            case "twice":
                self.entries.append(self.entries[-1])
                self._ring()
            case "swap":
                self._swapped = []
            case "hang":
                await asyncio.Event().wait()
            case _ if _cuts_streams(step):
                pass
            case _:
                self.add_fault(step)

    def message(self, step: ScriptStep, text: str | None, words: Mapping[str, str]) -> Message:
        """Return the agent's message of a step."""
        return agent_message(
            content(step, text, words),
            context_id=self.task.context_id,
            task_id=self.id,
            metadata=step.metadata,
        )

    def _speak(
        self, state: str, step: ScriptStep, text: str | None, words: Mapping[str, str]
    ) -> None:
        has_content = text is not None or step.parts or step.data is not UNSET
        self.set_state(state, self.message(step, text, words) if has_content else None)

    async def _pause(
        self, state: str, step: ScriptStep, text: str | None, words: dict[str, str], choose: Choose
    ) -> None:
        """Wait for the caller, or for the time `after`."""
        self._reply = asyncio.get_running_loop().create_future()
        self.is_done = True
        self._speak(state, step, text, words)
        patience = None if step.after is None else _length(step.after, words)
        try:
            reply = await asyncio.wait_for(self._reply, patience)
        except TimeoutError:
            self.is_done = False
            self.set_state("working")
            return
        finally:
            self._reply = None
        found = choose(step.answers, reply)
        if found is not None:
            rule, groups = found
            await self._steps(rule.steps, words | groups, choose)

    # Readers

    async def follow(self, index: int) -> AsyncGenerator[StageEvent]:
        """Yield entries from an index on, until the steps are over."""
        while True:
            bell = self._bell
            while index < len(self.entries):
                index += 1
                yield self.entries[index - 1]
            if self.is_done and not self.state.is_interrupted:
                return
            if index == len(self.entries):
                await bell.wait()

    def as_of(self, seq: int) -> Task:
        """Return the task as of an event; for an unknown number, as it is now."""
        found = (entry.task for entry in self.entries if entry.seq == seq and entry.task)
        return next(found, self.task)

    def index_after(self, seq: int) -> int:
        """Return the index after the event of a number."""
        later = (i for i, entry in enumerate(self.entries) if entry.seq > seq)
        return next(later, len(self.entries))

    async def rested(self, index: int) -> ScriptedFault | None:
        """Wait until the task rests; return a fault that comes before."""
        while True:
            bell = self._bell
            for entry in self.entries[index:]:
                fault = entry.fault
                if fault is not None and fault.step.verb in ("error", "raw", "drop"):
                    return fault
            if self.is_done or self.state.is_resting:
                return None
            await bell.wait()


def _cuts_streams(step: ScriptStep) -> bool:
    """Say whether a step cuts streams at a number of events or bytes."""
    return step.cut_at_byte is not None or (step.cut is not None and step.cut is not True)


def _cut(step: ScriptStep, words: Mapping[str, str]) -> Cut:
    events = -1 if step.cut is None else int(filled(str(step.cut), words))
    byte = -1 if step.cut_at_byte is None else int(filled(str(step.cut_at_byte), words))
    return Cut(events, byte, int(filled(str(step.times), words)))


def _has_state(event: Event) -> bool:
    return isinstance(event, Task | StatusUpdate)


def _length(duration: float | str | None, words: Mapping[str, str]) -> float:
    return seconds(filled(duration, words) if isinstance(duration, str) else duration or 0.0)


def _with_chunk(artifacts: list[Artifact], chunk: Artifact, *, append: bool) -> list[Artifact]:
    """Return artifacts with a chunk: appended to the one of its id, or replacing it."""
    folded: list[Artifact] = []
    is_new = True
    for artifact in artifacts:
        if artifact.artifact_id == chunk.artifact_id:
            is_new = False
            if append:
                parts = [*artifact.parts, *chunk.parts]
                artifact = msgspec.structs.replace(artifact, parts=parts)
            else:
                artifact = chunk
        folded.append(artifact)
    return [*folded, chunk] if is_new else folded
