"""The tasks at other agents that belong to a task, read from its log: the tree of a task."""

from collections.abc import Iterable
from typing import NamedTuple

from dragoman.model.events import Delegated, Event, Forwarded


class Child(NamedTuple):
    """A task at another agent: its id there, the address, and the agent."""

    task_id: str
    url: str
    agent: str


def children(events: Iterable[Event]) -> list[Child]:
    """Return the tasks at other agents, each once, in their order."""
    found: dict[str, Child] = {}
    for event in events:
        if isinstance(event, Delegated | Forwarded) and event.task_id:
            found.setdefault(event.task_id, Child(event.task_id, event.url, event.agent))
    return list(found.values())
