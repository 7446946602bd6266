"""Many connections in one: what an agent that dials out to a gateway and the gateway speak.

A tunnel is one WebSocket, opened by the agent. In it the gateway opens streams, and each is a
connection as any other: the agent answers HTTP on it, as on a port. Imports nothing of ours. Begin
with `tunnel.py`, then `frames.py`.
"""
