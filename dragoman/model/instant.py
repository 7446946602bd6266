"""Times on the wire: UTC, milliseconds, a `Z`."""

from datetime import UTC, datetime
from functools import lru_cache


def stamp(microseconds: int) -> str:
    """Return microseconds since the epoch as an RFC 3339 time."""
    return f"{_second(microseconds // 1_000_000)}.{microseconds // 1000 % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Thousands of events share a second, and formatting it is the slow part."""
    # Not strftime: its years before 1000 are too short to be valid.
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
