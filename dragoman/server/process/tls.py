"""TLS of the server, checked before it listens: a mistake in the settings ends the start."""

import ssl

from dragoman.config import Settings
from dragoman.errors import ConfigError


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return how TLS is spoken, None without a certificate; raises `ConfigError` for files that
    cannot be used."""
    if settings.http.client_crl and "mtls" not in settings.ways():
        # The authenticator reads the list again when it changes. Inside the TLS library, a list
        # that is out of date would lock out every caller until a restart.
        raise ConfigError("client_crl: revoked certificates are checked only by --auth mtls")
    if not settings.http.tls_cert:
        # Behind a proxy that speaks TLS, the authorities check the certificates it passes on.
        is_alone = not settings.http.proxy_cert_header
        if settings.http.tls_key or (settings.http.client_ca and is_alone):
            raise ConfigError(
                "a key or the authorities of callers need a certificate: --tls-cert",
                remedy="--tls-cert <path>",
            )
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            settings.http.tls_cert, settings.http.tls_key or None, password=_no_password
        )
        if settings.http.client_ca:
            context.load_verify_locations(settings.http.client_ca)
    except (OSError, ValueError) as error:
        names = ", ".join(
            filter(None, (settings.http.tls_cert, settings.http.tls_key, settings.http.client_ca))
        )
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{names}: cannot be used for TLS ({reason})") from None
    context.verify_mode = _asks_for(settings)
    # Whatever the machine's defaults are.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # HTTP/2 is here for gRPC alone, whose clients offer nothing else: whatever offers both, as
    # browsers do, gets HTTP/1.1.
    context.set_alpn_protocols(["http/1.1", "h2"])
    return context


def _asks_for(settings: Settings) -> ssl.VerifyMode:
    """Return whether callers must show a certificate when they connect."""
    if not settings.http.client_ca:
        return ssl.CERT_NONE
    # A certificate that is shown must be valid; without one there may be another authenticator.
    has_others = {*settings.ways()} > {"mtls"} or settings.http.proxy_cert_header
    return ssl.CERT_OPTIONAL if has_others else ssl.CERT_REQUIRED


def _no_password() -> str:
    """Refuse: the library that reads keys must not prompt."""
    raise ValueError("the key is encrypted")
