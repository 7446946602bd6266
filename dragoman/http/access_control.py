"""Who gets in: every request passes here, and is answered, or refused with a reason.

The order matters. What costs least comes first: the form of the head, our own load, the rate of an
address; then the caller, its permissions and its rates. The body is read only after that.
"""

from collections.abc import Coroutine
from typing import Any

from dragoman.config import Settings
from dragoman.errors import Overloaded, PermissionDenied, RateLimited
from dragoman.http.admission import Admission
from dragoman.http.documents import denied, unauthenticated
from dragoman.http.guard import PROBLEM_JSON, Guard, GuardProblem
from dragoman.http.limits import SOURCE_AGENT, CallerLimits
from dragoman.http.rates import Rates
from dragoman.http.refusals.limited_callers import LimitedCallers
from dragoman.http.request import PUBLIC_BODY_BYTES, Headers, HttpRequest
from dragoman.http.routes import Access, Route, Routes, RouteVerdict
from dragoman.model.identity import OPERATOR, Caller
from dragoman.security.audit.log import Audit
from dragoman.security.authentication import Denied, Gatekeeper, Pass
from dragoman.security.proxies import Proxies
from dragoman.shares import Shares
from dragoman.telemetry import tracing
from dragoman.telemetry.activity import activity

# Paths that need no authentication.
_OPEN = (Access.PROBE, Access.PUBLIC)


