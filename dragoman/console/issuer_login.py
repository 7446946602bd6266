"""Signing in at an OIDC issuer: a browser goes there with a question and comes back with a code.

What has to be known when it comes back is in a sealed cookie of its own: that of the session is
not sent by a browser that another site sends here.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dragoman.console import signing_in
from dragoman.console.sessions import Sessions, cookie_name, make_cookie, read_cookie
from dragoman.http.request import HttpRequest
from dragoman.security.jwt.code_flow import CodeFlow, SignInAttempt, SignInFailed
from dragoman.server.site import Site

# Seconds that a person has at the issuer.
_LASTS = 600
_KIND = b"sign-in at an issuer"
_decode = msgspec.json.Decoder(SignInAttempt).decode


class IssuerLogin:
    """Signs people in at the issuer of the server's settings."""

    def __init__(self, site: Site, sessions: Sessions) -> None:
        security = site.settings.security
        self._site = site
        self._sessions = sessions
        self._flow = CodeFlow(
            security.jwt_issuer,
            security.oidc_client_id,
            security.oidc_client_secret,
            scopes=security.oidc_scopes,
            allow_private=site.settings.egress.allow_private,
        )
        # What people are told of it.
        self.name = urlsplit(security.jwt_issuer).netloc

    async def begin(self, request: HttpRequest, redirect_uri: str, target: str) -> str:
        """Return where to send a browser; raises `SignInFailed`."""
        place, attempt = await self._flow.begin(redirect_uri, target)
        sealed = self._sessions.seal(msgspec.json.encode(attempt), _KIND)
        request.extra = [*request.extra, _cookie(request, sealed, _LASTS)]
        return place

    async def finish(
        self, request: HttpRequest, query: Mapping[str, str]
    ) -> tuple[tuple[str, str], str]:
        """Return the header and its value that let a person in who came back, and where they
        wanted to go; raises `SignInFailed`."""
        content = self._sessions.unseal(read_cookie(request, _name(request)), _KIND)
        # Once: what was sealed is of no use to a second code.
        request.extra = [*request.extra, _cookie(request, "", 0)]
        if content is None:
            raise SignInFailed("This sign-in was not begun in this browser: try again.")
        attempt = _decode(content)
        problem = ""
        for token in await self._flow.finish(attempt, query):
            found = await signing_in.credential_of(self._site, request, token)
            if not isinstance(found, str):
                return found, attempt.target
            problem = problem or found
        if problem == signing_in.WRONG:
            problem = f"{self.name} knows you, but its token does not let you in here."
        raise SignInFailed(problem)


def _name(request: HttpRequest) -> str:
    return f"{cookie_name(request)}-sign-in"


def _cookie(request: HttpRequest, value: str, seconds: int) -> tuple[bytes, bytes]:
    # Lax: it has to come along when the issuer sends the browser back.
    return make_cookie(request, _name(request), value, seconds, "Lax")
