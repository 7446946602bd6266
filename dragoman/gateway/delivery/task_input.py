"""The input and the result of tasks that the REST API or a workflow makes.

The input is an object, which typed skills can take. It travels as a marked data part, because not
every agent reads data: an agent that takes only text gets it as JSON text, as in NEXUS.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import Nexus
from dragoman.model.card import AgentCard
from dragoman.model.message import Message, Part
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState

_MARK = "dragoman:input"


def input_part(value: dict[str, Any]) -> Part:
    """Return the input of a task as a part of its message."""
    return Part(data=value, metadata={_MARK: True})


def is_input(message: Message) -> bool:
    """Tell whether a message is the input of a task that the API or a workflow made."""
    return len(message.parts) == 1 and _MARK in message.parts[0].metadata


def adapted(message: Message, card: AgentCard, dialect: Dialect, skill: str) -> Message:
    """Return the input in the form that an agent takes."""
    data = message.parts[0].data
    if isinstance(dialect, Nexus) or not _takes_json(card, skill):
        part = Part(text=encode(data).decode())
    else:
        part = Part(data=data)
    return msgspec.structs.replace(message, parts=[part])


def _takes_json(card: AgentCard, skill: str) -> bool:
    """Tell whether an agent takes data: its card says so, or does not say what it takes."""
    own = [mode for one in card.skills if one.id == skill for mode in one.input_modes]
    modes = own or card.default_input_modes
    return not modes or any(
        mode in ("*/*", "*", "application/*", "data") or "json" in mode for mode in modes
    )


def result_of(task: Task) -> Part | None:
    """Return the first artifact of a task, or else the message that completed it; None: there is
    neither. A text is returned whole, in however many chunks it was streamed."""
    for artifact in task.artifacts:
        if artifact.parts:
            return _whole(artifact.parts, "")
    message = task.status.message
    if task.status.state is not TaskState.COMPLETED or message is None or not message.parts:
        return None
    return _whole(message.parts, "\n")


def _whole(parts: Sequence[Part], between: str) -> Part:
    """Return the first part; a text is joined with all other texts."""
    if not isinstance(parts[0].text, str):
        return parts[0]
    texts = [part.text for part in parts if isinstance(part.text, str)]
    return msgspec.structs.replace(parts[0], text=between.join(texts))
