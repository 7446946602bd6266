"""Commands that talk to agents: `send`, `task`, `card`, `gen`, `chat`, `inbox`, `auth`.

They go through `client/`; `cli/session.py` gives them the client that the global options describe.
Begin with `send.py`.
"""
