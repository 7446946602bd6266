"""Answers to sensitive questions: the placeholder that readers see, and the answer for the code.

The log, and so history, streams and posts, has the placeholder. The answer is stored beside the
log, sealed where the store can seal, until the task has ended.
"""

import msgspec

from dragoman.model.events import MessageAdded
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.operations import SendMessage
from dragoman.model.record import encode

# In the metadata of a question: hide what is typed. In that of a part: this is a placeholder.
SENSITIVE: Metadata = {"sensitive": True}
WITHHELD = Part(text="[withheld]", metadata=SENSITIVE)


class _Withheld(msgspec.Struct, omit_defaults=True):
    """The answer of a caller."""

    message: Message
    metadata: Metadata = {}


_decode = msgspec.json.Decoder(_Withheld).decode


def mark_sensitive(metadata: Metadata | None) -> Metadata:
    """Return the metadata of a sensitive question."""
    return {**(metadata or {}), **SENSITIVE}


def placeholder(operation: SendMessage) -> MessageAdded:
    """Return the event that stands for an answer: that it came, and nothing of what it says."""
    message = msgspec.structs.replace(operation.message, parts=[WITHHELD], metadata={}, extra={})
    return MessageAdded(message, withheld=True)


def encode_withheld(operation: SendMessage) -> bytes:
    """Return an answer as it is stored for the code."""
    return encode(_Withheld(operation.message, operation.metadata))


def decode_withheld(event: MessageAdded, body: bytes | None) -> SendMessage:
    """Return what the code is given: the answer, or its placeholder once it is deleted."""
    if body is None:
        return SendMessage(message=event.message, metadata=event.metadata)
    answer = _decode(body)
    return SendMessage(message=answer.message, metadata=answer.metadata)
