"""A model that says what it was told to, for tests and examples: no key, no network.

It finds its place in the script by the conversation, not by counting, so a turn that goes on in
another process goes on in the script as well.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence

from dragoman.agents.models import Chunk, ModelFailed, ModelRequest, Reply, Usage, asked
from dragoman.agents.tools import ToolCall

Line = str | Reply | ToolCall | Sequence[ToolCall] | Exception
_PIECE = re.compile(r"\S+\s*|\s+")


class ScriptedModel:
    """Answers the first question of a turn with the first line, and so on; each user's message
    begins the script again. A line is a text, calls of tools, a whole reply, an exception to raise,
    or a function of the request that returns one of these."""

    def __init__(self, *lines: Line | Callable[[ModelRequest], Line]) -> None:
        self._lines = lines
        # What it was asked, for tests.
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the next line."""
        self.requests.append(request)
        place = asked(request.messages)
        if place >= len(self._lines):
            raise ModelFailed(f"the script has {len(self._lines)} lines; write one more")
        line = self._lines[place]
        if callable(line):
            line = line(request)
        return _reply(line, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """Yield the next line word by word."""
        reply = await self.complete(request)
        for piece in _PIECE.findall(reply.text):
            yield Chunk(piece)
        yield Chunk(tool_calls=reply.tool_calls, usage=reply.usage)


def _reply(line: Line, request: ModelRequest) -> Reply:
    if isinstance(line, Exception):
        raise line
    if isinstance(line, Reply):
        return line
    # A token for each word, so that there is something to count.
    read = sum(len(said.text.split()) for said in request.messages)
    if isinstance(line, str):
        return Reply(line, usage=Usage(read, len(line.split())))
    calls = [line] if isinstance(line, ToolCall) else list(line)
    return Reply(tool_calls=calls, usage=Usage(read, len(calls)))
