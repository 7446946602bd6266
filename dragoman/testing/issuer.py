"""A small issuer of tokens, for tests and demonstrations: its tokens are not secret.

It knows client credentials, device codes whose progress is scripted, refresh tokens that are
replaced when used, and both documents that describe an issuer. What it was asked is on record.
"""

import base64
import itertools
import secrets
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote_plus

import msgspec

from dragoman.model.clock import Clock, SystemClock
from dragoman.testing.scripted.connection import live
from dragoman.transports.sse import Receive, Send

OPENID, METADATA = "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
LARGEST_FORM = 64 * 1024

# What a poll for a device's token is answered with. "wait": pending until the page is visited.
Progress = Literal["pending", "slow_down", "denied", "expired", "wait", "granted"]
_REFUSALS = {
    "pending": "authorization_pending",
    "wait": "authorization_pending",
    "slow_down": "slow_down",
    "denied": "access_denied",
    "expired": "expired_token",
}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request as it was received."""

    method: str
    path: str
    headers: Mapping[str, str]
    form: Mapping[str, str]
    # The client that was named, authenticated or not.
    client: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """The facts of a token."""

    client: str
    scope: str
    expires_at: int


class TokenRefused(Exception):
    """A refusal."""

    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.status = status


@dataclass(slots=True)
class Issuer:
    """An ASGI app."""

    # Ids and secrets; a client with an empty secret is a public one.
    clients: Mapping[str, str] = field(default_factory=lambda: {"client": "secret", "public": ""})
    # Each device code goes through these, one per poll; the last one stays.
    device: Sequence[Progress] = ("pending", "granted")
    # Seconds: how long a token and a code last, and how often to poll.
    lasts: float = 3600
    code_lasts: float = 600
    interval: float = 5
    # Whether a refresh token works once only.
    rotates: bool = True
    methods: Sequence[str] = ("client_secret_basic", "client_secret_post")
    # The address in its metadata; empty: that of the request.
    url: str = ""
    # A prefix of all paths.
    prefix: str = ""
    # Whether it serves metadata, and at which of the two paths.
    describes: Sequence[str] = (OPENID, METADATA)
    clock: Clock = field(default_factory=SystemClock)
    requests: list[TokenRequest] = field(init=False, default_factory=list[TokenRequest])
    # Scripted answers, in turn, by path: a status, headers, a body.
    instead: defaultdict[str, deque[tuple[int, Mapping[str, str], bytes]]] = field(
        init=False, default_factory=lambda: defaultdict(deque)
    )
    _tokens: dict[str, Granted] = field(init=False, default_factory=dict[str, Granted])
    _refreshes: dict[str, Granted] = field(init=False, default_factory=dict[str, Granted])
    _codes: dict[str, "_Code"] = field(init=False, default_factory=dict[str, "_Code"])
    _numbers: "itertools.count[int]" = field(init=False, default_factory=itertools.count)

    def accepts(self, token: str) -> bool:
        """Say whether a token was issued here and is still valid."""
        granted = self._tokens.get(token)
        return granted is not None and self.clock.now() < granted.expires_at

    def scope_of(self, token: str) -> str:
        """Return the scopes of a token, with a space between them."""
        return self._tokens[token].scope

    def revoke(self, token: str) -> None:
        """Revoke a token."""
        self._tokens.pop(token, None)

    def asked_for(self, path: str) -> list[TokenRequest]:
        """Return the requests to a path."""
        return [asked for asked in self.requests if asked.path == self.prefix + path]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        asked = await _read(scope, receive)
        self.requests.append(asked)
        base = self.url or f"{scope['scheme']}://{asked.headers.get('host', '')}{self.prefix}"
        headers: Mapping[str, str] = {"content-type": "application/json"}
        if self.instead[asked.path]:
            status, headers, body = self.instead[asked.path].popleft()
        else:
            status, value = self._answer(asked, base)
            body = msgspec.json.encode(value)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"cache-control", b"no-store"),
                    (b"content-length", b"%d" % len(body)),
                    *((name.encode(), value.encode()) for name, value in headers.items()),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def _answer(self, asked: TokenRequest, base: str) -> tuple[int, dict[str, Any]]:
        places = {self.prefix + OPENID: OPENID, METADATA + self.prefix: METADATA}
        try:
            match asked.method, asked.path.removeprefix(self.prefix):
                case "GET", _ if places.get(asked.path) in self.describes:
                    return 200, self._description(base)
                case "GET", "/jwks":
                    return 200, {"keys": []}
                case "GET", "/activate":
                    return 200, {"activated": self._activate(asked.form.get("user_code", ""))}
                case "POST", "/device":
                    return 200, self._device(asked, base)
                case "POST", "/token":
                    return 200, self._token(asked)
                case _:
                    return 404, {"error": "not_found"}
        except TokenRefused as refusal:
            return refusal.status, {"error": refusal.error}

    def _description(self, base: str) -> dict[str, Any]:
        return {
            "issuer": base,
            "token_endpoint": f"{base}/token",
            "device_authorization_endpoint": f"{base}/device",
            "jwks_uri": f"{base}/jwks",
            "response_types_supported": [],
            "grant_types_supported": ["client_credentials", "refresh_token", DEVICE_GRANT],
            "token_endpoint_auth_methods_supported": list(self.methods),
        }

    def _client(self, asked: TokenRequest) -> str:
        """Return the client that asks; raises unless it shows the secret it has."""
        client, secret, method = _claimed(asked)
        expected = self.clients.get(client)
        if expected is None or secret != expected or (secret and method not in self.methods):
            raise TokenRefused("invalid_client", 401)
        return client

    def _device(self, asked: TokenRequest, base: str) -> dict[str, Any]:
        client = self._client(asked)
        number = next(self._numbers)
        # Typed by people, so without letters that look alike.
        user_code = f"WDJB-{number:04d}"
        ends_at = self.clock.now() + int(self.code_lasts * 1000)
        code = secrets.token_urlsafe(16)
        scope = asked.form.get("scope", "")
        self._codes[code] = _Code(client, scope, user_code, ends_at, deque(self.device))
        return {
            "device_code": code,
            "user_code": user_code,
            "verification_uri": f"{base}/activate",
            "verification_uri_complete": f"{base}/activate?user_code={user_code}",
            "expires_in": self.code_lasts,
            "interval": self.interval,
        }

    def _activate(self, user_code: str) -> bool:
        found = [code for code in self._codes.values() if code.user_code == user_code]
        for code in found:
            code.progress = deque(["granted"])
        return bool(found)

    def _token(self, asked: TokenRequest) -> dict[str, Any]:
        client = self._client(asked)
        match asked.form.get("grant_type"):
            case "client_credentials":
                if not self.clients[client]:
                    raise TokenRefused("unauthorized_client")
                return self._grant(client, asked.form.get("scope", ""), refreshes=False)
            case "refresh_token":
                return self._refreshed(client, asked.form.get("refresh_token", ""))
            case grant if grant == DEVICE_GRANT:
                return self._polled(client, asked.form.get("device_code", ""))
            case _:
                raise TokenRefused("unsupported_grant_type")

    def _refreshed(self, client: str, token: str) -> dict[str, Any]:
        granted = self._refreshes.get(token)
        if granted is None or granted.client != client:
            raise TokenRefused("invalid_grant")
        if self.rotates:
            del self._refreshes[token]
        return self._grant(client, granted.scope, refreshes=self.rotates)

    def _polled(self, client: str, device_code: str) -> dict[str, Any]:
        code = self._codes.get(device_code)
        if code is None or code.client != client:
            raise TokenRefused("invalid_grant")
        if self.clock.now() >= code.ends_at:
            raise TokenRefused("expired_token")
        step = code.progress[0]
        if len(code.progress) > 1:
            code.progress.popleft()
        if step != "granted":
            raise TokenRefused(_REFUSALS[step])
        del self._codes[device_code]
        return self._grant(client, code.scope, refreshes=True)

    def _grant(self, client: str, scope: str, *, refreshes: bool) -> dict[str, Any]:
        token = secrets.token_urlsafe(24)
        ends_at = self.clock.now() + int(self.lasts * 1000)
        self._tokens[token] = Granted(client, scope, ends_at)
        answer: dict[str, Any] = {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": self.lasts,
        }
        if scope:
            answer["scope"] = scope
        if refreshes:
            answer["refresh_token"] = secrets.token_urlsafe(24)
            self._refreshes[answer["refresh_token"]] = self._tokens[token]
        return answer


@dataclass(slots=True)
class _Code:
    """A pending device code."""

    client: str
    scope: str
    user_code: str
    ends_at: int
    progress: deque[Progress]


def _claimed(asked: TokenRequest) -> tuple[str, str, str]:
    """Return the id and the secret that a request shows, and how it shows them."""
    kind, _, pair = asked.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            client, _, secret = base64.b64decode(pair).decode().partition(":")
        except ValueError:
            return "", "", ""
        return unquote_plus(client), unquote_plus(secret), "client_secret_basic"
    form = asked.form
    return form.get("client_id", ""), form.get("client_secret", ""), "client_secret_post"


async def _read(scope: Any, receive: Receive) -> TokenRequest:
    body = bytearray()
    while len(body) <= LARGEST_FORM:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    fields = bytes(body) if scope["method"] == "POST" else scope["query_string"]
    form = dict(parse_qsl(fields.decode("latin-1"), keep_blank_values=True))
    asked = TokenRequest(scope["method"], scope["path"], headers, form)
    return TokenRequest(scope["method"], scope["path"], headers, form, _claimed(asked)[0])
