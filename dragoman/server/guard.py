"""What a request must look like before anyone looks at what it asks: its host, its origin, its
size; and the headers that keep browsers from making more of an answer than it is."""

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.model.record import encode
from dragoman.server.request import (
    MAX_URL_BYTES,
    Headers,
    Request,
    is_heavy,
    target_length,
)

# Names of this machine that a browser resolves without asking anyone.
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


class Problem(NamedTuple):
    """Why a request gets no further: RFC 9457."""

    status: int
    title: str
    detail: str

    def body(self) -> bytes:
        """Return the document."""
        return encode(
            {
                "type": "about:blank",
                "title": self.title,
                "status": self.status,
                "detail": self.detail,
            }
        )


class Guard:
    """Looks at the head of every request."""

    def __init__(self, settings: Settings, *, is_local: bool) -> None:
        self._origins = _origins(settings.cors)
        self._hosts = {name.strip().lower() for name in settings.hosts.split(",") if name.strip()}
        if is_local or self._hosts:
            # A name of someone else's that leads here is how a web page reaches what only this
            # machine should (DNS rebinding).
            self._hosts |= LOCAL_NAMES if is_local else set()
            if settings.public_url:
                self._hosts.add(urlsplit(settings.public_url).hostname or "")
        # Behind a proxy that speaks TLS for us, pages of ours come from there.
        self._own = _origin(settings.public_url)
        self._sent = b"%b, %b" % (_SENT, settings.api_key_header.lower().encode())
        self._headers = list(_ANSWER_HEADERS)
        self._secure_headers = [*_ANSWER_HEADERS, _STRICT_TRANSPORT]

    def dress(self, request: Request) -> None:
        """Give the answer of a request the headers that every answer has."""
        is_secure = request.scope.get("scheme") == "https"
        request.extra = [*(self._secure_headers if is_secure else self._headers)]
        if self._origins:
            request.extra.append((b"vary", b"Origin"))
            if (origin := self._allowed(request)) is not None:
                request.extra.append((b"access-control-allow-origin", origin))
                request.extra.append((b"access-control-expose-headers", _READ))

    def problem(self, request: Request) -> Problem | None:
        """Return what keeps a request from being looked at."""
        scope = request.scope
        if target_length(scope) > MAX_URL_BYTES:
            return Problem(414, "URI Too Long", f"A URL may have {MAX_URL_BYTES} bytes")
        if is_heavy(scope["headers"]):
            return Problem(
                431, "Request Header Fields Too Large", "There are too many headers, or too long"
            )
        if self._hosts and _name(request.header(b"host") or "") not in self._hosts:
            return Problem(421, "Misdirected Request", "This server does not go by that name")
        if b"origin" in request.headers and self._is_foreign(request):
            return Problem(403, "Forbidden", "Pages of this origin may not call here")
        return None

    def _is_foreign(self, request: Request) -> bool:
        """Tell whether a page of another site asks for a change in its reader's name, and the
        settings do not name that site. Only browsers send an origin."""
        if request.verb in _HARMLESS:
            return False
        if sum(name == b"origin" for name, _ in request.scope["headers"]) > 1:
            # No browser says two, and which one counts is anybody's guess.
            return True
        if self._allowed(request) is not None:
            return False
        return not self._is_own(request)

    def _is_own(self, request: Request) -> bool:
        """Tell whether a request comes from a page that this server itself delivered."""
        origin = (request.header(b"origin") or "").lower()
        host = (request.header(b"host") or "").lower()
        if self._own and origin == self._own:
            return True
        return bool(host) and origin == f"{request.scope.get('scheme', 'http')}://{host}"

    def preflight(self, request: Request) -> Headers | None:
        """Return the answer to a browser that asks what it may send; None: it is something else."""
        if request.verb != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return None
        if self._allowed(request) is None:
            return None
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", self._sent),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
            (b"content-length", b"0"),
        ]

    def _allowed(self, request: Request) -> bytes | None:
        """Return the origin of a request if the settings name it."""
        origin = request.headers.get(b"origin")
        if origin is None or not self._origins:
            return None
        if "*" in self._origins:
            return b"*"
        return origin if origin.decode("latin-1").lower() in self._origins else None


def _origins(text: str) -> set[str]:
    """Return the origins of a comma list; raises `ConfigError` for what is none."""
    found: set[str] = set()
    for word in text.split(","):
        origin = word.strip().lower()
        if not origin:
            continue
        parts = urlsplit(origin)
        is_bare = parts.scheme in ("http", "https") and parts.netloc and not parts.path
        if origin != "*" and not (is_bare and not parts.query and not parts.fragment):
            raise ConfigError(
                f"cors: {word.strip()} is no origin; write https://app.example.com, or *"
            )
        found.add(origin)
    return found


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
