"""What other agents call the tasks that they were given for one, as its log tells.

Whoever shows the tree of a task reads it by this, from whichever store.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dragoman.model.events import Delegated, Event, Forwarded


class Child(NamedTuple):
    """A task elsewhere: its id there, where that is, and who has it."""

    task_id: str
    url: str
    agent: str


def children(events: Iterable[Event]) -> list[Child]:
    """Return the tasks that were given to others, each once, in their order."""
    found: dict[str, Child] = {}
    for event in events:
        if isinstance(event, Delegated | Forwarded) and event.task_id:
            found.setdefault(event.task_id, Child(event.task_id, event.url, event.agent))
    return list(found.values())
