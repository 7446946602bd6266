"""Receipts: what became of a task and what it cost, signed, to be shown to others.

A receipt is a compact JWS (RFC 7515) with a key on Ed25519 that belongs to the store; its public
half is for the gateway's JWKS document. It names the place of the settlement in the chain of the
ledger, so that the ledger cannot be rewritten behind it.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dragoman.model.clock import stamp
from dragoman.model.money import credits_text
from dragoman.security import base64url
from dragoman.stores.interface.ledger import PostedTransfer
from dragoman.stores.interface.orders import OrderRow

ALGORITHM = "EdDSA"
TYPE = "receipt+jws"


class ReceiptKey:
    """The key that belongs to a store: the same after every restart."""

    def __init__(self, store_secret: bytes) -> None:
        seed = hmac.digest(store_secret, b"ledger receipt", "sha256")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        x = base64url.encode(self._key.public_key().public_bytes_raw())
        public = {"crv": "Ed25519", "kty": "OKP", "x": x}
        # The thumbprint of RFC 7638.
        self.kid = base64url.encode(hashlib.sha256(msgspec.json.encode(public)).digest())
        self.public: dict[str, str] = {
            **public,
            "kid": self.kid,
            "use": "sig",
            "alg": ALGORITHM,
        }

    def __repr__(self) -> str:
        return f"ReceiptKey({self.kid!r})"

    def sign(self, content: Mapping[str, Any]) -> str:
        """Return the content as a compact JWS."""
        header = {"alg": ALGORITHM, "kid": self.kid, "typ": TYPE}
        parts = (msgspec.json.encode(part) for part in (header, content))
        signed = ".".join(base64url.encode(part) for part in parts)
        return f"{signed}.{base64url.encode(self._key.sign(signed.encode()))}"


def read_receipt(receipt: str, keys: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return what a receipt says, by public keys as a JWKS document has them; raises
    `ValueError` if none of them vouches for it."""
    signed, _, signature = receipt.rpartition(".")
    head, _, body = signed.partition(".")
    try:
        header = msgspec.json.decode(base64url.decode(head))
        content = msgspec.json.decode(base64url.decode(body))
        raw = base64url.decode(signature)
    except ValueError:
        raise ValueError("this is not a receipt") from None
    if not isinstance(header, dict) or not isinstance(content, dict):
        raise ValueError("this is not a receipt")
    claims = cast("dict[str, Any]", header)
    if (claims.get("alg"), claims.get("typ")) != (ALGORITHM, TYPE):
        raise ValueError("this is not a receipt")
    for key in keys:
        if key.get("crv") == "Ed25519" and key.get("kid") == claims.get("kid"):
            try:
                public = Ed25519PublicKey.from_public_bytes(base64url.decode(key["x"]))
                public.verify(raw, signed.encode())
            except (InvalidSignature, ValueError, KeyError):
                continue
            return cast("dict[str, Any]", content)
    raise ValueError("no key that is known has signed this receipt")


def receipt_content(
    order: OrderRow, settled: PostedTransfer | None, prior: bytes, issuer: str, at: int
) -> dict[str, Any]:
    """Return what a receipt says of an order that has ended."""
    assert order.state is not None, "it has ended"
    content: dict[str, Any] = {
        "iss": issuer,
        "iat": at // 1000,
        "taskId": order.task_id,
        "taskNumber": order.task,
        "agentId": order.agent,
        "requester": order.requester.text,
        "payee": order.payee.text,
        "skill": order.skill,
        "state": order.state.value,
        "beganAt": stamp(order.began_at * 1000),
        "endedAt": stamp(order.ended_at * 1000),
        "price": credits_text(order.price),
        "charged": credits_text(order.charged),
        "fee": credits_text(order.fee),
        "earning": credits_text(order.earning),
    }
    if order.escrow:
        content["escrow"] = order.escrow
    if settled is not None:
        content["ledger"] = {
            "transfer": settled.id.hex(),
            "position": settled.number,
            "prior": prior.hex(),
            "hash": settled.hash.hex(),
        }
    return content
