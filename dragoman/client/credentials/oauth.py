"""Tokens from an issuer: client credentials, device code (RFC 8628), refresh, discovery.

A secret goes to the issuer's addresses alone, and to those only if `Origins` knows them: a card
may name any. Whatever an issuer answers is bounded, and its failures are errors of our tree with
the OAuth code as the fact `error`, never with what was sent.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

import msgspec

from dragoman.client.credentials.credentials import (
    Attached,
    Credential,
    OAuthFlow,
    Scheme,
    fingerprint,
    takes_bearer,
    text_of,
)
from dragoman.client.credentials.origins import Origins, origin_of
from dragoman.client.credentials.turn_lock import Turns
from dragoman.client.http import Http, read_all
from dragoman.egress.errors import EgressError
from dragoman.errors import (
    ConfigError,
    CredentialsMissing,
    ParseFailed,
    Unauthenticated,
    Unreachable,
)
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.push import hidden
from dragoman.transports import json_text

LARGEST_ANSWER = 64 * 1024
PATIENCE = 10.0
# A token is renewed this long before it ends: a request takes time to arrive.
RENEW_BEFORE = 30_000
# RFC 8628: the interval when none is said, and what slow_down adds; seconds.
INTERVAL, SLOWER = 5.0, 5.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 300.0
CODE_LASTS, CODE_LASTS_AT_MOST = 600.0, 24 * 3600.0
# An issuer that is silent so often in a row is gone.
SILENT_POLLS = 3
OPENID, METADATA = "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

Grant = Literal["clientCredentials", "deviceCode"]
# Shows a person the code to type, where to type it, and an address that has the code in it or "".
Show = Callable[[str, str, str], None]
_CODE = re.compile(r"[!#-\[\]-~]{1,64}", re.ASCII)
_TOKEN = re.compile(r"[!-~]{1,16384}", re.ASCII)


class AccessToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an issuer gave."""

    access: str
    refresh: str = ""
    # Milliseconds since the epoch; None: the issuer did not say.
    expires_at: int | None = None

    def __repr__(self) -> str:
        return (
            f"Token(access={hidden(self.access)}, refresh={hidden(self.refresh)}, "
            f"expires_at={self.expires_at})"
        )

    def lasts(self, now: int) -> bool:
        """Say whether it can still be used for a request that starts at this time."""
        return self.expires_at is None or now < self.expires_at - RENEW_BEFORE


class IssuerEndpoints(msgspec.Struct, frozen=True):
    """Where an issuer is asked, each address checked."""

    issuer: str
    token_url: str
    device_url: str = ""
    # Where tokens are renewed, if elsewhere.
    refresh_url: str = ""
    posts_secret: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class ClientAccount:
    """As whom we ask: a client of the issuer. Without a secret it is a public one."""

    client_id: str
    client_secret: str = ""

    def __post_init__(self) -> None:
        if not self.client_id or not (self.client_id + self.client_secret).isprintable():
            raise ConfigError("the client id is empty, or it or the secret has a control in it")

    def __repr__(self) -> str:
        return f"Account({self.client_id!r}, {hidden(self.client_secret)})"


async def endpoints(
    scheme: Scheme,
    grant: Grant,
    http: Http,
    origins: Origins,
    *,
    issuer: str = "",
    token_url: str = "",
) -> IssuerEndpoints:
    """Return where to ask for tokens: of the user's issuer, else as the card says.

    Raises `CredentialsMissing` if none is named, or only the card names one and the user did
    not name that origin; `ConfigError` for an issuer of the user's that is no URL.
    """
    for given in (issuer, token_url):
        if given:
            origin_of(given)
    trusted = origins.also(issuer, token_url)
    flow = scheme.flows.get(grant, OAuthFlow())
    if token_url:
        found = IssuerEndpoints(issuer, token_url, flow.device_url)
    else:
        described = None
        if issuer:
            described = await _of_issuer(issuer, http, trusted)
        elif not flow.token_url and scheme.discovery_url:
            described = await _described(scheme.discovery_url, "", http, trusted)
        found = described or IssuerEndpoints(
            issuer, flow.token_url, flow.device_url, flow.refresh_url
        )
    if not found.token_url or (grant == "deviceCode" and not found.device_url):
        raise CredentialsMissing(
            f"Neither the card nor the issuer says where to log in for {scheme.name!r} by "
            f"{_SAID[grant]}. Name the issuer: issuer=, or --issuer",
            schemes=scheme.name,
        )
    for url in (found.token_url, found.device_url, found.refresh_url):
        if url:
            trusted.check(url)
    return msgspec.structs.replace(found, issuer=found.issuer or origin_of(found.token_url))


