"""The tools of an MCP server as the skills of an agent.

    dragoman serve examples/mcp_agent.py

Send {"celsius": 20} with the skill to_fahrenheit. The server is this very file, run as a program;
put the command line or the address of any other in its place. Each call of a tool is a durable
step, and what does not fit the schema of a tool is refused before there is a task.
"""

import sys

from mcp.server.mcpserver import MCPServer

from dragoman.mcp.skills import mcp_agent

tools = MCPServer("Thermometer")


@tools.tool()
def to_fahrenheit(celsius: float) -> float:
    """Turns degrees Celsius into Fahrenheit."""
    return celsius * 9 / 5 + 32


@tools.tool()
def to_celsius(fahrenheit: float) -> float:
    """Turns degrees Fahrenheit into Celsius."""
    return (fahrenheit - 32) * 5 / 9


if __name__ == "__main__":
    tools.run()
else:
    agent = mcp_agent(f"{sys.executable} {__file__}")
