"""Styles and modules of the console: read once, compressed once, and cached by browsers for good.

Their folder has a digest of all of them in its name, so that modules that import each other are
always of one release.
"""

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from dragoman.http.request import Headers, HttpRequest

_FOLDER = Path(__file__).parent / "static"
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")


class Asset(msgspec.Struct, frozen=True):
    """One file, plain and compressed."""

    kind: bytes
    plain: bytes
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files by name."""
    import gzip

    return {
        path.name: Asset(_KINDS[path.suffix], path.read_bytes(), gzip.compress(path.read_bytes()))
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _KINDS
    }


@cache
def digest() -> str:
    """Return what names this release's files."""
    found = hashlib.sha256()
    for name, asset in assets().items():
        found.update(name.encode() + b"\0" + asset.plain)
    return found.hexdigest()[:12]


async def send_asset(request: HttpRequest, below: str) -> None:
    """Answer a request for a file; under the digest of this release it never changes."""
    _, _, release, name = (below + "///").split("/", 3)
    asset = assets().get(name.rstrip("/"))
    if asset is None or request.verb not in ("GET", "HEAD"):
        await request.respond(404, [(b"content-length", b"0")], b"")
        return
    headers: Headers = [(b"content-type", asset.kind), (b"vary", b"Accept-Encoding")]
    if release == digest():
        headers.append(_FOREVER)
    body = asset.plain
    if b"gzip" in request.headers.get(b"accept-encoding", b""):
        body = asset.packed
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    await request.respond(200, headers, b"" if request.verb == "HEAD" else body)
