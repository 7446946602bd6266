"""Push: posts what happens to a task to those who asked for it, signed and until it arrives.

What a receiver needs is here: `verify` checks a post before anything in it is believed. The sending
side is `push.sender`.
"""

from dragoman.push.receiver import (
    BadSignature,
    Delivery,
    ForeignTask,
    NotVerified,
    Recent,
    Replayed,
    Stale,
    verify,
)

__all__ = [
    "BadSignature",
    "Delivery",
    "ForeignTask",
    "NotVerified",
    "Recent",
    "Replayed",
    "Stale",
    "verify",
]
