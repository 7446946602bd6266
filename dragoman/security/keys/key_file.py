"""Changes to the file of API keys: each one whole or not at all, and one after the other.

Who changes it holds a lock, so that two commands at a time lose nothing.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.errors import ConfigError
from dragoman.security import private_files
from dragoman.security.keys.api_keys import (
    ApiKeyRecord,
    KeyFile,
    decode_keys,
    hash_of,
    new_id,
    new_text,
)


def read_keys(path: Path) -> list[ApiKeyRecord]:
    """Return the keys of a file, in the order they were made; none if there is no file."""
    try:
        return decode_keys(path, path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


class IssuedKey(NamedTuple):
    """A key and its text."""

    record: ApiKeyRecord
    text: str

    def __repr__(self) -> str:
        return f"IssuedKey(record={self.record!r}, text='***')"


class RotatedKey(NamedTuple):
    """A key that ends, the one that follows it, and the text of that one."""

    before: ApiKeyRecord
    record: ApiKeyRecord
    text: str

    def __repr__(self) -> str:
        return f"RotatedKey(before={self.before!r}, record={self.record!r}, text='***')"


def create(
    path: Path,
    owner: str,
    *,
    scopes: list[str],
    tenant: str | None,
    lifetime: timedelta | None,
) -> IssuedKey:
    """Make a key; its text is nowhere else."""
    with _changing(path) as keys:
        made = _new_key(owner, scopes, tenant, lifetime, {one.id for one in keys})
        keys.append(made.record)
    return made


def revoke(path: Path, id: str) -> ApiKeyRecord:
    """End a key at once; return it. One that was revoked before stays as it was."""
    with _changing(path) as keys:
        place = _place(keys, id, path)
        if keys[place].revoked_at is None:
            keys[place] = replace(keys[place], revoked_at=_now())
        return keys[place]


def rotate(path: Path, id: str, *, overlap: timedelta, lifetime: timedelta | None) -> RotatedKey:
    """Make a key with the rights of another, which ends after a while."""
    with _changing(path) as keys:
        place = _place(keys, id, path)
        before = keys[place]
        check_rotation(before, lifetime)
        if lifetime is None and before.expires_at is not None:
            # As long as it was given: a successor without an end would be more than it had.
            lifetime = before.expires_at - before.created_at
        known = {one.id for one in keys}
        key, text = _new_key(before.owner, before.scopes, before.tenant, lifetime, known)
        ends_at = _now() + overlap
        if before.expires_at is not None:
            ends_at = min(ends_at, before.expires_at)
        before = keys[place] = replace(before, expires_at=ends_at, followed_by=key.id)
        keys.append(key)
    return RotatedKey(before, key, text)


def find(path: Path, id: str) -> ApiKeyRecord:
    """Return a key by its id; raises `ConfigError` if there is none."""
    keys = read_keys(path)
    return keys[_place(keys, id, path)]


def check_rotation(key: ApiKeyRecord, lifetime: timedelta | None = None) -> None:
    """Refuse to give a key a successor that was taken from its holder, that has one, or that would
    be good for longer than it was."""
    if key.agent:
        raise ConfigError(
            f"{key.id} is the key of an agent, and no server takes it; its owner makes another at "
            "the gateway: POST /api/v1/agents/ID/api-keys"
        )
    if key.revoked_at is not None:
        raise ConfigError(f"{key.id} is revoked; dragoman keys create makes another for its owner")
    if key.followed_by:
        raise ConfigError(f"{key.id} was rotated before; rotate its successor {key.followed_by}")
    if lifetime is not None and key.expires_at is not None:
        longest = key.expires_at - key.created_at
        if lifetime > longest:
            raise ConfigError(
                f"{key.id} was made for {longest}, and its successor is for no longer; "
                "dragoman keys create makes another key"
            )


def _place(keys: list[ApiKeyRecord], id: str, path: Path) -> int:
    for place, key in enumerate(keys):
        if key.id == id:
            return place
    raise ConfigError(
        f"{path}: there is no key {id}; dragoman keys list shows those there are",
        remedy="dragoman keys list",
    )


def _new_key(
    owner: str,
    scopes: list[str],
    tenant: str | None,
    lifetime: timedelta | None,
    known: set[str],
) -> IssuedKey:
    while (id := new_id()) in known:
        pass
    text = new_text(id)
    now = _now()
    key = ApiKeyRecord(
        id=id,
        owner=owner,
        hash=hash_of(text).hex(),
        scopes=sorted(set(scopes)),
        tenant=tenant,
        created_at=now,
        expires_at=now + lifetime if lifetime is not None else None,
    )
    return IssuedKey(key, text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@contextmanager
def _changing(path: Path) -> Generator[list[ApiKeyRecord]]:
    """Hold the file, and write what became of its keys unless something goes wrong."""
    # The file itself, if this is a link to it: the link stays.
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            keys = read_keys(path)
            before = list(keys)
            yield keys
            if keys != before:
                body = msgspec.json.encode(KeyFile(keys))
                private_files.replace(path, msgspec.json.format(body, indent=2))
    except OSError as error:
        name = error.filename or path
        raise ConfigError(f"{name}: cannot be written ({error.strerror})") from None


@contextmanager
def _locked(path: Path) -> Generator[None]:
    # A file of its own: the key file is another one after each change.
    file = private_files.open_private(private_files.beside(path, ".lock"))
    try:
        private_files.hand_over(file, path)
        private_files.lock(file)
        yield
    finally:
        os.close(file)
