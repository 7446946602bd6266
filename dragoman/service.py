"""The waist: everything that can answer an A2A call has this shape, so that they stack.

A call of megabytes takes milliseconds in each step. Such calls take their steps in a thread, one at
a time, so that the loop runs between any two of them.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from dragoman.model.card import AgentCard
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message
from dragoman.model.operations import Operation
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.model.task import Transitions

P = ParamSpec("P")
T = TypeVar("T")

# Bytes from which on a call is a large one.
LARGE_BYTES = 256 * 1024
_steps = ThreadPoolExecutor(1, "large")
# Held by the call that is at a step. Two at once would only wait for each other, since there is one
# interpreter, and the loop would wait for both.
_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def off_loop(step: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Return what a step of a large call comes to, and let the loop go on meanwhile."""
    loop = asyncio.get_running_loop()
    await _enter(loop)
    try:
        return await loop.run_in_executor(_steps, functools.partial(step, *given, **named))
    finally:
        # Released later: what the caller does next without awaiting is part of the step.
        loop.call_soon(_lanes[loop].release)


def reserve(size: int) -> None:
    """Raise `MemoryError` unless so many bytes can be allocated. The JSON code in C ends the
    process when an allocation fails; memory that is not touched costs nothing."""
    bytes(size)


async def next_turn() -> None:
    """Wait until no other large call is at a step: what follows at once is one."""
    loop = asyncio.get_running_loop()
    await _enter(loop)
    loop.call_soon(_lanes[loop].release)


async def _enter(loop: asyncio.AbstractEventLoop) -> None:
    lane = _lanes.get(loop)
    if lane is None:
        lane = _lanes[loop] = asyncio.Lock()
    await lane.acquire()


class Call(msgspec.Struct, frozen=True):
    """An operation, its caller, and the position of a reader."""

    operation: Operation
    caller: Caller = ANONYMOUS
    # The last position that the reader has seen; None: begin with the present.
    after: int | None = None
    # Extensions the caller asked for.
    extensions: frozenset[str] = frozenset()
    # Whether a stream ends when the task waits for its caller, as 0.x and 1.0 sends do.
    closes_on_input: bool = True
    # Seconds a blocking send may wait before it answers with the task as it is; 0: no limit.
    patience: float = 0.0
    # Whether a task may be created under an id the caller chose.
    client_task_id: bool = False
    # Bytes of the request that it came in; 0: it did not come in one.
    size: int = 0
    # What a message is known by when it comes again, whatever it says then; empty: its id and its
    # content.
    message_key: str = ""
    # Whether a subscription to a task that has ended shows it once, as the proto of 0.3 says.
    shows_ended: bool = False


class TaskReply(msgspec.Struct, frozen=True):
    """A task; how much of its history the caller wants to see."""

    reading: TaskReading
    history: int | None = None
    # The states that it went through, where the caller asked for them.
    transitions: Transitions | None = None


class TaskPage(msgspec.Struct, frozen=True):
    """One page of tasks."""

    tasks: list[TaskReply]
    next_page_token: str
    page_size: int
    total_size: int
    include_artifacts: bool


class PushPage(msgspec.Struct, frozen=True):
    """One page of a task's push configurations."""

    configs: list[PushConfig]
    next_page_token: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """The operation is done; there is no result."""


Reply = TaskReply | Message | TaskPage | AgentCard | PushConfig | PushPage | Nothing


class Opening(msgspec.Struct, frozen=True):
    """The Task a stream begins with: the state as of a position."""

    reply: TaskReply
    # Whether the reader named a position that the log never had, so that it begins anew.
    is_reset: bool = False


# Events come in batches: whatever is there when the reader is ready, so that a fast task costs a
# reader one wake-up and one write for many events.
Batch = Opening | Message | Sequence[Recorded]


class Service(Protocol):
    """Anything that can answer an A2A call: an engine, a remote peer, a gateway."""

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        ...

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call: an opening Task or a Message, then batches of events."""
        ...