class AccessControl:
    """Lets requests in to what answers them."""

    def __init__(
        self,
        settings: Settings,
        keeper: Gatekeeper | None,
        audit: Audit,
        *,
        is_local: bool,
        shares: Shares | None = None,
        rates: Rates | None = None,
    ) -> None:
        # None: there is no authentication.
        self._keeper = keeper
        self._audit = audit
        self._guard = Guard(settings, is_local=is_local)
        # One answer for every path: what is refused here is not known by its path yet.
        self._has_chats = settings.server.openai
        self._limits = CallerLimits(settings, rates=rates)
        # Learns which callers are active.
        self._shares = shares or Shares()
        # None: the other end of a connection is the caller itself.
        self._proxies = Proxies(settings.http.proxies) or None
        # Refuses in overload; None: the server that runs our loop does.
        self.admission: Admission | None = None
        # Remembers the callers that a rate refuses, for the connections that read their requests.
        self.refusals = _limited_callers(settings, keeper)

    async def answer(self, request: HttpRequest, routes: Routes) -> None:
        """Have a request answered, or refuse it."""
        self._guard.add_common_headers(request)
        if (problem := self._guard.problem(request)) is not None:
            if problem.status == 403:
                self._note(request, "", "access.denied", reason="a page of another origin")
            await self._refuse(request, problem)
            return
        if (allowed := self._guard.preflight(request)) is not None:
            await request.respond(204, allowed, b"")
            return
        route = routes.find_for(request)
        await self._let_in(request, route, routes)

    def answer_known(self, request: HttpRequest, routes: Routes) -> Coroutine[Any, Any, None]:
        """Have a request answered whose head was let in before on the same connection, if that
        still holds; otherwise it is judged as if it were the first."""
        verdict, pass_ = request.verdict, request.pass_
        if pass_ is not None and (self._keeper is None or not self._keeper.holds(pass_)):
            verdict = None
        if not isinstance(verdict, RouteVerdict):
            request.reconsider()
            return self.answer(request, routes)
        route = verdict.route
        request.watched.route = route.name
        return self._enter(request, route)

    async def _let_in(self, request: HttpRequest, route: Route, routes: Routes) -> None:
        """Have a request with a good head answered, if its route is open to its caller."""
        request.watched.route = route.name
        if route.access in _OPEN:
            request.most_body_bytes = PUBLIC_BODY_BYTES
        if route.access is Access.PROBE:
            self._shares.saw_probe()
            await route.answer(request)
            return
        if route.access is Access.CALLER:
            # Before authentication, so that refusals are in the trace too.
            has_trace = b"traceparent" in request.headers
            if has_trace or tracing.on:
                request.watched.join(request.scope["headers"], has_trace=has_trace)
        elif self._keeper is None and route.access is not Access.PUBLIC:
            # Without authentication no caller is an operator: behind a proxy on this machine all
            # callers come from this machine.
            await routes.others.answer(request)
            return
        if self._proxies is not None:
            request.address = self._proxies.origin(request.address, request.scope["headers"])
        await self._enter(request, route)

    async def _enter(self, request: HttpRequest, route: Route) -> None:
        """Have a request answered whose caller is known or can be authenticated, as far as load,
        rates and permissions allow."""
        # Made inside this process for another request, which was counted.
        limits, admission = self._limits, self.admission
        has_rates = limits.has_rates
        is_part = has_rates and "is_part" in request.state
        try:
            if admission is not None and not request.state.get("is_admitted"):
                self._admit(request, admission)
            if limits.is_shared:
                await limits.prepare_address(request.address)
            if route.access is Access.PUBLIC:
                limits.arrive(request.address)
                await route.answer(request)
                return
            if self._keeper is None:
                if has_rates and not is_part:
                    # There are no failures to count where no caller shows a credential.
                    limits.arrive(request.address, is_known=True)
            else:
                known = request.pass_ or self._keeper.remembered(request.evidence)
                if not is_part:
                    limits.arrive(request.address, is_known=known is not None)
                # A pass that the request has already was judged for this route.
                if request.pass_ is None and not await self._authenticate(
                    request, route, self._keeper, known
                ):
                    return
            agent = request.header(SOURCE_AGENT) if SOURCE_AGENT in request.headers else None
            if limits.is_shared:
                await limits.prepare(request.caller, agent, request.address)
            room = limits.admit(request.caller, agent, request.address, is_part)
        except Overloaded as error:
            await self._refuse_later(request, route, error)
            return
        request.room = room
        if request.verdict is None and self._is_lasting(request, route):
            request.verdict = RouteVerdict(route, request.extra)
        if has_rates:
            request.extra = [*request.extra, *room.headers]
        self._shares.saw(room.key)
        try:
            if admission is not None:
                admission.identify(request.scope.get("client"), room.key)
            await route.answer(request)
        finally:
            room.leave()

    def _is_lasting(self, request: HttpRequest, route: Route) -> bool:
        """Tell whether the verdict on a request holds for others with the same head: it has no
        trace of its own, and its caller is one that need not be looked at each time."""
        if route.access is not Access.CALLER or tracing.on or b"traceparent" in request.headers:
            return False
        pass_ = request.pass_
        return self._keeper is None or self._keeper.remembered(request.evidence) is pass_

    def _admit(self, request: HttpRequest, admission: Admission) -> None:
        """Refuse a request in overload; its connection has not decided about it."""
        state = request.state
        ticket = admission.enter(
            request.scope.get("client"),
            is_preferred=request.is_preferred,
            came_at=state.get("came_at"),
        )
        if ticket is None:
            raise Overloaded
        # Taken back by the connection, once the answer is given.
        state["ticket"] = ticket

    async def _authenticate(
        self, request: HttpRequest, route: Route, keeper: Gatekeeper, known: Pass | None
    ) -> bool:
        """Find out who calls, and tell whether the path is open to the caller; if not, the request
        is answered."""
        request.challenge = keeper.challenge
        try:
            request.pass_ = known or await keeper.admit(request.evidence)
        except Denied as error:
            if keeper.is_tried(request.evidence):
                self._limits.failed(request.address)
            self._note(request, route.name, "auth.denied", who=error.subject, reason=error.reason)
            if activity.on:
                activity.refused(request.address, error.reason)
            await unauthenticated(request, error)
            return False
        if route.access is Access.OPERATOR and OPERATOR not in request.caller.scopes:
            self._note(request, route.name, "access.denied", reason="not an operator")
            await denied(request, PermissionDenied(scope=OPERATOR))
            return False
        if request.caller.key_scopes is not None and not route.opens_to(request.caller):
            self._note(request, route.name, "access.denied", reason="the key is not for this")
            await denied(request, PermissionDenied("The key is not for this"))
            return False
        return True

    async def _refuse_later(self, request: HttpRequest, route: Route, error: Overloaded) -> None:
        """Refuse a request for now, before its body is read; the answer says when to come back."""
        if isinstance(error, RateLimited):
            # A caller is known if it has a pass, or if none is needed.
            is_known = request.pass_ is not None or self._keeper is None
            self._remember(request, request.caller if is_known else None, error)
            self._note(request, route.name, "rate.limited")
            request.extra = [*request.extra, *error.headers]
            seconds, problem = error.retry_after, _too_many(error)
        else:
            seconds, problem = 1, GuardProblem(503, "Service Unavailable", error.public)
        request.extra = [*request.extra, (b"retry-after", b"%d" % seconds)]
        await self._refuse(request, problem)

    def _remember(self, request: HttpRequest, caller: Caller | None, error: RateLimited) -> None:
        """Remember that this caller, or without one its whole address, would be refused again."""
        evidence = request.evidence
        if caller is None:
            key = self.refusals.address_key(evidence.address, evidence.headers)
        else:
            key = self.refusals.caller_key(evidence.address, evidence.certificate, evidence.headers)
        usage = self._limits.usage(caller, request.address)
        headers, body = self._document(_too_many(error))
        self.refusals.add(key, usage, [*headers, *request.extra], body)

    async def _refuse(self, request: HttpRequest, problem: GuardProblem) -> None:
        """Answer a request that gets no further than its head."""
        headers, body = self._document(problem)
        await request.respond(problem.status, headers, body)

    def _document(self, problem: GuardProblem) -> tuple[Headers, bytes]:
        """Return a problem as the headers that describe it, and a body."""
        body = problem.body(for_chats=self._has_chats)
        return [(b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body))], body

    def _note(
        self, request: HttpRequest, route: str, act: str, *, who: str = "", reason: str = ""
    ) -> None:
        self._audit.record(
            act,
            outcome="denied",
            who=who or request.caller.principal.text,
            object=f"{request.verb} {request.mount.name} {route}".rstrip(),
            reason=reason,
            address=request.address,
        )


def _limited_callers(settings: Settings, keeper: Gatekeeper | None) -> LimitedCallers:
    """Return a memory of limited callers that tells them apart as authentication does."""
    addresses = [b"x-forwarded-for"] if settings.http.proxies else []
    credentials = [name for way in keeper.authenticators for name in way.reads] if keeper else []
    # Pages of other sites get other headers.
    origins = [b"origin"] if settings.http.cors else []
    return LimitedCallers([*addresses, *credentials, *origins], [*addresses, *origins])


def _too_many(error: RateLimited) -> GuardProblem:
    return GuardProblem(429, "Too Many Requests", error.public)
