"""A token beside the signature, for receivers that trust keys they can fetch rather than a shared
secret: a JWT that names the task and the receiver, signed with a key of our JWKS document.

Needs the extra `jwt`; imported only where the option is on.
"""

import hmac
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

ALGORITHM = "ES256"
# As long as a receiver accepts the time of the post itself.
VALID_FOR = 300
# How many keys P-256 has, less the one that is zero.
_KEYS = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551 - 1


class Tokens:
    """Makes the tokens of one issuer; the first key signs, all of them are published."""

    def __init__(self, issuer: str, keys: Sequence[ECKey]) -> None:
        self._issuer = issuer
        self._keys = keys

    def token(self, *, id: str, url: str, task_id: str, now: int) -> str:
        """Return the token of a post, at a time in seconds. Its id is that of the post, so that
        a repeated one is known by it; the audience is the address without what may be secret."""
        key = self._keys[0]
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        claims = {
            "iss": self._issuer,
            "aud": urlunsplit((parts.scheme, host, parts.path, "", "")),
            "iat": now,
            "exp": now + VALID_FOR,
            "jti": id,
            "taskId": task_id,
        }
        return jwt.encode({"alg": ALGORITHM, "kid": key.kid}, claims, key)

    def document(self) -> dict[str, Any]:
        """Return the JWKS document: the public halves, for `/.well-known/jwks.json`."""
        return cast("dict[str, Any]", KeySet(list(self._keys)).as_dict(private=False))


def key_from(store_secret: bytes) -> ECKey:
    """Return the key that belongs to a store: the same after every restart."""
    seed = hmac.digest(store_secret, b"push token", "sha512")
    # Twice as many bits as needed, so that no key is noticeably likelier than another.
    number = int.from_bytes(seed) % _KEYS + 1
    key = ECKey.import_key(ec.derive_private_key(number, ec.SECP256R1()))
    values = key.as_dict(private=True, kid=key.thumbprint(), use="sig", alg=ALGORITHM)
    return ECKey.import_key(values)
