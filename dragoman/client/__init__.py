"""Calling agents: references, cards, credentials, connections, streams that survive cuts.

It may import the waist, `dialects/`, `transports/`, `security/` and `egress/`; it knows no engine
and no store. Begin with `client.py`, the surface; `agent_connection.py` is the way to one agent,
`remote.py` one request.
"""
