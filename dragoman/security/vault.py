"""Secrets at rest: AES-256-GCM under keys that have ids, so that keys can change while we serve.

Keys come from a setting, or from a file that is made where there is none. What is sealed names its
key; a key that is not at hand is looked for in the file once more, since another process may have
put it there. The cipher is loaded when something is sealed or opened, and not before.
"""

import base64
import hashlib
import hmac
import os
import shlex
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Settings, refusal
from dragoman.config.formats import SEALING_KEY_BYTES, read_sealing_keys
from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.security import private_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
# No JSON text begins so: what is sealed is never taken for what is not.
_MARK = b"\x01"
_ID_BYTES = 8
_HEAD_BYTES = len(_MARK) + _ID_BYTES + _NONCE_BYTES
# Ends the name of a file with a key that was replaced, before its id.
_OLD = ".old-"
# The library in memory, and the 3,000 small values that OpenSSL makes for the first cipher: in a
# thread that began without memory, glibc gives each a page of its own.
_FIRST_CIPHER_BYTES = 32 * 1024 * 1024


_is_loaded = False


def _cipher(key: bytes) -> "AESGCM":
    """Return the cipher of a key; raises `MemoryError` where there is no memory for the first one.

    OpenSSL 4.0 ends the process there: when an allocation fails in a thread that has had no error
    yet, `CRYPTO_malloc` calls `ERR_new`, which allocates the thread's state with `CRYPTO_malloc`,
    and so on until the stack is used up.
    """
    global _is_loaded
    if not _is_loaded:
        # Loaded here: commands that seal nothing start without it.
        from dragoman.service import reserve

        reserve(_FIRST_CIPHER_BYTES)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(key)
    _is_loaded = True
    return cipher


class CannotOpen(StoreUnavailable):
    """What is sealed cannot be opened: its key is missing, or it was changed."""


def key_id(key: bytes) -> bytes:
    """Return the id of a key: it tells keys apart and nothing about them."""
    return hmac.digest(key, b"dragoman key id", hashlib.sha256)[:_ID_BYTES]


def new_key() -> bytes:
    """Return a key."""
    return os.urandom(SEALING_KEY_BYTES)


