"""Tasks as this API takes them; how it shows them is in `record`."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.gateway.api.asking import Credits, Paged
from dragoman.gateway.api.record import Status, TaskRecord

_Agent = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        description="The agent's id; its name in addresses will do too.",
        extra_json_schema={"format": "uuid"},
    ),
]


class NewTask(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A task for an agent."""

    assigned_agent_id: _Agent
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=2000)] = ""
    input: dict[str, Any] = {}
    timeout_seconds: Annotated[int, Meta(ge=10, le=3600)] = 300
    # Credits; a task that may cost more is refused.
    max_budget_credits: Credits | None = None
    # The lowest trust score the agent may have.
    min_trust_score: Annotated[int, Meta(ge=0, le=100)] = 0
    skill_id: Annotated[str, Meta(max_length=200)] = ""


class TaskQuery(Paged, frozen=True, rename="camel", kw_only=True):
    """Which tasks are listed."""

    status: Status | msgspec.UnsetType = msgspec.UNSET
    assigned_agent_id: str = ""


class Tasks(msgspec.Struct, frozen=True):
    """A page of tasks, newest first."""

    tasks: list[TaskRecord]
    total: int
    limit: int
    offset: int


class ReplyPart(msgspec.Struct, frozen=True):
    """One piece of content that comes with an answer."""

    data: Any
    type: str = "data"


class ReplyArtifact(msgspec.Struct, frozen=True):
    """An artifact that comes with an answer."""

    parts: list[ReplyPart]
    name: str = ""
    description: str = ""


class TaskAnswer(msgspec.Struct, frozen=True):
    """A message to a task that is under way."""

    message: Annotated[str, Meta(min_length=1, max_length=10_000)]
    artifacts: Annotated[list[ReplyArtifact], Meta(max_length=20)] = []


class DashboardTask(msgspec.Struct, frozen=True, rename="camel"):
    """A task as text."""

    agent_id: _Agent
    message: Annotated[str, Meta(min_length=1, max_length=10_000)]


class CreatedTask(msgspec.Struct, frozen=True, rename="camel"):
    """The task that was made."""

    task_id: str
