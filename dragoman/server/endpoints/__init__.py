"""Where calls of the protocol come in: each endpoint takes an envelope off, has the agent's service
answer, and puts the envelope on again, in the dialect of its caller.

Imports `http`, `transports`, `dialects` and what is below them; of `server` only `discovery`.
Begin with `endpoints.py`, which joins the rest, then `jsonrpc_endpoint.py` and `responder.py`.
"""
