"""What is told of agent code that failed: an incident to the operator, a sentence to the caller.

A caller that operates the machine is also told the cause where it is no secret of the code:
something that it called was not reached, or took too long.
"""

import asyncio
import errno
import logging
import socket
from typing import NamedTuple, cast

from dragoman.engine.log import LogIsFull
from dragoman.engine.running.author_code import author_place, author_trace
from dragoman.engine.task_events import CANCELED
from dragoman.errors import CallFailed, InvalidAgentResponse, RateLimited, TaskFailed, TaskRejected
from dragoman.model.identity import new_id
from dragoman.model.task import TaskState
from dragoman.telemetry import logs

logger = logging.getLogger("dragoman")

FAILED = "The agent failed."
REFUSED_ELSEWHERE = "Another agent refused what this one asked of it: too many requests or tasks."

# Libraries wrap the error of the system a few times.
_MAX_DEPTH = 8
_MAX_LENGTH = 200
# Errors of the network that have no exception class of their own.
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


def incident_sentence(incident: str, sentence: str = FAILED) -> str:
    """Return what the caller is told of an incident."""
    return f"{sentence} Incident {incident}."


def report_incident(task_id: str, error: BaseException, sentence: str = FAILED) -> str:
    """Log what an agent's code raised; return what the caller is told."""
    incident = new_id()
    place = author_place(error)
    where = f": {type(error).__name__} at {place}" if place else ""
    message = "incident %s: agent code, task %s%s"
    trace = author_trace(error)
    logs.log_error(
        logger, message, incident, task_id, where, error=error, trace=trace, incident=incident
    )
    return incident_sentence(incident, sentence)


class Outcome(NamedTuple):
    """How a task ends whose code raised."""

    state: TaskState
    sentence: str
    # Whether the operator is told under an incident.
    is_incident: bool = False


def outcome(error: BaseException, *, is_cancelled: bool, may_know_cause: bool) -> Outcome:
    """Return how a task ends with what its code raised."""
    match error:
        case asyncio.CancelledError() if is_cancelled:
            return Outcome(TaskState.CANCELED, CANCELED)
        case BaseExceptionGroup() if is_cancelled and _is_cancellation(error):
            return Outcome(TaskState.CANCELED, CANCELED)
        case TaskRejected():
            return Outcome(TaskState.REJECTED, error.public)
        case TaskFailed():
            return Outcome(TaskState.FAILED, error.public)
        case LogIsFull():
            return Outcome(TaskState.FAILED, str(error))
        case RateLimited():
            # Not the text of the peer that refused, which may be anything.
            return Outcome(TaskState.FAILED, REFUSED_ELSEWHERE)
        case InvalidAgentResponse():
            sentence = f"The agent gave an invalid response: {error.public}"
            return Outcome(TaskState.FAILED, sentence, is_incident=True)
        case _:
            # Also a cancellation that is not ours: of something the code waited for, or by it.
            cause = known_cause(error) if may_know_cause else ""
            sentence = f"The agent failed: {cause}." if cause else FAILED
            return Outcome(TaskState.FAILED, sentence, is_incident=True)


def _is_cancellation(error: BaseExceptionGroup[BaseException]) -> bool:
    """Tell whether a group holds nothing but cancellations."""
    return error.split(asyncio.CancelledError)[1] is None


def known_cause(error: BaseException) -> str:
    """Return the cause of a failure in words of this machine; empty: it is not one of these."""
    found: BaseException | None = error
    for _ in range(_MAX_DEPTH):
        if found is None:
            break
        if words := _words(found):
            return words
        found = _behind(found)
    return ""


def _behind(error: BaseException) -> BaseException | None:
    """Return the cause of an error, the first one of a group. The context of an error raised
    `from None` counts as well: HTTP clients raise that way."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error.__cause__ or error.__context__


def _words(error: BaseException) -> str:
    if isinstance(error, CallFailed):
        # The text comes from our own client: the host, and the kind of failure.
        return error.public[:_MAX_LENGTH]
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, OSError) and _is_of_network(error):
        words = f"an address could not be reached ({error.strerror or type(error).__name__})"
        return words if words.isprintable() else "an address could not be reached"
    return ""


def _is_of_network(error: OSError) -> bool:
    return isinstance(error, ConnectionError | socket.gaierror) or error.errno in _NO_ROUTE
