"""Messages and their parts."""

import enum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.model.identity import ContextId, MessageId, TaskId, new_id

# Metadata and data parts hold any JSON that a peer sends; no code depends on its types. `Any` and
# not `object`: authors also fill these, and a `dict[str, int]` is no `dict[str, object]`.
Json = Any
Metadata = dict[str, Json]


class Role(enum.Enum):
    """The author of a message."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"

    __hash__ = object.__hash__


# Messages are trees of plain values, so the garbage collector need not track them (gc=False).


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """One piece of content: exactly one of text, raw bytes, a URL or structured data."""

    text: str | UnsetType = UNSET
    raw: bytes | UnsetType = UNSET
    url: str | UnsetType = UNSET
    data: Json | UnsetType = UNSET
    metadata: Metadata = {}
    filename: str = ""
    media_type: str = ""
    # Fields a peer sent that no version of the protocol knows.
    extra: Metadata = msgspec.field(name="~", default={})

    @property
    def type(self) -> str:
        """The media type, or the one its kind of content implies."""
        if self.media_type:
            return self.media_type
        if self.text is not UNSET:
            return "text/plain"
        return "application/json" if self.data is not UNSET else "application/octet-stream"


class Message(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A message. Stored messages always name their task and context."""

    message_id: MessageId
    role: Role
    parts: list[Part]
    context_id: ContextId = ContextId("")
    task_id: TaskId = TaskId("")
    metadata: Metadata = {}
    extensions: list[str] = []
    reference_task_ids: list[str] = []
    extra: Metadata = msgspec.field(name="~", default={})

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part.text, str))

    @property
    def data(self) -> Json:
        """The first structured part's value, or None."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)


def agent_message(
    parts: list[Part],
    *,
    context_id: ContextId,
    task_id: TaskId = TaskId(""),
    metadata: Metadata | None = None,
) -> Message:
    """Return a message of the agent with a new id."""
    return Message(
        message_id=MessageId(new_id()),
        role=Role.AGENT,
        parts=parts,
        context_id=context_id,
        task_id=task_id,
        metadata=metadata or {},
    )
