"""Lists of revoked certificates (CRL): what a file of them says, and whether it still counts.

A certificate that no signed list in date covers is treated as revoked.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragoman.errors import ConfigError

if TYPE_CHECKING:
    # Heavy, and an extra: loaded with the first certificate.
    from cryptography.x509 import Certificate, CertificateRevocationList, Name

_PEM = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)


class Revocations(msgspec.Struct):
    """What the lists of a file say."""

    # By authority: when its list is out of date.
    until: dict[str, float]
    # Names of certificates, as `name_of` makes them.
    revoked: set[str]

    def problem(self, name: str, now: float) -> str:
        """Return why a certificate does not count; empty: it does."""
        until = self.until.get(name.partition(":")[0])
        if until is None:
            return "no revocation list covers its authority"
        if now >= until:
            return "the revocation list is out of date"
        return "revoked certificate" if name in self.revoked else ""


def name_of(issuer: "Name", serial: int) -> str:
    """Return what a certificate is known by: its authority, and the number that one gave it."""
    return f"{sha256(issuer.public_bytes()).hexdigest()[:32]}:{serial:x}"


def read_revocations(path: Path, body: bytes, authorities: "Sequence[Certificate]") -> Revocations:
    """Return what lists in PEM or DER say; raises `ConfigError` for any that cannot be trusted."""
    from cryptography.x509 import load_der_x509_crl, load_pem_x509_crl

    found = Revocations({}, set())
    try:
        pieces = _PEM.findall(body)
        lists = [load_pem_x509_crl(one) for one in pieces] or [load_der_x509_crl(body)]
        for one in lists:
            _check(path, one, authorities)
            assert one.next_update_utc is not None
            authority = name_of(one.issuer, 0).partition(":")[0]
            until = one.next_update_utc.timestamp()
            found.until[authority] = max(until, found.until.get(authority, 0.0))
            found.revoked |= {f"{authority}:{each.serial_number:x}" for each in one}
    except ValueError as error:
        raise ConfigError(f"{path}: is no list of revoked certificates ({error})") from None
    return found


def _check(
    path: Path, one: "CertificateRevocationList", authorities: "Sequence[Certificate]"
) -> None:
    """Refuse a list that is not whole, or not by one of the authorities."""
    if one.next_update_utc is None:
        raise ConfigError(f"{path}: does not say until when it counts (nextUpdate)")
    # Such as a list of changes to another, or of some kinds of certificates only.
    if partial := [each.oid.dotted_string for each in one.extensions if each.critical]:
        raise ConfigError(f"{path}: is no complete list (extension {partial[0]})")
    signers = [each for each in authorities if each.subject == one.issuer]
    if not any(_is_signed(one, each) for each in signers):
        raise ConfigError(
            f"{path}: is not signed by any authority of client_ca; add the authority that made it "
            f"({one.issuer.rfc4514_string()})"
        )


def _is_signed(one: "CertificateRevocationList", by: "Certificate") -> bool:
    try:
        # Any kind of key: one that cannot sign raises.
        return one.is_signature_valid(by.public_key())  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return False
