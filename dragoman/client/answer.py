"""What came of a message: a task as it rests, or a message without one."""

from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.model.artifact import Artifact
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState


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
        produced = [part for artifact in self.task.artifacts for part in artifact.parts]
        said = self.task.status.message
        if self.task.status.state.is_interrupted and said is not None:
            # A question is what there is to answer, whatever was produced before.
            return said.parts
        if produced:
            return produced
        if said is None:
            said = next(
                (one for one in reversed(self.task.history) if one.role is Role.AGENT), None
            )
        return said.parts if said is not None else []

    @property
    def text(self) -> str:
        """The text of the answer: chunks of one artifact joined, results on lines of their own."""
        if self.message is not None:
            return self.message.text
        parts = self.parts
        produced = [part for artifact in self.artifacts for part in artifact.parts]
        if self.task is None or parts != produced:
            return "\n".join(part.text for part in parts if isinstance(part.text, str))
        texts = [
            "".join(part.text for part in artifact.parts if isinstance(part.text, str))
            for artifact in self.task.artifacts
        ]
        return "\n".join(text for text in texts if text)

    @property
    def data(self) -> Any:
        """The first structured value, or None."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)

    @property
    def files(self) -> list[Part]:
        """The parts that are files: bytes in `raw`, or an address in `url`."""
        return [part for part in self.parts if part.raw is not UNSET or part.url is not UNSET]

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
