"""Why an agent's code failed, where that is no secret of its code: something it called was not
reached, or took too long. For those who may know what its machine calls, and where."""

import socket

from dragoman.errors import CallFailed

# Libraries wrap what the system said a few times.
_DEEPEST = 8
_LONGEST = 200


def known_cause(error: BaseException) -> str:
    """Return what of a failure can be told in words of this machine; empty: nothing."""
    found: BaseException | None = error
    for _ in range(_DEEPEST):
        if found is None:
            break
        if said := _words(found):
            return said
        found = found.__cause__ or found.__context__
    return ""


def _words(error: BaseException) -> str:
    if isinstance(error, CallFailed):
        # Texts of our own client: the host, and the kind of failure.
        return error.public[:_LONGEST]
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, ConnectionError | socket.gaierror):
        said = f"an address could not be reached ({error.strerror or type(error).__name__})"
        return said if said.isprintable() else "an address could not be reached"
    return ""
