"""Where a request leads: the service that answers it, and the path prefix that leads there."""

import msgspec

from dragoman.service import Service


class Mount(msgspec.Struct):
    """One service at a path prefix. Rooms above add what they show of it."""

    # The agent's name, for logs, figures and the audit log.
    name: str
    service: Service
    prefix: str
    # The extensions the agent offers.
    extensions: frozenset[str]
