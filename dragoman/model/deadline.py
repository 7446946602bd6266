"""The deadline of a task in the metadata of a request."""

import contextlib
import re
from datetime import datetime

from dragoman.model.message import Metadata

DEADLINE = "dragoman/deadline"
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]00:00)", re.ASCII | re.IGNORECASE
)


def deadline_of(metadata: Metadata) -> int | None:
    """Return the deadline in milliseconds since the epoch; None: there is none. Raises `ValueError`
    for an invalid time."""
    value: object = metadata.get(DEADLINE)
    if value is None:
        return None
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        # The pattern accepts days that a month does not have.
        with contextlib.suppress(ValueError):
            seconds = datetime.fromisoformat(f"{found[1]}+00:00").timestamp()
            return int(seconds) * 1000 + int((found[2] or "")[:3].ljust(3, "0"))
    raise ValueError("must be a time in UTC such as 2030-01-31T12:00:00Z")