class Vault:
    """Seals and opens. The first key is the one to seal with, the others are older ones."""

    def __init__(
        self, keys: Iterable[bytes] = (), *, file: Path | None = None, is_shared: bool = False
    ) -> None:
        """`is_shared`: each machine that serves from the store has a copy of the file."""
        self._file = file
        self._is_shared = is_shared
        # Whole: the code of an agent may change the current folder.
        self._path = file.absolute() if file is not None else None
        self._keys = {key_id(key): key for key in keys}

    def __repr__(self) -> str:
        return f"Vault(file={str(self._file) if self._file else None!r}, keys='***')"

    @property
    def file(self) -> Path | None:
        """Where the keys are; None: they were given."""
        return self._file

    @property
    def ids(self) -> list[bytes]:
        """The ids of the keys at hand, the one to seal with first."""
        return list(self._keys)

    @property
    def keys(self) -> list[bytes]:
        """The keys at hand, the one to seal with first."""
        return list(self._keys.values())

    def ready(self, used: Sequence[bytes]) -> bytes:
        """Return the id of the key to begin with, given the keys a store is sealed with already.

        A store without any gets a key file. Raises `ConfigError` if a key is missing.
        """
        if self._path is not None:
            self.reload()
            if not self._keys and not used:
                make_key_file(self._path)
                self.reload()
        missing = [one.hex() for one in used if one not in self._keys]
        if missing or not self._keys:
            raise ConfigError(self._refusal(missing))
        return self.ids[0]

    def reload(self) -> None:
        """Read the file again, if that is where keys are; keys it had before are kept."""
        if self._path is not None:
            found = {key_id(key): key for key in read_key_file(self._path)}
            self._keys = found | {id: key for id, key in self._keys.items() if id not in found}

    def add(self) -> bytes:
        """Put a new key before those in the file; return its id. Not for keys that were given."""
        assert self._path is not None, "only a file can be written"
        write_key_file(self._path, [new_key(), *read_key_file(self._path)])
        self.reload()
        return self.ids[0]

    def set_aside_others(self, key: bytes) -> list[Path]:
        """Leave one key in the file, and put each of the others into a file of its own: backups
        need it. Those that were read still open what they sealed."""
        assert self._path is not None, "only a file can be written"
        aside: list[Path] = []
        for one in read_key_file(self._path):
            if (id := key_id(one)) != key:
                aside.append(private_files.beside(self._path, _OLD + id.hex()))
                write_key_file(aside[-1], [one])
        write_key_file(self._path, [self._keys[key]])
        return aside

    def trouble(self, used: Sequence[bytes]) -> str:
        """Say what would keep the next process from opening what these keys sealed; empty:
        nothing."""
        if self._path is None:
            return ""
        try:
            found = {key_id(key) for key in read_key_file(self._path)}
        except ConfigError as error:
            return str(error)
        missing = [one.hex() for one in used if one not in found]
        if not missing:
            return ""
        what = f"has no longer key {missing[0]}" if found else "is gone"
        return (
            f"{self._file}: the key file of the store {what}; put it back before this server ends, "
            "or the next one cannot start"
        )

    def seal(self, plain: bytes, context: bytes, key: bytes) -> bytes:
        """Return a value sealed under the key of an id, to be opened in the same context only."""
        nonce = os.urandom(_NONCE_BYTES)
        head = _MARK + key + nonce
        return head + _cipher(self._key(key)).encrypt(nonce, plain, head + context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Return what was sealed in this context; raises `CannotOpen`."""
        if len(sealed) < _HEAD_BYTES or not sealed.startswith(_MARK):
            raise CannotOpen("a stored secret is damaged")
        head = sealed[:_HEAD_BYTES]
        cipher = _cipher(self._key(head[len(_MARK) : -_NONCE_BYTES]))
        from cryptography.exceptions import InvalidTag

        try:
            body = sealed[_HEAD_BYTES:]
            return cipher.decrypt(head[-_NONCE_BYTES:], body, head + context)
        except InvalidTag:
            raise CannotOpen("a stored secret is damaged, or of another place") from None

    def _key(self, id: bytes) -> bytes:
        if id not in self._keys:
            self.reload()
        if id not in self._keys:
            raise CannotOpen(self._refusal([id.hex()]))
        return self._keys[id]

    def _refusal(self, missing: Sequence[str]) -> str:
        named = f"the store is sealed with key {missing[0]}" if missing else "there is no key"
        if self._file is not None:
            if missing and (old := old_key_files(self._file).get(missing[0])):
                old, file = shlex.quote(str(old)), shlex.quote(str(self._file))
                return f"{named}, which was replaced; for a backup: cat {old} >> {file}"
            put = "put the key file of this store there"
            if self._is_shared:
                put = (
                    f"copy the key file of this store from a machine that serves it to {self._file}"
                )
            return (
                f"{named}, which is not in {self._file}: {put}, or name it by "
                "DRAGOMAN_STORE_KEY_FILE"
            )
        return (
            f"{named}, which DRAGOMAN_STORE_KEY does not have: add it after the present one, "
            "separated by a comma"
        )


def vault_of(settings: Settings) -> Vault:
    """Return the vault of the settings' store: its keys as given, else in a file beside it."""
    if keys := settings.stores.sealing_keys:
        if settings.stores.sealing_key_file:
            raise refusal("store_key", keys, "is given beside store_key_file; unset one of them")
        return Vault(read_sealing_keys(keys))
    if settings.stores.sealing_key_file:
        file = Path(settings.stores.sealing_key_file).expanduser()
    else:
        file = settings.beside_store(".key")
    return Vault(file=file, is_shared=settings.is_postgres)


def key_file_of(store: Path) -> Path:
    """Return where the keys of a store are, unless it is told."""
    return store.with_name(f"{store.name}.key")


def read_key_file(path: Path) -> list[bytes]:
    """Return the keys of a file; none if there is no file."""
    try:
        text = path.read_text(encoding="ascii")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no key file"
        raise ConfigError(f"{path}: {reason}") from None
    private_files.check_mode(path, mode)
    try:
        keys = read_sealing_keys(text.split(","))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not keys:
        raise ConfigError(f"{path}: has no key; put the key file of this store there")
    return keys


def make_key_file(path: Path) -> None:
    """Make a file with a key, unless another process made one at the same moment."""
    with _writing(path):
        draft = private_files.write_draft(path, f".{os.urandom(4).hex()}.new", _lines([new_key()]))
        try:
            # Unlike a rename, a link never replaces a file that is there.
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:
            # No links on this file system. The store lets one process at a time come here.
            if not path.exists():
                draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        private_files.sync_folder(path.parent)


def write_key_file(path: Path, keys: Sequence[bytes]) -> None:
    """Put keys in place of those in a file, whole or not at all. One process at a time."""
    with _writing(path):
        private_files.replace(path, _lines(keys))


def old_key_files(path: Path) -> dict[str, Path]:
    """Return the files of keys that were in a key file once, by their ids."""
    import glob

    shape = glob.escape(path.name + _OLD) + "[0-9a-f]" * (2 * _ID_BYTES)
    return {one.name.rpartition("-")[2]: one for one in sorted(path.parent.glob(shape))}


def _lines(keys: Sequence[bytes]) -> bytes:
    return b"".join(base64.b64encode(key) + b"\n" for key in keys)


@contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: the key file cannot be written: {error.strerror}") from None
