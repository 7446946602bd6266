"""The ways callers prove who they are, as the settings name them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.config import Settings, refusal, value_of
from dragoman.errors import ConfigError
from dragoman.security.authentication import Authenticator, Gatekeeper


def gatekeeper(settings: Settings, given: Sequence[Authenticator] = ()) -> Gatekeeper | None:
    """Return what authenticates callers; None: they are not authenticated.

    Authenticators given in code come before those that the settings name.
    """
    found = [*given, *(_BUILD[way](settings) for way in settings.ways())]
    names = [one.name for one in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"auth: two ways go by one name: {', '.join(names)}")
    return Gatekeeper(found) if found else None


def unused(settings: Settings) -> list[str]:
    """Return a warning for each credential that is set and checked by no authenticator."""
    chosen = {*settings.ways()}
    return [
        f"{name} is set but has no effect: --auth does not name {' or '.join(ways)}"
        for name, ways in _NEEDS.items()
        if value_of(settings, name) and chosen.isdisjoint(ways)
    ]


def _bearer(settings: Settings) -> Authenticator:
    from dragoman.security.bearer_tokens import BearerTokens

    return BearerTokens(settings.security.auth_token, file=_path(settings.security.auth_tokens))


def _api_key(settings: Settings) -> Authenticator:
    from dragoman.security.keys.api_keys import ApiKeys

    header, in_bearer = settings.security.api_key_header, settings.server.openai
    return ApiKeys(settings.keys_path(), header=header, in_bearer=in_bearer)


def _jwt(settings: Settings) -> Authenticator:
    keys = settings.security.jwt_keys
    if not keys and not settings.security.jwt_secret:
        reason = (
            "jwt needs the issuer's keys: --jwt-keys, or DRAGOMAN_JWT_SECRET; --auth oidc finds "
            "them by --jwt-issuer"
        )
        raise refusal("auth", settings.security.auth, reason)
    # Such a token is a bearer token, and that is the scheme's name unless another kind of bearer
    # token is served as well.
    name = "jwt" if "bearer" in settings.ways() else "bearer"
    is_url = keys.startswith(("https://", "http://"))
    url, file = (keys, "") if is_url else ("", keys)
    return _of_issuer(settings, name, url, file, settings.security.jwt_secret.encode())


def _oidc(settings: Settings) -> Authenticator:
    return _of_issuer(settings, "oidc")


def _of_issuer(
    settings: Settings, name: str, url: str = "", file: str = "", secret: bytes = b""
) -> Authenticator:
    from dragoman.security.jwt.authenticator import JwtAuthenticator

    return JwtAuthenticator(
        name=name,
        issuer=settings.security.jwt_issuer,
        audience=settings.security.jwt_audience,
        jwks_url=url,
        key_file=file,
        secret=secret,
        algorithms=settings.security.jwt_algorithms,
        leeway=settings.security.jwt_leeway,
        owner_claim=settings.security.jwt_owner_claim,
        tenant_claim=settings.security.jwt_tenant_claim,
        token_type=settings.security.jwt_type,
        token_url=settings.security.oauth_token_url,
        authorization_url=settings.security.oauth_authorization_url,
        device_url=settings.security.oauth_device_url,
        scopes={scope: scope for scope in settings.security.oauth_scopes},
        allow_private=settings.egress.allow_private,
    )


def _mtls(settings: Settings) -> Authenticator:
    from dragoman.security.certificates import ClientCertificates

    if not settings.http.client_ca and not (
        settings.http.proxies and settings.http.proxy_cert_header
    ):
        reason = (
            "mtls needs --client-ca, or the proxies that check certificates for us "
            "(DRAGOMAN_PROXIES, DRAGOMAN_PROXY_CERT_HEADER)"
        )
        raise refusal("auth", settings.security.auth, reason)
    return ClientCertificates(
        authorities=_path(settings.http.client_ca),
        crl=_path(settings.http.client_crl),
        proxies=settings.http.proxies,
        proxy_header=settings.http.proxy_cert_header,
    )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


_NEEDS = {
    "auth_token": ("bearer",),
    "auth_tokens": ("bearer",),
    "keys": ("api-key",),
    "jwt_issuer": ("jwt", "oidc"),
    "jwt_keys": ("jwt",),
    "jwt_secret": ("jwt",),
    "oidc_client_id": ("oidc",),
}
_BUILD: dict[str, Callable[[Settings], Authenticator]] = {
    "bearer": _bearer,
    "api-key": _api_key,
    "jwt": _jwt,
    "oidc": _oidc,
    "mtls": _mtls,
}
