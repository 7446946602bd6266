"""The head of a request that we send: which headers may be in it, and how it is written."""

from collections.abc import Mapping
from functools import lru_cache

from dragoman.egress.errors import EgressRefused
from dragoman.egress.targets import Target
from dragoman.model.push import is_sendable

# What decides where a request goes and where it ends is ours to write.
OUR_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


# Methods whose requests have no body unless they say so, and may be made twice.
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


@lru_cache(maxsize=1024)
def _opening(method: str, target: Target) -> str:
    """Return how a request to a target begins."""
    place = target.origin.partition("://")[2]
    return f"{method} {target.path} HTTP/1.1\r\nHost: {place}\r\n"


def request_head(
    method: str, target: Target, headers: Mapping[str, str], body: bytes | None, may_keep: bool
) -> bytes:
    """Return the head of a request."""
    lines = [_opening(method, target)]
    for name, value in headers.items():
        lines.append(f"{name}: {value}\r\n")
    if "user-agent" not in headers:
        lines.append("User-Agent: dragoman\r\n")
    if "accept" not in headers:
        lines.append("Accept: */*\r\n")
    if body and "content-type" not in headers:
        lines.append("Content-Type: application/octet-stream\r\n")
    if body or method not in BODILESS:
        lines.append(f"Content-Length: {len(body or b'')}\r\n")
    if not may_keep:
        lines.append("Connection: close\r\n")
    lines.append("Accept-Encoding: identity\r\n\r\n")
    return "".join(lines).encode()


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers by their names in lower case; raises EgressRefused for what is none."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not (lower := _header_name(name)):
            raise EgressRefused(f"the header {name!r} is not one to send")
        if not is_sendable(value):
            raise EgressRefused(f"the header {name!r} has a control in its value")
        checked[lower] = value
    return checked


@lru_cache(maxsize=1024)
def _header_name(name: str) -> str:
    """Return the name of a header as it is sent; empty if it is not one to send."""
    lower = name.lower()
    return lower if lower and set(lower) <= _TOKEN and lower not in OUR_HEADERS else ""
