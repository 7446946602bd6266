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


_CONTROL = "the header {!r} has a control in its value"
# Names and values of headers.
_Items = tuple[tuple[str, str], ...]
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


@lru_cache(maxsize=1024)
def _opening(method: str, target: Target) -> str:
    """Return how a request to a target begins."""
    place = target.origin.partition("://")[2]
    return f"{method} {target.path} HTTP/1.1\r\nHost: {place}\r\n"


def request_head(
    method: str, target: Target, headers: Mapping[str, str], body: bytes | None, may_keep: bool
) -> bytes:
    """Return the head of a request; raises EgressRefused for a header that is none."""
    trace, others = _apart(headers)
    head = _head(method, target, others, bool(body), may_keep)
    if trace:
        head += b"traceparent: %b\r\n" % _checked_trace(trace).encode()
    if body or method not in BODILESS:
        return b"%bContent-Length: %d\r\n\r\n" % (head, len(body or b""))
    return head + b"\r\n"


def _apart(headers: Mapping[str, str]) -> tuple[str, _Items]:
    """Return the trace that a request belongs to, which is another one every time, and the other
    headers, which are mostly the same for one peer."""
    others = dict(headers)
    return others.pop("traceparent", ""), tuple(others.items())


@lru_cache(maxsize=256)
def _head(method: str, target: Target, headers: _Items, has_body: bool, may_keep: bool) -> bytes:
    """Return a head without its trace, its length and its end; raises EgressRefused."""
    lines = [_opening(method, target)]
    checked = _checked(headers)
    for name, value in checked.items():
        lines.append(f"{name}: {value}\r\n")
    if "user-agent" not in checked:
        lines.append("User-Agent: dragoman\r\n")
    if "accept" not in checked:
        lines.append("Accept: */*\r\n")
    if has_body and "content-type" not in checked:
        lines.append("Content-Type: application/octet-stream\r\n")
    if not may_keep:
        lines.append("Connection: close\r\n")
    lines.append("Accept-Encoding: identity\r\n")
    return "".join(lines).encode()


def checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers by their names in lower case; raises EgressRefused for what is none."""
    trace, others = _apart(headers)
    checked = _checked(others)
    return {**checked, "traceparent": _checked_trace(trace)} if trace else checked


def _checked_trace(trace: str) -> str:
    if not is_sendable(trace):
        raise EgressRefused(_CONTROL.format("traceparent"))
    return trace


@lru_cache(maxsize=256)
def _checked(headers: _Items) -> Mapping[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers:
        if not (lower := _header_name(name)):
            raise EgressRefused(f"the header {name!r} is not one to send")
        if not is_sendable(value):
            raise EgressRefused(_CONTROL.format(name))
        checked[lower] = value
    return checked


@lru_cache(maxsize=1024)
def _header_name(name: str) -> str:
    """Return the name of a header as it is sent; empty if it is not one to send."""
    lower = name.lower()
    return lower if lower and set(lower) <= _TOKEN and lower not in OUR_HEADERS else ""
