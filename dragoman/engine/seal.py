"""Page tokens: a place in a list, sealed. Only the same query of its owner can continue from it,
and its holder cannot read how many tasks others have."""

import asyncio
import base64
import binascii
import hashlib
import importlib
import os

import msgspec

from dragoman.errors import InvalidParams
from dragoman.model.identity import Scope
from dragoman.model.operations import ListTasks
from dragoman.model.record import encode

_NONCE_BYTES = 12
_MAX_LENGTH = 256


_is_loaded = False


async def load_cipher() -> None:
    """Load what tokens are sealed with in a thread, once: that takes a while."""
    global _is_loaded
    if not _is_loaded:
        name = "cryptography.hazmat.primitives.ciphers.aead"
        await asyncio.to_thread(importlib.import_module, name)
        _is_loaded = True


def seal(place: tuple[int, int], secret: bytes, scope: Scope, query: ListTasks) -> str:
    """Return a token for a place in the list a query describes."""
    return seal_place(place, secret, _list_of(scope, query))


def unseal(token: str, secret: bytes, scope: Scope, query: ListTasks) -> tuple[int, int]:
    """Return the place; raises `InvalidParams` for any token that is not of this very list."""
    return unseal_place(token, secret, _list_of(scope, query))


def seal_place(place: tuple[int, int], secret: bytes, bound: bytes) -> str:
    """Return a token for a place in the list that `bound` stands for."""
    # Loaded when a list first goes on: that is seldom.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_key(secret)).encrypt(nonce, encode(place), bound)
    return base64.urlsafe_b64encode(nonce + sealed).decode()


def unseal_place(token: str, secret: bytes, bound: bytes) -> tuple[int, int]:
    """Return the place; raises `InvalidParams` for any token that is not of this very list."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        if len(token) > _MAX_LENGTH:
            raise ValueError
        given = base64.b64decode(token, altchars=b"-_", validate=True)
        nonce, sealed = given[:_NONCE_BYTES], given[_NONCE_BYTES:]
        place = AESGCM(_key(secret)).decrypt(nonce, sealed, bound)
        return msgspec.json.decode(place, type=tuple[int, int])
    except (ValueError, binascii.Error, InvalidTag, msgspec.MsgspecError):
        raise InvalidParams(
            "is not a token of this list; start again without it", field="pageToken"
        ) from None


def _list_of(scope: Scope, query: ListTasks) -> bytes:
    """Return what tells one list of tasks from another: whose it is, and what is asked for."""
    state = query.state.value if query.state is not None else ""
    filters = [query.context_id, state, query.status_since]
    return encode([scope.agent, scope.tenant, scope.owner, filters])


def _key(secret: bytes) -> bytes:
    return hashlib.sha256(b"page token " + secret).digest()
