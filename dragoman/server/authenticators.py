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


def _bearer(settings: Settings) -> Authenticator:
    from dragoman.security.tokens import BearerTokens

    return BearerTokens(settings.auth_token, file=_path(settings.auth_tokens))


def _api_key(settings: Settings) -> Authenticator:
    from dragoman.security.api_keys import ApiKeys

    return ApiKeys(settings.keys_path(), header=settings.api_key_header)


def _jwt(settings: Settings, *, discovers: bool = False) -> Authenticator:
    from dragoman.security.jwt import JwtAuthenticator

    keys = settings.jwt_keys
    is_url = keys.startswith(("https://", "http://"))
    if not (keys or settings.jwt_secret or discovers):
        raise ConfigError(
            "auth = jwt needs the issuer's keys: --jwt-keys, or DRAGOMAN_JWT_SECRET; "
            "--auth oidc finds them by --jwt-issuer"
        )
    return JwtAuthenticator(
        name="oidc" if discovers else "jwt",
        issuer=settings.jwt_issuer,
        audience=_words(settings.jwt_audience),
        jwks_url=keys if is_url else "",
        key_file=keys if not is_url else "",
        secret=settings.jwt_secret.encode(),
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


def _oidc(settings: Settings) -> Authenticator:
    return _jwt(settings, discovers=True)


def _mtls(settings: Settings) -> Authenticator:
    from dragoman.security.certificates import ClientCertificates

    if not settings.client_ca and not settings.proxies:
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


_BUILD: dict[str, Callable[[Settings], Authenticator]] = {
    "bearer": _bearer,
    "api-key": _api_key,
    "jwt": _jwt,
    "oidc": _oidc,
    "mtls": _mtls,
}
