"""Proxies in front of us: whose word counts, and how they hand over the certificate of a caller.

A header is believed because of the address it comes from, and only the one header that the
operator named: a proxy that sets one may pass on whatever callers write into another.
"""

import base64
import binascii
import ipaddress
import re
from urllib.parse import unquote_to_bytes

from dragoman.errors import ConfigError
from dragoman.security.authentication import MAX_CREDENTIAL_BYTES, Refused

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_RFC_9440 = "client-cert"
_ENVOY = "x-forwarded-client-cert"
# A pair of Envoy's, whose value is in quotes if it has a separator in it; and what follows it: a
# comma before the next element, a semicolon before the next pair.
_PAIR = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^",;]*)(, *(?=.)|;(?=.)|\Z)')
_PEM = re.compile(rb"\s*-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*")


class Proxies:
    """Networks, and the header in which proxies there hand over a certificate."""

    def __init__(self, networks: str = "", header: str = "") -> None:
        self._networks = [_network(text.strip()) for text in networks.split(",") if text.strip()]
        self.header = header.lower()
        if not header:
            return
        if not _HEADER.fullmatch(header):
            raise ConfigError(f"proxy_cert_header: {header!r} is no header; write X-Client-Cert")
        if not self._networks:
            raise ConfigError(
                "proxy_cert_header: anybody could send it; name the proxies by DRAGOMAN_PROXIES"
            )

    def __contains__(self, address: str) -> bool:
        """Tell whether a connection comes from one of them."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def certificate(self, value: bytes) -> bytes | None:
        """Return the certificate (DER) in the header's value; None: the caller showed none."""
        if not value.strip():
            return None
        if len(value) > MAX_CREDENTIAL_BYTES:
            raise Refused("the certificate is too long")
        if self.header == _RFC_9440:
            return _between_colons(value.strip())
        if self.header == _ENVOY:
            value = _of_envoy(value.decode("latin-1"))
        return _of_pem(unquote_to_bytes(value))


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"proxies: {error}; write 10.0.0.5 or 10.0.0.0/24") from None


def _between_colons(value: bytes) -> bytes:
    if len(value) < 3 or value[:1] != b":" or value[-1:] != b":":
        raise Refused("not a certificate as RFC 9440 has it")
    return _decoded(value[1:-1])


def _of_envoy(value: str) -> bytes:
    """Return the certificate of the last element: the one our own proxy added.

    Those before are what it was told by others.
    """
    certificates: list[str] = []
    place = 0
    while place < len(value):
        pair = _PAIR.match(value, place)
        if pair is None:
            raise Refused("not a certificate as Envoy has it")
        if pair[1].lower() == "cert":
            certificates.append(pair[2].strip('"'))
        if pair[3].startswith(","):
            certificates.clear()
        place = pair.end()
    if len(certificates) != 1:
        raise Refused("the proxy hands over no certificate; have Envoy set `cert: true`")
    return certificates[0].encode("latin-1")


def _of_pem(text: bytes) -> bytes:
    """Return the one certificate of a PEM."""
    found = _PEM.fullmatch(text)
    if found is None:
        raise Refused("not a certificate in a URL-encoded PEM")
    return _decoded(b"".join(found[1].split()))


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("not a certificate: its base64 is broken") from None
