"""Sessions of people that were ended before their time, known to every process of a store.

The store has them as it has answers that made no task: under a key, and forgotten after a day at
the earliest. No session is to hold longer than that.
"""

import contextlib
import hashlib

from dragoman.errors import StoreConflict
from dragoman.model.identity import Scope
from dragoman.stores.interface import KeepReply, Store, write

# No agent has such a name.
_SCOPE = Scope(agent="ended sessions")


class EndedSessions:
    """Which sessions have ended, by their ids."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def has(self, id: str) -> bool:
        """Tell whether a session was ended, in whichever process."""
        return await self._store.known(_SCOPE, _key(id)) is not None

    async def add(self, id: str) -> None:
        """End a session for good."""
        with contextlib.suppress(StoreConflict):
            # A conflict: it was ended before.
            await write(self._store, KeepReply(_SCOPE, _key(id), b"{}"))


def _key(id: str) -> bytes:
    return hashlib.sha256(b"session " + id.encode()).digest()
