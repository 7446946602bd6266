"""What the head of a request must be before the request is looked at: its host, its origin, its
size; and the headers that keep browsers from making more of an answer than it is."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.config import Settings
from dragoman.config.formats import read_origin
from dragoman.http.request import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    Headers,
    HttpRequest,
    Scope,
)
from dragoman.model.record import encode

# Names of this machine that a browser resolves by itself.
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PROBLEM_JSON = b"application/problem+json"
_ANSWER_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHT_SECONDS = b"600"
# What callers in a browser may send, and read of an answer.
_SENT = (
    b"authorization, content-type, a2a-version, a2a-extensions, x-a2a-extensions, last-event-id, "
    b"idempotency-key, traceparent, tracestate, x-source-agent"
)
_READ = (
    b"a2a-version, a2a-extensions, x-a2a-extensions, retry-after, www-authenticate, ratelimit, "
    b"ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, "
    b"x-dragoman-resume"
)


class GuardProblem(msgspec.Struct, frozen=True):
    """Why a request gets no further: RFC 9457."""

    status: int
    title: str
    detail: str

    def body(self, *, for_chats: bool = False) -> bytes:
        """Return the document. `for_chats`: it has what chat programs read of an error too."""
        facts: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if for_chats:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
            facts["error"] = {
                "message": self.detail,
                "type": "rate_limit_error" if self.status == 429 else kind,
                "param": None,
                "code": self.title.lower().replace(" ", "_"),
            }
        return encode(facts)


class Guard:
    """Looks at the head of every request."""

    def __init__(self, settings: Settings, *, is_local: bool) -> None:
        self._origins = {read_origin(text) for text in settings.http.cors}
        self._hosts = {name.lower() for name in settings.http.hosts}
        if is_local or self._hosts:
            # A foreign name that resolves to this machine lets a web page reach what only this
            # machine should (DNS rebinding).
            self._hosts |= LOCAL_NAMES if is_local else set()
            if settings.cards.public_url:
                self._hosts.add(urlsplit(settings.cards.public_url).hostname or "")
        # Behind a proxy that speaks TLS for us, pages of ours come from there.
        self._own_origin = _origin(settings.cards.public_url)
        self._allowed_headers = b"%b, %b" % (
            _SENT,
            settings.security.api_key_header.lower().encode(),
        )
        self._headers = list(_ANSWER_HEADERS)
        self._secure_headers = [*_ANSWER_HEADERS, _STRICT_TRANSPORT]

    def add_common_headers(self, request: HttpRequest) -> None:
        """Give the answer of a request the headers that every answer has."""
        is_secure = request.scope.get("scheme") == "https"
        common = [*(self._secure_headers if is_secure else self._headers)]
        if self._origins:
            common.append((b"vary", b"Origin"))
            if (origin := self._allowed(request)) is not None:
                common.append((b"access-control-allow-origin", origin))
                common.append((b"access-control-expose-headers", _READ))
        request.extra = common

    def problem(self, request: HttpRequest) -> GuardProblem | None:
        """Return what keeps a request from being looked at."""
        if not request.is_bounded:
            if _target_length(request.scope) > MAX_URL_BYTES:
                return GuardProblem(414, "URI Too Long", f"A URL may have {MAX_URL_BYTES} bytes")
            if _is_heavy(request.scope["headers"]):
                return GuardProblem(
                    431,
                    "Request Header Fields Too Large",
                    "There are too many headers, or too long",
                )
        if self._hosts and not _is_named(request, self._hosts):
            return GuardProblem(421, "Misdirected Request", "This server does not go by that name")
        if b"origin" in request.headers and self._is_foreign(request):
            return GuardProblem(403, "Forbidden", "Pages of this origin may not call here")
        return None

    def _is_foreign(self, request: HttpRequest) -> bool:
        """Tell whether a page of another site asks for a change on behalf of its reader, and the
        settings do not allow that site. Only browsers send an origin."""
        if request.verb in _HARMLESS:
            return False
        if sum(name == b"origin" for name, _ in request.scope["headers"]) > 1:
            # No browser sends two, and readers differ in which one counts.
            return True
        if self._allowed(request) is not None:
            return False
        return not self._is_own(request)

    def _is_own(self, request: HttpRequest) -> bool:
        """Tell whether a request comes from a page that this server itself delivered."""
        origin = (request.header(b"origin") or "").lower()
        host = (request.header(b"host") or "").lower()
        if self._own_origin and origin == self._own_origin:
            return True
        return bool(host) and origin == f"{request.scope.get('scheme', 'http')}://{host}"

    def preflight(self, request: HttpRequest) -> Headers | None:
        """Return the answer to a browser that asks what it may send; None: it is something else."""
        if request.verb != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return None
        if self._allowed(request) is None:
            return None
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", self._allowed_headers),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
            (b"content-length", b"0"),
        ]

    def _allowed(self, request: HttpRequest) -> bytes | None:
        """Return the origin of a request if the settings name it."""
        origin = request.headers.get(b"origin")
        if origin is None or not self._origins:
            return None
        if "*" in self._origins:
            return b"*"
        return origin if origin.decode("latin-1").lower() in self._origins else None


def _is_named(request: HttpRequest, hosts: set[str]) -> bool:
    """Tell whether a request goes by one of our names. Browsers, for whose sake this is asked, can
    make no rpc, and gRPC does not say which name its caller used."""
    extensions = request.scope.get("extensions", {})
    return "grpc" in extensions or _name(request.header(b"host") or "") in hosts


def _is_heavy(headers: Headers) -> bool:
    """Tell whether a request has too many headers, or too long ones."""
    if len(headers) > MAX_HEADERS:
        return True
    return sum([len(name) + len(value) for name, value in headers]) > MAX_HEADER_BYTES


def _target_length(scope: Scope) -> int:
    """Return how long the request target is."""
    query: bytes = scope["query_string"]
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return len(path) + (len(query) + 1 if query else 0)


def _origin(url: str) -> str:
    """Return the origin of an address, as browsers name it."""
    parts = urlsplit(url.lower())
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def _name(host: str) -> str:
    """Return the name of a Host header, without port and brackets."""
    host = host.lower()
    if host.startswith("["):
        name, closing, _ = host[1:].partition("]")
        try:
            return str(ipaddress.ip_address(name)) if closing else ""
        except ValueError:
            return ""
    return host.partition(":")[0]
