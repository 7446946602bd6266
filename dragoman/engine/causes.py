"""Why an agent's code failed, where that is no secret of its code: something it called was not
reached, or took too long. For those who may know what its machine calls, and where."""

import errno
import socket
from typing import cast

from dragoman.errors import CallFailed

# Libraries wrap what the system said a few times.
_DEEPEST = 8
_LONGEST = 200
# What the system says of the way to an address with no exception of its own.
_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


def known_cause(error: BaseException) -> str:
    """Return what of a failure can be told in words of this machine; empty: nothing."""
    found: BaseException | None = error
    for _ in range(_DEEPEST):
        if found is None:
            break
        if said := _words(found):
            return said
        found = _behind(found)
    return ""


def _behind(error: BaseException) -> BaseException | None:
    """Return what an error was raised for; of several that came together, the first. What is
    raised `from None` counts as well: HTTP clients do that."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error.__cause__ or error.__context__


def _words(error: BaseException) -> str:
    if isinstance(error, CallFailed):
        # Texts of our own client: the host, and the kind of failure.
        return error.public[:_LONGEST]
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, OSError) and _is_of_the_net(error):
        said = f"an address could not be reached ({error.strerror or type(error).__name__})"
        return said if said.isprintable() else "an address could not be reached"
    return ""


def _is_of_the_net(error: OSError) -> bool:
    return isinstance(error, ConnectionError | socket.gaierror) or error.errno in _NO_WAY
