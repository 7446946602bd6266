"""What every bus has: rings are put together until they are sent, and listeners are told.

While one message is on its way, what is rung for meanwhile waits and goes with the next: however
much is written, a worker has one message under way.
"""

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from dragoman.stores.interface import Heard, Rung

# Numbers of at most 14 digits, and addresses of 32 characters, in one message: PostgreSQL takes
# 8,000 bytes.
MOST_NUMBERS = 400
MOST_POSTED = 40
# Addresses that wait to be told, at most. The poll makes up for a post that is not told.
_MOST_POSTED_WAITING = 4_000

logger = logging.getLogger("dragoman")

T = TypeVar("T")

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[int, int, Rung]).decode


def encoded(worker: int, place: int, rung: Rung) -> bytes:
    """Return a ring as it is sent: by whom, as its how manieth, and what it says."""
    return _encode((worker, place, rung))


def decoded(message: bytes | str) -> tuple[int, int, Rung | None]:
    """Return what was sent; None: it cannot be read, so something may have happened."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return 0, 0, None


class Rings:
    """Collects rings and has them sent, one message at a time."""

    def __init__(self, send: Callable[[Rung], Awaitable[None]]) -> None:
        """`send` does not raise: a ring that is lost is made up for by looking again."""
        self._send = send
        # Ordered, so that what was written first is told first.
        self._tasks: dict[int, None] = {}
        self._noted: dict[int, None] = {}
        self._posted: dict[str, None] = {}
        # The rest, put together.
        self._rest: Rung | None = None
        self._sending: asyncio.Task[None] | None = None

    def add(self, rung: Rung) -> None:
        """Have a ring sent with others of the same moment; called on the event loop."""
        self._tasks.update(dict.fromkeys(rung.tasks))
        self._noted.update(dict.fromkeys(rung.noted))
        if len(self._posted) < _MOST_POSTED_WAITING:
            self._posted.update(dict.fromkeys(rung.posted))
        if rung.freed or rung.agents or rung.agent_keys or rung.trust:
            self._rest = _together(self._rest or Rung(), rung)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def flush(self) -> None:
        """Return when everything was sent."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        try:
            while self._tasks or self._noted or self._posted or self._rest is not None:
                await self._send(self._taken())
        except Exception:
            # Whatever it was: the next ring is sent all the same.
            logger.exception("other processes could not be told of what was written")
        finally:
            self._sending = None

    def _taken(self) -> Rung:
        tasks = _first(self._tasks, MOST_NUMBERS)
        noted = _first(self._noted, MOST_NUMBERS - len(tasks))
        posted = _first(self._posted, MOST_POSTED)
        rest, self._rest = self._rest or Rung(), None
        return msgspec.structs.replace(rest, tasks=tasks, noted=noted, posted=posted)


def _first(waiting: dict[T, None], most: int) -> tuple[T, ...]:
    """Take some out, those that have waited longest."""
    if len(waiting) <= most:
        taken = tuple(waiting)
        waiting.clear()
    else:
        taken = tuple(itertools.islice(waiting, most))
        for one in taken:
            del waiting[one]
    return taken


def _together(one: Rung, other: Rung) -> Rung:
    return Rung(
        freed=one.freed or other.freed,
        agents=max(one.agents, other.agents),
        agent_keys=max(one.agent_keys, other.agent_keys),
        trust=max(one.trust, other.trust),
    )


class WorkerBus(ABC):
    """A bus of one worker, without the way on which messages go."""

    def __init__(self, worker: Callable[[], int]) -> None:
        """`worker` returns our number, which may change."""
        self.worker = worker
        self._listeners: list[Heard] = []
        self._rings = Rings(self._send)

    @property
    def trouble(self) -> str:
        """What is wrong with it at present, for the operator; empty: nothing."""
        return ""

    async def open(self) -> None:  # noqa: B027  # most have nothing to open
        """Begin to hear the others."""

    async def close(self) -> None:
        """Send what is to be sent, and hear no more."""
        self._listeners.clear()
        await self._rings.flush()

    def listen(self, heard: Heard) -> None:
        """Have a function called with every ring of another worker."""
        self._listeners.append(heard)

    def ring(self, rung: Rung) -> None:
        """Tell the other workers, together with others of the same moment."""
        self._rings.add(rung)

    def tell(self, rung: Rung | None) -> None:
        """Tell those who listen here."""
        for heard in self._listeners:
            heard(rung)

    @abstractmethod
    async def _send(self, rung: Rung) -> None: ...
