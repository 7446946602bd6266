"""Authorities that make certificates and lists of revoked ones, good and bad."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
DAY = timedelta(days=1)
_PEM = serialization.Encoding.PEM


class Issued:
    """A certificate and its key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self.key = key

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)

    def save(self, folder: Path, name: str) -> Path:
        """Write certificate and key to one file."""
        plain = serialization.NoEncryption()
        key = self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain)
        path = folder / f"{name}.pem"
        path.write_bytes(self.pem + key)
        return path


class Authority(Issued):
    """Signs what it is told to."""

    def __init__(self, name: str = "Test CA") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_called(name))
            .issuer_name(_called(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        )
        super().__init__(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        *names: x509.GeneralName,
        common_name: str = "somebody",
        uses: Sequence[x509.ObjectIdentifier] = (CLIENT,),
        since: timedelta = -DAY,
        until: timedelta = DAY,
    ) -> Issued:
        """Make a certificate; its times are relative to now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_called(common_name))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + since)
            .not_valid_after(now + until)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return Issued(builder.sign(self.key, hashes.SHA256()), key)

    def revoke(
        self, *issued: Issued, until: timedelta = DAY, extension: Any = None
    ) -> x509.CertificateRevocationList:
        """Make a list of revoked certificates."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - 2 * DAY)
            .next_update(now + until)
        )
        for one in issued:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(one.certificate.serial_number)
                .revocation_date(now - DAY)
                .build()
            )
        if extension is not None:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(self.key, hashes.SHA256())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def pem(crl: x509.CertificateRevocationList) -> bytes:
    return crl.public_bytes(_PEM)


def uri(text: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(text)


def dns(text: str) -> x509.GeneralName:
    return x509.DNSName(text)


def mail(text: str) -> x509.GeneralName:
    return x509.RFC822Name(text)
