"""Secrets never leave: whatever is shown beside the payload passes through here.

No flag turns it off. Known values are replaced wherever they stand, and headers, members and
addresses that usually carry secrets are replaced whether their value is known or not.
"""

import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, quote_plus

HIDDEN = "<redacted>"
# Headers whose values say nothing about who somebody is.
# fmt: off
_OPEN_HEADERS = frozenset({
    "a2a-version", "a2a-extensions", "accept", "accept-encoding", "age", "allow", "cache-control",
    "connection", "content-encoding", "content-length", "content-type", "date", "etag", "expires",
    "host", "if-modified-since", "if-none-match", "keep-alive", "last-event-id", "last-modified",
    "location", "retry-after", "server", "traceparent", "tracestate", "transfer-encoding",
    "user-agent", "vary", "via", "x-request-id",
})
_SECRET_MEMBERS = frozenset({
    "accesstoken", "apikey", "authorization", "bearer", "clientassertion", "clientsecret",
    "credentials", "devicecode", "idtoken", "password", "refreshtoken", "secret", "token",
})
# fmt: on
_USER = re.compile(r"(?<=://)[^/?#\s@]*@")
_QUERY = re.compile(
    r"(?i)((?:^|[?&\s])(?:api[-_]?key|key|token|[a-z_]*token|secret|client_secret|password|code"
    r"|device_code|signature|sig)=)[^&\s#\"']+"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")


class Redactor:
    """Knows the secrets of this run and keeps them out of texts."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add(self, *secrets: str) -> None:
        """Learn values, also as they look inside an address."""
        for secret in secrets:
            if secret:
                self._secrets |= {secret, quote(secret, safe=""), quote_plus(secret), quote(secret)}

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        # The longest first: one secret may be the beginning of another.
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= 4:
                text = text.replace(secret, HIDDEN)
            else:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        text = _USER.sub(f"{HIDDEN}@", text)
        text = _QUERY.sub(rf"\1{HIDDEN}", text)
        return _SCHEME.sub(rf"\1 {HIDDEN}", text)

    def header(self, name: str, value: str) -> str:
        """Return a header's value as it may be shown."""
        return self.text(value) if name.lower() in _OPEN_HEADERS else HIDDEN

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return headers as they may be shown."""
        return {name: self.header(name, value) for name, value in headers.items()}

    def value(self, value: Any) -> Any:
        """Return JSON as it may be shown: members that carry secrets have none."""
        if isinstance(value, dict):
            return {
                name: HIDDEN
                if _plain(name) in _SECRET_MEMBERS and isinstance(item, str)
                else self.value(item)
                for name, item in cast(dict[str, Any], value).items()
            }
        if isinstance(value, list):
            return [self.value(item) for item in cast(list[Any], value)]
        return self.text(value) if isinstance(value, str) else value

    def body(self, body: bytes) -> str:
        """Return a body as it may be shown: JSON member by member, all else as a text."""
        import json

        try:
            found = json.loads(body)
        except ValueError:
            return self.text(body.decode("utf-8", "backslashreplace"))
        return json.dumps(self.value(found), ensure_ascii=False)


def _plain(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())
