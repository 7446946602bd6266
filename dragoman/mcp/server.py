"""The MCP side: what a desk offers in the words of MCP, by the official package `mcp`.

A tool that fails is a result that says so, because the model that called it is to read it. What is
unexpected stays in our log.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.agents.mcp_schema import Schema
from dragoman.errors import A2AError, ConfigError
from dragoman.mcp.offers import Desk, Document, Offer, Said

if TYPE_CHECKING:
    # An extra, and heavy: loaded when a server is made.
    import mcp_types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

logger = logging.getLogger("dragoman")

JSON = "application/json"


def _uncounted() -> None:
    """Who started us on stdin and stdout has what there is."""


def make(desk: Desk, begin: Callable[[], None] = _uncounted) -> "Server[Any]":
    """Return the MCP server of a desk. `begin` is called before a tool has an agent begin a task;
    what it raises is told to the model."""
    import mcp_types as types
    from mcp import MCPError
    from mcp.server import Server

    from dragoman import __version__

    async def list_tools(
        ctx: "ServerRequestContext[Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(offer) for offer in await _offers(desk)])

    async def call_tool(
        ctx: "ServerRequestContext[Any]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        offers = {offer.name: offer for offer in await _offers(desk)}
        if params.name not in offers:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        told = 0

        async def tell(text: str) -> None:
            nonlocal told
            told += 1
            await ctx.session.report_progress(told, message=text)

        said = await _done(offers[params.name], params.arguments or {}, tell, begin)
        return types.CallToolResult(
            content=[types.TextContent(text=said.text)],
            structured_content=said.data,
            is_error=said.is_error,
        )

    async def list_resources(
        ctx: "ServerRequestContext[Any]", params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=one.uri, name=one.name, description=one.description, mime_type=JSON
                )
                for one in _documents(desk, many=False)
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
                for one in _documents(desk, many=True)
            ]
        )

    async def read(
        ctx: "ServerRequestContext[Any]", params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            text = msgspec.json.encode(await desk.read(params.uri)).decode()
        except LookupError:
            raise MCPError(types.INVALID_PARAMS, "Resource not found") from None
        except A2AError as error:
            raise MCPError(types.INTERNAL_ERROR, error.public) from None
        held = types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)
        return types.ReadResourceResult(contents=[held])

    has_documents = bool(desk.documents)
    return Server(
        desk.name,
        version=__version__,
        instructions=desk.about,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources if has_documents else None,
        on_list_resource_templates=list_templates if has_documents else None,
        on_read_resource=read if has_documents else None,
    )


async def on_stdio(desk: Desk) -> None:
    """Serve whoever started us, on stdin and stdout, until they close them."""
    from mcp.server.stdio import stdio_server

    server = make(desk)
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        await desk.close()


async def _offers(desk: Desk) -> Sequence[Offer]:
    from mcp import MCPError
    from mcp_types import INTERNAL_ERROR

    try:
        return await desk.offers()
    except A2AError as error:
        raise MCPError(INTERNAL_ERROR, error.public) from None


async def _done(
    offer: Offer, arguments: dict[str, Any], tell: Any, begin: Callable[[], None]
) -> Said:
    """Do what a tool is for; what goes wrong is told to the model."""
    try:
        Schema(offer.schema).check(arguments, "arguments")
        if not offer.reads_only and not arguments.get("taskId"):
            begin()
        return await offer.do(arguments, tell)
    except (A2AError, ConfigError) as error:
        return Said(str(error), is_error=True)
    except Exception:
        # The edge of this transport: what it was is for our log, not for the caller.
        logger.exception("the tool %s failed", offer.name)
        return Said("The tool failed, for a reason that its operator can look up.", is_error=True)


def _tool(offer: Offer) -> "mcp_types.Tool":
    import mcp_types as types

    return types.Tool(
        name=offer.name,
        title=offer.title,
        description=offer.description,
        input_schema=offer.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=offer.reads_only, destructive_hint=False, open_world_hint=True
        ),
    )


def _documents(desk: Desk, *, many: bool) -> list[Document]:
    return [one for one in desk.documents if ("{" in one.uri) is many]
