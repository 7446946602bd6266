"""Tools that the caller executes: the task waits for the result, for days if need be, across
restarts."""

from collections.abc import Sequence

import msgspec

from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.authoring.turn import Turn
from dragoman.errors import ConfigError
from dragoman.model.content import json_value


class ClientTools:
    """Tools that the caller executes, as the model sees them."""

    def __init__(self, *tools: Tool) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name}; rename one")
            # The question and its answer are recorded already.
            self._tools[tool.name] = msgspec.structs.replace(tool, records_itself=True)

    async def list_tools(self) -> Sequence[Tool]:
        """Return the caller's tools."""
        return list(self._tools.values())

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        """Ask the caller to execute a call."""
        found = await turn.tool(call.name, call.arguments)
        if isinstance(found, str):
            return ToolResult(found)
        return ToolResult(msgspec.json.encode(json_value(found)).decode())

    async def close(self) -> None:
        """Nothing to close."""
