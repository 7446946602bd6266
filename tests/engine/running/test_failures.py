"""What of a failure of an agent's code is told to those who may know."""

import errno
import socket

import pytest

from dragoman.engine.running.failures import known_cause
from dragoman.errors import DeliveryUnknown, TimedOut, Unreachable


def wrapped(error: BaseException) -> BaseException:
    """Return an exception as a library wraps one, with another around it."""
    try:
        try:
            raise error
        except BaseException as inner:
            raise ValueError("a secret of the code") from inner
    except ValueError as middle:
        outer = RuntimeError("another one")
        outer.__context__ = middle
        return outer


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unreachable("127.0.0.1:9: refused"), "127.0.0.1:9: refused"),
        (DeliveryUnknown("h: broke"), "h: broke"),
        (TimedOut("No answer in 30 s"), "No answer in 30 s"),
        (TimeoutError(), "it timed out"),
        (ConnectionRefusedError(111, "Refused"), "an address could not be reached (Refused)"),
        (ConnectionResetError(), "an address could not be reached (ConnectionResetError)"),
        (socket.gaierror(-2, "No name"), "an address could not be reached (No name)"),
        (ConnectionError(1, "a\nb"), "an address could not be reached"),
        (OSError(errno.EHOSTUNREACH, "No route"), "an address could not be reached (No route)"),
        (OSError(errno.ENETUNREACH, "No net"), "an address could not be reached (No net)"),
        (ExceptionGroup("of tasks", [TimeoutError(), ValueError("secret")]), "it timed out"),
    ],
)
def test_what_was_not_reached_is_told_however_deep_it_is(error: BaseException, said: str) -> None:
    assert known_cause(error) == known_cause(wrapped(error)) == said


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("k"), OSError(2, "/etc/passwd")])
def test_what_is_of_the_code_is_not(error: BaseException) -> None:
    assert known_cause(error) == known_cause(wrapped(error)) == ""


def test_a_ring_of_causes_has_an_end() -> None:
    one, two = ValueError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert known_cause(one) == ""


def test_a_cause_that_a_library_leaves_out_is_told_all_the_same() -> None:
    error = RuntimeError("of a library")
    error.__context__ = OSError("All connection attempts failed")
    error.__suppress_context__ = True
    refused = ConnectionRefusedError(111, "Refused")
    error.__context__.__cause__ = ExceptionGroup("both", [refused, refused])
    assert known_cause(error) == "an address could not be reached (Refused)"
