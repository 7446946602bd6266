"""Push: posts the events of a task to its receivers, signed, until each has arrived.

What a receiver needs is here: `verify` checks a post before anything in it is believed. The sending
side is `push.sender`: begin there. Imports dialects, security, egress and the store's interfaces.
"""

from dragoman.push.receiver import (
    BadSignature,
    ForeignTask,
    NotVerified,
    Recent,
    Replayed,
    Stale,
    VerifiedPush,
    verify,
)

__all__ = [
    "BadSignature",
    "ForeignTask",
    "NotVerified",
    "Recent",
    "Replayed",
    "Stale",
    "VerifiedPush",
    "verify",
]
