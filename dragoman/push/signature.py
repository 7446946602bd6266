"""The signature of Standard Webhooks: HMAC-SHA256 over id, time and the bytes that are sent.

A post carries one signature per secret, so that a secret can be exchanged while receivers still
have the one before. The asymmetric scheme of the specification (`v1a`) is not offered; receivers
that want one get a token (`push.token`).
"""

import base64
import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256

from dragoman.config import refusal
from dragoman.config.formats import PUSH_SECRET_PREFIX, read_push_secret

_VERSION = "v1"
# What a header may hold before we stop looking: each one costs a comparison.
_MAX_SIGNATURES = 20


def decode_secret(text: str) -> bytes:
    """Return the bytes of a secret; raises `ConfigError`, which never says the secret."""
    try:
        return read_push_secret(text)
    except ValueError as error:
        raise refusal("push_secret", text, str(error)) from None


def encode_secret(secret: bytes) -> str:
    """Return a secret as people pass it on."""
    return PUSH_SECRET_PREFIX + base64.b64encode(secret).decode()


def secrets_of(configured: Sequence[str], store_secret: bytes) -> list[bytes]:
    """Return the secrets a sender signs with: the configured ones, else one made from the store's
    own, which is the same after every restart and in every process."""
    given = [read_push_secret(text) for text in configured]
    return given or [hmac.digest(store_secret, b"push", "sha256")]


def sign(secrets: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: a signature with each secret."""
    return " ".join(f"{_VERSION},{_digest(s, id, str(timestamp), body)}" for s in secrets)


def is_signed(secrets: Sequence[bytes], signatures: str, id: str, at: str, body: bytes) -> bool:
    """Tell whether any signature is by any of the secrets. How long it takes says nothing about
    how much of a signature was right."""
    expected = [_digest(secret, id, at, body).encode() for secret in secrets]
    found = False
    for signature in signatures.split(" ")[:_MAX_SIGNATURES]:
        version, _, value = signature.partition(",")
        given = value.encode("utf-8", "surrogatepass")
        for digest in expected:
            is_same = hmac.compare_digest(digest, given)
            found |= is_same and version == _VERSION
    return found


def _digest(secret: bytes, id: str, at: str, body: bytes) -> str:
    signed = b"%b.%b.%b" % (id.encode("utf-8", "surrogatepass"), at.encode(), body)
    return base64.b64encode(hmac.new(secret, signed, sha256).digest()).decode()
