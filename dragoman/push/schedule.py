"""When a post is tried again: the schedule of Standard Webhooks, and a receiver's own wish.

Ten tries over 75 h 35 m 05 s. The pauses vary by a fifth, so that receivers that failed together
do not come back together.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

# Before each try, in milliseconds: the first is at once.
PAUSES = (
    0,
    5 * _SECOND,
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    14 * _HOUR,
    20 * _HOUR,
    24 * _HOUR,
)
TRIES = len(PAUSES)
JITTER = 0.2
LONGEST_WISH = 24 * _HOUR
# A receiver that took nothing for so long is not asked again.
GIVE_UP_AFTER = 5 * 24 * _HOUR


def next_try(tries: int, now: int, wish: int, random: Random) -> int:
    """Return when to try again after so many failures; a receiver may wish for later."""
    pause = PAUSES[tries] * random.uniform(1 - JITTER, 1 + JITTER)
    return now + max(int(pause), min(wish, LONGEST_WISH))


def retry_after(value: str, now: int) -> int:
    """Return the milliseconds a `Retry-After` asks for; 0 if it says nothing we understand."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        # More digits than any wish we grant needs; a longer text is no number of seconds.
        return int(text) * _SECOND if len(text) <= 9 else LONGEST_WISH
    try:
        at = parsedate_to_datetime(text)
        # A date that names no zone is in UTC, which is the only one the header may have.
        stamp = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0
    return max(0, int(stamp * 1000) - now)
