"""Joins the parts into an ASGI app: agents, endpoints, discovery, operators' paths, upkeep.

It picks implementations, so it may import the stores and all that runs on them; `gateway`, `mcp`,
`openai`, `compat`, `testing`, `console` and `cli` build on it. Begin with `app.py`, then `site.py`
(what a part is) and `served_agents.py`; `process/` runs an app on a port.
"""
