"""Page tokens: a place in a list, sealed so that only its owner's same query can go on from it."""

import base64
import binascii
import hashlib
import hmac

import msgspec

from dragoman.errors import InvalidParams
from dragoman.model.identity import Scope
from dragoman.model.operations import ListTasks
from dragoman.model.record import encode

_MAC_BYTES = 16
_MAX_LENGTH = 256


def seal(place: tuple[int, int], secret: bytes, scope: Scope, query: ListTasks) -> str:
    """Return a token for a place in the list a query describes."""
    payload = encode(place)
    return base64.urlsafe_b64encode(_mac(payload, secret, scope, query) + payload).decode()


def unseal(token: str, secret: bytes, scope: Scope, query: ListTasks) -> tuple[int, int]:
    """Return the place; raises `InvalidParams` for any token that is not of this very list."""
    try:
        if len(token) > _MAX_LENGTH:
            raise ValueError
        sealed = base64.b64decode(token, altchars=b"-_", validate=True)
        mac, payload = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(payload, secret, scope, query)):
            raise ValueError
        return msgspec.json.decode(payload, type=tuple[int, int])
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidParams(
            "is not a token of this list; start again without it", field="pageToken"
        ) from None


def _mac(payload: bytes, secret: bytes, scope: Scope, query: ListTasks) -> bytes:
    state = query.state.value if query.state is not None else ""
    filters = [query.context_id, state, query.status_since]
    bound = encode([scope.agent, scope.tenant, scope.owner, filters]) + payload
    return hmac.new(secret, bound, hashlib.sha256).digest()[:_MAC_BYTES]
