"""Answers to sensitive questions: what everyone sees instead, and what the code alone is given.

The log, and so history, streams and posts, has a placeholder in the answer's place. What was said
is kept beside the log, sealed where the store can seal, until the task has ended.
"""

import msgspec

from dragoman.model.events import MessageAdded
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.operations import SendMessage
from dragoman.model.record import encode

# In the metadata of a question: hide what is typed. In that of a part: it is not what was said.
SENSITIVE: Metadata = {"sensitive": True}
WITHHELD = Part(text="[withheld]", metadata=SENSITIVE)


class _Said(msgspec.Struct, omit_defaults=True):
    """What a caller said."""

    message: Message
    metadata: Metadata = {}


_decode = msgspec.json.Decoder(_Said).decode


def asking(metadata: Metadata | None) -> Metadata:
    """Return the metadata of a sensitive question."""
    return {**(metadata or {}), **SENSITIVE}


def placeholder(operation: SendMessage) -> MessageAdded:
    """Return the event that stands for an answer: that it came, and nothing of what it says."""
    message = msgspec.structs.replace(operation.message, parts=[WITHHELD], metadata={}, extra={})
    return MessageAdded(message, withheld=True)


def kept(operation: SendMessage) -> bytes:
    """Return an answer as it is kept for the code."""
    return encode(_Said(operation.message, operation.metadata))


def restored(event: MessageAdded, body: bytes | None) -> SendMessage:
    """Return what the code is given: the answer, or its placeholder once it is forgotten."""
    if body is None:
        return SendMessage(message=event.message, metadata=event.metadata)
    said = _decode(body)
    return SendMessage(message=said.message, metadata=said.metadata)
