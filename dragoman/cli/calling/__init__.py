"""Commands that talk to agents: `send`, `task`, `card`, `chat`, `inbox`, `auth`, `conformance`,
`bench`.

They go through `client/`; `cli/session.py` gives them the client that the global options describe.
Begin with `send.py`.
"""
