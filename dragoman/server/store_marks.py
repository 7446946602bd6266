"""Marks that every process of a store knows: sessions of people that were ended before their time,
processes that were asked to end.

The store has them as it has answers that made no task: under a key, and forgotten after a day at
the earliest. What is marked must not matter for longer than that.
"""

import contextlib
import hashlib

from dragoman.errors import StoreConflict
from dragoman.model.identity import Scope
from dragoman.stores.interface import KeepReply, Store, write


class StoreMarks:
    """Marks of one kind, by the ids of what they are of."""

    def __init__(self, store: Store, kind: str) -> None:
        """`kind` has a blank in it: no agent has such a name."""
        self._store = store
        self._scope = Scope(agent=kind)

    async def has(self, id: str) -> bool:
        """Tell whether something was marked, in whichever process."""
        return await self._store.known(self._scope, _key(id)) is not None

    async def add(self, id: str) -> None:
        """Mark something for good."""
        with contextlib.suppress(StoreConflict):
            # A conflict: it was marked before.
            await write(self._store, KeepReply(self._scope, _key(id), b"{}"))


def ended_sessions(store: Store) -> StoreMarks:
    """Return the sessions that were ended, by their ids."""
    return StoreMarks(store, "ended sessions")


def drained_processes(store: Store) -> StoreMarks:
    """Return the processes that were asked to end, by their numbers, which none has again."""
    return StoreMarks(store, "drained processes")


def _key(id: str) -> bytes:
    # The word is of the first kind that there was, so that its marks are known after an upgrade.
    return hashlib.sha256(b"session " + id.encode()).digest()
