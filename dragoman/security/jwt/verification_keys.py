"""Keys that signatures of tokens are checked with, and which of them a token may have meant.

Each key knows the algorithms it is for, so that what a token says about its algorithm never turns
a public key into a secret. Keys need the extra `jwt`, which is imported where one is read.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from dragoman.config.formats import check_jwt_secret
from dragoman.errors import ConfigError, ParseFailed
from dragoman.security.authentication import CredentialRefused
from dragoman.security.json_values import check_levels
from dragoman.security.jwt.form import Object, ParsedToken, claimed_subject

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

    Key: TypeAlias = ECKey | OKPKey | RSAKey | OctKey

logger = logging.getLogger("dragoman")

EXTRA = "jwt: needs the extra: pip install 'dragoman[jwt]'"
# Each algorithm with the kind and the curve of its keys.
ASYMMETRIC: Mapping[str, tuple[str, str]] = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
}
# Each with the bytes that its secret must have (RFC 7518, 3.2).
SYMMETRIC: Mapping[str, int] = {"HS256": 32, "HS384": 48, "HS512": 64}
SMALLEST_RSA = 2048
LARGEST_RSA = 8192
MOST_KEYS = 100
LONGEST_KID = 256
LARGEST_FILE = 1024 * 1024
# Members that only a private key has.
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class VerificationKey(msgspec.Struct, frozen=True):
    """A key, its name and what it is for."""

    key: "Key"
    # Empty: it came without a name.
    kid: str
    algorithms: frozenset[str]
    # The same for the same key whatever it is called.
    ref: str

    def __repr__(self) -> str:
        return f"VerificationKey({self.kid!r}, {sorted(self.algorithms)})"


class KeyRing:
    """The keys in force at one moment."""

    def __init__(self, keys: Iterable[VerificationKey] = ()) -> None:
        self._keys = tuple(keys)
        self.refs = frozenset(key.ref for key in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def key_for(self, token: ParsedToken) -> VerificationKey | None:
        """Return the one key that a token was signed with if it is genuine; None if there is none;
        raises `CredentialRefused` if it might be one of several."""
        fitting = [key for key in self._keys if token.algorithm in key.algorithms]
        if token.kid:
            named = [key for key in fitting if key.kid == token.kid]
            # A key without a name, as one from PEM is, goes by any; one with a name by its own.
            fitting = named or [key for key in fitting if not key.kid]
        if len(fitting) > 1:
            raise CredentialRefused(
                "the token might be of several keys", claimed_subject(token.claims)
            )
        return fitting[0] if fitting else None


EMPTY = KeyRing()


def holds(key: VerificationKey, token: ParsedToken) -> bool:
    """Tell whether a key made a token's signature."""
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry

    if token.algorithm not in key.algorithms:
        return False
    try:
        return JWSRegistry.algorithms[token.algorithm].verify(
            token.signed, token.signature, key.key
        )
    except (JoseError, ValueError, TypeError):
        return False


def check_extra() -> None:
    """Raise `ConfigError` unless the libraries are there; imports them, which takes a while."""
    try:
        for name in ("cryptography.x509", "joserfc.jwk", "joserfc.jws"):
            import_module(name)
    except ImportError:
        raise ConfigError(EXTRA, remedy="pip install 'dragoman[jwt]'") from None


def from_secret(secret: bytes) -> KeyRing:
    """Return the one key that a shared secret is; raises `ConfigError`."""
    check_extra()
    from joserfc.jwk import OctKey

    try:
        check_jwt_secret(secret)
    except ValueError as error:
        raise ConfigError(f"jwt: {error}") from None
    fitting = frozenset(name for name, size in SYMMETRIC.items() if len(secret) >= size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            key = OctKey.import_key(secret)
    except (ValueError, TypeError, Warning):
        # A public key as a secret is known to everybody.
        raise ConfigError("jwt: the shared secret is a key of another kind") from None
    # Not a hash of the secret alone: that could be guessed at.
    return KeyRing([VerificationKey(key, "", fitting, "secret")])


def from_file(content: bytes) -> KeyRing:
    """Return the keys of a file, a JWKS document or PEM; raises `ConfigError`."""
    check_extra()
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"a file of keys has at most {LARGEST_FILE} bytes")
    if b"-----BEGIN " in content:
        return KeyRing(
            _from_pem(b"-----BEGIN " + part) for part in content.split(b"-----BEGIN ")[1:]
        )
    try:
        ring = from_jwks(content)
    except ValueError as error:
        raise ConfigError(f"neither a JWKS nor PEM: {error}") from None
    if not ring:
        raise ConfigError("has no public key that a signature can be of")
    return ring


