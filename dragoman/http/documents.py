"""Answers that are of no version of the protocol: plain JSON, and two refusals of HTTP itself."""

from typing import Any

from dragoman.errors import A2AError, PermissionDenied, Unauthenticated
from dragoman.http.request import JSON, Headers, HttpRequest
from dragoman.model.record import encode

# A header: nothing between us and the caller keeps the answer.
PRIVATE = (b"cache-control", b"private, no-store")


async def unauthenticated(request: HttpRequest, error: Unauthenticated) -> None:
    """Ask for credentials, whatever the binding: that is a matter of HTTP."""
    challenge = (b"www-authenticate", request.challenge.encode())
    await document(request, {"error": {"message": error.public}}, challenge, status=401)


async def denied(request: HttpRequest, error: PermissionDenied) -> None:
    """Say that a known caller may not do this: only where everybody knows that it exists."""
    headers = scope_challenge(request, error)
    await document(request, {"error": {"message": error.public}}, *headers, status=403)


def scope_challenge(request: HttpRequest, error: A2AError) -> Headers:
    """Return the header that names the scope which a credential lacks, if there is one."""
    # Its words are those of bearer tokens; for other credentials there are none.
    if (scope := error.facts.get("scope")) and "bearer" in request.challenge.lower():
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        return [(b"www-authenticate", challenge.encode())]
    return []


async def document(
    request: HttpRequest, value: Any, *headers: tuple[bytes, bytes], status: int = 200
) -> None:
    """Send JSON that is of no version of the protocol."""
    body = encode(value)
    length = (b"content-length", b"%d" % len(body))
    await request.respond(status, [(b"content-type", JSON), length, *headers], body)
