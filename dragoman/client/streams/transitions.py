"""Reads the states that a task went through from an agent that tells them: docs/transitions.md."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.dialects.v0_3_proto import V0Proto
from dragoman.dialects.v0_3_shapes import STATE_NAMES
from dragoman.errors import InvalidAgentResponse, UnsupportedOperation
from dragoman.model.task import TRANSITIONS_URI, Task, TaskState, Transition

# More of them than any task has: the agent makes them up.
_IMPOSSIBLE = "The agent told states that cannot be"
_MOST = 1_000_000
_STATES = {
    name: state
    for names in (STATE_NAMES, V0Proto.state_names, {state: state.value for state in TaskState})
    for state, name in names.items()
}


class _TransitionList(msgspec.Struct):
    position: int
    state: str
    timestamp: str = ""


class _Page(msgspec.Struct, rename="camel"):
    transitions: list[_TransitionList]
    next_position: int = 0


async def read_all(ask: Callable[[int | None], Awaitable[Task]]) -> list[Transition]:
    """Return all transitions of a task that is asked for from a position on."""
    found: list[Transition] = []
    after = 0
    while True:
        page = _page((await ask(after or None)).metadata.get(TRANSITIONS_URI))
        for transition in page.transitions:
            if (
                transition.position <= after
                or transition.state not in _STATES
                or len(found) >= _MOST
            ):
                raise InvalidAgentResponse(_IMPOSSIBLE)
            after = transition.position
            found.append(Transition(after, _STATES[transition.state], transition.timestamp))
        if not page.next_position:
            return found
        if page.next_position != after or not page.transitions:
            raise InvalidAgentResponse(_IMPOSSIBLE)


def _page(value: Any) -> _Page:
    if value is None:
        raise UnsupportedOperation("The agent does not tell the states of its tasks")
    try:
        return msgspec.convert(value, _Page)
    except msgspec.ValidationError:
        raise InvalidAgentResponse(_IMPOSSIBLE) from None