_SAID = {"clientCredentials": "client credentials", "deviceCode": "device code"}


async def _of_issuer(issuer: str, http: Http, origins: Origins) -> IssuerEndpoints | None:
    """Return what an issuer says of itself, in either of the two places; None if in neither."""
    base = issuer.rstrip("/")
    origin = origin_of(base)
    # RFC 8414 puts its name between the host and the path, OpenID Connect at the end.
    path = base.partition("://")[2].partition("/")[2]
    places = (base + OPENID, origin + METADATA + (f"/{path}" if path else ""))
    for place in places:
        if found := await _described(place, issuer, http, origins):
            return found
    return None


async def _described(url: str, issuer: str, http: Http, origins: Origins) -> IssuerEndpoints | None:
    """Return what a document about an issuer says; None if there is none.

    A document may only speak for the issuer whose address it has: else anyone's could send our
    secret anywhere.
    """
    origins.check(url)
    status, answer = await _request(http, "GET", url)
    if status in (404, 405, 410):
        return None
    if status != 200 or answer is None:
        raise Unreachable(
            f"The issuer's description cannot be read: {status} from {origin_of(url)}",
            status=status,
            origin=origin_of(url),
        )
    stated_issuer = text_of(answer, "issuer")
    expected = issuer or _issuer_of(url)
    if not stated_issuer or stated_issuer.rstrip("/") != expected.rstrip("/"):
        raise Unauthenticated(
            "The issuer's description is one of another issuer",
            error="invalid_issuer",
            expected=expected,
        )
    methods = answer.get("token_endpoint_auth_methods_supported")
    return IssuerEndpoints(
        issuer=stated_issuer,
        token_url=text_of(answer, "token_endpoint"),
        device_url=text_of(answer, "device_authorization_endpoint"),
        posts_secret=isinstance(methods, list)
        and "client_secret_post" in methods
        and "client_secret_basic" not in methods,
    )


def _issuer_of(url: str) -> str:
    """Return the issuer that a description at an address is about."""
    head, name, tail = url.partition(OPENID)
    if not name:
        head, name, tail = url.partition(METADATA)
    return head + tail if name else origin_of(url)


async def client_token(
    account: ClientAccount,
    where: IssuerEndpoints,
    http: Http,
    *,
    scopes: Sequence[str] = (),
    extra: Mapping[str, str] = {},
    clock: Clock,
) -> AccessToken:
    """Return a token for the client itself (RFC 6749, 4.4)."""
    fields = {"grant_type": "client_credentials", **_scoped(scopes), **extra}
    return await _token(account, where, fields, http, clock)


async def refreshed_token(
    account: ClientAccount, where: IssuerEndpoints, refresh: str, http: Http, *, clock: Clock
) -> AccessToken:
    """Return a token for a refresh token: the same one goes on if the issuer gives no other."""
    fields = {"grant_type": "refresh_token", "refresh_token": refresh}
    token = await _token(account, where, fields, http, clock)
    return token if token.refresh else msgspec.structs.replace(token, refresh=refresh)


