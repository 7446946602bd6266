"""Where the keys of tokens come from: a shared secret, a file; an issuer's are in `jwks.py`.

A source is asked for the keys in force with every request, so that a key that was taken away opens
nothing any more, whatever it opened before.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dragoman.errors import ConfigError
from dragoman.security.jwt.verification_keys import EMPTY, KeyRing, from_file
from dragoman.security.watched_files import WatchedFile


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
    """Keys in a file, which is read again when it changes. While it is gone or broken, every
    token is refused: put the next one in its place by renaming it."""

    def __init__(self, path: str | Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path).expanduser()
        self._file = WatchedFile(self._path, self._read, monotonic=monotonic)

    async def start(self) -> None:
        """Read the file; raises `ConfigError` for one without keys."""
        await asyncio.to_thread(self._file.load)

    async def stop(self) -> None:
        """Nothing to let go of."""

    def current(self) -> KeyRing:
        """Return the keys of the file as it was a second ago."""
        return self._file.says() or EMPTY

    async def renewed(self, kid: str) -> KeyRing:
        """Return the keys; whether the file changed was just seen."""
        return self.current()

    def _read(self, content: bytes) -> KeyRing:
        try:
            return from_file(content)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from None
