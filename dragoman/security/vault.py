"""Secrets at rest: AES-256-GCM under keys that have ids, so that keys can change while we serve.

Keys come from a setting, or from a file that is made where there is none. What is sealed names its
key; a key that is not at hand is looked for in the file once more, since another process may have
put it there. The cipher is loaded when something is sealed or opened, and not before.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.config import Settings
from dragoman.errors import ConfigError, StoreUnavailable

KEY_BYTES = 32
_NONCE_BYTES = 12
# No JSON text begins so: what is sealed is never taken for what is not.
_MARK = b"\x01"
_ID_BYTES = 8
_HEAD_BYTES = len(_MARK) + _ID_BYTES + _NONCE_BYTES
_OPENLY_READABLE = 0o077
_TOO_MANY = 100


class CannotOpen(StoreUnavailable):
    """What is sealed cannot be opened: its key is missing, or it was changed."""


def key_id(key: bytes) -> bytes:
    """Return the id of a key: it tells keys apart and nothing about them."""
    return hmac.digest(key, b"dragoman key id", hashlib.sha256)[:_ID_BYTES]


def new_key() -> bytes:
    """Return a key."""
    return secrets.token_bytes(KEY_BYTES)


class Vault:
    """Seals and opens. The first key is the one to seal with, the others are older ones."""

    def __init__(self, keys: Iterable[bytes] = (), *, file: Path | None = None) -> None:
        self._file = file
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

    def ready(self, used: Sequence[bytes]) -> bytes:
        """Return the id of the key to begin with, given the keys a store is sealed with already.

        A store without any gets a key file. Raises `ConfigError` if a key is missing.
        """
        if self._file is not None:
            self.reload()
            if not self._keys and not used:
                make_key_file(self._file)
                self.reload()
        missing = [one.hex() for one in used if one not in self._keys]
        if missing or not self._keys:
            raise ConfigError(self._refusal(missing))
        return self.ids[0]

    def reload(self) -> None:
        """Read the file again, if that is where keys are; keys it had before are kept."""
        if self._file is not None:
            found = {key_id(key): key for key in read_key_file(self._file)}
            self._keys = found | {id: key for id, key in self._keys.items() if id not in found}

    def add(self) -> bytes:
        """Put a new key before those in the file; return its id. Not for keys that were given."""
        assert self._file is not None, "only a file can be written"
        write_key_file(self._file, [new_key(), *read_key_file(self._file)])
        self.reload()
        return self.ids[0]

    def drop_others(self, key: bytes) -> None:
        """Leave one key in the file. Those that were read from it still open what they sealed."""
        assert self._file is not None, "only a file can be written"
        write_key_file(self._file, [self._keys[key]])

    def seal(self, plain: bytes, context: bytes, key: bytes) -> bytes:
        """Return a value sealed under the key of an id, to be opened in the same context only."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        head = _MARK + key + nonce
        return head + AESGCM(self._key(key)).encrypt(nonce, plain, head + context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Return what was sealed in this context; raises `CannotOpen`."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(sealed) < _HEAD_BYTES or not sealed.startswith(_MARK):
            raise CannotOpen("a stored secret is damaged")
        head = sealed[:_HEAD_BYTES]
        key = self._key(head[len(_MARK) : -_NONCE_BYTES])
        try:
            body = sealed[_HEAD_BYTES:]
            return AESGCM(key).decrypt(head[-_NONCE_BYTES:], body, head + context)
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
            return (
                f"{named}, which is not in {self._file}: put the key file of this store there, or "
                "name it by DRAGOMAN_STORE_KEY_FILE"
            )
        return (
            f"{named}, which DRAGOMAN_STORE_KEY does not have: add it after the present one, "
            "separated by a comma"
        )


def vault_of(settings: Settings) -> Vault:
    """Return the vault of the settings' store: its keys as given, else in a file beside it."""
    if settings.store_key:
        if settings.store_key_file:
            raise ConfigError("store_key and store_key_file: give one of them")
        return Vault(parse_keys(settings.store_key, "store_key"))
    if settings.store_key_file:
        return Vault(file=Path(settings.store_key_file).expanduser())
    return Vault(file=key_file_of(settings.store_path()))


def key_file_of(store: Path) -> Path:
    """Return where the keys of a store are, unless it is told."""
    return store.with_name(f"{store.name}.key")


def parse_keys(text: str, source: str) -> list[bytes]:
    """Return the keys of a text, separated by commas or lines; raises `ConfigError`."""
    found: list[bytes] = []
    for word in text.replace(",", " ").split():
        try:
            padded = word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4)
            key = base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            # Which word it was is not said: it may be a secret all the same.
            raise ConfigError(f"{source}: a key is 32 bytes in base64: openssl rand -base64 32")
        found.append(key)
    if len(found) > _TOO_MANY:
        raise ConfigError(f"{source}: has {len(found)} keys; drop those that nothing needs")
    return found


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
    if os.name != "nt" and mode & _OPENLY_READABLE:
        raise ConfigError(f"{path}: others may read it; say chmod 600 {path}")
    keys = parse_keys(text, str(path))
    if not keys:
        raise ConfigError(f"{path}: has no key; put the key file of this store there")
    return keys


def make_key_file(path: Path) -> None:
    """Make a file with a key, unless another process made one at the same moment."""
    part = _written(path, [new_key()])
    try:
        # Unlike a rename, a link never replaces a file that is there.
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:
        # No links on this file system. The store lets one process at a time come here.
        if not path.exists():
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_key_file(path: Path, keys: Sequence[bytes]) -> None:
    """Put keys in place of those in a file, whole or not at all."""
    _written(path, keys).replace(path)
    _sync_folder(path.parent)


def _written(path: Path, keys: Sequence[bytes]) -> Path:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "wb") as target:
            target.write(b"".join(base64.b64encode(key) + b"\n" for key in keys))
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: the key file cannot be written: {error.strerror}") from None
    return part


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    if os.name == "nt":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
