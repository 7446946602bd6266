"""Keys that sign agent cards, and keys the user trusts to have signed one: as JWK or as PEM.

Keys need the extra `jwt`, which is imported where the first of them is read: a client that was
given none judges cards without it, and starts the sooner.
"""

import json
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from dragoman.errors import ConfigError

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

# Each algorithm and the curve that its keys are on; RSA has none.
ALGORITHMS: Mapping[str, str] = {
    "ES256": "P-256",
    "ES384": "P-384",
    "EdDSA": "Ed25519",
    "RS256": "",
}
SMALLEST_RSA = 2048
LARGEST_FILE = 1024 * 1024

Object = dict[str, Any]
Key: TypeAlias = "ECKey | OKPKey | RSAKey"


class _Enrolled(NamedTuple):
    key: Key
    # "" for a key that came without a name: it may answer to any.
    kid: str
    starts_at: float
    ends_at: float


class KeySet:
    """Public keys that the user trusts."""

    def __init__(self, keys: Sequence[_Enrolled]) -> None:
        self._keys = list(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __or__(self, other: "KeySet") -> "KeySet":
        return KeySet([*self._keys, *other._keys])

    @classmethod
    def load(cls, path: str | Path) -> "KeySet":
        """Return the keys of a file: a JWKS document, a JWK, or PEM; raises `ConfigError`."""
        try:
            with Path(path).expanduser().open("rb") as file:
                content = file.read(LARGEST_FILE)
        except (OSError, ValueError, RuntimeError):
            raise ConfigError(f"keys: {path} cannot be read") from None
        if b"-----BEGIN " in content:
            return cls.from_pem(content)
        try:
            return cls.decode(json.loads(content))
        except (ValueError, RecursionError):
            raise ConfigError(f"keys: {path} is neither JSON nor PEM") from None

    @classmethod
    def decode(cls, document: Any) -> "KeySet":
        """Return the keys of a JWKS document or of a single JWK; raises `ConfigError`.

        Keys that are of no use here are left out: secrets, revoked ones, unknown kinds.
        """
        check_extra()
        if not isinstance(document, dict):
            raise ConfigError("keys: a JWKS document is an object")
        fields = cast(Object, document)
        entries = fields.get("keys", [fields])
        if not isinstance(entries, list):
            raise ConfigError("keys: a JWKS document has a list of keys")
        found = [enrolled for entry in cast("list[Any]", entries) for enrolled in _from_jwk(entry)]
        if not found:
            raise ConfigError("keys: there is no key to check a signature with")
        return cls(found)

    @classmethod
    def from_pem(cls, content: bytes, kid: str = "") -> "KeySet":
        """Return the keys and the certificates' keys of PEM text; raises `ConfigError`."""
        check_extra()
        found = [
            _from_pem(b"-----BEGIN " + part, kid) for part in content.split(b"-----BEGIN ")[1:]
        ]
        if not found:
            raise ConfigError("keys: there is no key in the PEM text")
        return cls(found)

    def candidates(self, kid: str, now: float) -> Iterator[Key]:
        """Return the keys that may have signed under a name, at a time that is theirs."""
        for enrolled in self._keys:
            if enrolled.kid in (kid, "") and enrolled.starts_at <= now < enrolled.ends_at:
                yield enrolled.key


def private_key(key: "Key | bytes | str | Mapping[str, Any]") -> Key:
    """Return a private key that is given as PEM or as JWK; raises `ConfigError`."""
    check_extra()
    if isinstance(key, bytes | str | Mapping):
        given = dict(key) if isinstance(key, Mapping) else _imported_pem(key)
        found = _imported(given) if isinstance(given, dict) else given
    else:
        found = key
    if found is None or not found.is_private:
        raise ConfigError("keys: must be a private key, as PEM or JWK")
    return found


def algorithm_of(key: Key) -> str:
    """Return the algorithm that a key is for; raises `ConfigError`."""
    for algorithm in ALGORITHMS:
        if fits(key, algorithm):
            return algorithm
    raise ConfigError(
        f"keys: must be on P-256, P-384 or Ed25519, or RSA of at least {SMALLEST_RSA} bits"
    )


def fits(key: Key, algorithm: str) -> bool:
    """Tell whether a key is for an algorithm."""
    from joserfc.errors import JoseError
    from joserfc.jwk import RSAKey
    from joserfc.jws import JWSRegistry

    try:
        JWSRegistry.algorithms[algorithm].check_key(key)
    except JoseError:
        return False
    if isinstance(key, RSAKey):
        return key.public_key.key_size >= SMALLEST_RSA
    return key.curve_name == ALGORITHMS[algorithm]


def _imported(value: Object) -> "Key | None":
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

    try:
        with _no_weak_keys():
            key = import_key(cast(Any, value))
    # What a broken key raises depends on how it is broken.
    except (JoseError, ValueError, TypeError, KeyError, OverflowError, Warning):
        return None
    return key if isinstance(key, ECKey | OKPKey | RSAKey) else None


def _imported_pem(content: bytes | str) -> "Key | None":
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    for kind in (ECKey, OKPKey, RSAKey):
        try:
            with _no_weak_keys():
                return kind.import_key(content)
        except (JoseError, ValueError, TypeError, Warning):
            continue
    return None


@contextmanager
def _no_weak_keys() -> Generator[None]:
    """Make the library refuse what it would only warn of."""
    from joserfc.errors import SecurityWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", SecurityWarning)
        yield


def _from_jwk(entry: Any) -> list[_Enrolled]:
    """Return a key that signatures can be checked with, if it is one."""
    if not isinstance(entry, dict):
        return []
    fields = cast(Object, entry)
    operations = fields.get("key_ops", ["verify"])
    if fields.get("revoked") or fields.get("use", "sig") != "sig":
        return []
    if not isinstance(operations, list) or not {"verify", "sign"} & {
        name for name in cast("list[Any]", operations) if isinstance(name, str)
    }:
        return []
    kid = fields.get("kid", "")
    starts, ends = fields.get("nbf", float("-inf")), fields.get("exp", float("inf"))
    known = isinstance(kid, str) and all(isinstance(at, int | float) for at in (starts, ends))
    # The rest is ours to judge: the library would take a key's operations literally.
    bare = {name: item for name, item in fields.items() if name not in ("key_ops", "revoked")}
    key = _imported(bare) if known else None
    return [] if key is None else [_Enrolled(key, kid, starts, ends)]


def _from_pem(part: bytes, kid: str) -> _Enrolled:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    starts, ends = float("-inf"), float("inf")
    try:
        if part.startswith(b"-----BEGIN CERTIFICATE-----"):
            certificate = x509.load_pem_x509_certificate(part)
            starts = certificate.not_valid_before_utc.timestamp()
            ends = certificate.not_valid_after_utc.timestamp()
            part = certificate.public_key().public_bytes(
                Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            )
        key = _imported_pem(part)
    except (ValueError, TypeError):
        key = None
    if key is None:
        raise ConfigError("keys: the PEM text has something that is no key we know")
    return _Enrolled(key, kid, starts, ends)


def check_extra() -> None:
    """Raise `ConfigError` where the extra is not installed."""
    if any(find_spec(name) is None for name in ("joserfc", "rfc8785")):
        raise ConfigError("keys: signatures need the extra, as in `dragoman[jwt]`")