def from_jwks(content: bytes) -> KeyRing:
    """Return the keys of a JWKS document; raises `ValueError` for what is none.

    Keys that are of no use here are left out: secrets and private keys, which every reader of
    the document knows, short ones, unknown kinds, those for other purposes.
    """
    try:
        check_levels(content)
    except ParseFailed:
        raise ValueError("it is nested too deep") from None
    document = json.loads(content)
    entries = cast(Object, document).get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of keys")
    found = cast("list[Any]", entries)
    if len(found) > MOST_KEYS:
        raise ValueError(f"it has more than {MOST_KEYS} keys")
    keys = [key for entry in found if (key := _from_jwk(entry)) is not None]
    if len(keys) < len(found):
        logger.debug("jwt: %d keys of the set are of no use here", len(found) - len(keys))
    return KeyRing(keys)


def _from_jwk(entry: Any) -> VerificationKey | None:
    from joserfc.jwk import import_key

    if not isinstance(entry, dict):
        return None
    fields = cast(Object, entry)
    kid, algorithm = fields.get("kid", ""), fields.get("alg", "")
    if _PRIVATE & fields.keys():
        logger.warning("jwt: the key set has a secret in it, which is not used")
        return None
    if not isinstance(kid, str) or len(kid) > LONGEST_KID or not isinstance(algorithm, str):
        return None
    if fields.get("use", "sig") != "sig" or not _verifies(fields.get("key_ops", ["verify"])):
        return None
    # Only what makes up the key: the library would follow its other members in ways of its own.
    bare = {name: fields[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in fields}
    key = _imported(lambda: import_key(cast(Any, bare)))
    return None if key is None else _enrolled(key, kid, algorithm)


def _verifies(operations: object) -> bool:
    return isinstance(operations, list) and "verify" in cast("list[Any]", operations)


def _from_pem(part: bytes) -> VerificationKey:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    if b"PRIVATE KEY-----" in part.split(b"\n", 1)[0]:
        raise ConfigError("has a private key; give the public one, and move that")
    if part.startswith(b"-----BEGIN CERTIFICATE-----"):
        try:
            certificate = x509.load_pem_x509_certificate(part)
        except ValueError:
            raise ConfigError("has a certificate that cannot be read") from None
        spki = PublicFormat.SubjectPublicKeyInfo
        part = certificate.public_key().public_bytes(Encoding.PEM, spki)
    kinds: Sequence[Any] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        key = _imported(lambda kind=kind: kind.import_key(part))
        enrolled = None if key is None else _enrolled(key, "", "")
        if enrolled is not None:
            return enrolled
    raise ConfigError(
        f"has a key of no use: give RSA of {SMALLEST_RSA} bits or more, P-256, "
        "P-384, P-521 or Ed25519"
    )


def _imported(reads: "Callable[[], Key]") -> "Key | None":
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # What the library would only warn of, short keys above all, is refused.
            warnings.simplefilter("error")
            return reads()
    # What a broken key raises depends on how it is broken.
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError, Warning):
        return None


def _enrolled(key: "Key", kid: str, algorithm: str) -> VerificationKey | None:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    curve = ""
    if isinstance(key, RSAKey):
        if not SMALLEST_RSA <= key.public_key.key_size <= LARGEST_RSA:
            return None
        kind = "RSA"
    elif isinstance(key, ECKey):
        kind, curve = "EC", key.curve_name
    elif isinstance(key, OKPKey):
        kind, curve = "OKP", key.curve_name
    else:
        return None
    fitting = {name for name, of in ASYMMETRIC.items() if of == (kind, curve)}
    if algorithm:
        # EdDSA on this curve has two names.
        same = {"EdDSA", "Ed25519"}
        fitting &= same if algorithm in same else {algorithm}
    if not fitting:
        return None
    return VerificationKey(key, kid, frozenset(fitting), key.thumbprint())
