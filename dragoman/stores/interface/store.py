"""What the engine works on: one store that has tasks, leases, the bus and pushes."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dragoman.errors import StoreBroken
from dragoman.stores.interface.bus import Bus
from dragoman.stores.interface.leases import Leases
from dragoman.stores.interface.limits import SharedLimits
from dragoman.stores.interface.pushes import PushStore
from dragoman.stores.interface.tasks import TaskStore
from dragoman.stores.interface.words import TaskWordIndex


class StoreTrouble(msgspec.Struct, frozen=True, array_like=True):
    """A part of a store that does not work at present."""

    part: str
    # For everybody: no names of machines.
    reason: str
    # Whether requests had better go to another replica.
    is_serious: bool


class StoreSize(msgspec.Struct, frozen=True, array_like=True):
    """How large a store is, in bytes."""

    used: int
    # Left where it is; None: that is not known here.
    free: int | None
    # The last migration that was run on it; 0: it has none.
    schema: int = 0


class Store(TaskStore, TaskWordIndex, Leases, Bus, PushStore, Protocol):
    """The sum of the groups, and the life of the store itself."""

    @property
    def limits(self) -> SharedLimits | None:
        """Limits that all workers count together; None: each counts for itself."""
        ...

    @property
    def secret(self) -> bytes:
        """Seals what we hand out for callers to bring back; made once, lives with the data. In
        memory from `prepare` on, and not before."""
        ...

    async def prepare(self) -> None:
        """Have `secret` in memory. The event loop does not wait for the cipher and the disk."""
        ...

    async def open(self) -> None:
        """Make ready; raises `ConfigError` if the data cannot be used."""
        ...

    async def close(self) -> None:
        """Finish pending writes and let go."""
        ...

    async def troubles(self) -> Sequence[StoreTrouble]:
        """Return what does not work at present and may come back by itself; it takes a second at
        most."""
        ...

    async def size(self) -> StoreSize:
        """Return how large the store is; what lives in memory has no size."""
        ...

    async def broken(self) -> StoreBroken:
        """Return why, when the store failed to keep what it had taken, or is lost. It takes nothing
        more, and the server had better end."""
        ...
