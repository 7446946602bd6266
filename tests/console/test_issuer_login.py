"""Signing in at an OIDC issuer: by code and PKCE, with a real browser that comes from another site,
and what a code or an answer of somebody else is worth."""

import base64
import hashlib
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
import pytest
from harness.serving import Site, hosting
from playwright.async_api import Browser, expect

from tests.console.sites import Visitor, console, echo
from tests.security.jwt.minting import jwk, token

CLIENT, SECRET, AUDIENCE = "console", "of the client", "https://agents.example"


class CodeIssuer:
    """An issuer that lets everybody in as Ada, once for each code."""

    def __init__(self) -> None:
        self.url = ""
        # What the next token says in place of what it should.
        self.claims: dict[str, Any] = {}
        self.scope = "dragoman:operator"
        self.asked: list[dict[str, str]] = []
        self.redeemed: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = (await receive()).get("body", b"")
        query = dict(parse_qsl(scope["query_string"].decode()))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, more, value = self._answer(scope["path"], query, body.decode(), headers)
        content = msgspec.json.encode(value)
        length = (b"content-length", b"%d" % len(content))
        head = [(b"content-type", b"application/json"), length, *more]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, path: str, query: dict[str, str], body: str, headers: dict[str, str]) -> Any:
        if path.endswith("openid-configuration"):
            places = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
            named = {name: f"{self.url}/{place}" for name, place in places.items()}
            return 200, [], {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **named}
        if path == "/keys":
            return 200, [], {"keys": [jwk("ec")]}
        if path == "/authorize":
            self.asked.append(query)
            code = f"code-{len(self.asked)}"
            self._codes[code] = query
            back = urlencode({"code": code, "state": query["state"], "iss": self.url})
            return 302, [(b"location", f"{query['redirect_uri']}?{back}".encode())], {}
        form = dict(parse_qsl(body))
        self.redeemed.append(form)
        return self._token(form, headers)

    def _token(self, form: dict[str, str], headers: dict[str, str]) -> Any:
        asked = self._codes.pop(form.get("code", ""), None)
        pair = base64.b64encode(f"{CLIENT}:of%20the%20client".encode()).decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or headers.get("authorization") != f"Basic {pair}"
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form.get("redirect_uri")
        ):
            return 400, [], {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.url, "sub": "ada", "iat": now, "exp": now + 600}
        access = {**claims, "aud": AUDIENCE, "scope": self.scope, "client_id": CLIENT, "jti": "1"}
        identity = {**claims, "aud": CLIENT, "nonce": asked["nonce"], **self.claims}
        return (
            200,
            [],
            {
                "access_token": token(payload={**access, **self.claims}),
                "id_token": token(payload=identity),
                "token_type": "Bearer",
            },
        )


@asynccontextmanager
async def signed_by(issuer: CodeIssuer, **more: Any) -> AsyncGenerator[Site]:
    """Serve a console whose callers are known by an issuer, which is another site."""
    async with hosting(issuer) as url:
        issuer.url = url.replace("127.0.0.1", "localhost")
        given: dict[str, Any] = {
            "auth": "oidc",
            "jwt_issuer": issuer.url,
            "jwt_audience": AUDIENCE,
            "oidc_client_id": CLIENT,
            "oidc_client_secret": SECRET,
            "oidc_scopes": "dragoman:operator",
        }
        async with console(echo(), **given | more) as site:
            yield site


@pytest.fixture(scope="module")
async def place() -> AsyncGenerator[tuple[CodeIssuer, Site]]:
    issuer = CodeIssuer()
    async with signed_by(issuer) as site:
        yield issuer, site


async def begun(site: Site, visitor: Visitor) -> dict[str, str]:
    """Begin a sign-in; return what the issuer is asked."""
    site.http.cookies.clear()
    answer = await visitor.get("/console/login/issuer?next=/console/agents")
    assert answer.status_code == 303
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


async def code_of(issuer: CodeIssuer, site: Site, asked: dict[str, str]) -> str:
    answer = await site.http.get(f"{issuer.url}/authorize?{urlencode(asked)}")
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))["code"]


