"""Files that are read again when they change: tokens, keys, revoked certificates.

Asking whether one changed is cheap enough to do for every request: the disk is looked at once a
second at most.
"""

import logging
import os
import stat
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from dragoman.errors import ConfigError
from dragoman.security.private_files import check_mode

logger = logging.getLogger("dragoman")

T = TypeVar("T")

LOOK_EVERY = 1.0
# A file may change twice within one tick of its clock. What was read so soon after a change is
# read again, until the ticks are surely different.
_SETTLED_AFTER = 2.0
# No real list is as long as this; a device or a pipe may be endless.
MAX_BYTES = 64 * 1024 * 1024

_Mark = tuple[int, int, int, int, int]


class WatchedFile(Generic[T]):
    """What a file says, as of a second ago.

    `read` makes sense of its bytes and raises `ConfigError` otherwise. Others may not have the
    rights of `forbidden` on it. One that is gone later says nothing any more, and so does one that
    breaks, unless it `keeps` what it said before.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bytes], T],
        *,
        forbidden: int = 0o022,
        keeps: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._read = read
        self._forbidden = forbidden
        self._keeps = keeps
        self._monotonic = monotonic
        self._look_at = 0.0
        self._mark: _Mark | None = None
        self._content: T | None = None
        # Of what it said: the same bytes need not be made sense of twice.
        self._digest = b""
        self._problem = ""

    def says(self) -> T | None:
        """Return what it says; None: nothing that could be understood."""
        if self._monotonic() >= self._look_at:
            self._renew()
        return self._content

    def _renew(self) -> None:
        if not self._has_changed():
            return
        try:
            self.load()
            self._problem = ""
        except ConfigError as error:
            keeps = self._keeps and os.path.exists(self.path)
            if not keeps:
                self._content = None
            # Once, and not every second.
            if str(error) != self._problem:
                self._problem = str(error)
                what = "what it said before holds" if keeps else "every caller is refused"
                logger.error("%s; %s", error, what)

    def load(self) -> T:
        """Read it; raises `ConfigError` that says what is wrong with it."""
        self._look_at = self._monotonic() + LOOK_EVERY
        # Until it was read as a whole, it counts as one that changed.
        self._mark = None
        try:
            # Does not wait for a writer, should it be a pipe.
            file = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                found = os.fstat(file)
                self._check(found)
                with open(file, "rb", closefd=False) as stream:
                    body = stream.read(MAX_BYTES + 1)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror})") from None
        if len(body) > MAX_BYTES:
            raise ConfigError(f"{self.path}: is larger than {MAX_BYTES} bytes")
        self._mark = _mark(found)
        digest = sha256(body).digest()
        if self._content is None or digest != self._digest:
            self._content = self._read(body)
            self._digest = digest
        return self._content

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{self.path}: is no file")
        check_mode(self.path, found.st_mode, self._forbidden)

    def _has_changed(self) -> bool:
        """Tell whether it has changed, or may have, since it was read."""
        self._look_at = self._monotonic() + LOOK_EVERY
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return self._mark is None or _mark(found) != self._mark


def _mark(found: os.stat_result) -> _Mark | None:
    """Return what changes with a file; None: it changed too lately to tell."""
    changed_at = max(found.st_mtime, found.st_ctime)
    # A time to come is the work of a clock that was set; there is nothing to wait for.
    if 0 <= time.time() - changed_at < _SETTLED_AFTER:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
