"""An MCP server of fifty tools, run as a program: what it is asked to do it notes in a file.

Fifty, so that lists have several pages. `die` ends it in the middle of a call, `stall` never ends.
"""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

PAGE = 20
NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}

TOOLS = [
    types.Tool(name="echo", description="Says it again.", input_schema=TEXT),
    types.Tool(
        name="corvid_github_star_repo", description="Stars a repository.", input_schema=TEXT
    ),
    types.Tool(name="die", description="Ends the server.", input_schema=NOTHING),
    types.Tool(name="stall", description="Never ends.", input_schema=NOTHING),
    types.Tool(name="fail", description="Fails.", input_schema=NOTHING),
    types.Tool(name="draw.picture", description="Draws.", input_schema=NOTHING),
    *(
        types.Tool(name=f"add_{n}", description=f"Adds {n}.", input_schema=NUMBERS)
        for n in range(44)
    ),
]


def note(line: str) -> None:
    """Write down what was asked, so that it outlives us."""
    if place := os.environ.get("CALLS"):
        with Path(place).open("a") as file:
            file.write(f"{line}\n")


async def list_tools(ctx: Any, params: types.PaginatedRequestParams | None) -> Any:
    note("list")
    begin = int(params.cursor) if params and params.cursor else 0
    end = begin + PAGE
    more = str(end) if end < len(TOOLS) else None
    return types.ListToolsResult(tools=TOOLS[begin:end], next_cursor=more)


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    given = params.arguments or {}
    note(f"{params.name} {given}")
    match params.name:
        case "die":
            os._exit(3)
        case "stall":
            await anyio.sleep_forever()
        case "fail":
            failure = types.TextContent(text="the tool is broken")
            return types.CallToolResult(content=[failure], is_error=True)
        case "draw.picture":
            picture = types.ImageContent(data="iVBORw0KGgo=", mime_type="image/png")
            return types.CallToolResult(content=[picture])
        case "echo" | "corvid_github_star_repo":
            return types.CallToolResult(content=[types.TextContent(text=given["text"])])
        case name:
            total = given["n"] + int(name.removeprefix("add_"))
            return types.CallToolResult(
                content=[types.TextContent(text=str(total))], structured_content={"sum": total}
            )
    raise AssertionError


server = Server("fifty", version="1.0", on_list_tools=list_tools, on_call_tool=call_tool)


async def on_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if "--http" in sys.argv:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), port=int(sys.argv[-1]), log_level="warning")
    else:
        anyio.run(on_stdio)
