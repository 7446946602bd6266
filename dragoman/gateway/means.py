"""What carriers of tasks share: who is registered, and what is at hand to reach them."""

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dragoman.config import Settings
from dragoman.engine.log import TaskLog
from dragoman.gateway.agents import Registered
from dragoman.gateway.hooks import Hooks
from dragoman.gateway.upstreams import Upstreams
from dragoman.model import operations as ops
from dragoman.model.identity import Principal
from dragoman.stores.interface import Store


class Directory(Protocol):
    """Who is registered, and who does a task."""

    def get(self, ref: str) -> Registered | None:
        """Return an agent."""
        ...

    def others(
        self, operation: ops.SendMessage, tried: Sequence[str], most: int, requester: Principal
    ) -> list[str]:
        """Return who else could do a task that costs at most so much, best first."""
        ...

    def is_own(self, url: str) -> bool:
        """Tell whether an agent of this process is there."""
        ...

    def saw(self, agent_id: str) -> None:
        """Note that an agent answered."""
        ...

    def missed(self, agent_id: str) -> None:
        """Note that an agent did not answer."""
        ...


class Means(msgspec.Struct, frozen=True):
    """What carriers share."""

    # What this gateway is called among gateways.
    id: str
    store: Store
    settings: Settings
    upstreams: Upstreams
    directory: Directory
    hooks: Hooks
    # Does something beside.
    soon: Callable[[Coroutine[Any, Any, None]], None]


def passing(means: Means, log: TaskLog, message_id: str, url: str) -> AbstractContextManager[None]:
    """Have what a message begins at an agent of this process count for the task's caller, where it
    was counted. Other agents learn the id with the message, and could begin tasks by it."""
    if not means.directory.is_own(url):
        return contextlib.nullcontext()
    return log.shares.calling(message_id, log.account.who, is_counted=True)
