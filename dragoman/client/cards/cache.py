"""Documents that are kept as long as HTTP allows: a private cache after RFC 9111.

A document is kept per URL, version and identity, so that `Vary` has nothing left to say and
no identity sees what another was shown. On disk there is only what is public: nothing of an
identity, nothing fetched with headers of the caller's. A file that cannot be read counts as
missing.
"""

import asyncio
import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec

from dragoman.egress.targets import read_target
from dragoman.model.push import is_sendable

LARGEST_CARD = 256 * 1024
# However long a peer says that its card stays as it is: addresses and keys do change.
LONGEST_FRESH = 24 * 3600.0
MOST_KEPT = 64
MOST_FILES = 256
LONGEST_VALIDATOR = 1024
_LARGEST_FILE = 2 * LARGEST_CARD


class CacheKey(msgspec.Struct, frozen=True):
    """What a document is kept under."""

    url: str
    version: str
    identity: str = ""
    # Whether anybody is shown it: only then is it kept on disk.
    is_public: bool = True


class CachedDocument(msgspec.Struct, frozen=True):
    """A document in the cache."""

    asked: str  # the URL that was asked for
    version: str
    url: str  # the one that answered
    body: bytes
    lifetime: float  # seconds, where the answer says nothing of it
    etag: str = ""
    modified: str = ""
    stored_at: int = 0  # milliseconds since the epoch
    fresh_until: int = 0

    def confirmed(self, headers: Mapping[str, str], now: int) -> "CachedDocument":
        """Return it as good as an answer with these headers says."""
        lifetime = _lifetime(headers, self.lifetime, now)
        return msgspec.structs.replace(
            self,
            lifetime=lifetime,
            etag=_validator(headers, "etag") or self.etag,
            modified=_validator(headers, "last-modified") or self.modified,
            stored_at=now,
            fresh_until=now + int((lifetime - _age(headers)) * 1000),
        )

    def is_fresh(self, now: int) -> bool:
        """Say whether it can be used without asking."""
        # A clock that was set back proves nothing.
        return self.stored_at <= now < self.fresh_until

    def validators(self) -> dict[str, str]:
        """Return the headers that ask whether it has changed."""
        found = {"if-none-match": self.etag, "if-modified-since": self.modified}
        return {name: value for name, value in found.items() if value}


def may_keep(headers: Mapping[str, str]) -> bool:
    """Say whether an answer may be kept at all."""
    return "no-store" not in _directives(headers)


class Cache:
    """Documents in memory, and in a folder if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._documents: OrderedDict[CacheKey, CachedDocument] = OrderedDict()
        # Clients on other loops, in other threads, may have the same cache.
        self._guard = threading.Lock()

    async def load(self, key: CacheKey, most: int) -> CachedDocument | None:
        """Return a document, fresh or not, if there is one of at most so many bytes."""
        with self._guard:
            if key in self._documents:
                self._documents.move_to_end(key)
                return self._documents[key]
        if self._folder is None or not key.is_public:
            return None
        return await asyncio.to_thread(_load, self._folder / _file_name(key), key, most)

    async def save(self, key: CacheKey, document: CachedDocument) -> None:
        """Keep a document, and so many others as there is room for."""
        with self._guard:
            self._documents[key] = document
            self._documents.move_to_end(key)
            while len(self._documents) > MOST_KEPT:
                self._documents.popitem(last=False)
        if self._folder is not None and key.is_public and len(document.body) <= LARGEST_CARD:
            await asyncio.to_thread(_save, self._folder, _file_name(key), document)

    async def drop(self, key: CacheKey) -> None:
        """Keep a document no longer."""
        with self._guard:
            self._documents.pop(key, None)
        if self._folder is not None and key.is_public:
            await asyncio.to_thread(_remove, self._folder / _file_name(key))


def _directives(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the directives of Cache-Control; of two alike the stricter counts."""
    found: dict[str, str] = {}
    for item in headers.get("cache-control", "").split(","):
        name, _, value = item.strip().partition("=")
        name, value = name.strip().lower(), value.strip().strip('"')
        if name == "max-age" and name in found:
            value = min(value, found[name], key=lambda text: _seconds(text) or 0)
        if name:
            found[name] = value
    return found


def _seconds(text: str) -> int | None:
    # A number too long to be meant is as long as any.
    return int(text[:10]) if text.isascii() and text.isdigit() else None


def _lifetime(headers: Mapping[str, str], default: float, now: int) -> float:
    """Return for how many seconds an answer is fresh from when it was made."""
    directives = _directives(headers)
    if "no-cache" in directives or headers.get("vary", "").strip() == "*":
        return 0.0
    if "max-age" in directives:
        # What cannot be understood is stale.
        return min(float(_seconds(directives["max-age"]) or 0), LONGEST_FRESH)
    if "expires" in headers:
        expires = _instant(headers["expires"])
        made = _instant(headers.get("date", ""))
        since = made if made is not None else now / 1000
        return 0.0 if expires is None else min(max(expires - since, 0.0), LONGEST_FRESH)
    return default


def _age(headers: Mapping[str, str]) -> float:
    return float(_seconds(headers.get("age", "").strip()) or 0)


def _instant(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _validator(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    return value if len(value) <= LONGEST_VALIDATOR and is_sendable(value) else ""


def _file_name(key: CacheKey) -> str:
    digest = hashlib.sha256(msgspec.json.encode([key.url, key.version])).hexdigest()
    return f"{digest}.json"


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except OSError:
        return []


def _is_ours(folder: Path) -> bool:
    """Say whether only this user can write there: a forged card decides where messages go."""
    if os.name == "nt":
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _load(path: Path, key: CacheKey, most: int) -> CachedDocument | None:
    try:
        if not _is_ours(path.parent):
            return None
        with path.open("rb") as file:
            document = msgspec.json.decode(file.read(_LARGEST_FILE), type=CachedDocument)
        if (document.asked, document.version) != (key.url, key.version):
            return None
        read_target(document.url)
    # Any error: a damaged file is fetched again.
    except (OSError, ValueError, RecursionError):
        return None
    if len(document.body) > most or not (
        is_sendable(document.etag) and is_sendable(document.modified)
    ):
        return None
    return document


def _save(folder: Path, name: str, document: CachedDocument) -> None:
    """Write a file at once or not at all; a disk that will not take it is no reason to fail."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return
        # Made for its owner alone.
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(document))
            os.replace(temporary, folder / name)
        finally:
            _remove(Path(temporary))
        paths = _files(folder)
        if len(paths) > MOST_FILES:
            paths.sort(key=lambda path: path.stat().st_mtime)
            for path in paths[:-MOST_FILES]:
                path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
