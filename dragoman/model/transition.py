"""The states that a task went through."""

import msgspec

from dragoman.model.task import TaskState

# The extension by which a caller reads them: docs/transitions.md.
TRANSITIONS_URI = "urn:dragoman:transitions:v1"
# So many are told at once; the rest can be asked for from a position on.
MAX_TRANSITIONS = 100


class Transition(msgspec.Struct, frozen=True, gc=False):
    """A task reached a state that it was not in before."""

    # Its place in the log.
    position: int
    state: TaskState
    # As the status says it.
    timestamp: str


class Transitions(msgspec.Struct, frozen=True, gc=False):
    """Some of them, oldest first."""

    found: list[Transition]
    # Where to go on from; 0: there are no more.
    next_position: int = 0
