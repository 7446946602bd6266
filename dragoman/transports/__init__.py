"""Envelopes and framing: JSON-RPC, REST paths, server-sent events, and strict JSON. A transport
takes the envelope off and puts it on; what is inside is a matter of `dialects`.

Imports `dialects`, `model` and what is below them. Begin with `jsonrpc.py`.
"""
