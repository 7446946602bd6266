"""corvid's types: tasks with four states, their dependencies, and errors.

A task is live: it shows the messages of its session so far. Its time-out is computed from the clock
on each access, without a timer.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Protocol, TypedDict

from dragoman.model.clock import Clock, stamp

A2ATaskState = Literal["submitted", "working", "completed", "failed"]
TIMED_OUT = "Task timed out"
_ORDER = {"submitted": 0, "working": 1, "completed": 2, "failed": 2}


class ExternalServiceError(Exception):
    """Another service failed; `status` is its HTTP status, if there was one."""

    def __init__(self, service: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.service = service
        self.status = status


class ValidationError(ValueError):
    """An argument, or an answer, is invalid."""


class NotFoundError(LookupError):
    """The named `resource` does not exist."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} not found")
        self.resource = resource


class TextPart(TypedDict):
    """A text of a message."""

    type: Literal["text"]
    text: str


class A2AMessage(TypedDict):
    """A message."""

    role: Literal["user", "agent"]
    parts: list[TextPart]


class SendParams(TypedDict):
    """The parameters of a task; `timeoutMs` is its time limit in milliseconds."""

    message: str
    skill: NotRequired[str | None]
    timeoutMs: NotRequired[int | None]


class A2ATaskSendRequest(TypedDict):
    """The body of `POST /a2a/tasks/send`."""

    method: Literal["tasks/send"]
    params: SendParams


@dataclass(frozen=True)
class RemoteInvocationResult:
    """The result of a task at another agent."""

    success: bool
    task_id: str
    response_text: str | None
    error: str | None


# Called with the session's id and an event of it.
OnEvent = Callable[[str, Mapping[str, Any]], None]


class ProcessManager(Protocol):
    """Runs sessions. It may call back from any thread.

    Events are objects with a `type`: `assistant` with `message.content`, then `session_exited`,
    `session_stopped` or `error`.
    """

    def subscribe(self, session_id: str, callback: OnEvent) -> Any:
        """Call back for the events of a session from now on."""
        ...

    def start_process(self, session: Any, prompt: str, options: Mapping[str, Any]) -> Any:
        """Begin to process a prompt in a session."""
        ...


@dataclass(frozen=True)
class A2ATaskDeps:
    """The dependencies of tasks. Without the two functions `db` is used: `db.list_agents()` and
    `db.create_session(input)`."""

    db: Any
    process_manager: ProcessManager
    list_agents: Callable[[Any], Sequence[Any]] | None = None
    create_session: Callable[[Any, dict[str, Any]], Any] | None = None

    def agent(self) -> Any:
        """Return the agent for tasks: the first with a default project."""
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
    """A task of the store, always up to date."""

    def __init__(self, text: str, timeout_ms: int, clock: Clock) -> None:
        self.id = str(uuid.uuid4())
        self.session_id: str | None = None
        self._clock = clock
        self._state: A2ATaskState = "submitted"
        self._messages = [_text_message("user", text)]
        self.created_at = self._updated_at = clock.now()
        self._overdue_at = self.created_at + timeout_ms

    @property
    def state(self) -> A2ATaskState:
        """The state; `completed` and `failed` are final."""
        self._check_time()
        return self._state

    @property
    def messages(self) -> list[A2AMessage]:
        """The messages, oldest first."""
        self._check_time()
        return self._messages

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return _ORDER[self.state] == 2

    def move(self, state: A2ATaskState) -> None:
        """Go to a later state; an earlier one is ignored."""
        if _ORDER[state] > _ORDER[self.state]:
            self._set(state, self._clock.now())

    def say(self, text: str) -> None:
        """Add a message of the agent, unless the task is over."""
        if not self.is_over:
            self._messages.append(_text_message("agent", text))
            self._updated_at = self._clock.now()

    def _check_time(self) -> None:
        if self._state == "working" and self._clock.now() >= self._overdue_at:
            self._messages.append(_text_message("agent", TIMED_OUT))
            self._set("failed", self._overdue_at)

    def _set(self, state: A2ATaskState, at: int) -> None:
        self._state, self._updated_at = state, at

    def to_dict(self) -> dict[str, Any]:
        """Return the task as on the wire."""
        return {
            "id": self.id,
            "state": self.state,
            "messages": [*self.messages],
            "sessionId": self.session_id,
            "createdAt": stamp(self.created_at * 1000),
            "updatedAt": stamp(self._updated_at * 1000),
        }


def _text_message(role: Literal["user", "agent"], text: str) -> A2AMessage:
    return {"role": role, "parts": [{"type": "text", "text": text}]}


def member(thing: Any, name: str) -> Any:
    """Return a member of an object, or of a mapping by this name or its camelCase form."""
    if isinstance(thing, Mapping):
        head, *rest = name.split("_")
        camel = head + "".join(word.capitalize() for word in rest)
        return thing.get(name, thing.get(camel))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any mapping of the caller
    return getattr(thing, name, None)


def text_of(event: Mapping[str, Any]) -> str:
    """Return the text of an `assistant` event: its content, or the first block with a text."""
    content: Any = member(event.get("message") or {}, "content")
    if isinstance(content, str):
        return content
    for block in content or ():
        text: Any = member(block, "text")
        if isinstance(text, str):
            return text
    return ""
