"""What we read in the metadata of a request: the deadline of its task, and which gateways it
passed, as the callers before it claim."""

import contextlib
import re
from datetime import datetime
from typing import Any, cast

from dragoman.model.message import Metadata
from dragoman.model.patterns import late_pattern

DEADLINE = "dragoman/deadline"
HOPS = "dragoman/hops"
# In the metadata of a message that a gateway sends on: its caller's id for it.
CALLERS_ID = "dragoman/messageId"
_TIME = late_pattern(
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


def claimed_hops(metadata: Metadata) -> list[str]:
    """Return the ids of gateways, the last one last. What is not a list of texts is no claim."""
    value: object = metadata.get(HOPS)
    ids = cast("list[Any]", value) if isinstance(value, list) else []
    return [one for one in ids if isinstance(one, str)]
