"""An issuer of tokens that is made by hand of `cryptography` alone, so that what it makes does not
depend on the library that reads it."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://issuer.example"
AUDIENCE = "https://agent.example"
# Far ahead, so that a door with a clock of its own finds nothing expired.
NOW = 4_000_000_000
SECRET = bytes(range(64))
# A claim or a header member with this value is left out.
ABSENT = object()

_HASHES: Mapping[str, Any] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
_CURVES: Mapping[str, tuple[Any, str, int]] = {
    "ES256": (ec.SECP256R1, "P-256", 32),
    "ES384": (ec.SECP384R1, "P-384", 48),
    "ES512": (ec.SECP521R1, "P-521", 66),
}
# The keys of the issuer by their names, each with the algorithm it signs with.
KEYS: Mapping[str, str] = {
    "rsa": "RS256",
    "rsa-2": "RS256",
    "ec": "ES256",
    "ec-384": "ES384",
    "ec-521": "ES512",
    "ed": "EdDSA",
}


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


@cache
def private(kid: str) -> Any:
    """Return a key by its name; one that begins with another's name is of its kind."""
    if kid.startswith("rsa"):
        return rsa.generate_private_key(65537, 1024 if "short" in kid else 2048)
    if kid.startswith("ed"):
        return ed25519.Ed25519PrivateKey.generate()
    name = {"ec-384": "ES384", "ec-521": "ES512"}.get(kid, "ES256")
    return ec.generate_private_key(_CURVES[name][0]())


def pem(kid: str) -> bytes:
    return private(kid).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(kid: str, /, **more: Any) -> dict[str, Any]:
    """Return the public half of a key; `kid=ABSENT` leaves its name out."""
    key = private(kid).public_key()
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        fields = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    elif isinstance(key, ed25519.Ed25519PublicKey):
        raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        fields = {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}
    else:
        _, curve, size = next(row for row in _CURVES.values() if row[0].name == key.curve.name)
        point = key.public_numbers()
        x, y = number(point.x, size), number(point.y, size)
        fields = {"kty": "EC", "crv": curve, "x": x, "y": y}
    return kept({**fields, "kid": kid, "use": "sig", **more})


def jwks(*kids: str) -> dict[str, Any]:
    return {"keys": [jwk(kid) for kid in kids or KEYS]}


def kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ABSENT}


def sign(algorithm: str, kid: str, content: bytes) -> bytes:
    """Return a signature as RFC 7518 and RFC 8037 have it."""
    if algorithm.startswith("HS"):
        return hmac.new(SECRET, content, f"sha{algorithm[2:]}").digest()
    key = private(kid)
    if algorithm in ("EdDSA", "Ed25519"):
        return key.sign(content)
    kind = _HASHES[algorithm[2:]]
    if algorithm.startswith("RS"):
        return key.sign(content, padding.PKCS1v15(), kind())
    if algorithm.startswith("PS"):
        salted = padding.PSS(padding.MGF1(kind()), kind.digest_size)
        return key.sign(content, salted, kind())
    size = _CURVES[algorithm][2]
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(kind())))
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def claims(**changes: Any) -> dict[str, Any]:
    return kept(
        {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": NOW - 10,
            "exp": NOW + 600,
            "scope": "read write",
        }
        | changes
    )


def token(
    kid: str = "ec",
    *,
    header: Mapping[str, Any] | None = None,
    payload: Any = None,
    signer: Callable[[bytes], bytes] | None = None,
    **changes: Any,
) -> str:
    """Return a token by a key; `changes` are of its claims, `payload` is instead of them."""
    algorithm = KEYS.get(kid) or ("HS256" if kid == "secret" else KEYS[kid.split("-")[0]])
    head = kept({"alg": algorithm, "typ": "JWT", "kid": kid} | dict(header or {}))
    body = claims(**changes) if payload is None else payload
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    signed = f"{b64(json.dumps(head).encode())}.{b64(text)}"
    made = signer or (lambda content: sign(head["alg"], kid, content))
    return f"{signed}.{b64(made(signed.encode()))}"


def thumbprint(certificate: bytes) -> str:
    return b64(hashlib.sha256(certificate).digest())
