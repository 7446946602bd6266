"""Agents that answer with a chat model, their tools and hooks, and adapters of other frameworks.

`AgentLoop` (`loop.py`) asks a `Model`, lets `calling.py` execute the tool calls as durable steps,
and runs the `Hook`s around both. Providers of tools: functions, other agents, the caller, the user.
`adapters/` serves agents of other frameworks. Imports authoring, engine, client,
security and egress. Begin with `loop.py`.
"""