async def test_a_person_signs_in_at_the_issuer_and_lands_where_they_wanted_to_go(
    browser: Browser, place: tuple[CodeIssuer, Site]
) -> None:
    issuer, site = place
    context = await browser.new_context(base_url=site.url)
    page = await context.new_page()
    await page.goto("/console/agents")
    # Keys are no way in here.
    await expect(page.get_by_text("keys create")).to_have_count(0)
    await page.get_by_role("link", name="Sign in with").click()
    await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    assert page.url == f"{site.url}/console/agents"
    await expect(page.locator(".who")).to_contain_text("ada · operator")
    (session,) = await context.cookies(site.url)
    assert "sign-in" not in session.get("name", "")
    assert session.get("sameSite") == "Strict" and session.get("httpOnly")
    asked, redeemed = issuer.asked[-1], issuer.redeemed[-1]
    assert asked["code_challenge_method"] == "S256"
    assert asked["scope"] == "openid dragoman:operator"
    assert re.fullmatch(r"[\w-]{43}", redeemed["code_verifier"])
    await context.close()


async def test_a_code_that_was_planted_opens_no_session(place: tuple[CodeIssuer, Site]) -> None:
    issuer, site = place
    visitor = Visitor(site.http)
    theirs = await code_of(issuer, site, await begun(site, visitor))
    # With the state that this browser has, but for another verifier.
    asked = await begun(site, visitor)
    query = urlencode({"code": theirs, "state": asked["state"]})
    answer = await visitor.get(f"/console/login/callback?{query}")
    assert answer.status_code == 401 and "did not take" in answer.text
    assert (await visitor.get("/console/tasks")).status_code == 303
    # For this browser's verifier, but with another state.
    code = await code_of(issuer, site, await begun(site, visitor))
    query = urlencode({"code": code, "state": asked["state"]})
    answer = await visitor.get(f"/console/login/callback?{query}")
    assert answer.status_code == 401 and "was not begun in this browser" in answer.text
    assert (await visitor.get("/console/tasks")).status_code == 303


async def test_a_callback_that_no_browser_asked_for_asks_the_issuer_nothing(
    place: tuple[CodeIssuer, Site],
) -> None:
    issuer, site = place
    visitor, before = Visitor(site.http), len(issuer.redeemed)
    site.http.cookies.clear()
    answer = await visitor.get("/console/login/callback?code=code-1&state=")
    assert answer.status_code == 401 and "was not begun in this browser" in answer.text
    assert len(issuer.redeemed) == before


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "https://others.example"}, "does not let you in here"),
        ({"nonce": "of another sign-in"}, "is to another sign-in"),
        ({"iss": "https://evil.example"}, "does not let you in here"),
    ],
)
async def test_a_token_that_is_not_for_this_server_or_this_sign_in_opens_no_session(
    place: tuple[CodeIssuer, Site], claims: dict[str, str], said: str
) -> None:
    issuer, site = place
    issuer.claims = claims
    visitor = Visitor(site.http)
    asked = await begun(site, visitor)
    code = await code_of(issuer, site, asked)
    query = urlencode({"code": code, "state": asked["state"]})
    answer = await visitor.get(f"/console/login/callback?{query}")
    issuer.claims = {}
    assert answer.status_code == 401 and said in answer.text
    assert (await visitor.get("/console/tasks")).status_code == 303


async def test_what_the_issuer_refuses_is_told_and_its_words_are_data(
    place: tuple[CodeIssuer, Site],
) -> None:
    _, site = place
    visitor = Visitor(site.http)
    for error, said in (
        ("access_denied", "The issuer refused: access_denied."),
        ("<b>call 0900</b>", "no reason that can be shown"),
    ):
        asked = await begun(site, visitor)
        query = urlencode({"error": error, "state": asked["state"]})
        answer = await visitor.get(f"/console/login/callback?{query}")
        assert answer.status_code == 401 and said in answer.text
        assert "0900" not in answer.text


async def test_another_issuer_that_answers_is_not_believed(place: tuple[CodeIssuer, Site]) -> None:
    issuer, site = place
    visitor = Visitor(site.http)
    asked = await begun(site, visitor)
    code = await code_of(issuer, site, asked)
    query = urlencode({"code": code, "state": asked["state"], "iss": "https://evil.example"})
    answer = await visitor.get(f"/console/login/callback?{query}")
    assert answer.status_code == 401 and "Another issuer" in answer.text


async def test_signing_in_at_the_issuer_leads_to_no_other_site(
    place: tuple[CodeIssuer, Site],
) -> None:
    issuer, site = place
    visitor = Visitor(site.http)
    site.http.cookies.clear()
    answer = await visitor.get("/console/login/issuer?next=//evil.example")
    asked = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    code = await code_of(issuer, site, asked)
    query = urlencode({"code": code, "state": asked["state"]})
    answer = await visitor.get(f"/console/login/callback?{query}")
    assert answer.status_code == 200 and 'content="0;url=/console"' in answer.text
    assert (await visitor.get("/console/tasks")).status_code == 200
