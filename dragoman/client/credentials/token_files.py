"""Logins between runs: one file each, readable by its owner alone.

The keyring of the system is not used: it takes a dependency and a session that scripts and
containers do not have, and guards against the same reader as the mode of a file. A file that others
can read or that others own is never believed, and a warning says what to do.
"""

import asyncio
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from dragoman.client.credentials.logins import Login
from dragoman.errors import ConfigError

try:
    import fcntl
except ImportError:  # no such locks on this system: of two renewals at once one may fail
    fcntl = None

LARGEST_FILE = 256 * 1024
# Longer than a renewal takes; a process that holds it longer has stopped.
HELD_AT_MOST = 15.0
LOOK_AGAIN = 0.05
# Windows has neither owners nor modes: there, the folders of a user are closed to others.
HAS_OWNERS = hasattr(os, "geteuid")
# Bytes as they are, for no child; no link leads elsewhere, and no pipe in its place stops us.
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_PIPE = getattr(os, "O_NONBLOCK", 0)

Warn = Callable[[str], None]


class TokenStore:
    """The logins in a folder, by the agent's origin, the scheme and the issuer."""

    def __init__(self, folder: Path, *, warn: Warn = lambda text: None) -> None:
        self.folder = folder
        self._warn = warn

    def load(self, origin: str, scheme: str, issuer: str) -> Login | None:
        """Return a login, or None if there is none that can be trusted."""
        return self._read(self._path(origin, scheme, issuer)) if self._is_ours() else None

    def all(self) -> list[Login]:
        """Return every login, in the order of origins and schemes."""
        if not self._is_ours():
            return []
        found = (self._read(path) for path in self.folder.glob("*.json"))
        logins = (login for login in found if login is not None)
        return sorted(logins, key=lambda login: (login.origin, login.scheme, login.issuer))

    def save(self, login: Login) -> None:
        """Keep a login in place of the one before; raises `ConfigError` where that cannot be."""
        path = self._path(login.origin, login.scheme, login.issuer)
        part = path.with_suffix(f".{secrets.token_hex(4)}.part")
        try:
            self._make_folder()
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN
                with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
                    file.write(msgspec.json.format(msgspec.json.encode(login), indent=2))
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the login cannot be kept in {self.folder}: {error.strerror}"
            ) from None

    @asynccontextmanager
    async def locked(self, login: Login) -> AsyncGenerator[None]:
        """Keep other processes from renewing a login meanwhile, if they ask here too."""
        lock = self._path(login.origin, login.scheme, login.issuer).with_suffix(".lock")
        try:
            flags = os.O_RDWR | os.O_CREAT | _PLAIN | _NO_LINK
            file = os.open(lock, flags, 0o600)
        except OSError:
            # A folder that cannot be written to holds nothing that two could spoil.
            yield
            return
        try:
            # Waiting costs a renewal that fails at worst, so it has an end.
            with suppress(TimeoutError):
                async with asyncio.timeout(HELD_AT_MOST):
                    while not _is_locked(file):  # noqa: ASYNC110 - of another process come no events
                        await asyncio.sleep(LOOK_AGAIN)
            yield
        finally:
            os.close(file)

    def _path(self, origin: str, scheme: str, issuer: str) -> Path:
        # No text of a card becomes the name of a file.
        key = hashlib.sha256("\n".join((origin, scheme, issuer)).encode()).hexdigest()
        return self.folder / f"{key[:32]}.json"

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self.folder.stat().st_mode) & 0o077:
            self.folder.chmod(0o700)

    def _is_ours(self) -> bool:
        """Say whether only this user can put a file into the folder."""
        try:
            found = self.folder.stat()
        except OSError:
            return False
        if not HAS_OWNERS or (found.st_uid == os.geteuid() and not found.st_mode & 0o022):
            return True
        self._warn(f"{self.folder} is not used: others can write to it (chmod 700 helps)")
        return False

    def _read(self, path: Path) -> Login | None:
        try:
            flags = os.O_RDONLY | _PLAIN | _NO_LINK | _NO_PIPE
            with os.fdopen(os.open(path, flags), "rb") as file:
                reason = _distrust(os.fstat(file.fileno()))
                body = b"" if reason else file.read(LARGEST_FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path} is not used: {error.strerror}")
            return None
        try:
            login = None if reason else msgspec.json.decode(body, type=Login)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            login, reason = None, "it is no login of ours"
        # A copy under another name would serve another agent.
        if login and self._path(login.origin, login.scheme, login.issuer) != path:
            login, reason = None, "it belongs to another agent"
        if login is None:
            self._warn(f"{path} is not used: {reason}")
        return login


def _distrust(found: os.stat_result) -> str:
    """Return why a file is not to be believed; empty when it is."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no file"
    if not HAS_OWNERS:
        return ""
    if found.st_uid != os.geteuid():
        return "another user owns it"
    if found.st_mode & 0o077:
        return "others can read it (chmod 600, and log in again: it may be known)"
    return ""


def _is_locked(file: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
