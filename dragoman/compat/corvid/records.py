"""corvid's own shapes: tasks with four states, what they are run with, and its errors.

A task is live: it shows what its session said so far. That it took too long is read from the
clock, so nothing has to run for it.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Protocol, TypedDict

from dragoman.model.clock import Clock
from dragoman.model.instant import stamp

A2ATaskState = Literal["submitted", "working", "completed", "failed"]
TIMED_OUT = "Task timed out"
_ORDER = {"submitted": 0, "working": 1, "completed": 2, "failed": 2}


class ExternalServiceError(Exception):
    """Another service did not do its part; `status` is its answer in HTTP, if there was one."""

    def __init__(self, service: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.service = service
        self.status = status


class ValidationError(ValueError):
    """What was given, or what came back, is not what it should be."""


class NotFoundError(LookupError):
    """There is no such thing; `resource` says what was looked for."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} not found")
        self.resource = resource


class TextPart(TypedDict):
    """A text of a message."""

    type: Literal["text"]
    text: str


class A2AMessage(TypedDict):
    """What was said."""

    role: Literal["user", "agent"]
    parts: list[TextPart]


class SendParams(TypedDict):
    """What a task begins with; `timeoutMs` are milliseconds it may take."""

    message: str
    skill: NotRequired[str | None]
    timeoutMs: NotRequired[int | None]


class A2ATaskSendRequest(TypedDict):
    """The body of `POST /a2a/tasks/send`."""

    method: Literal["tasks/send"]
    params: SendParams


@dataclass(frozen=True)
class RemoteInvocationResult:
    """What came of a task that another agent was given."""

    success: bool
    task_id: str
    response_text: str | None
    error: str | None


# Called with the session's id and an event of it.
OnEvent = Callable[[str, Mapping[str, Any]], None]


class ProcessManager(Protocol):
    """What runs sessions. It may call back from any thread.

    Events are objects with a `type`: `assistant` with `message.content`, then `session_exited`,
    `session_stopped` or `error`.
    """

    def subscribe(self, session_id: str, callback: OnEvent) -> Any:
        """Have the events of a session told from here on."""
        ...

    def start_process(self, session: Any, prompt: str, options: Mapping[str, Any]) -> Any:
        """Begin to work on a prompt in a session."""
        ...


@dataclass(frozen=True)
class A2ATaskDeps:
    """What tasks are run with. Without functions of their own, `db` lists agents and makes
    sessions: by `db.list_agents()` and `db.create_session(input)`."""

    db: Any
    process_manager: ProcessManager
    list_agents: Callable[[Any], Sequence[Any]] | None = None
    create_session: Callable[[Any, dict[str, Any]], Any] | None = None

    def agent(self) -> Any:
        """Return who takes tasks: the first agent with a default project."""
        agents = self.list_agents(self.db) if self.list_agents else self.db.list_agents()
        for agent in agents:
            if member(agent, "default_project_id"):
                return agent
        raise NotFoundError("Agent with default project")

    def session(self, agent: Any, text: str) -> Any:
        """Make the session of a task."""
        given = {
            "projectId": member(agent, "default_project_id"),
            "agentId": member(agent, "id"),
            "name": f"A2A Task: {text[:50]}",
            "initialPrompt": text,
            "source": "agent",
        }
        if self.create_session:
            return self.create_session(self.db, given)
        return self.db.create_session(given)


class A2ATask:
    """A task of the store, as it stands whenever it is looked at."""

    def __init__(self, text: str, timeout_ms: int, clock: Clock) -> None:
        self.id = str(uuid.uuid4())
        self.session_id: str | None = None
        self._clock = clock
        self._state: A2ATaskState = "submitted"
        self._messages = [_said("user", text)]
        self.created_at = self._updated_at = clock.now()
        self._overdue_at = self.created_at + timeout_ms

    @property
    def state(self) -> A2ATaskState:
        """Where it stands; from `completed` and `failed` it goes nowhere."""
        self._look()
        return self._state

    @property
    def messages(self) -> list[A2AMessage]:
        """What was said, the oldest first."""
        self._look()
        return self._messages

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return _ORDER[self.state] == 2

    def move(self, state: A2ATaskState) -> None:
        """Go on to a later state; what would lead back is ignored."""
        if _ORDER[state] > _ORDER[self.state]:
            self._set(state, self._clock.now())

    def say(self, text: str) -> None:
        """Add what the agent says, unless it says it too late."""
        if not self.is_over:
            self._messages.append(_said("agent", text))
            self._updated_at = self._clock.now()

    def _look(self) -> None:
        if self._state == "working" and self._clock.now() >= self._overdue_at:
            self._messages.append(_said("agent", TIMED_OUT))
            self._set("failed", self._overdue_at)

    def _set(self, state: A2ATaskState, at: int) -> None:
        self._state, self._updated_at = state, at

    def to_dict(self) -> dict[str, Any]:
        """Return the task as it goes over the wire."""
        return {
            "id": self.id,
            "state": self.state,
            "messages": [*self.messages],
            "sessionId": self.session_id,
            "createdAt": stamp(self.created_at * 1000),
            "updatedAt": stamp(self._updated_at * 1000),
        }


def _said(role: Literal["user", "agent"], text: str) -> A2AMessage:
    return {"role": role, "parts": [{"type": "text", "text": text}]}


def member(thing: Any, name: str) -> Any:
    """Return a member of an object, or of a mapping under this name or corvid's."""
    if isinstance(thing, Mapping):
        head, *rest = name.split("_")
        theirs = head + "".join(word.capitalize() for word in rest)
        return thing.get(name, thing.get(theirs))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - whatever the caller keeps
    return getattr(thing, name, None)


def text_of(event: Mapping[str, Any]) -> str:
    """Return what an `assistant` event says: a text, or the first block that has one."""
    content: Any = member(event.get("message") or {}, "content")
    if isinstance(content, str):
        return content
    for block in content or ():
        text: Any = member(block, "text")
        if isinstance(text, str):
            return text
    return ""
