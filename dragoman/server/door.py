"""Who gets in: every request passes here, and whoever is turned away is told how.

The order matters. What costs least comes first: the head's form, our own load, the rate of an
address; then who asks, what they may ask for and how often. Only then anyone reads the body.
"""

from dragoman.config import Settings
from dragoman.engine.shares import Shares
from dragoman.errors import Overloaded, PermissionDenied, RateLimited
from dragoman.model.identity import ADMIN, OPERATOR, Caller
from dragoman.security.audit import Audit
from dragoman.security.authentication import Denied, Gatekeeper, Pass
from dragoman.security.proxies import Proxies
from dragoman.server.admission import Admission
from dragoman.server.discovery import denied, unauthenticated
from dragoman.server.guard import PROBLEM_JSON, Guard, Problem
from dragoman.server.limits import SOURCE_AGENT, Limits
from dragoman.server.refusals import Refusals
from dragoman.server.request import PUBLIC_BODY_BYTES, Headers, Request
from dragoman.server.routes import Access, Route, Routes

# Scopes of which a caller must have one, where knowing them is not enough.
_ROLES: dict[Access | None, set[str]] = {
    Access.OPERATOR: {OPERATOR},
    Access.ADMIN: {OPERATOR, ADMIN},
}
# Paths at which it is not asked who calls.
_UNKNOWN = (Access.PROBE, Access.PUBLIC)


