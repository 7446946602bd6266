"""Client certificates: who asks is the name in the certificate that the connection was opened with.

The TLS library has checked its chain; here are its name, its purpose, its dates on every request
of a long connection, and whether it was revoked. Behind a proxy the certificate is in a header,
which counts only from the addresses of the configured proxies.
"""

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.model.message import Json
from dragoman.security.authentication import CredentialRefused, Evidence, Pass, PresentedCredential
from dragoman.security.proxies import Proxies
from dragoman.security.revocation import Revocations, name_of, read_revocations
from dragoman.security.watched_files import WatchedFile

if TYPE_CHECKING:
    # Heavy, and an extra: loaded when the first certificate is looked at.
    from cryptography.x509 import Certificate

# Kinds of names that cannot be taken for one another: only an address of an agent has a scheme,
# only one of a mailbox has an `@`.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]{1,2040}", re.ASCII)
# A wildcard identifies no caller.
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253})", re.ASCII)
_MAILBOX = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}", re.ASCII)
_SPIFFE = "spiffe://"
# What a certificate is called where something was made by it.
_CREDENTIAL = "cert:"


class ClientCertificates:
    """Knows callers by their certificates."""

    name = "mtls"
    challenge = ""

    def __init__(
        self,
        *,
        authorities: Path | None = None,
        crl: Path | None = None,
        proxies: Sequence[str] = (),
        proxy_header: str = "",
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schemes: dict[str, dict[str, Json]] = {self.name: {"mtlsSecurityScheme": {}}}
        self._proxies = Proxies(proxies, proxy_header)
        self._header = self._proxies.header.encode()
        self.reads = frozenset({self._header} if self._header else ())
        if crl and not authorities:
            raise ConfigError("client_crl: needs the authorities that sign it: --client-ca")
        self._now = now
        self._authorities = authorities
        self._trusted: list[Certificate] = []
        self._revoked: WatchedFile[Revocations] | None = None
        if crl:
            read = partial(self._read, crl)
            # It is signed: a process that may write the file cannot forge one.
            self._revoked = WatchedFile(crl, read, forbidden=0, monotonic=monotonic)

    async def start(self) -> None:
        """Read authorities and revocations; raises `ConfigError` for what cannot work."""
        from cryptography.x509 import load_pem_x509_certificates

        if self._authorities:
            try:
                self._trusted = load_pem_x509_certificates(self._authorities.read_bytes())
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"{self._authorities}: cannot be used ({reason})") from None
        if self._revoked:
            self._revoked.load()

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        """Return whom a certificate names; raises `CredentialRefused` if it does not hold."""
        is_proxied = bool(self._header) and evidence.address in self._proxies
        # The certificate of the proxy itself is not its callers'.
        der = self._handed_over(evidence) if is_proxied else evidence.certificate
        if der is None:
            return None
        from cryptography.x509 import load_der_x509_certificate

        try:
            certificate = load_der_x509_certificate(der)
            name = _name(certificate)
            _check_purpose(certificate, name)
        except ValueError:
            raise CredentialRefused("a certificate that cannot be read") from None
        if is_proxied:
            self._check_authority(certificate, name)
        now = datetime.fromtimestamp(self._now(), UTC)
        if now < certificate.not_valid_before_utc:
            raise CredentialRefused("the certificate is not valid yet", name)
        if now >= certificate.not_valid_after_utc:
            raise CredentialRefused("expired certificate", name)
        ref = name_of(certificate.issuer, certificate.serial_number)
        if problem := self._problem(ref):
            raise CredentialRefused(problem, name)
        caller = Caller(f"cert:{name}", authenticated=True)
        until = certificate.not_valid_after_utc.timestamp()
        credential = PresentedCredential(
            f"{_CREDENTIAL}{sha256(der).hexdigest()[:32]}", ref, until=until
        )
        return Pass(caller, self, until, ref, credential)

    def still_holds(self, found: Pass) -> bool:
        """Tell whether the certificate is in date and not revoked."""
        return self._now() < found.until and not self._problem(found.ref)

    def recall(self, name: str, ref: str) -> list[PresentedCredential]:
        """Return a certificate unless it was revoked; who made something by it keeps its end."""
        is_ours = name.startswith(_CREDENTIAL) and not self._problem(ref)
        return [PresentedCredential(name, ref)] if is_ours else []

    def _problem(self, ref: str) -> str:
        if self._revoked is None:
            return ""
        revocations = self._revoked.says()
        return (
            revocations.problem(ref, self._now())
            if revocations
            else "the revocation list cannot be used"
        )

    def _handed_over(self, evidence: Evidence) -> bytes | None:
        values = evidence.values(self._header)
        if len(values) > 1:
            raise CredentialRefused("two certificates from the proxy")
        return self._proxies.certificate(values[0]) if values else None

    def _check_authority(self, certificate: "Certificate", name: str) -> None:
        """Refuse what no authority of ours signed: some proxies hand over whatever was shown."""
        from cryptography.exceptions import InvalidSignature

        for one in self._trusted:
            try:
                certificate.verify_directly_issued_by(one)
                return
            except (InvalidSignature, TypeError, ValueError):
                continue
        if self._authorities:
            raise CredentialRefused("a certificate of an unknown authority", name)

    def _read(self, path: Path, body: bytes) -> Revocations:
        return read_revocations(path, body, self._trusted)


def _name(certificate: "Certificate") -> str:
    """Return whom a certificate names: an address of an agent, a host or a mailbox.

    The common name of its subject does not count: anything may stand there.
    """
    from cryptography.x509 import (
        DNSName,
        ExtensionNotFound,
        RFC822Name,
        SubjectAlternativeName,
        UniformResourceIdentifier,
    )

    subject = certificate.subject.rfc4514_string()[:256]
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        raise CredentialRefused("the certificate has a name in its subject only", subject) from None
    uris = names.get_values_for_type(UniformResourceIdentifier)
    agents = [uri for uri in uris if uri.startswith(_SPIFFE)]
    if len(agents) > 1:
        # SPIFFE: a certificate with two ids identifies no caller.
        raise CredentialRefused("the certificate has two SPIFFE names", subject)
    for shape, found in (
        (_URI, agents or uris),
        (_HOST, [host.lower() for host in names.get_values_for_type(DNSName)]),
        (_MAILBOX, names.get_values_for_type(RFC822Name)),
    ):
        if found:
            if not shape.fullmatch(found[0]):
                raise CredentialRefused("the name in the certificate identifies no caller", subject)
            return found[0]
    raise CredentialRefused("the certificate has no name of an agent, a host or a mailbox", subject)


def _check_purpose(certificate: "Certificate", name: str) -> None:
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        uses = certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return
    usages = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usages.isdisjoint(uses):
        raise CredentialRefused("the certificate is not one for clients", name)
