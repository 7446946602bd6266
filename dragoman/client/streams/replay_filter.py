"""What a caller has been shown of a task, folded, and what is missing when the peer knows more.

Peers without positions in their streams can only say how a task stands. The difference between
that and what was shown is told as events: applied in order, they give the peer's task.
Foreign peers are folded as they come: nothing here refuses an event.
"""

import msgspec

from dragoman.client.streams.extent import Extent, weight
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, Event, StatusUpdate
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

# Bytes of contents that a light fold holds.
MOST_HELD = 256 * 1024


class ReplayFilter:
    """The fold of the events a caller was shown; each costs the same, however long the task.

    A light one lets go of the contents of a large task: what of it is new can still be told."""

    # Set here and not in the constructor: one is made for each message that a gateway forwards.
    _is_light = False
    _size = 0
    _task: Task | None = None
    _status: TaskStatus | None = None
    _has_spoken = False

    def __init__(self, *, is_light: bool = False) -> None:
        self._may_lighten = is_light
        self._history: list[Message] = []
        self._artifacts: dict[str, Extent] = {}
        # Of artifacts in the last Task: their parts, and where a repetition of them has got to.
        self._repeatable: dict[str, tuple[list[Part], int | None]] = {}
        # Which other tasks the agent referred to in what it said, by its own.
        self.references: dict[str, list[str]] = {}
        # What the agent said with a status, so that history does not repeat it.
        self._said_ids: set[str] = set()

    @property
    def task_id(self) -> str:
        """The task's id, empty before there is one."""
        return self._task.id if self._task is not None else ""

    @property
    def state(self) -> TaskState | None:
        """The state last shown."""
        return self._status.state if self._status is not None else None

    @property
    def has_artifacts(self) -> bool:
        """Whether any of a result was shown."""
        return bool(self._artifacts)

    @property
    def has_spoken(self) -> bool:
        """Whether any word of the agent's was shown."""
        return self._has_spoken

    def copy(self) -> "ReplayFilter":
        """Return another that goes on from here by itself."""
        other = ReplayFilter(is_light=self._may_lighten)
        other._is_light, other._size = self._is_light, self._size
        other._task, other._status = self._task, self._status
        other._history = list(self._history)
        other._artifacts = {name: shown.copy() for name, shown in self._artifacts.items()}
        other.references = {task: list(others) for task, others in self.references.items()}
        other._said_ids = set(self._said_ids)
        other._has_spoken = self._has_spoken
        return other

    def task(self) -> Task | None:
        """Return the task as shown so far; of a light one that is large, without its contents."""
        if self._task is None or self._status is None:
            return None
        return msgspec.structs.replace(
            self._task,
            status=self._status,
            history=list(self._history),
            artifacts=[
                msgspec.structs.replace(shown.artifact, parts=list(shown.parts))
                for shown in self._artifacts.values()
            ],
        )

    def apply(self, event: Event) -> None:
        """Fold an event that is being shown."""
        match event:
            case Task():
                self._task = event
                self._status = event.status
                self._history = list(event.history)
                self._artifacts = {}
                for artifact in event.artifacts:
                    self._replace_artifact(artifact)
                self._note(event.status, event.id)
                self._said_ids.update(message.message_id for message in event.history)
                for message in event.history:
                    if message.role is Role.AGENT:
                        self._has_spoken = True
                        self._refer(event.id, message)
                if self._is_light:
                    self._lighten()
            case StatusUpdate():
                if self._task is None:
                    # A peer of 0.x that resumes without a Task.
                    self._task = Task(event.task_id, event.context_id, event.status)
                elif self._status is not None and self._status.message is not None:
                    self._retire(self._status.message)
                self._status = event.status
                self._note(event.status, event.task_id)
            case ArtifactUpdate():
                if self._task is None:
                    self._status = TaskStatus(TaskState.WORKING)
                    self._task = Task(event.task_id, event.context_id, self._status)
                name = event.artifact.artifact_id
                if event.append and name in self._artifacts:
                    self._artifacts[name].extend(event.artifact.parts)
                    self._weigh(event.artifact.parts)
                else:
                    self._replace_artifact(event.artifact)
            case _:
                pass

    def _replace_artifact(self, artifact: Artifact) -> None:
        self._artifacts[artifact.artifact_id] = Extent(artifact, is_light=self._is_light)
        self._weigh(artifact.parts)

    def _retire(self, message: Message) -> None:
        """Note that what was said with a status is history."""
        if not self._is_light:
            self._history.append(message)
            self._weigh(message.parts)

    def _weigh(self, parts: list[Part]) -> None:
        """Let go of the contents once they are large."""
        if not self._may_lighten or self._is_light:
            return
        self._size += weight(parts)
        if self._size > MOST_HELD:
            self._is_light = True
            self._lighten()

    def _lighten(self) -> None:
        self._history.clear()
        if self._task is not None:
            self._task = msgspec.structs.replace(self._task, history=[], artifacts=[])
        for shown in self._artifacts.values():
            shown.lighten()

    def has_heard(self, status: TaskStatus) -> bool:
        """Whether what the agent says with a status was shown."""
        return status.message is not None and status.message.message_id in self._said_ids

    def _note(self, status: TaskStatus, task_id: str) -> None:
        if status.message is not None:
            self._said_ids.add(status.message.message_id)
            self._has_spoken = True
            self._refer(task_id, status.message)

    def _refer(self, task_id: str, message: Message) -> None:
        if message.reference_task_ids:
            known = self.references.setdefault(task_id, [])
            known += [one for one in message.reference_task_ids if one not in known]

    def missing(self, task: Task) -> list[Event]:
        """Return the events that lead from what was shown to how the peer says the task stands."""
        return [task] if self._task is None else self._missing(task)

    def untold(self, task: Task) -> list[Event]:
        """Return the events that lead to how the peer says an ended task stands, of which its
        caller knows nothing but its own messages. Nothing may be folded after it."""
        self._said_ids = {one.message_id for one in task.history if one.role is Role.USER}
        return self._missing(task)

    def _missing(self, task: Task) -> list[Event]:
        ids = (task.id, task.context_id)
        found: list[Event] = []
        # Some peers list the message of the present status among the past ones as well.
        present = task.status.message.message_id if task.status.message is not None else ""
        known = {*self._said_ids, present}
        for message in task.history:
            if message.role is Role.AGENT and message.message_id not in known:
                # Said with a status that is gone: in which state, only the peer knew.
                found.append(StatusUpdate(*ids, TaskStatus(TaskState.WORKING, message)))
        # Those are told as work, so that the state is to be told again where it is another.
        is_moved = bool(found) and task.status.state is not TaskState.WORKING
        for artifact in task.artifacts:
            found += self._missing_parts(artifact, self._task or task)
        if is_moved or self._is_news(task.status):
            found.append(StatusUpdate(*ids, task.status))
        return found

    def is_ahead_of(self, task: Task) -> bool:
        """Say whether more was shown than a peer says there is: it keeps it elsewhere, or later."""
        held = {artifact.artifact_id: artifact.parts for artifact in task.artifacts}
        return not task.status.state.is_terminal and any(
            shown.is_ahead_of(held.get(name, [])) for name, shown in self._artifacts.items()
        )

    def expect_repetition(self, task: Task) -> None:
        """Take the first events after a Task for what it already holds, if they look like it.

        Some peers begin to listen to a task before they read it.
        """
        self._repeatable = {
            artifact.artifact_id: (artifact.parts, None) for artifact in task.artifacts
        }

    def is_repetition(self, event: Event) -> bool:
        """Say whether an event tells again what the Task before it held."""
        match event:
            case StatusUpdate():
                # Where nothing was repeated so far, a status that is shown may well come again.
                return bool(self._repeatable) and event.status == self._status
            case ArtifactUpdate():
                name, parts = event.artifact.artifact_id, event.artifact.parts
                held, place = self._repeatable.pop(name, ([], None))
                if place is None:
                    # The first of them: the nearest to the end, so that no more is left out than
                    # must be.
                    starts = range(len(held) - len(parts), -1, -1) if event.append else [0]
                    place = next((n for n in starts if held[n : n + len(parts)] == parts), None)
                if place is None or not parts or held[place : place + len(parts)] != parts:
                    return False
                if place + len(parts) < len(held):
                    self._repeatable[name] = (held, place + len(parts))
                return True
            case _:
                return False

    def _missing_parts(self, artifact: Artifact, task: Task) -> list[Event]:
        ids = (task.id, task.context_id)
        parts = artifact.parts
        known = self._artifacts.get(artifact.artifact_id)
        if not parts:
            return []
        if known is None:
            return [ArtifactUpdate(*ids, artifact)]
        rest = known.after(parts)
        if rest is None:
            # Not what was shown and more: the peer changed it, so it is shown anew.
            return [ArtifactUpdate(*ids, artifact)]
        if not rest:
            return []
        return [ArtifactUpdate(*ids, msgspec.structs.replace(artifact, parts=rest), append=True)]

    def _is_news(self, status: TaskStatus) -> bool:
        if self._status is None or status.state is not self._status.state:
            return True
        return status.message is not None and not self.has_heard(status)
