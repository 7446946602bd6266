"""What stands in a store that is only read where its writer would be."""

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.errors import StoreBroken, StoreReadOnly
from dragoman.stores.interface import Done


class RefusingWriter:
    """Refuses every write at once; there is no connection that could make one."""

    orders: Any = None
    on_trouble: Callable[[], None] | None = None
    fault: StoreBroken | None = None
    is_waiting = False
    version = 0

    def __init__(self) -> None:
        # Never set: what is not written is not lost.
        self.broken = asyncio.Event()

    def submit(self, write: Any, done: Done) -> None:
        """Refuse a write; as every writer, not before the caller goes on."""
        asyncio.get_running_loop().call_soon(done, StoreReadOnly(), 0)

    async def flush(self) -> None:
        """Wait for nothing."""

    async def close(self, **_: Any) -> None:
        """Have nothing to close."""
