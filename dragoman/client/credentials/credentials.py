"""What an agent asks for, and what the user has to prove who calls.

A card's security is read into `Scheme`s; `choose` finds the first requirement that the given
`Credential`s satisfy. Where they may go is in `origins`, OAuth in `oauth`, and what an earlier
login left in `logins`.
"""

import base64
import hashlib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec

from dragoman.client.credentials.origins import Origins
from dragoman.client.http import Http
from dragoman.dialects.reading import members
from dragoman.errors import ConfigError, CredentialsMissing
from dragoman.model.card import AgentCard
from dragoman.model.push import hidden, is_scheme, is_sendable

Kind = Literal["bearer", "basic", "apiKey", "oauth2", "openIdConnect", "mtls", "http"]

# What RFC 6265 lets the value of a cookie be.
_COOKIE = re.compile(r"[!#-+\--:<-\[\]-~]*", re.ASCII)
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)
# The name of a scheme in WWW-Authenticate: at the start or after a comma, and no parameter.
_CHALLENGE = re.compile(r"(?:^|,)\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?=\s+[^\s=,]|\s*,|\s*$)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


class OAuthFlow(msgspec.Struct, frozen=True):
    """The addresses of one OAuth flow, as the card has them; empty where it has none."""

    token_url: str = ""
    device_url: str = ""
    refresh_url: str = ""
    # What the card says each scope is for.
    scopes: dict[str, str] = {}


class Scheme(msgspec.Struct, frozen=True):
    """One way to authenticate that a card declares."""

    name: str
    kind: Kind
    # Of an API key: what it is called, and whether it goes in a header, the query or a cookie.
    key_name: str = ""
    location: str = ""
    # Of HTTP authentication, in lower case: bearer, basic, digest.
    http_scheme: str = ""
    # Of OAuth, by the names the card gives them: clientCredentials, deviceCode.
    flows: dict[str, OAuthFlow] = {}
    # Where the issuer describes itself: OpenID Connect's document, or that of RFC 8414.
    discovery_url: str = ""
    # Those the chosen requirement asks for; empty in what `schemes` returns.
    scopes: tuple[str, ...] = ()


@dataclass(slots=True, repr=False)
class Attached:
    """What credentials add to one request."""

    # Where the request goes.
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    query: dict[str, str] = field(default_factory=dict[str, str])
    cookies: dict[str, str] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:
        return f"Attached({sorted([*self.headers, *self.query, *self.cookies])})"

    def onto(self, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return the address and the headers of a request that had these headers before.

        Names of headers come back in lower case; what a credential says of one counts.
        """
        merged = {name.lower(): value for name, value in headers.items()}
        merged |= {name.lower(): value for name, value in self.headers.items()}
        if self.cookies:
            ours = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            merged["cookie"] = f"{merged['cookie']}; {ours}" if merged.get("cookie") else ours
        url = self.url
        for name, value in self.query.items():
            joint = "&" if "?" in url else "?"
            url += f"{joint}{quote(name, safe='')}={quote(value, safe='')}"
        return url, merged


class Credential(Protocol):
    """Something that proves who calls. Derive from it: all but two have an answer already."""

    def fits(self, scheme: Scheme) -> bool:
        """Say whether it serves a scheme."""
        ...

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        """Add it to a request, after getting a token if it takes one.

        The address of the request was checked. Any other address that something secret goes to,
        such as one the scheme names, is for `origins` to check.
        """
        ...

    def serves(self, url: str) -> bool:
        """Say whether it is for the agent at an address."""
        return True

    def refused(self) -> bool:
        """Hear that the agent answered 401; say whether one more try is worth it."""
        return False

    @property
    def identity(self) -> str:
        """What tells it from others in the key of a cache, and does not give it away."""
        return ""

    @property
    def is_stored(self) -> bool:
        """Whether it is left from an earlier login: what the user gives by hand comes first."""
        return False


@dataclass(frozen=True, slots=True, repr=False)
class Bearer(Credential):
    """A token that was got elsewhere."""

    token: str
    # Only for the scheme of this name; empty: for any that fits.
    scheme: str = ""

    def __post_init__(self) -> None:
        if self.token[:7].lower() == "bearer ":
            raise ConfigError("the bearer token is given without the word Bearer before it")
        if not _VISIBLE.fullmatch(self.token):
            raise ConfigError("the bearer token is empty, or has a space or a control in it")

    def __repr__(self) -> str:
        return f"Bearer(token={hidden(self.token)}, scheme={self.scheme!r})"

    def fits(self, scheme: Scheme) -> bool:
        """It is what OAuth and OpenID Connect end in as well."""
        return takes_bearer(scheme) and self.scheme in ("", scheme.name)

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        to.headers["authorization"] = f"Bearer {self.token}"

    @property
    def identity(self) -> str:
        return fingerprint("bearer", self.token)


@dataclass(frozen=True, slots=True, repr=False)
class ApiKey(Credential):
    """A key; the card says what it is called and where it goes."""

    key: str
    # Only for the scheme of this name; empty: for any that fits.
    scheme: str = ""

    def __post_init__(self) -> None:
        if not self.key or self.key != self.key.strip() or not is_sendable(self.key):
            raise ConfigError("the API key is empty, or has a control or a space around it")

    def __repr__(self) -> str:
        return f"ApiKey(key={hidden(self.key)}, scheme={self.scheme!r})"

    def fits(self, scheme: Scheme) -> bool:
        return scheme.kind == "apiKey" and self.scheme in ("", scheme.name)

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        match scheme.location:
            case "query":
                to.query[scheme.key_name] = self.key
            case "cookie":
                if not _COOKIE.fullmatch(self.key):
                    raise CredentialsMissing(
                        "The agent wants the API key in a cookie, and it has a character that no "
                        "cookie can have",
                        schemes=scheme.name,
                    )
                to.cookies[scheme.key_name] = self.key
            case _:
                to.headers[scheme.key_name.lower()] = self.key

    @property
    def identity(self) -> str:
        return fingerprint("apiKey", self.key)


@dataclass(frozen=True, slots=True, repr=False)
class Basic(Credential):
    """A name and a password."""

    username: str
    password: str
    scheme: str = ""

    def __post_init__(self) -> None:
        if ":" in self.username or not is_sendable(self.username + self.password):
            raise ConfigError("the user name has a colon, or it or the password a control")

    def __repr__(self) -> str:
        return f"Basic(username={self.username!r}, password={hidden(self.password)})"

    def fits(self, scheme: Scheme) -> bool:
        return scheme.kind == "basic" and self.scheme in ("", scheme.name)

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        to.headers["authorization"] = f"Basic {pair}"

    @property
    def identity(self) -> str:
        return fingerprint("basic", self.username, self.password)


@dataclass(frozen=True, slots=True, repr=False)
class ClientCertificate(Credential):
    """A certificate that TLS shows on request; nothing is added to a request.

    Without a path, the certificate is in a context the user made, and this only says so.
    """

    certificate: str | Path = ""
    key: str | Path = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"ClientCertificate(certificate={str(self.certificate)!r})"

    def fits(self, scheme: Scheme) -> bool:
        return scheme.kind == "mtls"

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        pass

    def context(self, ca: str | Path = "") -> ssl.SSLContext:
        """Return a context for `tls`; raises `ConfigError` for files that are of no use."""
        try:
            context = ssl.create_default_context(cafile=str(ca) or None)
        except OSError as error:
            raise ConfigError(f"the CA certificates cannot be read: {_reason(error)}") from None
        if self.certificate:
            try:
                # A password of its own, so that OpenSSL never asks at the terminal for one.
                context.load_cert_chain(
                    self.certificate, self.key or None, password=lambda: self.password
                )
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"the client certificate or its key cannot be read: {_reason(error)}"
                ) from None
        return context

    @property
    def identity(self) -> str:
        if not self.certificate:
            return fingerprint("mtls")
        try:
            return fingerprint("mtls", Path(self.certificate).read_bytes().hex())
        except OSError as error:
            raise ConfigError(f"the client certificate cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not what TLS expects"
    return error.strerror or "" if isinstance(error, OSError) else "the password does not fit"


def takes_bearer(scheme: Scheme) -> bool:
    """Say whether a scheme wants `Authorization: Bearer` in the end."""
    return scheme.kind in ("bearer", "oauth2", "openIdConnect")


def fingerprint(*parts: str) -> str:
    """Return a hash of secrets: slow enough that a password is not guessed from it in passing."""
    # Lengths keep two lists of parts from being one text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"dragoman identity", 10_000).hex()[:32]


def schemes(card: AgentCard) -> dict[str, Scheme]:
    """Return the schemes a card declares; one we cannot read is left out."""
    found = ((name, _scheme(name, value)) for name, value in card.security_schemes.items())
    return {name: scheme for name, scheme in found if scheme is not None}


def requirements(card: AgentCard) -> list[dict[str, tuple[str, ...]]]:
    """Return the alternatives of a card: names of schemes, all of them needed, with their scopes.

    One that cannot be read is left out: it is not to pass for one that asks for nothing.
    """
    found = (_alternative(requirement) for requirement in card.security_requirements)
    return [wanted for wanted in found if wanted is not None]


def _scheme(name: str, value: Any) -> Scheme | None:
    for member, inner in members(value).items():
        facts = members(inner)
        match member:
            case "apiKeySecurityScheme":
                return _api_key(name, text_of(facts, "name"), text_of(facts, "location").lower())
            case "httpAuthSecurityScheme":
                return _http_scheme(name, text_of(facts, "scheme"))
            case "oauth2SecurityScheme":
                flows = members(facts.get("flows"))
                return Scheme(
                    name,
                    "oauth2",
                    flows={key: _flow(members(flow)) for key, flow in flows.items()},
                    discovery_url=text_of(facts, "oauth2MetadataUrl"),
                )
            case "openIdConnectSecurityScheme":
                return Scheme(
                    name, "openIdConnect", discovery_url=text_of(facts, "openIdConnectUrl")
                )
            case "mtlsSecurityScheme":
                return Scheme(name, "mtls")
            case _:
                continue
    return None


def _api_key(name: str, key_name: str, location: str) -> Scheme | None:
    """Return a scheme, or None where the name would be more than a name in its place."""
    fits = is_sendable(key_name) if location == "query" else is_scheme(key_name)
    if not key_name or not fits or location not in ("header", "query", "cookie"):
        return None
    return Scheme(name, "apiKey", key_name=key_name, location=location)


def _http_scheme(name: str, scheme: str) -> Scheme | None:
    lower = scheme.lower()
    if not is_scheme(lower):
        return None
    kind: Kind = "bearer" if lower == "bearer" else "basic" if lower == "basic" else "http"
    return Scheme(name, kind, http_scheme=lower)


def _flow(facts: dict[str, Any]) -> OAuthFlow:
    return OAuthFlow(
        token_url=text_of(facts, "tokenUrl"),
        device_url=text_of(facts, "deviceAuthorizationUrl"),
        refresh_url=text_of(facts, "refreshUrl"),
        scopes={name: str(text) for name, text in members(facts.get("scopes")).items()},
    )


def text_of(facts: Mapping[str, Any], name: str) -> str:
    """Return a member that is a text; empty: it is none."""
    value = facts.get(name)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class ChosenCredential:
    """Which credential serves which scheme, and which ones go nowhere."""

    attached: tuple[tuple[Scheme, Credential], ...] = ()
    # Given by hand, yet no part of it: a person should hear of these.
    unused: tuple[Credential, ...] = ()

    async def attach(self, url: str, http: Http, origins: Origins) -> Attached:
        """Return what a request to a URL carries; raises `CredentialsMissing` at a stranger's."""
        to = Attached(url)
        if self.attached:
            origins.check(url)
        for scheme, credential in self.attached:
            await credential.attach(scheme, to, http, origins)
        return to

    def refused(self) -> bool:
        """Tell every credential of a 401; say whether one more try is worth it."""
        # A list, not a generator: each of them has to hear it.
        return any([credential.refused() for _, credential in self.attached])

    @property
    def identity(self) -> str:
        """Whom the agent takes us for, as a key; empty when it is not told."""
        return "-".join(sorted(credential.identity for _, credential in self.attached))


def choose(card: AgentCard, credentials: Sequence[Credential], url: str = "") -> ChosenCredential:
    """Return how the first requirement that can be met is met, for requests to an address.

    What is given by hand is tried alone before what an earlier login left. A requirement of
    nothing is met by nothing, and counts only if no other is met. A card that declares schemes and
    requires none gets each credential it has a scheme for. Raises `CredentialsMissing`.
    """
    known = schemes(card)
    alternatives = requirements(card)
    serving = [credential for credential in credentials if not url or credential.serves(url)]
    given = [credential for credential in serving if not credential.is_stored]
    for pool in (given, serving):
        for wanted in alternatives:
            pairs = _served(wanted, known, pool)
            if pairs:
                return _matching_credentials(pairs, given)
        if not card.security_requirements and (pairs := _offered(known, pool)):
            return _matching_credentials(pairs, given)
    if not card.security_requirements or {} in alternatives:
        return _matching_credentials([], given)
    raise _missing_credentials(alternatives, known)


def challenged(header: str, credentials: Sequence[Credential]) -> ChosenCredential:
    """Return what answers a `WWW-Authenticate`, which names schemes where no card does yet."""
    named = dict.fromkeys(
        name.lower() for name in _CHALLENGE.findall(_QUOTED.sub("quoted", header))
    )
    for name in named:
        scheme = _http_scheme(name, name)
        for credential in credentials:
            if scheme is not None and credential.fits(scheme):
                return _matching_credentials([(scheme, credential)], credentials)
    return ChosenCredential(unused=tuple(credentials))


def _alternative(requirement: Any) -> dict[str, tuple[str, ...]] | None:
    """Return the names and scopes of one alternative, or None if it cannot be read."""
    named = members(requirement).get("schemes", {} if requirement == {} else None)
    if not isinstance(named, dict):
        return None
    scopes = {name: members(item).get("list", []) for name, item in members(named).items()}
    if not all(isinstance(listed, list) for listed in scopes.values()):
        return None
    return {name: tuple(str(scope) for scope in listed) for name, listed in scopes.items()}


Pairs = list[tuple[Scheme, Credential]]


def _served(
    wanted: Mapping[str, tuple[str, ...]],
    known: Mapping[str, Scheme],
    credentials: Sequence[Credential],
) -> Pairs | None:
    """Return a credential for each scheme of an alternative, or None when one has none."""
    pairs: Pairs = []
    for name, scopes in wanted.items():
        if name not in known:
            return None
        scheme = msgspec.structs.replace(known[name], scopes=scopes)
        fitting = next((item for item in credentials if item.fits(scheme)), None)
        if fitting is None:
            return None
        pairs.append((scheme, fitting))
    return pairs


def _offered(known: Mapping[str, Scheme], credentials: Sequence[Credential]) -> Pairs:
    """Return each credential with the first scheme that takes it; a scheme is used once."""
    pairs: Pairs = []
    left = dict(known)
    for credential in credentials:
        name = next((name for name, scheme in left.items() if credential.fits(scheme)), None)
        if name is not None:
            pairs.append((left.pop(name), credential))
    return pairs


def _matching_credentials(pairs: Pairs, given: Sequence[Credential]) -> ChosenCredential:
    used = {id(credential) for _, credential in pairs}
    return ChosenCredential(tuple(pairs), tuple(item for item in given if id(item) not in used))


_HELP: Mapping[str, str] = {
    "bearer": "a token: bearer=, or --bearer",
    "apiKey": "a key: api_key=, or --api-key",
    "basic": "a name and a password: credentials=[Basic(...)]",
    "oauth2": "a token: `dragoman auth login`, or bearer=, or --bearer",
    "openIdConnect": "a token: `dragoman auth login`, or bearer=, or --bearer",
    "mtls": "a certificate: credentials=[ClientCertificate(...)], or --client-cert",
}


def _missing_credentials(
    alternatives: Sequence[Mapping[str, tuple[str, ...]]], known: Mapping[str, Scheme]
) -> CredentialsMissing:
    names = list(dict.fromkeys(name for wanted in alternatives for name in wanted))
    kinds = dict.fromkeys(known[name].kind for name in names if name in known)
    ways = [_HELP[kind] for kind in kinds if kind in _HELP]
    schemes = " or ".join(" and ".join(map(repr, wanted)) for wanted in alternatives if wanted)
    message = f"The agent asks for credentials ({schemes or 'in a form we cannot read'})"
    message += f". Give {'; '.join(ways)}" if ways else ", of a kind we do not speak"
    return CredentialsMissing(message, schemes=",".join(names), kinds=",".join(kinds))
