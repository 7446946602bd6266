"""Agents that are for some callers: at the address of one, everybody else finds what is at the
address of nobody.

Who asks is known only after a request has found its route. So what is for such an agent goes by a
route of its own, to callers alone, and from there where it would have gone.
"""

from collections.abc import Callable

from dragoman.errors import PermissionDenied
from dragoman.gateway.agents import serves
from dragoman.gateway.front import PREFIX
from dragoman.gateway.registry import Registry
from dragoman.model.identity import OPERATOR
from dragoman.server.discovery import CARD_PATH, denied
from dragoman.server.request import Mount, Request
from dragoman.server.routes import BY_REQUEST, Access, Routes

_PLACE = "/.limited"


class Limited:
    """Shows such agents to those they are for, to their owners and to operators."""

    def __init__(self, registry: Registry, nobody: Callable[[], Mount]) -> None:
        """`nobody` answers at the addresses of agents that are not there."""
        self._registry = registry
        self._nobody = nobody

    def add_to(self, routes: Routes) -> None:
        """Serve them."""
        self._routes = routes
        routes.add(f"{_PLACE}/*", self._answer, Access.CALLER, BY_REQUEST)

    def place(self, path: str) -> str:
        """Return by which way a path at such an agent is answered."""
        return _PLACE + path

    async def _answer(self, request: Request) -> None:
        mount = request.mount
        # Nobody else comes this way, but anybody may type it.
        if mount.prefix.startswith(PREFIX):
            request.path = request.path.removeprefix(_PLACE)
            if not self._is_known(request):
                request.mount, request.path = self._nobody(), mount.prefix + request.path
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

    def _is_known(self, request: Request) -> bool:
        agent = self._registry.get(request.mount.agent.name)
        caller = request.caller
        return agent is not None and (serves(agent, caller.principal) or OPERATOR in caller.scopes)
