"""What a chat model is asked and answers, whoever makes it: two methods and plain values.

A model keeps nothing between calls. Whatever a call depends on is in its request, so that the same
conversation can go on in another process.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from dragoman.agents.tools import Tool, ToolCall
from dragoman.model.message import Message

Speaker = Literal["system", "user", "assistant", "tool"]


class ModelFailed(Exception):
    """The model gave no answer that can be used. What it says is for the operator's log."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation with a model."""

    role: Speaker
    text: str = ""
    # What an assistant asks for.
    tool_calls: list[ToolCall] = []
    # Of a tool's result: the call it belongs to, and whether it failed.
    call_id: str = ""
    is_error: bool = False


class Usage(msgspec.Struct, frozen=True):
    """Tokens that calls took."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.output + other.output)


class ModelRequest(msgspec.Struct, frozen=True):
    """What a model is asked."""

    messages: list[Said]
    tools: list[Tool] = []
    # Settings of the one model, such as `temperature`, passed on as they are.
    options: dict[str, Any] = {}
    # What this turn took before: tokens, and micro-credits where a hook counts them.
    used: Usage = Usage()
    spent: int = 0


class Reply(msgspec.Struct, frozen=True):
    """What a model answers: text, or calls of tools, or both."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    usage: Usage = Usage()
    # Micro-credits, where a hook counts them.
    cost: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """A piece of an answer. Calls of tools come whole."""

    text: str = ""
    tool_calls: list[ToolCall] = []
    usage: Usage | None = None


class Model(Protocol):
    """A chat model. Both methods raise `ModelFailed`."""

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the whole answer."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """Yield the answer as it comes."""
        ...


def gathered(chunks: Iterable[Chunk]) -> Reply:
    """Return the answer that pieces make up."""
    text: list[str] = []
    calls: list[ToolCall] = []
    usage = Usage()
    for chunk in chunks:
        text.append(chunk.text)
        calls += chunk.tool_calls
        usage = chunk.usage or usage
    return Reply("".join(text), calls, usage)


def text_of(message: Message) -> str:
    """Return a message as a model reads it. A file is only mentioned: models differ in what they
    take, and none can open an address."""
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


def asked(messages: Sequence[Said]) -> int:
    """Return how many answers the last user's message has got so far."""
    count = 0
    for said in reversed(messages):
        if said.role == "user":
            break
        count += said.role == "assistant"
    return count
