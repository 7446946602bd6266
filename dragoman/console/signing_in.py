"""Signing in: which header a typed credential belongs into, and where to go afterwards."""

from dragoman.console.api import ApiFailed, VisitorApi
from dragoman.console.sessions import MAX_CREDENTIAL_BYTES
from dragoman.http.request import HttpRequest
from dragoman.server.site import Site

# The paths of a sign-in at an issuer.
BEGIN = "/login/issuer"
BACK = "/login/callback"
WRONG = "This is neither a token nor a key that is valid here."


async def credential_of(site: Site, request: HttpRequest, given: str) -> tuple[str, str] | str:
    """Return the header and its value by which a credential lets its owner in, or why it does not.

    It is tried as any caller would show it, so wrong ones count and are in the audit log.
    """
    if not given:
        return "Type a token or an API key."
    if not given.isascii() or not given.isprintable() or " " in given:
        return WRONG
    if len(given) > MAX_CREDENTIAL_BYTES:
        return f"A session holds credentials of up to {MAX_CREDENTIAL_BYTES:,} characters."
    for header in _headers(site):
        value = f"Bearer {given}" if header == "authorization" else given
        try:
            me = await VisitorApi(site.asgi, request, [(header.encode(), value.encode())]).get(
                "/me"
            )
        except ApiFailed as error:
            if error.status == 429:
                return "Too many attempts: wait a minute."
            if error.status != 401:
                return error.message
        else:
            site.audit.record(
                "console.login", outcome="allowed", who=me["owner"], address=request.address
            )
            return header, value
    return WRONG


def _headers(site: Site) -> list[str]:
    """Return the headers that callers may show a credential in, as people would think of them."""
    read = {name.decode() for way in site.authenticators for name in way.reads}
    first = [name for name in ("authorization",) if name in read]
    return [*first, *sorted(read - {"authorization"})]


def safe_target(target: str, base: str) -> str:
    """Return where to go after signing in: a page of ours, whatever was asked for."""
    is_ours = target == base or target.startswith((f"{base}/", f"{base}?"))
    is_plain = target.isascii() and target.isprintable() and "\\" not in target
    return target if is_ours and is_plain and not target.startswith("//") else base
