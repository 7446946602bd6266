"""A model that follows a script, for tests and examples: no key, no network.

Its position in the script depends on the conversation only, so a turn that continues in another
process continues in the script as well.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence

from dragoman.agents.models import (
    ModelFailed,
    ModelReply,
    ModelRequest,
    ReplyChunk,
    TokenUsage,
    answer_count,
)
from dragoman.agents.tools import ToolCall

Line = str | ModelReply | ToolCall | Sequence[ToolCall] | Exception
_PIECE = re.compile(r"\S+\s*|\s+")


class ScriptedModel:
    """Answers the first request of a turn with the first line, and so on; each user message starts
    the script again. A line is a text, calls of tools, a whole reply, an exception to raise,
    or a function of the request that returns one of these."""

    def __init__(self, *lines: Line | Callable[[ModelRequest], Line]) -> None:
        self._lines = lines
        # All requests so far, for tests.
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the next line."""
        self.requests.append(request)
        position = answer_count(request.messages)
        if position >= len(self._lines):
            raise ModelFailed(f"the script has {len(self._lines)} lines; write one more")
        line = self._lines[position]
        if callable(line):
            line = line(request)
        return _reply(line, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ReplyChunk]:
        """Yield the next line word by word."""
        reply = await self.complete(request)
        for piece in _PIECE.findall(reply.text):
            yield ReplyChunk(piece)
        yield ReplyChunk(tool_calls=reply.tool_calls, usage=reply.usage)


def _reply(line: Line, request: ModelRequest) -> ModelReply:
    if isinstance(line, Exception):
        raise line
    if isinstance(line, ModelReply):
        return line
    # One token for each word.
    read = sum(len(entry.text.split()) for entry in request.messages)
    if isinstance(line, str):
        return ModelReply(line, usage=TokenUsage(read, len(line.split())))
    calls = [line] if isinstance(line, ToolCall) else list(line)
    return ModelReply(tool_calls=calls, usage=TokenUsage(read, len(calls)))
