"""The results of selectools' client: cards, tasks, states and its one error.

Plain objects with selectools' fields. Unlike the original, `text` is the agent's answer wherever it
is, and `error` is set for failed tasks only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

Json = dict[str, Any]


class TaskState:
    """The states of a task, as texts."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    TERMINAL: ClassVar[frozenset[str]] = frozenset({COMPLETED, FAILED, CANCELED})


# States, also of later versions, in which the agent's message is the reason.
_UNSUCCESSFUL = frozenset({TaskState.FAILED, TaskState.CANCELED, "rejected"})


class A2AError(Exception):
    """A call that failed: refused by the agent with a `code`, or never answered, without one."""

    def __init__(self, message: str, code: int | None = None, data: Any | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data


@dataclass
class AgentSkill:
    """One thing an agent can do."""

    id: str
    name: str
    description: str = ""
    tags: list[str] = field(default_factory=list[str])

    @classmethod
    def from_dict(cls, data: Json) -> "AgentSkill":
        """Return the skill that an entry of a card describes."""
        return cls(
            id=_text(data.get("id")),
            name=_text(data.get("name")),
            description=_text(data.get("description")),
            tags=[str(tag) for tag in _list(data.get("tags"))],
        )


@dataclass
class AgentCard:
    """An agent's card; all of it is in `raw`."""

    name: str
    description: str = ""
    url: str = ""
    version: str = ""
    protocol_version: str = ""
    capabilities: Json = field(default_factory=dict[str, Any])
    skills: list[AgentSkill] = field(default_factory=list[AgentSkill])
    raw: Json = field(default_factory=dict[str, Any])

    @classmethod
    def from_dict(cls, data: Json) -> "AgentCard":
        """Return the card of a JSON object of any version."""
        first = next(_objects(data.get("supportedInterfaces")), Json())
        return cls(
            name=_text(data.get("name")),
            description=_text(data.get("description")),
            url=_text(data.get("url") or first.get("url")),
            version=_text(data.get("version")),
            protocol_version=_text(data.get("protocolVersion") or first.get("protocolVersion")),
            capabilities=dict(_object(data.get("capabilities"))),
            skills=[AgentSkill.from_dict(skill) for skill in _objects(data.get("skills"))],
            raw=data,
        )


@dataclass
class A2ATask:
    """A task. `text` is the agent's answer, or its question while it waits for an answer; `error`
    is the reason of a failed task."""

    id: str
    context_id: str = ""
    state: str = TaskState.SUBMITTED
    text: str = ""
    error: str = ""
    raw: Json = field(default_factory=dict[str, Any])

    @classmethod
    def from_dict(cls, data: Json) -> "A2ATask":
        """Return the task of a JSON object; a message becomes a completed task."""
        context_id = _text(data.get("contextId"))
        if data.get("kind") == "message" or ("parts" in data and "status" not in data):
            # The agent answered without a task.
            text = "".join(_texts(data))
            return cls(_text(data.get("taskId")), context_id, TaskState.COMPLETED, text, "", data)
        status = _object(data.get("status"))
        state = _text(status.get("state")) or TaskState.SUBMITTED
        message = "".join(_texts(_object(status.get("message"))))
        text = "".join(
            text for artifact in _objects(data.get("artifacts")) for text in _texts(artifact)
        )
        is_wrong = state in _UNSUCCESSFUL
        if not is_wrong and (not text or state in (TaskState.INPUT_REQUIRED, "auth-required")):
            text = message or text
        error = message if is_wrong else ""
        return cls(_text(data.get("id")), context_id, state, text, error, data)


def _texts(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a message or an artifact, by `kind` or `type` of its parts."""
    for part in _objects(holder.get("parts")):
        if part.get("kind", part.get("type", "text")) == "text" and isinstance(
            part.get("text"), str
        ):
            yield part["text"]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[Json]:
    for one in _list(value):
        if isinstance(one, dict):
            yield cast(Json, one)
