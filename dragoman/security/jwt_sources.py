"""Where the keys of tokens come from: a shared secret, a file; an issuer's are in `jwks.py`.

A source is asked for the keys in force with every request, so that a key that was taken away opens
nothing any more, whatever it opened before.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dragoman.errors import ConfigError
from dragoman.security.jwt_keys import EMPTY, KeyRing, from_file

logger = logging.getLogger("dragoman")

LARGEST_FILE = 1024 * 1024
# Seconds between two looks at a file.
STAT_EVERY = 1.0


class KeySource(Protocol):
    """Keys that may change while we run."""

    async def start(self) -> None:
        """Make ready; raises `ConfigError`."""
        ...

    async def stop(self) -> None:
        """Let go of connections."""
        ...

    def current(self) -> KeyRing:
        """Return the keys in force; asked for every request, so it is quick."""
        ...

    async def renewed(self, kid: str) -> KeyRing:
        """Return the keys in force after another look for one that was not there."""
        ...


class FixedKeys:
    """Keys that stay what they are."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    async def start(self) -> None:
        """Nothing to make ready."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    def current(self) -> KeyRing:
        """Return the keys."""
        return self._ring

    async def renewed(self, kid: str) -> KeyRing:
        """Return the same keys."""
        return self._ring


class FileKeys:
    """Keys in a file, which is read again when it changes."""

    def __init__(self, path: str | Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path).expanduser()
        self._now = now
        self._ring = EMPTY
        self._seen: tuple[int, ...] = ()
        self._look_at = 0.0

    async def start(self) -> None:
        """Read the file; raises `ConfigError` for one without keys."""
        await asyncio.to_thread(self._begin)

    async def stop(self) -> None:
        """Nothing to let go of."""

    def current(self) -> KeyRing:
        """Return the keys, of a file that is looked at once a second."""
        if self._now() >= self._look_at:
            self._look_at = self._now() + STAT_EVERY
            self._look()
        return self._ring

    async def renewed(self, kid: str) -> KeyRing:
        """Return the keys; whether the file changed was just seen."""
        return self.current()

    def _begin(self) -> None:
        try:
            self._seen = self._state()
            self._ring = self._read()
        except OSError as error:
            raise ConfigError(f"jwt: {self._path} cannot be read: {error.strerror}") from None
        self._look_at = self._now() + STAT_EVERY

    def _look(self) -> None:
        try:
            state = self._state()
            if state == self._seen:
                return
            self._ring, self._seen = self._read(), state
            logger.info("jwt: %s was read again: %d keys", self._path, len(self._ring))
        except FileNotFoundError:
            if self._ring:
                logger.error("jwt: %s is gone; its tokens are refused", self._path)
            self._ring, self._seen = EMPTY, ()
        except (OSError, ConfigError) as error:
            # It may be only half written, so the keys before it stay until it can be read.
            logger.error("jwt: %s changed and is of no use: %s", self._path, error)

    def _state(self) -> tuple[int, ...]:
        found = os.stat(self._path)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> KeyRing:
        with self._path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(f"jwt: {self._path} is too large to be a file of keys")
        return from_file(content)
