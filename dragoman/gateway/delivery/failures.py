"""How a task ends that its agent did not do: the cause that is recorded, and a sentence for its
requester.

An agent may say anything. Its reason for a refusal is quoted, because only the agent can tell the
requester what to change: on one line, short, and without what looks like a secret. What it says of
its own failures, of our credential and of our requests is not shown to the requester.
"""

from typing import NamedTuple

from dragoman.client.cards.cards import printable
from dragoman.client.pending_request import NotServed
from dragoman.client.streams.life_signs import NoSignOfLife
from dragoman.errors import (
    A2AError,
    AgentOffline,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    MethodNotFound,
    Overloaded,
    ParseFailed,
    TaskNotFound,
    TimedOut,
    Unauthenticated,
    Unreachable,
)
from dragoman.security.secret_text import hidden_text

# Codes that JSON-RPC reserves for errors of the server's own.
_OWN_CODES = range(-32099, -31999)


class FailedDelivery(NamedTuple):
    """The end of a task."""

    cause: str
    sentence: str


def end_of(problem: A2AError, *, may_know: bool) -> FailedDelivery:
    """Return how a task ends. A requester that `may_know` learns what happened at the address. For
    others a refused connection and silence look the same: they could scan our network."""
    if isinstance(problem, InvalidAgentResponse):
        return FailedDelivery("invalid", f"The agent's answer is not valid A2A: {words(problem)}")
    if isinstance(problem, TaskNotFound):
        return FailedDelivery("lost", "The agent does not know the task any more.")
    if isinstance(problem, NoSignOfLife):
        return FailedDelivery("unreachable", f"The agent could not be reached. {problem.public}.")
    if isinstance(problem, NotServed):
        return FailedDelivery("invalid", f"{problem.public}.")
    if isinstance(problem, DeliveryUnknown | Unreachable | TimedOut | AgentOffline):
        why = f" {problem.public}." if may_know and not problem.is_quoted else ""
        return FailedDelivery("unreachable", f"The agent could not be reached.{why}")
    if isinstance(problem, Overloaded) and problem.code is None:
        # The gateway's queue for the agent is full.
        return FailedDelivery("busy", "Too many tasks wait for this agent.")
    return FailedDelivery(
        "refused", f"The agent refused the task: {words(problem)}{_reason(problem)}"
    )


def words(problem: A2AError) -> str:
    """Return what went wrong; of an agent's error only its code is quoted."""
    if problem.code is None:
        return problem.public
    meaning = (type(problem).__doc__ or "").strip()
    is_short = isinstance(problem.code, int) and abs(problem.code) < 100_000
    return f"{meaning} ({problem.code})" if is_short else meaning


def _reason(problem: A2AError) -> str:
    """Return the agent's reason, made safe to show; empty if it gave none."""
    if not problem.is_quoted or not _is_refusal(problem):
        return ""
    reason = printable(hidden_text(" ".join(problem.public.split())))
    meaning = (type(problem).__doc__ or "").strip()
    return "" if not reason or reason.casefold() in meaning.casefold() else f": {reason}"


def _is_refusal(problem: A2AError) -> bool:
    """Say whether an agent understood the request, and refused it."""
    if not isinstance(problem.code, int):
        return False
    if isinstance(problem, InternalError):
        return problem.code in _OWN_CODES
    return not isinstance(problem, Unauthenticated | ParseFailed | MethodNotFound)
