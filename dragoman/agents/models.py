"""The interface of a chat model: two methods and plain values.

A model has no state between calls. All that a call depends on is in its request, so that a
conversation can continue in another process.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from dragoman.agents.tools import Tool, ToolCall
from dragoman.model.message import Message

Speaker = Literal["system", "user", "assistant", "tool"]


class ModelFailed(Exception):
    """The model gave no usable answer. The text is for the operator's log."""


class ModelMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation with a model."""

    role: Speaker
    text: str = ""
    # The calls of an assistant.
    tool_calls: list[ToolCall] = []
    # Of a tool's result: the call it belongs to, and whether it failed.
    call_id: str = ""
    is_error: bool = False


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of model calls."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(self.input + other.input, self.output + other.output)


class ModelRequest(msgspec.Struct, frozen=True):
    """A request to a model."""

    messages: list[ModelMessage]
    tools: list[Tool] = []
    # Settings of the model, such as `temperature`, passed on unchanged.
    options: dict[str, Any] = {}
    # Used by this turn so far: tokens, and micro-credits if a hook counts them.
    used: TokenUsage = TokenUsage()
    spent: int = 0


class ModelReply(msgspec.Struct, frozen=True):
    """A reply of a model: text, tool calls, or both."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    usage: TokenUsage = TokenUsage()
    # Micro-credits, if a hook counts them.
    cost: int = 0


class ReplyChunk(msgspec.Struct, frozen=True):
    """A chunk of a reply. Tool calls come whole."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    usage: TokenUsage | None = None


class Model(Protocol):
    """A chat model. Both methods raise `ModelFailed`."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the whole answer."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ReplyChunk]:
        """Yield the answer in chunks."""
        ...


def joined_reply(chunks: Iterable[ReplyChunk]) -> ModelReply:
    """Return the reply that chunks make up."""
    text: list[str] = []
    calls: list[ToolCall] = []
    usage = TokenUsage()
    for chunk in chunks:
        text.append(chunk.text)
        calls += chunk.tool_calls
        usage = chunk.usage or usage
    return ModelReply("".join(text), calls, usage)


def text_of(message: Message) -> str:
    """Return a message as a model reads it. A file is only mentioned: models differ in the formats
    they accept, and none can open a URL."""
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part.text, str):
            texts.append(part.text)
        elif isinstance(part.raw, bytes):
            texts.append(f"[file {part.filename or 'without name'}, {part.type}]")
        elif isinstance(part.url, str):
            texts.append(f"[file {part.filename or 'without name'}, {part.type}, at {part.url}]")
        else:
            texts.append(msgspec.json.encode(part.data).decode())
    return "\n".join(texts)


def answer_count(messages: Sequence[ModelMessage]) -> int:
    """Return how many replies the last user message has so far."""
    count = 0
    for entry in reversed(messages):
        if entry.role == "user":
            break
        count += entry.role == "assistant"
    return count
