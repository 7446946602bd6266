"""Joins the parts into an ASGI app: agents, endpoints, discovery, operators' paths, upkeep.

It picks implementations, so it may import every room but `gateway`, `mcp`, `compat`, `testing` and
`cli`, which build on it. Begin with `app.py`, then `site.py` (what a part is) and
`served_agents.py`; `process/` runs an app on a port.
"""
