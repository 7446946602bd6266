"""A2A agents, or a whole gateway, as an MCP server."""