async def device_token(
    account: ClientAccount,
    where: IssuerEndpoints,
    http: Http,
    *,
    show: Show,
    scopes: Sequence[str] = (),
    clock: Clock,
) -> AccessToken:
    """Return a token that a person grants at another device, however long that takes them."""
    fields = _scoped(scopes)
    given = await _posted(account, where, where.device_url, fields, http)
    code, user_code = text_of(given, "device_code"), text_of(given, "user_code")
    # Some issuers are older than the RFC and end the name in url.
    address = text_of(given, "verification_uri") or text_of(given, "verification_url")
    complete = text_of(given, "verification_uri_complete")
    # These are shown in a terminal, where a control does more than show.
    is_safe = _is_showable(user_code) and _is_page(address) and (not complete or _is_page(complete))
    if not code or not is_safe:
        raise Unauthenticated("The issuer's answer has no usable code", error="invalid_response")
    interval = _seconds(given.get("interval"), INTERVAL, LONGEST_INTERVAL)
    lasts = _seconds(given.get("expires_in"), CODE_LASTS, CODE_LASTS_AT_MOST)
    deadline = clock.now() + int(lasts * 1000)
    show(user_code, address, complete)
    fields = {"grant_type": DEVICE_GRANT, "device_code": code}
    silent = 0
    while True:
        interval = max(interval, SHORTEST_INTERVAL)
        at = clock.now() + int(interval * 1000)
        if at >= deadline:
            # It lasts a little longer, but we may not ask again before it ends.
            raise Unauthenticated("The code expired before it was used", error="expired_token")
        await clock.wait_until(at)
        try:
            return await _token(account, where, fields, http, clock)
        except Unauthenticated as refusal:
            silent = 0
            match refusal.facts.get("error"):
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += SLOWER
                case _:
                    raise
        except Unreachable:
            silent += 1
            if silent >= SILENT_POLLS:
                raise
            # RFC 8628 asks for twice the pause after a timeout.
            interval = min(interval * 2, LONGEST_INTERVAL)


def _scoped(scopes: Sequence[str]) -> dict[str, str]:
    return {"scope": " ".join(dict.fromkeys(scopes))} if scopes else {}


async def _token(
    account: ClientAccount,
    where: IssuerEndpoints,
    fields: Mapping[str, str],
    http: Http,
    clock: Clock,
) -> AccessToken:
    given = await _posted(account, where, where.token_url, fields, http)
    access, refresh = text_of(given, "access_token"), text_of(given, "refresh_token")
    kind = text_of(given, "token_type") or "bearer"
    if not _TOKEN.fullmatch(access) or kind.lower() != "bearer":
        raise Unauthenticated("The issuer's answer has no bearer token", error="invalid_response")
    lasts = _seconds(given.get("expires_in"), -1.0, 10 * 365 * 86400.0)
    return AccessToken(
        access,
        refresh if _TOKEN.fullmatch(refresh) else "",
        None if lasts < 0 else clock.now() + int(lasts * 1000),
    )


async def _posted(
    account: ClientAccount, where: IssuerEndpoints, url: str, fields: Mapping[str, str], http: Http
) -> dict[str, Any]:
    """Return what an issuer grants to a form; raises what it refuses it with."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    form = dict(fields)
    if account.client_secret and not where.posts_secret:
        # RFC 6749, 2.3.1: each half is encoded as in a form before the two are joined.
        pair = f"{quote(account.client_id, safe='')}:{quote(account.client_secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form["client_id"] = account.client_id
        if account.client_secret:
            form["client_secret"] = account.client_secret
    status, answer = await _request(http, "POST", url, headers, urlencode(form).encode())
    code = text_of(answer or {}, "error")
    facts = {"error": code} if _CODE.fullmatch(code) else {}
    description = text_of(answer or {}, "error_description")
    unsaid = (account.client_secret, form.get("refresh_token"), form.get("device_code"))
    if (
        facts
        and description
        and description.isprintable()
        and not any(item and item in description for item in unsaid)
    ):
        facts["description"] = description[:200]
    origin = origin_of(url)
    if status == 429 or status >= 500:
        raise Unreachable(f"The issuer {origin} answered {status}", status=status, **facts)
    if facts:
        # Some issuers refuse with a status of success.
        detail = f": {facts['description']}" if facts.get("description") else ""
        raise Unauthenticated(
            f"The issuer {origin} refused: {code}{detail}", issuer=origin, **facts
        )
    if status in (401, 403):
        raise Unauthenticated(f"The issuer {origin} refused with {status}", status=status)
    if status != 200 or answer is None:
        raise Unreachable(f"The issuer {origin} answered {status} and no token", status=status)
    return answer


async def _request(
    http: Http,
    method: str,
    url: str,
    headers: Mapping[str, str] = {},
    body: bytes | None = None,
) -> tuple[int, dict[str, Any] | None]:
    """Return the status of an answer, and its object if it is one of a decent size."""
    origin = origin_of(url)
    sent = {"accept": "application/json", **headers}
    try:
        async with (
            asyncio.timeout(PATIENCE),
            http.open(method, url, headers=sent, body=body) as exchange,
        ):
            status = exchange.status
            text, is_cut = await read_all(exchange, LARGEST_ANSWER)
    except EgressError as error:
        raise Unreachable(
            f"The issuer {origin} cannot be reached: {error.reason}", origin=origin
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"The issuer {origin} did not answer in {PATIENCE:g} s", origin=origin
        ) from None
    try:
        answer = None if is_cut else json_text.parse(text)
    except ParseFailed:
        answer = None
    return status, cast("dict[str, Any]", answer) if isinstance(answer, dict) else None


def _seconds(value: Any, default: float, most: float) -> float:
    """Return a number of seconds as issuers write it; some write it as a text."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) else default
    except ValueError:
        return default
    # Written so that NaN, which no comparison holds for, is the default too.
    return min(seconds, most) if seconds >= 0 else default


