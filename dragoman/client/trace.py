"""The W3C trace context that requests carry, so that one id links a caller to all it set off.

Whoever serves a request sets what came with it; a caller without any begins a trace of its own.
"""

import secrets
from contextvars import ContextVar

# The traceparent of what this code works on; empty: it began by itself.
incoming: ContextVar[str] = ContextVar("traceparent", default="")


def current() -> str:
    """Return the `traceparent` for one request: the trace that is under way, and a span anew."""
    parts = incoming.get().split("-")
    if len(parts) == 4 and len(parts[1]) == 32 and len(parts[3]) == 2:
        return f"00-{parts[1]}-{secrets.token_hex(8)}-{parts[3]}"
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
