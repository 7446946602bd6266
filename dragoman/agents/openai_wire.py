"""The JSON of chat completions, as far as it is used."""

from contextlib import suppress
from typing import Any

import msgspec

from dragoman.agents.models import ModelMessage, ModelRequest, TokenUsage
from dragoman.agents.tools import ToolCall
from dragoman.errors import ParseFailed
from dragoman.security.json_values import check_document


class FunctionCall(msgspec.Struct, frozen=True):
    """The function and the arguments of a call."""

    name: str | None = None
    arguments: str | None = None


class WholeCall(msgspec.Struct, frozen=True):
    """A tool call in a whole answer."""

    function: FunctionCall
    id: str | None = None
    index: int = 0


class CallPiece(msgspec.Struct, frozen=True):
    """A chunk of a tool call."""

    index: int = 0
    id: str | None = None
    function: FunctionCall | None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    """The model's message."""

    content: str | None = None
    tool_calls: list[WholeCall] | None = None


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    content: str | None = None
    tool_calls: list[CallPiece] | None = None


class CompletionChoice(msgspec.Struct, frozen=True):
    """One answer of several; one is requested."""

    message: AnswerMessage


class DeltaChoice(msgspec.Struct, frozen=True):
    """A chunk of an answer."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class CompletionTokens(msgspec.Struct, frozen=True):
    """The tokens of a call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(msgspec.Struct, frozen=True):
    """A whole answer."""

    choices: list[CompletionChoice]
    usage: CompletionTokens | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """An event of a stream."""

    choices: list[DeltaChoice] = []
    usage: CompletionTokens | None = None


class CallParts:
    """One tool call, assembled from its chunks."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: CallPiece) -> None:
        """Add a chunk."""
        self._id = self._id or piece.id or ""
        if piece.function is not None:
            self._name = self._name or piece.function.name or ""
            self._arguments.append(piece.function.arguments or "")

    def call(self, index: int) -> ToolCall:
        """Return the call, after its last chunk."""
        return call_of(self._id, self._name, "".join(self._arguments), index)


def call_of(id: str | None, name: str | None, arguments: str | None, index: int) -> ToolCall:
    """Return a call as the loop knows it. Some servers give no ids: then the index is used."""
    id, name, text = id or f"call_{index}", name or "", arguments or ""
    if not text.strip():
        return ToolCall(id, name)
    with suppress(ParseFailed, msgspec.DecodeError, RecursionError):
        check_document(text.encode(errors="replace"))
        return ToolCall(id, name, msgspec.json.decode(text, type=dict[str, Any]))
    return ToolCall(id, name, broken=text)


def usage_of(tokens: CompletionTokens | None) -> TokenUsage | None:
    """Return the tokens of a call, if the server reports them."""
    return None if tokens is None else TokenUsage(tokens.prompt_tokens, tokens.completion_tokens)


def body_of(name: str, request: ModelRequest, *, streams: bool) -> dict[str, Any]:
    """Return the body of a request."""
    body: dict[str, Any] = {"model": name, "messages": [_message(one) for one in request.messages]}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.schema,
                },
            }
            for tool in request.tools
        ]
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | request.options


def _message(entry: ModelMessage) -> dict[str, Any]:
    if entry.role == "tool":
        return {"role": "tool", "tool_call_id": entry.call_id, "content": entry.text}
    message: dict[str, Any] = {"role": entry.role, "content": entry.text}
    if entry.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.broken or msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in entry.tool_calls
        ]
    return message
