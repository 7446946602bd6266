"""Offers as an MCP server, by the official package `mcp`.

A tool that fails is a result with the reason, because the model that called it is to read it. An
unexpected failure stays in our log.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.errors import A2AError, ConfigError
from dragoman.mcp.argument_schema import Schema
from dragoman.mcp.offers import Document, Offers, ReportProgress, ToolOffer, ToolText

if TYPE_CHECKING:
    # An extra, and heavy: loaded when a server is made.
    import mcp_types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

logger = logging.getLogger("dragoman")

JSON = "application/json"


async def _uncounted() -> None:
    """On stdin and stdout there is one caller, and no quota."""


def mcp_server(offers: Offers, begin: Callable[[], Awaitable[None]] = _uncounted) -> "Server[Any]":
    """Return the MCP server of some offers. `begin` is called before a tool begins a task of an
    agent; its error is shown to the model."""
    import mcp_types as types
    from mcp import MCPError
    from mcp.server import Server

    from dragoman import __version__

    async def list_tools(
        ctx: "ServerRequestContext[Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(tool) for tool in await _tools(offers)])

    async def call_tool(
        ctx: "ServerRequestContext[Any]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tools = {tool.name: tool for tool in await _tools(offers)}
        if params.name not in tools:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        reports = 0

        async def report(text: str) -> None:
            nonlocal reports
            reports += 1
            await ctx.session.report_progress(reports, message=text)

        result = await _call(tools[params.name], params.arguments or {}, report, begin)
        return types.CallToolResult(
            content=[types.TextContent(text=result.text)],
            structured_content=result.data,
            is_error=result.is_error,
        )

    async def list_resources(
        ctx: "ServerRequestContext[Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=one.uri, name=one.name, description=one.description, mime_type=JSON
                )
                for one in _documents(offers, many=False)
            ]
        )

    async def list_templates(
        ctx: "ServerRequestContext[Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=one.uri, name=one.name, description=one.description, mime_type=JSON
                )
                for one in _documents(offers, many=True)
            ]
        )

    async def read(
        ctx: "ServerRequestContext[Any]", params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            text = msgspec.json.encode(await offers.read(params.uri)).decode()
        except LookupError:
            raise MCPError(types.INVALID_PARAMS, "Resource not found") from None
        except A2AError as error:
            raise MCPError(types.INTERNAL_ERROR, error.public) from None
        content = types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)
        return types.ReadResourceResult(contents=[content])

    has_documents = bool(offers.documents)
    return Server(
        offers.name,
        version=__version__,
        instructions=offers.about,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources if has_documents else None,
        on_list_resource_templates=list_templates if has_documents else None,
        on_read_resource=read if has_documents else None,
    )


async def on_stdio(offers: Offers) -> None:
    """Serve the program that started us, on stdin and stdout, until it closes them."""
    from mcp.server.stdio import stdio_server

    server = mcp_server(offers)
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        await offers.close()


async def _tools(offers: Offers) -> Sequence[ToolOffer]:
    from mcp import MCPError
    from mcp_types import INTERNAL_ERROR

    try:
        return await offers.tools()
    except A2AError as error:
        raise MCPError(INTERNAL_ERROR, error.public) from None


async def _call(
    tool: ToolOffer,
    arguments: dict[str, Any],
    report: ReportProgress,
    begin: Callable[[], Awaitable[None]],
) -> ToolText:
    """Call a tool; a failure is a result that the model reads."""
    try:
        Schema(tool.schema).check(arguments, "arguments")
        if not tool.reads_only and not arguments.get("taskId"):
            await begin()
        return await tool.function(arguments, report)
    except (A2AError, ConfigError) as error:
        return ToolText(str(error), is_error=True)
    except Exception:
        # The edge of this transport: the cause is for our log, not for the caller.
        logger.exception("the tool %s failed", tool.name)
        return ToolText(
            "The tool failed, for a reason that its operator can look up.", is_error=True
        )


def _tool(tool: ToolOffer) -> "mcp_types.Tool":
    import mcp_types as types

    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.reads_only, destructive_hint=False, open_world_hint=True
        ),
    )


def _documents(offers: Offers, *, many: bool) -> list[Document]:
    return [one for one in offers.documents if ("{" in one.uri) is many]
