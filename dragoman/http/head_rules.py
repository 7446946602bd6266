"""What the head of a request must be: small enough, and not open to two readings.

Whatever is refused is a value with its answer, made once; `check` is pure, so the connection that
reads a request and the rules it is held to can be read apart.
"""

import re

import httptools

from dragoman.http.connections import CountedRefusal, refusal
from dragoman.http.request import MAX_HEADER_BYTES, MAX_HEADERS, MAX_URL_BYTES, Headers
from dragoman.model.patterns import late_pattern

BAD_SYNTAX = refusal(400, "syntax", "The request is not well-formed HTTP/1.1")
BAD_HOST = refusal(400, "host", "Send one Host field that names the host of the target")
BAD_TARGET = refusal(400, "target", "Send a path, or an absolute URI of this host, as the target")
BAD_LINE = refusal(400, "line", "Separate method, target and version by one space each")
BAD_LENGTH = refusal(400, "length", "Send one Content-Length or Transfer-Encoding: chunked")
BAD_FRAMING = refusal(400, "framing", "Send chunks with less around their content")
TOO_SLOW = refusal(408, "slow", "Send the request without pausing")
LONG_URL = refusal(414, "url", f"Send a target of at most {MAX_URL_BYTES} bytes")
PACKED = refusal(415, "packed", "Send the body without Content-Encoding")
BAD_EXPECT = refusal(417, "expect", "Expect nothing but 100-continue")
LARGE_HEAD = refusal(
    431, "head", f"Send at most {MAX_HEADERS} fields of together {MAX_HEADER_BYTES} bytes"
)
BAD_METHOD = refusal(501, "method", "Use GET, POST, PUT, PATCH, DELETE, HEAD or OPTIONS")
BAD_CODING = refusal(501, "coding", "Send the body without a transfer coding but chunked")
NO_MEMORY = refusal(503, "memory", "The server has no memory left for this; try again later")
BAD_VERSION = refusal(505, "version", "Speak HTTP/1.1")

# Fields that say whom a request is for, and where and how it ends; each may be there once.
WATCHED = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"expect")
)
_TWICE = {b"host": BAD_HOST, b"content-encoding": PACKED, b"expect": BAD_EXPECT}
_CODINGS = {b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress", b"br", b"zstd"}
_HOST = late_pattern(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::[0-9]{1,5})?")
_ABSOLUTE = late_pattern(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
# Digits of any real length; more of them are zeros.
MAX_LENGTH_DIGITS = 19
_UPGRADE_FIELDS = (b"upgrade", b"http2-settings", b"connection")
_METHOD = re.compile(rb"[\r\n]*[A-Z][A-Z_-]{0,31} ")


class HeadRefused(Exception):
    """Stops the parser; what follows is not looked at."""

    def __init__(self, refusal: CountedRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def repeated(name: bytes) -> HeadRefused:
    """Return what a second field of a name is refused with."""
    return HeadRefused(_TWICE.get(name, BAD_LENGTH))


def is_heavy(headers: Headers, size: int) -> bool:
    """Tell whether there are too many fields, or too long ones in a head of at most `size`."""
    if len(headers) > MAX_HEADERS:
        return True
    if size <= MAX_HEADER_BYTES:
        return False
    return sum([len(name) + len(value) + 4 for name, value in headers]) > MAX_HEADER_BYTES


def check(
    version: str, method: bytes, url: bytes, seen: dict[bytes, bytes], known: bytes | None = None
) -> bytes:
    """Return the path and query that are asked for; raises `HeadRefused`.

    `seen` holds the fields of `WATCHED` that were there; a `known` host is a good one.
    """
    if version != "1.1" and version != "1.0":
        raise HeadRefused(BAD_VERSION)
    if method in (b"CONNECT", b"TRACE"):
        raise HeadRefused(BAD_METHOD)
    host = seen.get(b"host")
    if host is None:
        # HTTP/1.0 did not know it, and balancers ask for our health in HTTP/1.0.
        if version == "1.1":
            raise HeadRefused(BAD_HOST)
    elif host != known and _HOST.fullmatch(host) is None:
        raise HeadRefused(BAD_HOST)
    if b"transfer-encoding" in seen:
        _check_coding(version, seen)
    if b"content-encoding" in seen and seen[b"content-encoding"].lower() != b"identity":
        # What is unpacked may be a thousand times as large.
        raise HeadRefused(PACKED)
    if b"expect" in seen and seen[b"expect"].lower() != b"100-continue":
        raise HeadRefused(BAD_EXPECT)
    if b"#" in url:
        # A fragment is never sent by clients; some readers would take it for part of the path.
        raise HeadRefused(BAD_TARGET)
    return url if url[:1] == b"/" else _path(url, host)


def _check_coding(version: str, seen: dict[bytes, bytes]) -> None:
    if version == "1.0" or b"content-length" in seen:
        raise HeadRefused(BAD_LENGTH)
    *others, last = [coding.strip() for coding in seen[b"transfer-encoding"].lower().split(b",")]
    if last != b"chunked" or not _CODINGS.issuperset(others):
        raise HeadRefused(BAD_LENGTH)
    if others:
        raise HeadRefused(BAD_CODING)


def plain_head(line: tuple[bytes, bytes, bytes], headers: Headers, *, closes: bool) -> bytes:
    """Return a head of this method, target and version without the wish for another protocol."""
    lines = [b"%b %b HTTP/%b" % line]
    lines += [b"%b: %b" % field for field in headers if field[0] not in _UPGRADE_FIELDS]
    lines += [b"connection: close"] if closes else []
    return b"\r\n".join([*lines, b"", b""])


def meaning(error: Exception, cause: BaseException | None, data: bytes) -> CountedRefusal:
    """Return what a failure of the parser means to its caller; `data` is how the request begins."""
    if isinstance(cause, HeadRefused):
        return cause.refusal
    if isinstance(error, httptools.HttpParserInvalidMethodError) and _METHOD.match(data):
        return BAD_METHOD
    if str(error) in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
        return BAD_VERSION
    return BAD_SYNTAX


def _path(url: bytes, host: bytes | None) -> bytes:
    """Return the path and query of an absolute URI, which has to be one of the host asked."""
    found = _ABSOLUTE.fullmatch(url)
    if found is None:
        raise HeadRefused(BAD_TARGET)
    authority, path = found.groups()
    if host is None or authority.lower() != host.lower():
        raise HeadRefused(BAD_HOST)
    return path if path.startswith(b"/") else b"/" + path
