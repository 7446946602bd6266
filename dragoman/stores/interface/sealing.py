"""How a store makes secrets unreadable at rest."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Sealing(Protocol):
    """Makes secrets unreadable to a reader that has only the store's file.

    Keys go by ids of eight bytes. A sealed value is the byte 1, the id of its key and the rest, so
    that it tells its key and is never taken for JSON."""

    def ready(self, used: Sequence[bytes]) -> bytes:
        """Return the key to begin with, given those a store is sealed with already; raises
        `ConfigError` if one of them is missing."""
        ...

    def seal(self, plain: bytes, context: bytes, key: bytes) -> bytes:
        """Return a value that is opened in the same context only."""
        ...

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Return what was sealed; raises `StoreUnavailable`."""
        ...

    def trouble(self, used: Sequence[bytes]) -> str:
        """Say what would keep the next process from opening what these keys sealed; empty:
        nothing."""
        ...


class Rotated(msgspec.Struct, frozen=True, array_like=True):
    """What a change of the key did."""

    # Values sealed anew, and those that no key at hand opens.
    values: int
    damaged: int
    # Whether what other keys sealed is gone from the file's log of writes too.
    is_cleared: bool
