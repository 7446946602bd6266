"""Tools that the caller executes: the task waits until it says what came of them, for days if need
be, while processes come and go."""

from collections.abc import Sequence

import msgspec

from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.errors import ConfigError
from dragoman.model.content import json_value
from dragoman.server.turn import Turn


class ClientTools:
    """Tools that the caller has: what the model is told about each of them."""

    def __init__(self, *tools: Tool) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name}; rename one")
            # The question and its answer are on record, so a step around them would be one too
            # many.
            self._tools[tool.name] = msgspec.structs.replace(tool, records_itself=True)

    async def list_tools(self) -> Sequence[Tool]:
        """Return the caller's tools."""
        return list(self._tools.values())

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        """Have the caller execute a call."""
        found = await turn.tool(call.name, call.arguments)
        if isinstance(found, str):
            return ToolResult(found)
        return ToolResult(msgspec.json.encode(json_value(found)).decode())

    async def close(self) -> None:
        """Nothing is open here."""
