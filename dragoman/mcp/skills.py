"""An MCP server as an agent: each of its tools is a skill.

A message names the skill and brings its arguments, which are checked against the tool's schema
before there is a task. The call is a durable step: code that runs again after a crash gets its
result and does not call again.
"""

import asyncio
import base64
import binascii
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from dragoman.agents.tool_names import tags_of, title_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.skill import Skill
from dragoman.authoring.steps import MAX_RESULT_BYTES
from dragoman.authoring.turn import Turn
from dragoman.errors import ConfigError, InvalidParams, TaskFailed
from dragoman.mcp.argument_schema import Schema, with_integers
from dragoman.mcp.connection import McpFailed
from dragoman.mcp.tools import McpTools, is_address, text_of
from dragoman.model.card import AgentSkill
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.security.json_values import value_in_text

if TYPE_CHECKING:
    # An extra, and heavy: loaded with the first connection.
    import mcp_types

T = TypeVar("T")


def mcp_agent(
    server: str | McpTools,
    *,
    name: str = "",
    description: str = "",
    permissions: Collection[str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Agent:
    """Return an agent with the tools of an MCP server as its skills; `permissions` are the names
    of those that it may use, None stands for all. Waits for the server's list of tools. Raises
    `ConfigError` if it gives none."""
    tools = server
    if isinstance(tools, str):
        tools = McpTools(tools, allowed=permissions, headers=headers)
    try:
        found = _run(_read_tools(tools))
    except McpFailed as error:
        raise ConfigError(f"MCP server {tools.name}: {error}; does it run?") from None
    return McpAgent(tools, found, name=name, description=description)


def mcp_agents(
    servers: Sequence[str], *, permissions: Collection[str] | None = None, token: str = ""
) -> list[Agent]:
    """Return an agent for each server; a token is shown to those at an address."""
    headers = {"authorization": f"Bearer {token}"} if token else None
    return [
        mcp_agent(server, permissions=permissions, headers=headers if is_address(server) else None)
        for server in servers
    ]


class McpAgent(Agent):
    """An agent whose skills are the tools of an MCP server."""

    def __init__(
        self,
        tools: McpTools,
        found: "Sequence[mcp_types.Tool]",
        *,
        name: str = "",
        description: str = "",
    ) -> None:
        name = name or tools.title or title_of(tools.name)
        super().__init__(name, description or f"The tools of the MCP server {tools.name}.")
        if not found:
            raise ConfigError(f"MCP server {tools.name}: it has no tool that may be used")
        self.tools = tools
        self.closing.append(tools.close)
        for tool in found:
            self.skills[tool.name] = McpSkill(tools, tool)

    def _choose(self, operation: SendMessage, began: SendMessage | None) -> Skill:
        """Return the skill that a message names. With several tools there is no default: a message
        must not call one by accident."""
        if len(self.skills) > 1 and not any(map(_names_a_skill, (operation, began))):
            raise InvalidParams(
                "names no skill; say which, one of those in the card", field="metadata.skillId"
            )
        return super()._choose(operation, began)


class McpSkill(Skill):
    """One tool of an MCP server."""

    def __init__(self, tools: McpTools, tool: "mcp_types.Tool") -> None:
        async def run(arguments: dict[str, Any], turn: Turn) -> list[Part]:
            async def call() -> dict[str, Any]:
                found = await tools.call(tool.name, arguments)
                if len(msgspec.json.encode(found)) > MAX_RESULT_BYTES:
                    raise McpFailed(f"the tool {tool.name} returned more than a step can keep")
                return found

            try:
                result = await turn.step(f"tool {tool.name}", call)
            except McpFailed as error:
                raise TaskFailed(str(error)) from None
            if result.get("isError"):
                raise TaskFailed(text_of(result) or f"{tool.name} failed")
            return parts_of_result(result)

        hint = tool.annotations.title if tool.annotations else None
        title = tool.title or hint or title_of(tool.name)
        card = AgentSkill(
            id=tool.name,
            name=title,
            description=tool.description or title,
            tags=tags_of(tool.name),
        )
        super().__init__(run, card, is_default=False)
        self._tool_schema = tool.input_schema
        self._checked = Schema(tool.input_schema)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the tool's own arguments."""
        return self._tool_schema

    def arguments(self, message: Message) -> dict[str, Any]:
        """Return what the tool is called with; raises `InvalidParams` for what it does not take."""
        given = with_integers(arguments_of(message, self._tool_schema), self._tool_schema)
        self._checked.check(given, "message.parts:arguments")
        return {"arguments": given}


def arguments_of(message: Message, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a message gives: an object as data or as text, or a text for the
    one argument that takes one."""
    data = message.data
    if isinstance(data, dict):
        return cast("dict[str, Any]", data)
    text = message.text
    if text.lstrip().startswith("{"):
        value = value_in_text(text)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    properties = cast("dict[str, Any]", schema.get("properties") or {})
    required = cast("list[str]", schema.get("required") or [])
    wanted = required or list(properties)
    if not text or not wanted:
        return {}
    if len(wanted) == 1 and _takes_text(properties.get(wanted[0])):
        return {wanted[0]: text}
    raise InvalidParams(
        f"brings a text where an object is needed, with {', '.join(wanted)}", field="message.parts"
    )


def parts_of_result(result: Mapping[str, Any]) -> list[Part]:
    """Return the parts that carry what a tool returned."""
    parts = [_part(block) for block in result.get("content", [])]
    if "structuredContent" in result:
        parts.append(Part(data=result["structuredContent"]))
    return parts or [Part(text="")]


def _part(block: dict[str, Any]) -> Part:
    match block.get("type"):
        case "image" | "audio":
            return _raw(block.get("data", ""), block.get("mimeType", ""))
        case "resource":
            resource = cast("dict[str, Any]", block.get("resource") or {})
            kind = str(resource.get("mimeType") or "")
            if "blob" in resource:
                return _raw(resource["blob"], kind)
            return Part(text=str(resource.get("text", "")), media_type=kind)
        case "resource_link":
            kind = str(block.get("mimeType") or "")
            return Part(url=str(block.get("uri", "")), media_type=kind)
        case _:
            return Part(text=str(block.get("text", "")))


def _raw(data: str, kind: str) -> Part:
    try:
        return Part(raw=base64.b64decode(data), media_type=kind or "application/octet-stream")
    except (binascii.Error, ValueError):
        raise TaskFailed("the tool returned content that cannot be read") from None


def _takes_text(schema: Any) -> bool:
    return isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "string"


def _names_a_skill(source: SendMessage | None) -> bool:
    if source is None:
        return False
    places = (source.message.metadata, source.metadata)
    return any(place.get(name) is not None for place in places for name in ("skillId", "skill"))


async def _read_tools(tools: McpTools) -> "list[mcp_types.Tool]":
    try:
        return await tools.offered()
    finally:
        await tools.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run something to its end on a loop of its own: the calling code may run on another."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
