"""How people sign in at an issuer: OpenID Connect by authorization code, with PKCE (RFC 7636).

What a browser brings back is worth nothing without the verifier, which never leaves the server but
for the issuer, so a code that was stolen or planted opens no session. The tokens are not believed
here: they are shown to the server as any caller shows one.
"""

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote, urlencode

import msgspec

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.security.authentication import CredentialRefused
from dragoman.security.jwt.form import read_token
from dragoman.security.jwt.jwks import (
    DISCOVERY,
    JwksEndpoints,
    allowed_entry,
    configured_target,
    fetch,
    read_endpoints,
)

LARGEST_ANSWER = 64 * 1024
ANSWER_WITHIN = 10.0
_TOKEN = re.compile(r"[!-~]{1,16384}", re.ASCII)
# What an issuer calls an error; other texts are not repeated.
_ERROR = re.compile(r"[a-z_]{1,64}", re.ASCII)


class SignInFailed(Exception):
    """The sign-in failed; the message may be shown to the person who tried."""


class SignInAttempt(msgspec.Struct, frozen=True, array_like=True):
    """What has to be known when the browser comes back. Sealed while the browser has it."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    # Where the person wanted to go.
    target: str

    def __repr__(self) -> str:
        return f"SignInAttempt(target={self.target!r})"


class CodeFlow:
    """Sends people to one issuer, as one client of it, and fetches what they come back with."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str = "",
        *,
        scopes: Sequence[str] = ("openid",),
        allow_private: bool = False,
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._scopes = " ".join(dict.fromkeys(["openid", *scopes]))
        self._allow = allowed_entry(configured_target(issuer, allow_private))
        self._allow_private = allow_private

    def __repr__(self) -> str:
        return f"CodeFlow({self._issuer!r}, {self._client_id!r})"

    async def begin(self, redirect_uri: str, target: str) -> tuple[str, SignInAttempt]:
        """Return where to send a browser, and what to know when it comes back; raises
        `SignInFailed`."""
        async with self._egress() as egress:
            where = await self._where(egress)
        attempt = SignInAttempt(_random(), _random(), _random(), redirect_uri, target)
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        asked = urlencode(
            {
                "response_type": "code",
                "client_id": self._client_id,
                "redirect_uri": redirect_uri,
                "scope": self._scopes,
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
            }
        )
        mark = "&" if "?" in where.authorization_url else "?"
        return f"{where.authorization_url}{mark}{asked}", attempt

    async def finish(self, attempt: SignInAttempt, query: Mapping[str, str]) -> list[str]:
        """Return the tokens that the issuer gives for what a browser brought, the one for servers
        first; raises `SignInFailed`."""
        if not hmac.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
            raise SignInFailed("This sign-in was not begun in this browser: try again.")
        # RFC 9207: an issuer that says who it is says the one that was asked.
        if query.get("iss", self._issuer) != self._issuer:
            raise SignInFailed("Another issuer answered than the one that was asked.")
        if error := query.get("error", ""):
            said = error if _ERROR.fullmatch(error) else "no reason that can be shown"
            raise SignInFailed(f"The issuer refused: {said}.")
        async with self._egress() as egress:
            given = await self._redeemed(egress, attempt, query.get("code", ""))
        access, identity = (str(given.get(name, "")) for name in ("access_token", "id_token"))
        if identity and not _has_nonce(identity, attempt.nonce):
            raise SignInFailed("The issuer's answer is to another sign-in: try again.")
        found = [one for one in (access, identity) if _TOKEN.fullmatch(one)]
        if not found:
            raise SignInFailed("The issuer gave no token.")
        return found

    def _egress(self) -> Egress:
        # Where the operator says the issuer is, we go, whatever address that has.
        return Egress(allow=[self._allow], allow_private=self._allow_private)

    async def _where(self, egress: Egress) -> JwksEndpoints:
        try:
            answer = await fetch(egress, self._issuer.rstrip("/") + DISCOVERY)
            found = read_endpoints(answer.body, self._issuer)
        except (EgressError, ValueError):
            raise SignInFailed("The issuer does not answer: try again later.") from None
        places = (found.authorization_url, found.token_url)
        is_safe = not self._issuer.startswith("https:") or all(
            one.startswith("https:") for one in places
        )
        if not all(places) or not is_safe:
            raise SignInFailed("The issuer does not say where people sign in.")
        return found

    async def _redeemed(self, egress: Egress, attempt: SignInAttempt, code: str) -> dict[str, Any]:
        where = await self._where(egress)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = {
            "accept": "application/json",
            "content-type": "application/x-www-form-urlencoded",
        }
        if self._client_secret and not where.posts_secret:
            # RFC 6749, 2.3.1: each half is encoded as in a form before the two are joined.
            pair = f"{quote(self._client_id, safe='')}:{quote(self._client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self._client_id
            if self._client_secret:
                form["client_secret"] = self._client_secret
        try:
            answer = await egress.post(
                where.token_url,
                urlencode(form).encode(),
                headers,
                timeout=ANSWER_WITHIN,
                max_answer=LARGEST_ANSWER,
            )
            value = None if answer.is_cut else msgspec.json.decode(answer.body)
        except (EgressError, msgspec.DecodeError, RecursionError):
            raise SignInFailed("The issuer does not answer: try again later.") from None
        if answer.status != 200 or not isinstance(value, dict):
            raise SignInFailed("The issuer did not take what the browser brought: try again.")
        return cast("dict[str, Any]", value)


def _random() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


def _has_nonce(token: str, nonce: str) -> bool:
    """Tell whether an identity token is the answer to this sign-in."""
    try:
        found = read_token(token).claims.get("nonce")
    except CredentialRefused:
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(), nonce.encode())
