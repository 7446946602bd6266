"""The settings of authentication, posts and dialled addresses."""

from functools import partial
from typing import Annotated

import msgspec

from dragoman.config.formats import (
    each,
    read_algorithm,
    read_choices,
    read_claim,
    read_jwt_secret,
    read_key_header,
    read_push_secret,
    read_token,
    read_token_type,
    read_web_address,
    unless_empty,
)
from dragoman.config.group import SettingsGroup, about
from dragoman.config.hosts import read_allowed

# How callers may authenticate.
WAYS = ("bearer", "api-key", "jwt", "oidc", "mtls")


class SecuritySettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How callers authenticate, and what is logged as audit."""

    auth: Annotated[
        list[str],
        about(
            "How callers authenticate: `bearer` (tokens), `api-key`, `jwt`, `oidc`, `mtls`; a "
            "caller needs one of those "
            "listed. `none`: they do not. Empty: `bearer` if there are "
            "tokens, `mtls` if there is a `client_ca`, else `none`.",
            check=partial(read_choices, known=WAYS, alone="none"),
        ),
    ] = msgspec.field(default_factory=list[str])
    auth_token: Annotated[
        str,
        about(
            "A bearer token of at least 16 characters.",
            check=unless_empty(read_token),
        ),
    ] = ""
    auth_tokens: Annotated[
        str,
        about(
            "A file (TOML) of bearer tokens, one table for each holder: `token`, and optionally "
            "`scopes` and `tenant`. Read again when it changes. If the file is missing, "
            "every caller is refused; if it cannot be parsed, its earlier content stays valid."
        ),
    ] = ""
    api_keys: Annotated[
        str,
        about(
            "The file of API keys, which `dragoman keys` writes. Empty: `keys.json` in the user's "
            "data folder. Read again when it changes, as `auth_tokens` is.",
            name="keys",
        ),
    ] = ""
    api_key_header: Annotated[
        str, about("The header that carries an API key.", check=read_key_header)
    ] = "X-API-Key"
    jwt_issuer: Annotated[
        str,
        about(
            "The issuer of tokens (`iss`), character for character. `oidc` finds its keys there."
        ),
    ] = ""
    jwt_audience: Annotated[
        list[str], about("The audience of tokens (`aud`): one of these names.")
    ] = msgspec.field(default_factory=list[str])
    jwt_keys: Annotated[
        str, about("The issuer's public keys: the URL or the file of a JWKS, or a file in PEM.")
    ] = ""
    jwt_secret: Annotated[
        str,
        about(
            "A secret shared with the issuer, of at least 32 bytes, for tokens signed by HMAC.",
            check=unless_empty(read_jwt_secret),
        ),
    ] = ""
    jwt_algorithms: Annotated[
        list[str],
        about(
            "Algorithms a token may be signed with. Empty: those that fit the keys: RS, PS, ES and "
            "EdDSA for public keys, HS for a secret.",
            check=each(read_algorithm),
        ),
    ] = msgspec.field(default_factory=list[str])
    jwt_leeway: Annotated[
        float, about("Seconds that the issuer's clock may be off.", ge=0, le=600)
    ] = 60.0
    jwt_type: Annotated[
        str,
        about(
            "The `typ` that a token must have: `at+jwt` (RFC 9068). Empty: `at+jwt`, `JWT` or none "
            "at all.",
            check=read_token_type,
        ),
    ] = ""
    jwt_owner_claim: Annotated[
        str, about("The claim that names the owner of a caller's tasks.", check=read_claim)
    ] = "sub"
    jwt_tenant_claim: Annotated[
        str, about("The claim that names the caller's tenant. Empty: tokens name none.")
    ] = ""
    oidc_client_id: Annotated[
        str,
        about(
            "The client at the issuer for people who sign in to the console, by authorization code "
            "with PKCE. Its redirect path is `/console/login/callback`. Empty: people paste a "
            "token."
        ),
    ] = ""
    oidc_client_secret: Annotated[
        str, about("The secret of that client. Empty: it is a public client.")
    ] = ""
    oidc_scopes: Annotated[
        list[str], about("Scopes to request when people sign in, in addition to `openid`.")
    ] = msgspec.field(default_factory=list[str])
    oauth_token_url: Annotated[
        str,
        about(
            "Where callers get tokens, for the card, which then offers OAuth 2.",
            check=unless_empty(read_web_address),
        ),
    ] = ""
    oauth_authorization_url: Annotated[
        str,
        about(
            "Where people log in for tokens by authorization code, for the card.",
            check=unless_empty(read_web_address),
        ),
    ] = ""
    oauth_device_url: Annotated[
        str,
        about("Where devices ask for tokens, for the card.", check=unless_empty(read_web_address)),
    ] = ""
    oauth_scopes: Annotated[list[str], about("Scopes of the issuer, for the card.")] = (
        msgspec.field(default_factory=list[str])
    )
    audit: Annotated[
        str,
        about(
            "The file of the audit log, or `off`. Empty: the file beside the store that has its "
            "name and `.audit.jsonl`; none for `memory:`."
        ),
    ] = ""


class PushSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Posts of events to receivers."""

    enabled: Annotated[
        bool, about("Whether callers may have a task's events posted to them.", name="push")
    ] = True
    secrets: Annotated[
        list[str],
        about(
            "Secrets that sign push notifications, as `whsec_` texts; several while "
            "they are replaced. Empty: the secret in the store, which `dragoman push secret` "
            "prints.",
            name="push_secret",
            check=each(read_push_secret),
        ),
    ] = msgspec.field(default_factory=list[str])
    tokens: Annotated[
        bool,
        about(
            "Whether posts also carry a signed JWT, whose keys are at `/.well-known/jwks.json`. "
            "Needs the extra `jwt`.",
            name="push_tokens",
        ),
    ] = False
    timeout: Annotated[
        float, about("Seconds that a receiver has to accept a post.", name="push_timeout", gt=0)
    ] = 15.0
    slots: Annotated[int, about("Posts under way at once.", name="push_slots", ge=1)] = 256


class EgressSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which addresses may be dialled."""

    allow: Annotated[
        list[str],
        about(
            "Private addresses that may be called: hosts, `host:port` or networks.",
            check=each(read_allowed),
        ),
    ] = msgspec.field(default_factory=list[str])
    allow_private: Annotated[
        bool,
        about(
            "Whether any private address may be called, including loopback, and without TLS. For "
            "development."
        ),
    ] = False
