"""The ways callers prove who they are, as the settings name them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.security.authentication import Authenticator, Gatekeeper


def gatekeeper(settings: Settings, given: Sequence[Authenticator] = ()) -> Gatekeeper | None:
    """Return who lets callers in; None: nobody is asked who they are.

    What is given in code comes before what the settings name.
    """
    found = [*given, *(_BUILD[way](settings) for way in settings.ways())]
    names = [one.name for one in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"auth: two ways go by one name: {', '.join(names)}")
    return Gatekeeper(found) if found else None


def unused(settings: Settings) -> list[str]:
    """Return a warning for each setting that would let callers in, were its way one of them."""
    chosen = {*settings.ways()}
    return [
        f"{name} is set and lets nobody in: --auth does not name {' or '.join(ways)}"
        for name, ways in _NEEDS.items()
        if getattr(settings, name) and chosen.isdisjoint(ways)
    ]


def _bearer(settings: Settings) -> Authenticator:
    from dragoman.security.tokens import BearerTokens

    return BearerTokens(settings.auth_token, file=_path(settings.auth_tokens))


def _api_key(settings: Settings) -> Authenticator:
    from dragoman.security.api_keys import ApiKeys

    return ApiKeys(settings.keys_path(), header=settings.api_key_header)


def _jwt(settings: Settings) -> Authenticator:
    keys = settings.jwt_keys
    if not keys and not settings.jwt_secret:
        raise ConfigError(
            "auth = jwt needs the issuer's keys: --jwt-keys, or DRAGOMAN_JWT_SECRET; "
            "--auth oidc finds them by --jwt-issuer"
        )
    # What callers have to bring is a bearer's token, and that is what the scheme is called unless
    # there are tokens of another kind as well.
    name = "jwt" if "bearer" in settings.ways() else "bearer"
    is_url = keys.startswith(("https://", "http://"))
    url, file = (keys, "") if is_url else ("", keys)
    return _of_issuer(settings, name, url, file, settings.jwt_secret.encode())


def _oidc(settings: Settings) -> Authenticator:
    return _of_issuer(settings, "oidc")


def _of_issuer(
    settings: Settings, name: str, url: str = "", file: str = "", secret: bytes = b""
) -> Authenticator:
    from dragoman.security.jwt import JwtAuthenticator

    return JwtAuthenticator(
        name=name,
        issuer=settings.jwt_issuer,
        audience=_words(settings.jwt_audience),
        jwks_url=url,
        key_file=file,
        secret=secret,
        algorithms=_words(settings.jwt_algorithms),
        leeway=settings.jwt_leeway,
        owner_claim=settings.jwt_owner_claim,
        tenant_claim=settings.jwt_tenant_claim,
        token_type=settings.jwt_type,
        token_url=settings.oauth_token_url,
        authorization_url=settings.oauth_authorization_url,
        device_url=settings.oauth_device_url,
        scopes={scope: scope for scope in _words(settings.oauth_scopes)},
        allow_private=settings.allow_private,
    )


def _mtls(settings: Settings) -> Authenticator:
    from dragoman.security.certificates import ClientCertificates

    if not settings.client_ca and not (settings.proxies and settings.proxy_cert_header):
        raise ConfigError(
            "auth = mtls needs --client-ca, or the proxies that check certificates for us "
            "(DRAGOMAN_PROXIES, DRAGOMAN_PROXY_CERT_HEADER)"
        )
    return ClientCertificates(
        authorities=_path(settings.client_ca),
        crl=_path(settings.client_crl),
        proxies=settings.proxies,
        proxy_header=settings.proxy_cert_header,
    )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


_NEEDS = {
    "auth_token": ("bearer",),
    "auth_tokens": ("bearer",),
    "keys": ("api-key",),
    "jwt_issuer": ("jwt", "oidc"),
    "jwt_keys": ("jwt",),
    "jwt_secret": ("jwt",),
}
_BUILD: dict[str, Callable[[Settings], Authenticator]] = {
    "bearer": _bearer,
    "api-key": _api_key,
    "jwt": _jwt,
    "oidc": _oidc,
    "mtls": _mtls,
}
