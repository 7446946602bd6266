"""Times on the wire: UTC, milliseconds, a `Z`."""

from datetime import UTC, datetime


def stamp(microseconds: int) -> str:
    """Return microseconds since the epoch as an RFC 3339 time."""
    moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{microseconds // 1000 % 1000:03d}Z"
