"""What a task that REST or a workflow makes is given: an object, which typed skills can take.

It travels as data and is marked, because not every agent reads data: one that takes only text gets
the same as JSON, which is how NEXUS has it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import Nexus
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentCard
from dragoman.model.message import Message, Part
from dragoman.model.record import encode

_MARK = "dragoman:input"


def input_part(value: dict[str, Any]) -> Part:
    """Return the input of a task as a part of its message."""
    return Part(data=value, metadata={_MARK: True})


def is_input(message: Message) -> bool:
    """Tell whether a message is the input of a task that was made here."""
    return len(message.parts) == 1 and _MARK in message.parts[0].metadata


def suited(message: Message, card: AgentCard, dialect: Dialect, skill: str) -> Message:
    """Return the input as an agent takes it."""
    data = message.parts[0].data
    if isinstance(dialect, Nexus) or not _takes_json(card, skill):
        part = Part(text=encode(data).decode())
    else:
        part = Part(data=data)
    return msgspec.structs.replace(message, parts=[part])


def _takes_json(card: AgentCard, skill: str) -> bool:
    """Tell whether an agent takes data: it says so, or does not say what it takes."""
    own = [mode for one in card.skills if one.id == skill for mode in one.input_modes]
    modes = own or card.default_input_modes
    return not modes or any(
        mode in ("*/*", "*", "application/*", "data") or "json" in mode for mode in modes
    )


def result_of(artifacts: Sequence[Artifact]) -> Part | None:
    """Return the first thing that came of a task: of a text the whole, in however many chunks it
    was streamed; None: there is nothing."""
    for artifact in artifacts:
        if artifact.parts:
            first = artifact.parts[0]
            if not isinstance(first.text, str):
                return first
            texts = [part.text for part in artifact.parts if isinstance(part.text, str)]
            return msgspec.structs.replace(first, text="".join(texts))
    return None