class Door:
    """Lets requests in to what answers them."""

    def __init__(
        self,
        settings: Settings,
        keeper: Gatekeeper | None,
        audit: Audit,
        *,
        is_local: bool,
        shares: Shares | None = None,
    ) -> None:
        # None: nobody is asked who they are.
        self._keeper = keeper
        self._audit = audit
        self._guard = Guard(settings, is_local=is_local)
        self._limits = Limits(settings)
        # Is told who is there.
        self._shares = shares or Shares()
        self._proxies = Proxies(settings.proxies)
        # Refuses in overload; None: whoever runs the loop we are in sees to that.
        self.admission: Admission | None = None
        # Remembers whom a rate keeps out, for whoever reads requests before we do.
        self.refusals = _no_refusals(settings, keeper)

    async def answer(self, request: Request, routes: Routes) -> None:
        """Have a request answered, or turn it away."""
        self._guard.dress(request)
        if (problem := self._guard.problem(request)) is not None:
            if problem.status == 403:
                self._note(request, "", "access.denied", reason="a page of another origin")
            await refuse(request, problem)
            return
        if (allowed := self._guard.preflight(request)) is not None:
            await request.respond(204, allowed, b"")
            return
        route = routes.find(request.path)
        request.watched.route = route.name
        if route.access in _UNKNOWN:
            request.most_body_bytes = PUBLIC_BODY_BYTES
        if route.access is Access.PROBE:
            self._shares.saw(Access.PROBE)
            await route.answer(request)
            return
        if route.access is Access.CALLER:
            # Before the caller is known, so that refusals are in the trace too.
            has_trace = b"traceparent" in request.headers
            request.watched.join(request.scope["headers"], has_trace=has_trace)
        elif self._keeper is None and route.access is not Access.PUBLIC:
            # Where nobody is asked who they are, nobody is an operator: behind a proxy on this
            # machine everybody comes from this machine.
            await routes.others.answer(request)
            return
        client = request.scope.get("client")
        request.address = self._proxies.origin(
            client[0] if client else "", request.scope["headers"]
        )
        try:
            self._admit(request)
            if route.access is Access.PUBLIC:
                self._limits.arrive(request.address)
                await route.answer(request)
                return
            known = None if self._keeper is None else self._keeper.remembered(request.evidence)
            self._limits.arrive(request.address, is_known=known is not None)
            if not await self._knows(request, route, known):
                return
            agent = request.header(SOURCE_AGENT)
            room = self._limits.admit(request.caller, agent, request.address)
        except Overloaded as error:
            await self._turn_away(request, route, error)
            return
        request.room = room
        request.extra += room.headers
        self._shares.saw(room.key)
        try:
            if self.admission is not None:
                self.admission.know(client, room.key)
            await route.answer(request)
        finally:
            room.leave()

    def _admit(self, request: Request) -> None:
        """Refuse what is too much for us, unless that was decided where requests come in."""
        state = request.scope.get("state", {})
        if self.admission is None or state.get("is_admitted"):
            return
        is_preferred = request.verb in ("GET", "HEAD") or b"last-event-id" in request.headers
        ticket = self.admission.enter(
            request.scope.get("client"), is_preferred=is_preferred, came_at=state.get("came_at")
        )
        if ticket is None:
            raise Overloaded
        # Until its answer is given, as whoever gives it knows.
        state["ticket"] = ticket

    async def _knows(self, request: Request, route: Route, known: Pass | None) -> bool:
        """Find out who asks, and tell whether the path is open to them; if not, that is the
        answer."""
        keeper = self._keeper
        if keeper is None:
            return True
        request.challenge = keeper.challenge
        try:
            request.pass_ = known or await keeper.admit(request.evidence)
        except Denied as error:
            if keeper.is_tried(request.evidence):
                self._limits.failed(request.address)
            self._note(request, route.name, "auth.denied", who=error.subject, reason=error.reason)
            await unauthenticated(request, error)
            return False
        needed = None if route.access is Access.CALLER else _ROLES.get(route.access)
        if needed and not request.caller.scopes & needed:
            self._note(request, route.name, "access.denied", reason="not an operator")
            await denied(request, PermissionDenied(scope=OPERATOR))
            return False
        if request.caller.key_scopes is not None and not route.opens_to(request.caller):
            self._note(request, route.name, "access.denied", reason="the key is not for this")
            await denied(request, PermissionDenied("The key is not for this"))
            return False
        return True

    async def _turn_away(self, request: Request, route: Route, error: Overloaded) -> None:
        """Tell someone to come back later, before what they want is looked at."""
        if isinstance(error, RateLimited):
            # A caller is known if there is a pass, or if nobody needs one.
            is_known = request.pass_ is not None or self._keeper is None
            self._remember(request, request.caller if is_known else None, error)
            self._note(request, route.name, "rate.limited")
            request.extra += error.headers
            seconds, problem = error.retry_after, _too_many(error)
        else:
            seconds, problem = 1, Problem(503, "Service Unavailable", error.public)
        request.extra.append((b"retry-after", b"%d" % seconds))
        await refuse(request, problem)

    def _remember(self, request: Request, caller: Caller | None, error: RateLimited) -> None:
        """Remember who would be refused again, or from where nobody would be let in."""
        shown = request.evidence
        if caller is None:
            who = self.refusals.place(shown.address, shown.headers)
        else:
            who = self.refusals.caller(shown.address, shown.certificate, shown.headers)
        standing = self._limits.standing(caller, request.address)
        headers, body = _document(_too_many(error))
        self.refusals.note(who, standing, [*headers, *request.extra], body)

    def _note(
        self, request: Request, route: str, act: str, *, who: str = "", reason: str = ""
    ) -> None:
        self._audit.record(
            act,
            outcome="denied",
            who=who or request.caller.principal.text,
            object=f"{request.verb} {request.mount.agent.name} {route}".rstrip(),
            reason=reason,
            address=request.address,
        )


def _no_refusals(settings: Settings, keeper: Gatekeeper | None) -> Refusals:
    """Return a memory of refusals that tells callers apart as we do."""
    places = [b"x-forwarded-for"] if settings.proxies else []
    shown = [name for way in keeper.authenticators for name in way.reads] if keeper else []
    # Pages of other sites are told in another way.
    origins = [b"origin"] if settings.cors else []
    return Refusals([*places, *shown, *origins], [*places, *origins])


async def refuse(request: Request, problem: Problem) -> None:
    """Answer a request that gets no further than its head."""
    headers, body = _document(problem)
    await request.respond(problem.status, headers, body)


def _document(problem: Problem) -> tuple[Headers, bytes]:
    """Return a problem as the headers that describe it, and a body."""
    body = problem.body()
    return [(b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body))], body


def _too_many(error: RateLimited) -> Problem:
    return Problem(429, "Too Many Requests", error.public)
