"""Tools that the caller executes: the task waits until it says what came of them."""

from collections.abc import Sequence

from dragoman.agents.tools import Tool, ToolCall, ToolResult, Unfinished
from dragoman.server.turn import Turn
