"""Workflows as data: what may be defined, the states of a run's steps, and what follows from them.

Pure: `runs` carries a run out, `workflows` stores definitions.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidParams
from dragoman.gateway.delivery.task_input import input_part, result_of
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Metadata, Part, Role
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Opening


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How often a step is tried again, and how long after its first failure; the wait doubles each
    time."""

    max_retries: Annotated[int, Meta(ge=0, le=5)] = 0
    backoff_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000

    def delay(self, failures: int) -> int | None:
        """Return the milliseconds to wait after so many failures; None: it is not tried again."""
        return self.backoff_ms * 2 ** (failures - 1) if failures <= self.max_retries else None


class WorkflowStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task of a workflow."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    # A registered agent, by its id or name.
    agent_id: Annotated[str, Meta(min_length=1, max_length=200)]
    skill_id: Annotated[str, Meta(max_length=200)] = ""
    input: dict[str, Any] = {}
    # Steps that have to be completed before, by their places from 0.
    depends_on: list[int] = []
    # Seconds that each attempt may take.
    timeout: Annotated[int, Meta(ge=10, le=3600)] = 300
    retry_policy: RetryPolicy = RetryPolicy()


class Definition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a workflow does."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: Annotated[str, Meta(max_length=2000)] = ""
    steps: Annotated[list[WorkflowStep], Meta(min_length=1, max_length=20)]


class StepOrder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first message of a run: the workflow as it was defined then."""

    workflow_id: str
    definition: Definition
    # Whether the input of a step is a JSON object. Runs that began before that send texts to the
    # end: a step that is sent again has to be the same message.
    is_typed: bool = False


# A step that was not over when its run was canceled is shown as cancelled.
StepStatus = Literal["pending", "running", "completed", "failed", "skipped", "cancelled"]
ENDED: frozenset[StepStatus] = frozenset({"completed", "failed", "skipped"})


class StepState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of one step of a run."""

    index: int
    name: str
    status: StepStatus = "pending"
    # Attempts so far, the present one included; and its task.
    attempts: int = 0
    task_id: str = ""
    # Milliseconds since the epoch: when the present attempt began, and when the step ended.
    started_at: int = 0
    ended_at: int = 0
    # When it is tried again.
    retry_at: int = 0
    error: str = ""
    # The step whose failure it was skipped for.
    because: int | None = None
    output: Any = None


def checked(definition: Any, is_registered: Callable[[str], bool]) -> Definition:
    """Return a definition that can be run; raises `InvalidParams` for any other."""
    if not isinstance(definition, Definition):
        try:
            definition = msgspec.convert(definition, Definition)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `$")
            raise InvalidParams(text, field=place.rstrip("`").lstrip(".")) from None
    for index, step in enumerate(definition.steps):
        if any(not 0 <= earlier < index for earlier in step.depends_on):
            raise InvalidParams(
                "a step depends on earlier steps, by their places from 0",
                field=f"steps[{index}].dependsOn",
            )
        if not is_registered(step.agent_id):
            raise InvalidParams("no such agent is registered", field=f"steps[{index}].agentId")
    return definition


def obstacle(step: WorkflowStep, states: Sequence[StepState]) -> int | None:
    """Return the step whose failure, directly or through others, keeps this one from being run;
    None: all it depends on is completed."""
    found = [
        earlier if states[earlier].status == "failed" else states[earlier].because
        for earlier in step.depends_on
        if states[earlier].status != "completed"
    ]
    return min((place for place in found if place is not None), default=None)


def input_of(step: WorkflowStep, states: Sequence[StepState]) -> dict[str, Any]:
    """Return the input of a step: its own, and the outputs of the steps it depends on."""
    outputs = {f"step_{earlier}_output": states[earlier].output for earlier in step.depends_on}
    return {**step.input, **outputs}


def task_of(
    run_id: str, order: StepOrder, index: int, states: Sequence[StepState]
) -> tuple[Message, Metadata]:
    """Return the message that makes a step's task, and its metadata.

    It follows from the run alone: sent once more, it leads to the task it made before. So it must
    stay the same from release to release."""
    step = order.definition.steps[index]
    metadata: Metadata = {
        "agentId": step.agent_id,
        "title": f"[Workflow] {order.definition.name}",
        "description": step.name,
        "timeoutSeconds": step.timeout,
    }
    if step.skill_id:
        metadata["skillId"] = step.skill_id
    id = MessageId(f"{run_id}.{index}.{states[index].attempts}")
    given = input_of(step, states)
    part = input_part(given) if order.is_typed else Part(text=encode(given).decode())
    return Message(id, Role.USER, [part]), metadata


def output_of(task: Task) -> Any:
    """Return the output of a step's task: its first result, or the last words of its agent if there
    is none."""
    found = result_of(task)
    return None if found is None else {"result": _plain(found)}


def problem_of(task: Task) -> str:
    """Return why a task was not completed; empty: it was."""
    if task.status.state is TaskState.COMPLETED:
        return ""
    text = task.status.message.text if task.status.message is not None else ""
    return text or f"The task was {task.status.state.word}"


def states_of(task: Task) -> list[StepState]:
    """Return the states of the steps of a run that have begun."""
    found = [part.data for artifact in task.artifacts for part in artifact.parts]
    return [msgspec.convert(data, StepState) for data in found]


def is_end(batch: Batch) -> bool:
    """Tell whether a batch of a task's stream has its end."""
    match batch:
        case Opening():
            return batch.reply.reading.task.status.state.is_terminal
        case Message():
            return False
        case _:
            return any(
                isinstance(recorded.event, StatusUpdate) and recorded.event.status.state.is_terminal
                for recorded in batch
            )


def _plain(part: Part) -> Any:
    """Return a part as JSON: its text or data, or all of it if it is a file."""
    if part.text is not msgspec.UNSET:
        return part.text
    return part.data if part.data is not msgspec.UNSET else msgspec.to_builtins(part)
