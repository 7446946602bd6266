"""What carriers of tasks share: who is registered, and what is at hand to reach them."""

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from dragoman.config import Settings
from dragoman.engine.log import TaskLog
from dragoman.errors import A2AError
from dragoman.gateway import retrying
from dragoman.gateway.agents import Registered
from dragoman.gateway.circuits import Passage
from dragoman.gateway.hooks import Hooks
from dragoman.gateway.upstreams import Upstream, Upstreams
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
        """Note that nobody accepted a connection where an agent is."""
        ...

    def doubted(self, agent_id: str) -> None:
        """Note that an agent did not answer a message: it is looked at soon."""
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


def note_failure(
    means: Means, upstream: Upstream, passage: Passage, error: A2AError | TimeoutError
) -> None:
    """Note what a failed call says: of the agent for everybody if nobody was there, else of what
    this caller's calls come to."""
    if not retrying.is_failing(error):
        passage.succeeded()
        return
    passage.failed(error)
    is_elsewhere = len(upstream.urls) > 1
    if retrying.is_absence(error) and not is_elsewhere:
        means.directory.missed(upstream.agent.id)
    elif not retrying.is_answer(error):
        # Of one of several addresses, or after a message arrived: only a look can tell.
        means.directory.doubted(upstream.agent.id)
