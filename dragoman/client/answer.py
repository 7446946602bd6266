"""What came of a message: a task as it rests, or a message without one."""

from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from dragoman.errors import InvalidAgentResponse
from dragoman.model.artifact import Artifact
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState
from dragoman.security.json_values import value_in_text
from dragoman.service import Reply, TaskReply

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """An agent's answer. Exactly one of `task` and `message` is there, once it has come."""

    task: Task | None = None
    message: Message | None = None

    @property
    def state(self) -> TaskState | None:
        """Where the task stands; None for a message without a task."""
        return self.task.status.state if self.task is not None else None

    @property
    def artifacts(self) -> list[Artifact]:
        """What the task produced."""
        return self.task.artifacts if self.task is not None else []

    @property
    def parts(self) -> list[Part]:
        """The parts that answer: of the artifacts; else of what the agent said last."""
        if self.message is not None:
            return self.message.parts
        if self.task is None:
            return []
        message = self._last_message()
        if self.task.status.state.is_interrupted and self.task.status.message is not None:
            # A question is what there is to answer, whatever was produced before.
            return self.task.status.message.parts
        produced = [part for artifact in self.task.artifacts for part in artifact.parts]
        return produced or (message.parts if message is not None else [])

    @property
    def text(self) -> str:
        """The text of the answer: chunks of one artifact joined, results on lines of their own.
        Where no result is a text, it is what the agent said last."""
        if self.message is not None:
            return self.message.text
        if self.task is None:
            return ""
        message = self._last_message()
        if self.task.status.state.is_interrupted and self.task.status.message is not None:
            return self.task.status.message.text
        texts = [
            "".join(part.text for part in artifact.parts if isinstance(part.text, str))
            for artifact in self.task.artifacts
        ]
        return "\n".join(text for text in texts if text) or (message.text if message else "")

    def _last_message(self) -> Message | None:
        """Return what the agent said last: with its status, or before."""
        assert self.task is not None, "only a task has a history"
        if self.task.status.message is not None:
            return self.task.status.message
        return next((one for one in reversed(self.task.history) if one.role is Role.AGENT), None)

    @property
    def data(self) -> object:
        """The first structured value, or None. An agent may send anything: `convert` checks it."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)

    def convert(self, kind: type[T]) -> T:
        """Return the answer in a type: its first structured value, else its text, which may be
        JSON. Raises `InvalidAgentResponse` where it does not fit."""
        value: Any = self.data
        if value is None:
            if kind is str:
                return cast(T, self.text)
            value = value_in_text(self.text)
        try:
            if hasattr(kind, "model_validate"):
                return cast(Any, kind).model_validate(value)
            return msgspec.convert(value, kind, strict=not isinstance(value, str))
        except ValueError as error:
            name = getattr(kind, "__name__", str(kind))
            raise InvalidAgentResponse(f"The answer is not of type {name}: {error}") from None

    @property
    def files(self) -> list[Part]:
        """The parts that are files: bytes in `raw`, or an address in `url`."""
        return [part for part in self.parts if part.raw is not UNSET or part.url is not UNSET]

    @property
    def references(self) -> dict[str, list[str]]:
        """Which other tasks the agent referred to in what it said, by its own task, as far as the
        task shows its history."""
        if self.task is None:
            return {}
        messages = [one for one in self.task.history if one.role is Role.AGENT]
        if self.task.status.message is not None:
            messages.append(self.task.status.message)
        found = list(dict.fromkeys(name for one in messages for name in one.reference_task_ids))
        return {self.task.id: found} if found else {}

    @property
    def task_id(self) -> str:
        """The task's id; empty without one."""
        return self.task.id if self.task is not None else ""

    @property
    def context_id(self) -> str:
        """The conversation's id."""
        if self.task is not None:
            return self.task.context_id
        return self.message.context_id if self.message is not None else ""


def is_empty(task: Task) -> bool:
    """Tell whether a task is complete and says nothing: no artifact, and no word of its agent since
    it was last spoken to."""
    return (
        task.status.state is TaskState.COMPLETED
        and not task.artifacts
        and task.status.message is None
        and not (task.history and task.history[-1].role is Role.AGENT)
    )


def task_of(reply: Reply) -> Task:
    """Return the task of a reply that must be one."""
    if not isinstance(reply, TaskReply):
        raise InvalidAgentResponse("The agent answered with something that is no task")
    return reply.reading.task
