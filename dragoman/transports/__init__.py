"""Envelopes and framing: JSON-RPC, REST and server-sent events. No version and no task is known."""
