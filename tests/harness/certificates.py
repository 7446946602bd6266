"""Authorities that make certificates and lists of revoked ones, good and bad."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
DAY = timedelta(days=1)
# This machine, as a name in a certificate.
LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))
_PEM = serialization.Encoding.PEM
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Files(NamedTuple):
    """A certificate and its key, on disk."""

    certificate: Path
    key: Path


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
        path = folder / f"{name}.pem"
        path.write_bytes(self.pem + self._key_pem())
        return path

    def save_files(self, folder: Path, name: str, password: str = "") -> Files:
        """Write certificate and key to a file each; the key may take a password."""
        files = Files(folder / f"{name}.pem", folder / f"{name}.key")
        files.certificate.write_bytes(self.pem)
        files.key.write_bytes(self._key_pem(password))
        return files

    def _key_pem(self, password: str = "") -> bytes:
        how = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, how)


class Authority(Issued):
    """Signs what a test asks for. Its own certificate may serve and call too, by these names."""

    def __init__(self, name: str = "Test CA", *names: x509.GeneralName) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            _begin(_called(name), _called(name), key.public_key(), -DAY, 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            # Python 3.13 wants it said what the key is for.
            .add_extension(_SIGNS, critical=True)
            .add_extension(own, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        super().__init__(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        *names: x509.GeneralName,
        common_name: str = "caller",
        uses: Sequence[x509.ObjectIdentifier] = (CLIENT,),
        since: timedelta = -DAY,
        until: timedelta = DAY,
    ) -> Issued:
        """Make a certificate; its times are relative to now."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        issuer = self.certificate.subject
        builder = _begin(_called(common_name), issuer, key.public_key(), since, until)
        builder = builder.add_extension(signer, critical=False)
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


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: timedelta,
    until: timedelta,
) -> x509.CertificateBuilder:
    now, number = datetime.now(UTC), x509.random_serial_number()
    return x509.CertificateBuilder(issuer, subject, key, number, now + since, now + until)


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