def _is_showable(text: str) -> bool:
    return bool(text) and len(text) <= 2048 and text.isprintable()


def _is_page(url: str) -> bool:
    """Say whether a person can be sent to an address: some open it with a click."""
    return _is_showable(url) and url.lower().startswith(("https://", "http://"))


@dataclass(slots=True, repr=False, eq=False)
class ClientCredentials(Credential):
    """A client of an issuer that gets its own tokens, as the card says or as the user does."""

    client_id: str
    client_secret: str
    issuer: str = ""
    token_url: str = ""
    # Besides those the agent asks for.
    scopes: Sequence[str] = ()
    # Only for the scheme of this name; empty: for any that fits.
    scheme: str = ""
    # Further fields that some issuers want, such as `audience`.
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    clock: Clock = field(default_factory=SystemClock)
    _tokens: dict[tuple[object, ...], AccessToken] = field(
        init=False, default_factory=dict[tuple[object, ...], AccessToken]
    )
    # One fetch at a time: those who wait for it find its token.
    _fetching: Turns = field(init=False, default_factory=Turns)

    def __post_init__(self) -> None:
        ClientAccount(self.client_id, self.client_secret)

    def __repr__(self) -> str:
        secret = hidden(self.client_secret)
        return f"ClientCredentials(client_id={self.client_id!r}, client_secret={secret})"

    def fits(self, scheme: Scheme) -> bool:
        if self.scheme not in ("", scheme.name) or not takes_bearer(scheme):
            return False
        named = self.issuer or self.token_url
        return bool(named or scheme.discovery_url or "clientCredentials" in scheme.flows)

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        scopes = tuple(dict.fromkeys((*scheme.scopes, *self.scopes)))
        flow = scheme.flows.get("clientCredentials", OAuthFlow())
        # One object may serve several agents, and a token is for the audience its issuer says.
        key = (flow.token_url, scheme.discovery_url, scopes)
        async with self._fetching.take():
            token = self._tokens.get(key)
            if token is None or not token.lasts(self.clock.now()):
                where = await endpoints(
                    scheme,
                    "clientCredentials",
                    http,
                    origins,
                    issuer=self.issuer,
                    token_url=self.token_url,
                )
                account = ClientAccount(self.client_id, self.client_secret)
                token = self._tokens[key] = await client_token(
                    account, where, http, scopes=scopes, extra=self.extra, clock=self.clock
                )
        to.headers["authorization"] = f"Bearer {token.access}"

    def refused(self) -> bool:
        """A token may end before its time, so there is one more try with another."""
        had = bool(self._tokens)
        self._tokens.clear()
        return had

    @property
    def identity(self) -> str:
        parts = (self.client_id, self.client_secret, self.issuer, self.token_url, *self.scopes)
        return fingerprint("clientCredentials", *parts)
