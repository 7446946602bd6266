"""Answers to the visitors of the console: their sessions, and what every answer has.

Its routes are public, since a visitor without a session is shown the form to sign in; what a page
shows is asked for with the visitor's own credential (`api.py`), and refused there.
"""

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

from dragoman.console import live, signing_in
from dragoman.console.api import ApiFailed, VisitorApi
from dragoman.console.paths import PATH, base
from dragoman.console.sessions import Sessions, VisitorSession, is_local_host
from dragoman.console.visit import Answer, Download, DrawnPage, Redirect, Visit
from dragoman.errors import A2AError, StoreUnavailable
from dragoman.http.documents import PRIVATE
from dragoman.http.request import Headers, HttpRequest, read_body
from dragoman.server.site import Site
from dragoman.server.store_marks import ended_sessions

if TYPE_CHECKING:
    # Loads what dials out: only where people sign in at an issuer.
    from dragoman.console.issuer_login import IssuerLogin

logger = logging.getLogger("dragoman")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types dragoman"
)
_SAFE: Headers = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with that, browsers send the forms of our own pages with the origin `null`.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    PRIVATE,
]
_MAX_FORM_BYTES = 64 * 1024
_MAX_FORM_FIELDS = 1000
# The ways of people and programs to prove who they are, as the form to sign in names them.
_WAYS = {
    "bearer": "tokens",
    "apiKey": "API keys",
    "jwt": "JWTs",
    "oauth2": "JWTs of the issuer",
    "oidc": "JWTs of the issuer",
    "mtls": "client certificates",
    "agentKey": "keys of agents",
}
# How a gateway proves to its own agents who it is: nobody has that to type in.
_OWN_WAY = "gateway"
_STORE_AWAY = "The store cannot be reached at the moment: try again soon."


