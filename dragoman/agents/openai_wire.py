"""The JSON of chat completions, as far as we read and write it."""

from contextlib import suppress
from typing import Any

import msgspec

from dragoman.agents.models import ModelRequest, Said, Usage
from dragoman.agents.tools import ToolCall
from dragoman.errors import ParseFailed
from dragoman.security.json_values import check_values


class FunctionCall(msgspec.Struct, frozen=True):
    """What is called, and with what."""

    name: str | None = None
    arguments: str | None = None


class WholeCall(msgspec.Struct, frozen=True):
    """A call of a tool in a whole answer."""

    function: FunctionCall
    id: str | None = None
    index: int = 0


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a call."""

    index: int = 0
    id: str | None = None
    function: FunctionCall | None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    """What the model says."""

    content: str | None = None
    tool_calls: list[WholeCall] | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is added to it."""

    content: str | None = None
    tool_calls: list[CallPiece] | None = None


class Choice(msgspec.Struct, frozen=True):
    """One answer of several; we ask for one."""

    message: AnswerMessage


class DeltaChoice(msgspec.Struct, frozen=True):
    """A piece of it."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class Tokens(msgspec.Struct, frozen=True):
    """What it took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(msgspec.Struct, frozen=True):
    """A whole answer."""

    choices: list[Choice]
    usage: Tokens | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """An event of a stream."""

    choices: list[DeltaChoice] = []
    usage: Tokens | None = None


class CallParts:
    """One call of a tool, put together from its pieces."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: CallPiece) -> None:
        """Take in a piece."""
        self._id = self._id or piece.id or ""
        if piece.function is not None:
            self._name = self._name or piece.function.name or ""
            self._arguments.append(piece.function.arguments or "")

    def call(self, place: int) -> ToolCall:
        """Return the call, once all pieces are there."""
        return call_of(self._id, self._name, "".join(self._arguments), place)


def call_of(id: str | None, name: str | None, arguments: str | None, place: int) -> ToolCall:
    """Return a call as the loop knows it. Some servers give no ids: then it is its place."""
    own, called = id or f"call_{place}", name or ""
    if not (arguments or "").strip():
        return ToolCall(own, called)
    with suppress(ParseFailed, msgspec.DecodeError, RecursionError):
        check_values((arguments or "").encode(errors="replace"))
        return ToolCall(own, called, msgspec.json.decode(arguments or "", type=dict[str, Any]))
    return ToolCall(own, called, broken=arguments or "")


def usage_of(tokens: Tokens | None) -> Usage | None:
    """Return the tokens of a call, if they are told."""
    return None if tokens is None else Usage(tokens.prompt_tokens, tokens.completion_tokens)


def body_of(name: str, request: ModelRequest, *, streams: bool) -> dict[str, Any]:
    """Return a request."""
    body: dict[str, Any] = {"model": name, "messages": [_said(one) for one in request.messages]}
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


def _said(said: Said) -> dict[str, Any]:
    if said.role == "tool":
        return {"role": "tool", "tool_call_id": said.call_id, "content": said.text}
    message: dict[str, Any] = {"role": said.role, "content": said.text}
    if said.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.broken or msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in said.tool_calls
        ]
    return message
