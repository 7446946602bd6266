"""How a task ends that its agent did not do: the cause that is recorded, and a sentence for its
requester.

What an agent says may be anything. Its reason for a refusal is quoted, since nobody else can tell
the requester what to change: on one line, short, and without what looks like a secret. What it says
of failures of its own, of our credential and of how we speak to it is no requester's business.
"""

from typing import NamedTuple

from dragoman.client.cards import shown
from dragoman.client.life_signs import NoSignOfLife
from dragoman.client.remote import NotServed
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

# Codes that JSON-RPC leaves to servers for reasons of their own.
_OWN_CODES = range(-32099, -31999)


class End(NamedTuple):
    """The end of a task."""

    cause: str
    sentence: str


def end_of(problem: A2AError, *, may_know: bool) -> End:
    """Return how a task ends. Who `may_know` is told what is known of the address: to others a
    refusal and silence are one, lest they have us scan our network."""
    if isinstance(problem, InvalidAgentResponse):
        return End("invalid", f"The agent's answer is not valid A2A: {words(problem)}")
    if isinstance(problem, TaskNotFound):
        return End("lost", "The agent does not know the task any more.")
    if isinstance(problem, NoSignOfLife):
        return End("unreachable", f"The agent could not be reached. {problem.public}.")
    if isinstance(problem, NotServed):
        return End("invalid", f"{problem.public}.")
    if isinstance(problem, DeliveryUnknown | Unreachable | TimedOut | AgentOffline):
        why = f" {problem.public}." if may_know and not problem.is_quoted else ""
        return End("unreachable", f"The agent could not be reached.{why}")
    if isinstance(problem, Overloaded) and problem.code is None:
        # Our own queue for it is full, which is no fault of the agent's.
        return End("busy", "Too many tasks wait for this agent.")
    return End("refused", f"The agent refused the task: {words(problem)}{_reason(problem)}")


def words(problem: A2AError) -> str:
    """Return what went wrong: what the agent itself calls it only by its code."""
    if problem.code is None:
        return problem.public
    meaning = (type(problem).__doc__ or "").strip()
    is_short = isinstance(problem.code, int) and abs(problem.code) < 100_000
    return f"{meaning} ({problem.code})" if is_short else meaning


def _reason(problem: A2AError) -> str:
    """Return the agent's own reason, made fit to be shown; nothing if it gave none."""
    if not problem.is_quoted or not _is_refusal(problem):
        return ""
    said = shown(hidden_text(" ".join(problem.public.split())))
    meaning = (type(problem).__doc__ or "").strip()
    return "" if not said or said.casefold() in meaning.casefold() else f": {said}"


def _is_refusal(problem: A2AError) -> bool:
    """Say whether an agent understood what was asked of it, and said no."""
    if not isinstance(problem.code, int):
        return False
    if isinstance(problem, InternalError):
        return problem.code in _OWN_CODES
    return not isinstance(problem, Unauthenticated | ParseFailed | MethodNotFound)