class Console:
    """Answers visitors: pages, forms and the parts of pages that change."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._sessions = Sessions(lambda: site.store.secret, ended_sessions(site.store))
        self._issuer = _issuer_login(site, self._sessions)
        self.live = live.LivePages()

    async def answer(self, request: HttpRequest, below: str) -> None:
        """Answer a request for a page, a form or a live part, by its path below the console's."""
        try:
            # The secret that seals sessions. No start waits for it, nor loads the cipher.
            await self._site.store.prepare()
            if request.verb in ("GET", "HEAD"):
                await self._visit(request, below)
            elif request.verb == "POST":
                await self._submit(request, below)
            else:
                await request.refuse_verb("GET, HEAD, POST")
        except StoreUnavailable:
            # Whether a session was ended is in the store. What a page shows, its API refuses.
            if request.is_answered:
                raise
            await self._fail(request, None, 503, _STORE_AWAY)

    async def redirect(self, request: HttpRequest, to: str) -> None:
        """Send a browser to a path below the console's."""
        await self._send_redirect(request, base(request) + to)

    async def _visit(self, request: HttpRequest, below: str) -> None:
        if self._issuer is not None and below in (signing_in.BEGIN, signing_in.BACK):
            await self._sign_in_at(self._issuer, request, below)
            return
        session = await self._sessions.read(request) or self._begin_session(request)
        if below == "/live":
            await self._follow(request, session)
            return
        await self._draw(request, session, below, _query(request), None)

    def _begin_session(self, request: HttpRequest, *credential: str) -> VisitorSession:
        """Begin a session, with the header and the value of a credential or without."""
        session = self._sessions.begin(*credential)
        request.extra = [*request.extra, self._sessions.cookie(request, session)]
        return session

    async def _submit(self, request: HttpRequest, below: str) -> None:
        """Take a form, if one of our own pages sent it in this session."""
        session = await self._sessions.read(request)
        try:
            body = await read_body(request, _MAX_FORM_BYTES)
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
        except (ValueError, A2AError):
            await self._fail(request, session, 413, "This form is too large to be taken.")
            return
        if session is None:
            message = (
                "Your session has ended, or your browser kept no cookie of it: open the page again."
            )
            if not is_local_host(request):
                message += " Elsewhere than on this machine the console needs https."
            await self._fail(request, session, 403, message)
        elif not self._is_own_origin(request) or not self._sessions.is_own(
            session, (form.get("token") or [""])[0]
        ):
            self._refused(request)
            message = "This form was not sent by a page of this console: open the page again."
            await self._fail(request, session, 403, message)
        elif below == "/login":
            await self._sign_in(request, session, form)
        elif below == "/logout":
            await self._sign_out(request, session)
        else:
            await self._draw(request, session, below, _query(request), form)

    def _is_own_origin(self, request: HttpRequest) -> bool:
        """Tell whether a form comes from this very site; other origins that may call us may not."""
        origin = (request.header(b"origin") or "").lower()
        host = (request.header(b"host") or "").lower()
        public = urlsplit(self._site.settings.cards.public_url.lower())
        own = {f"{request.scope.get('scheme', 'http')}://{host}"}
        if public.netloc:
            own.add(f"{public.scheme}://{public.netloc}")
        return bool(host) and origin in own

    def _refused(self, request: HttpRequest) -> None:
        self._site.audit.record(
            "console.form",
            outcome="denied",
            object=request.path,
            reason="not of a page of this session",
            address=request.address,
        )

    # Pages

    async def _draw(
        self,
        request: HttpRequest,
        session: VisitorSession,
        below: str,
        query: Mapping[str, str],
        form: Mapping[str, list[str]] | None,
    ) -> None:
        from dragoman.console import pages

        if below == "/login":
            await self._show_login(request, session, query)
            return
        found = pages.find(below, is_form=form is not None)
        try:
            if found is None:
                raise ApiFailed(404, "There is no such page.")
            page, params = found
            visit = await self._visit_of(request, session, query, params, form)
            answer = await page(visit)
        except ApiFailed as error:
            await self._refuse(request, session, error)
            return
        await self._respond(request, session, visit.me, answer)

    async def _visit_of(
        self,
        request: HttpRequest,
        session: VisitorSession,
        query: Mapping[str, str],
        params: Mapping[str, str],
        form: Mapping[str, list[str]] | None = None,
    ) -> Visit:
        api = VisitorApi(self._site.asgi, request, session.credential)
        me = await api.get("/me")
        return Visit(api, session, me, query, params, form, origin=_origin(request))

    async def _respond(
        self, request: HttpRequest, session: VisitorSession, me: dict[str, Any], answer: Answer
    ) -> None:
        match answer:
            case Redirect(to, notice):
                if notice:
                    said = self._sessions.notice_query(session, notice)
                    to += ("&" if "?" in to else "?") + said
                await self.redirect(request, to)
            case Download():
                await _send_file(request, answer)
            case DrawnPage():
                html = self.draw(request, session, me, answer)
                await _send_page(request, answer.status, html)

    def draw(
        self, request: HttpRequest, session: VisitorSession, me: dict[str, Any], drawn: DrawnPage
    ) -> str:
        """Return a page as HTML."""
        from dragoman.console.rendering import render

        context = self.context(request, session, me, drawn)
        # Parts that change are drawn without it: they are shared.
        context["token"] = self._sessions.form_token(session)
        return render(drawn.template, context)

    def context(
        self, request: HttpRequest, session: VisitorSession, me: dict[str, Any], drawn: DrawnPage
    ) -> dict[str, Any]:
        """Return what every template has, and what this page adds."""
        path = request.path
        query = request.scope["query_string"].decode("latin-1")
        here = f"{base(request)}{path.removeprefix(PATH)}" + (f"?{query}" if query else "")
        return {
            "base": base(request),
            "here": here,
            "page": f"{base(request)}{drawn.live_at}" if drawn.live_at else here,
            "path": path.removeprefix(PATH) or "/",
            "me": me,
            "title": drawn.title,
            "is_live": bool(drawn.live),
            "notice": self._sessions.notice(session, _query(request)),
            **drawn.context,
        }

    async def _refuse(
        self, request: HttpRequest, session: VisitorSession, error: ApiFailed
    ) -> None:
        if error.status == 401:
            if session.header:
                # The credential was revoked or has expired, and the session ends with it.
                await self._sessions.end(session)
                request.extra = [*request.extra, self._sessions.forget(request)]
            target = f"{base(request)}/login?next={quote(_here(request))}"
            await self._send_redirect(request, target)
            return
        await self._fail(request, session, error.status, error.message)

    async def _fail(
        self, request: HttpRequest, session: VisitorSession | None, status: int, message: str
    ) -> None:
        drawn = DrawnPage("error.html", "Not possible", {"status": status, "message": message})
        drawn.status = status
        me: dict[str, Any] = {}
        session = session or self._sessions.begin()
        with contextlib.suppress(ApiFailed):
            me = await VisitorApi(self._site.asgi, request, session.credential).get("/me")
        await _send_page(request, status, self.draw(request, session, me, drawn))

    async def _send_redirect(self, request: HttpRequest, target: str) -> None:
        _make_safe(request)
        location = (b"location", target.encode("ascii", "ignore"))
        await request.respond(303, [location, (b"content-length", b"0")], b"")

    # Signing in and out

    async def _show_login(
        self,
        request: HttpRequest,
        session: VisitorSession,
        query: Mapping[str, str],
        problem: str = "",
    ) -> None:
        if self._site.gatekeeper is None:
            await self.redirect(request, "")
            return
        names = [way.name for way in self._site.authenticators]
        ways = [_WAYS[name] for name in _WAYS if name in names]
        ways += [name for name in names if name not in _WAYS and name != _OWN_WAY]
        issuer = "" if self._issuer is None else self._issuer.name
        context = {
            "next": query.get("next", ""),
            "problem": problem,
            "ways": ways,
            "issuer": issuer,
        }
        drawn = DrawnPage("login.html", "Sign in", context, status=401 if problem else 200)
        await _send_page(request, drawn.status, self.draw(request, session, {}, drawn))

    async def _sign_in(
        self, request: HttpRequest, session: VisitorSession, form: Mapping[str, list[str]]
    ) -> None:
        given = (form.get("credential") or [""])[0].strip()
        target = (form.get("next") or [""])[0]
        found = await signing_in.credential_of(self._site, request, given)
        if isinstance(found, str):
            await self._show_login(request, session, {"next": target}, found)
            return
        # Another session than the one before, which stays without a credential: one that a stranger
        # planted is of no use to it.
        self._begin_session(request, *found)
        await self._send_redirect(request, signing_in.safe_target(target, base(request)))

    async def _sign_in_at(self, issuer: "IssuerLogin", request: HttpRequest, below: str) -> None:
        """Send a browser to the issuer, or take what it brings back from there."""
        from dragoman.security.jwt.code_flow import SignInFailed

        query = _query(request)
        try:
            if below == signing_in.BEGIN:
                origin = self._site.settings.cards.public_url.rstrip("/") or _origin(request)
                back = f"{origin}{base(request)}{signing_in.BACK}"
                place = await issuer.begin(request, back, query.get("next", ""))
                await self._send_redirect(request, place)
                return
            credential, wanted = await issuer.finish(request, query)
        except SignInFailed as error:
            await self._show_login(request, self._begin_session(request), query, str(error))
            return
        session = self._begin_session(request, *credential)
        # Not a redirect: after one, a browser that another site sent here sends no such cookie.
        target = signing_in.safe_target(wanted, base(request))
        drawn = DrawnPage("signed_in.html", "Signed in", {"target": target})
        await _send_page(request, 200, self.draw(request, session, {}, drawn))

    async def _sign_out(self, request: HttpRequest, session: VisitorSession) -> None:
        await self._sessions.end(session)
        # Pages of this session may be open in other tabs.
        self.live.ask_again()
        request.extra = [*request.extra, self._sessions.forget(request)]
        await self.redirect(request, "/login")

    # Live parts

    async def _follow(self, request: HttpRequest, session: VisitorSession) -> None:
        """Send the parts of a page again when they change."""
        from dragoman.console import pages

        query = _query(request)
        path, _, text = query.get("page", "").partition("?")
        below = path.removeprefix(base(request)).rstrip("/") or "/"
        found = pages.find(below)
        if found is None:
            await request.respond(404, [(b"content-length", b"0")], b"")
            return
        page, params = found
        # The page's address, and not that of its stream, is what its templates are given.
        request.path = PATH + (below if below != "/" else "")
        request.scope["query_string"] = text.encode("latin-1", "ignore")
        try:
            visit = await self._visit_of(request, session, _parsed(text), params)
        except ApiFailed as error:
            await request.respond(error.status, [(b"content-length", b"0")], b"")
            return

        async def fragments() -> live.Found:
            drawn = await page(visit)
            if not isinstance(drawn, DrawnPage):
                return [], 0.0
            from dragoman.console.rendering import fragment

            context = self.context(request, session, visit.me, drawn)

            return [fragment(name, context) for name in drawn.live], drawn.every

        _make_safe(request)
        # No part of a page holds the token of a session, so those who may see the same share it.
        who = hashlib.blake2b(session.value.encode(), digest_size=16).hexdigest()
        key = f"{who} {visit.me.get('owner')} {below}?{text}"
        await self.live.follow(
            request,
            self._site.streams,
            visit.api,
            fragments,
            query.get("seen", ""),
            key,
            # Pages are shared by credential, and another session of it may go on.
            lambda: self._sessions.holds(session),
        )


