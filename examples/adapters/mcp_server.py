"""An MCP server, whose tools are the skills of an agent:
`dragoman serve --mcp "python examples/adapters/mcp_server.py"`."""

from mcp.server.mcpserver import MCPServer

tools = MCPServer("Thermometer")


@tools.tool()
def to_fahrenheit(celsius: float) -> float:
    """Turns degrees Celsius into Fahrenheit."""
    return celsius * 9 / 5 + 32


tools.run()
