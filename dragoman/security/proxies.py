"""Proxies in front of us: whose word counts, and what they tell of a caller: its address and its
certificate.

A header is believed because of the address it comes from, and only the one header that the
operator named: a proxy that sets one may pass on whatever callers write into another.
"""

import base64
import binascii
import ipaddress
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import unquote_to_bytes

from dragoman.config import refusal
from dragoman.config.formats import read_header, read_network
from dragoman.errors import ConfigError
from dragoman.model.patterns import late_pattern
from dragoman.security.authentication import MAX_CREDENTIAL_BYTES, CredentialRefused

_RFC_9440 = "client-cert"
_ENVOY = "x-forwarded-client-cert"
# A pair of Envoy's, and the semicolon before the next one. A comma would begin another element;
# Envoy puts the names in a caller's certificate there without quotes, so it may be the caller's.
_PAIR = late_pattern(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^",;]*)(?:;(?=.)|\Z)')
_PEM = late_pattern(
    rb"\s*-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*"
)


class Proxies:
    """Networks, and the header in which proxies there hand over a certificate."""

    def __init__(self, networks: Sequence[str] = (), header: str = "") -> None:
        self.header = header.lower()
        try:
            self._networks = [read_network(text) for text in networks]
            if header:
                read_header(header)
        except ValueError as error:
            raise ConfigError(f"proxies: {error}") from None
        if header and not self._networks:
            raise refusal(
                "proxy_cert_header",
                header,
                "anybody could send it; name the proxies by DRAGOMAN_PROXIES",
            )

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        """Tell whether a connection comes from one of them."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def origin(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return who is at the other end: if it is one of them, whom that one saw.

        Hops are believed from the nearest on, for as long as each is one of them.
        """
        if not self._networks or peer not in self:
            return peer
        values = [value for name, value in headers if name == b"x-forwarded-for"]
        nearest = peer
        for hop in reversed(b",".join(values).decode("latin-1").split(",")):
            address = _bare(hop.strip())
            if address is None:
                return nearest
            nearest = address
            if address not in self:
                return address
        return nearest

    def certificate(self, value: bytes) -> bytes | None:
        """Return the certificate (DER) in the header's value; None: the caller showed none."""
        if not value.strip():
            return None
        if len(value) > MAX_CREDENTIAL_BYTES:
            raise CredentialRefused("the certificate is too long")
        if self.header == _RFC_9440:
            return _between_colons(value.strip())
        if self.header == _ENVOY:
            return _of_envoy(value.decode("latin-1"))
        return _of_pem(unquote_to_bytes(value))


def _bare(hop: str) -> str | None:
    """Return the address of a hop, which may have a port; None for what is none."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None


def _between_colons(value: bytes) -> bytes:
    if len(value) < 3 or value[:1] != b":" or value[-1:] != b":":
        raise CredentialRefused("not a certificate as RFC 9440 has it")
    return _decoded(value[1:-1])


def _of_envoy(value: str) -> bytes:
    """Return the certificate in the one element there may be: that of the proxy in front of us."""
    certificates: list[str] = []
    digests: list[str] = []
    place = 0
    while place < len(value):
        pair = _PAIR.match(value, place)
        if pair is None:
            raise CredentialRefused(
                "not one certificate as Envoy has it; have it SANITIZE_SET the header"
            )
        name = pair[1].lower()
        if name == "cert":
            certificates.append(pair[2])
        elif name == "hash":
            digests.append(pair[2].strip('"').lower())
        place = pair.end()
    # Envoy quotes it always; without quotes it is part of a name.
    if len(certificates) != 1 or not certificates[0].startswith('"'):
        raise CredentialRefused("the proxy hands over no certificate; have Envoy set `cert: true`")
    found = _of_pem(unquote_to_bytes(certificates[0][1:-1].encode("latin-1")))
    # Written before anything that a caller has a say in.
    if digests and digests[0] != sha256(found).hexdigest():
        raise CredentialRefused("the certificate is not the one whose hash the proxy tells")
    return found


def _of_pem(text: bytes) -> bytes:
    """Return the one certificate of a PEM."""
    found = _PEM.fullmatch(text)
    if found is None:
        raise CredentialRefused("not a certificate in a URL-encoded PEM")
    return _decoded(b"".join(found[1].split()))


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CredentialRefused("not a certificate: its base64 is broken") from None
