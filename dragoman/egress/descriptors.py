"""How many descriptors the process may have open, and who may have how many of them.

Each connection takes one, and so do the store's files and the connections to other agents. Where
the system's limit is lower than what was asked for, callers get less of it, since a process without
descriptors cannot even refuse. The soft limit is raised first, as far as the hard one allows.
"""

import contextlib
import os
import sys

import msgspec

if sys.platform != "win32":
    import resource

# Of what is left: for files, and for other agents, besides those that are open already.
_LEAST_KEPT = 32
_MOST_KEPT = 640
_KEPT_SHARE = 4
# Where the system knows no limit, or does not tell.
_PLENTY = 1_000_000


class Share(msgspec.Struct, frozen=True):
    """How many connections callers may have, and the limit that decides it."""

    connections: int
    limit: int


def limit() -> int:
    """Return how many descriptors this process may have."""
    if sys.platform == "win32":
        return _PLENTY
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _PLENTY if soft == resource.RLIM_INFINITY else soft


def for_callers(wanted: int) -> Share:
    """Return the connections that callers may have of those that are wanted."""
    taken = _open_now()
    _raise_limit(wanted + taken + _MOST_KEPT)
    most = limit()
    left = max(0, most - taken)
    reserved = max(_LEAST_KEPT, min(left // _KEPT_SHARE, _MOST_KEPT))
    return Share(min(wanted, max(1, left - reserved)), most)


def for_peers(wanted: int) -> int:
    """Return the connections to other agents that one client may have of those that are wanted."""
    return max(1, min(wanted, limit() // _KEPT_SHARE))


def _open_now() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 0


def _raise_limit(wanted: int) -> None:
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # Some systems have a lower limit than they say; what there is must do then.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
