"""MCP both ways: tools of MCP servers as skills, and A2A agents as tools of an MCP server.

As a client: `tools.py` over `connection.py`, and `skills.py`, which makes an agent of them. As a
server: `server.py` serves the `Offers` of `agent_tools.py` or `gateway_tools.py`, `app.py` on a
port. It may import `server`, `client`, `agents` and `authoring`, not the gateway.
Begin with `server.py` or `tools.py`.
"""
