"""Agents that serve some callers only: for other callers their address looks unregistered.

The caller is known only after a request has found its route. So a request for such an agent takes a
route of its own, which requires authentication, and is dispatched again from there.
"""

from collections.abc import Callable

from dragoman.errors import PermissionDenied
from dragoman.gateway.front import PREFIX
from dragoman.gateway.registry.registered import Registered, serves
from dragoman.gateway.registry.registry import Registry
from dragoman.http.documents import denied
from dragoman.http.mount import Mount
from dragoman.http.request import HttpRequest
from dragoman.http.routes import BY_REQUEST, Access, Routes
from dragoman.model.identity import OPERATOR, Caller
from dragoman.server.discovery import CARD_PATH

_INNER = "/.limited"


class PrivateAgents:
    """Shows such agents to their callers, their owners and operators."""

    def __init__(self, registry: Registry, fallback: Callable[[], Mount]) -> None:
        """`fallback` answers at the addresses of unregistered agents."""
        self._registry = registry
        self._fallback = fallback

    def add_to(self, routes: Routes) -> None:
        """Add the inner route."""
        self._routes = routes
        routes.add(f"{_INNER}/*", self._answer, Access.CALLER, BY_REQUEST)

    def inner_path(self, path: str) -> str:
        """Return the inner path for a path at such an agent."""
        return _INNER + path

    async def _answer(self, request: HttpRequest) -> None:
        mount = request.mount
        # Only requests for agents are sent here, but any caller may request the inner path.
        if mount.prefix.startswith(PREFIX):
            request.path = request.path.removeprefix(_INNER)
            agent = self._registry.get(mount.name)
            if agent is None or not is_known(agent, request.caller):
                request.mount, request.path = self._fallback(), mount.prefix + request.path
            elif request.path == "/" and request.verb in ("GET", "HEAD"):
                request.path = CARD_PATH
        route = self._routes.find(request.path)
        if route.access not in (Access.PUBLIC, Access.CALLER) or route.answer == self._answer:
            route = self._routes.others
        request.watched.route = route.name
        if not route.opens_to(request.caller):
            await denied(request, PermissionDenied("The key is not for this"))
            return
        await route.answer(request)


def is_known(agent: Registered, caller: Caller) -> bool:
    """Tell whether a caller may know of an agent: it serves the caller, or an operator asks."""
    return serves(agent, caller.principal) or OPERATOR in caller.scopes