def _issuer_login(site: Site, sessions: Sessions) -> "IssuerLogin | None":
    """Return what signs people in at the issuer of the settings; None: they name no client."""
    if "oidc" not in site.settings.ways() or not site.settings.security.oidc_client_id:
        return None
    from dragoman.console.issuer_login import IssuerLogin

    return IssuerLogin(site, sessions)


def _make_safe(request: HttpRequest) -> None:
    """Give an answer the headers of the console in place of those of plain answers."""
    named = {name for name, _ in _SAFE}
    request.extra = [*(pair for pair in request.extra if pair[0] not in named), *_SAFE]


async def _send_page(request: HttpRequest, status: int, html: str) -> None:
    _make_safe(request)
    body = html.encode("utf-8", "replace")
    headers: Headers = [(b"content-type", b"text/html; charset=utf-8"), (b"vary", b"Cookie")]
    if b"gzip" in request.headers.get(b"accept-encoding", b""):
        import gzip

        body = gzip.compress(body, 5)
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    await request.respond(status, headers, b"" if request.verb == "HEAD" else body)


async def _send_file(request: HttpRequest, file: Download) -> None:
    _make_safe(request)
    # Nothing that an agent made is opened in this origin.
    way = "inline" if file.is_shown else "attachment"
    headers: Headers = [
        (b"content-type", file.kind.encode("ascii", "ignore") or b"application/octet-stream"),
        (b"content-disposition", f"{way}; filename*=UTF-8''{quote(file.name[:200])}".encode()),
    ]
    if file.pieces is None:
        await request.respond(200, [*headers, _length(file.body)], file.body)
        return
    request.is_answered = True
    request.watched.responded(200)
    head = {"type": "http.response.start", "status": 200, "headers": [*headers, *request.extra]}
    await request.send(head)
    if request.verb != "HEAD":
        # The server waits while the browser does not take them, so one is in memory.
        async for piece in file.pieces:
            await request.send({"type": "http.response.body", "body": piece, "more_body": True})
    await request.send({"type": "http.response.body", "body": b""})


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


def _origin(request: HttpRequest) -> str:
    return f"{request.scope.get('scheme', 'http')}://{request.header(b'host') or 'localhost'}"


def _here(request: HttpRequest) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return request.scope["path"] + (f"?{query}" if query else "")


def _query(request: HttpRequest) -> dict[str, str]:
    return _parsed(request.scope["query_string"].decode("latin-1"))


def _parsed(text: str) -> dict[str, str]:
    try:
        values = parse_qs(text, max_num_fields=50)
    except ValueError:
        return {}
    return {name: found[0] for name, found in values.items()}
