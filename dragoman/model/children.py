"""The tasks at other agents that belong to a task, read from its log: the tree of a task."""

from collections.abc import Iterable
from typing import NamedTuple

from dragoman.model.events import Delegated, Event, Forwarded

# Generations of tasks that are shown: deeper than any call may go.
DEEPEST = 32


class Child(NamedTuple):
    """A task at another agent: its id there, the address, and the agent."""

    task_id: str
    url: str
    agent: str
    # When it was given, in milliseconds, and what it took once it ended: seconds and micro-credits.
    # 0: not known.
    at: int = 0
    seconds: float = 0.0
    cost: int = 0


def children(events: Iterable[Event]) -> list[Child]:
    """Return the tasks at other agents, each once, in their order."""
    found: dict[str, Child] = {}
    for event in events:
        if isinstance(event, Delegated) and event.task_id:
            first = found.get(event.task_id)
            at = event.at if first is None else first.at
            child = Child(event.task_id, event.url, event.agent, at, event.seconds, event.cost)
            found[event.task_id] = child
        elif isinstance(event, Forwarded) and event.task_id:
            found.setdefault(event.task_id, Child(event.task_id, event.url, event.agent))
    return list(found.values())
