"""What is served at which path, and to whom. A path without a mark is an error at the start: none
is public by omission."""

import enum
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from dragoman.errors import ConfigError
from dragoman.http.request import HttpRequest, Verdict
from dragoman.model.identity import Caller
from dragoman.security.keys.key_scopes import EVERYTHING, allows_any


class Access(enum.Enum):
    """To whom a path is open."""

    # Every caller, also in overload: health.
    PROBE = "probe"
    # Every caller: cards, public keys.
    PUBLIC = "public"
    # Authenticated callers: the operations of the protocol.
    CALLER = "caller"
    # The operator of the server.
    OPERATOR = "operator"


Answer = Callable[[HttpRequest], Awaitable[None]]
# What the key of an agent has to be for, any one of several, where a route does not say: for
# everything.
CLOSED = frozenset({EVERYTHING})
# The answer holds such a key to what is asked: the scope of an operation, of a row of a table.
BY_REQUEST: frozenset[str] | None = None
# Cards, to a key that is for anything one needs a card for.
CARDS = frozenset({"agents:read", "tasks:read", "tasks:write"})


class Route(msgspec.Struct, frozen=True):
    """What answers a path, and to whom."""

    answer: Answer
    access: Access | None
    # Its path as operators see it; empty where the answer itself finds out.
    name: str = ""
    scopes: frozenset[str] | None = CLOSED

    def opens_to(self, caller: Caller) -> bool:
        """Tell whether the path is open to a caller, as far as the scopes of its key go."""
        return self.scopes is None or allows_any(caller, self.scopes)


class RouteVerdict(Verdict):
    """A verdict, and the route that it let in to."""

    __slots__ = ("route",)

    def __init__(self, route: Route, headers: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(headers)
        self.route = route


class Routes:
    """Paths and what answers them."""

    def __init__(self) -> None:
        self._exact: dict[str, Route] = {}
        self._below: dict[str, Route] = {}
        self._others: Route | None = None
        # What answers a person who opens the root in a browser; None: as it answers programs.
        self.welcome: Route | None = None

    @property
    def others(self) -> Route:
        """What answers all other paths."""
        assert self._others is not None, "checked at the start"
        return self._others

    def __iter__(self) -> Iterator[Route]:
        # What answers all other paths comes last.
        return iter([*self._exact.values(), *self._below.values(), self.others])

    def add(
        self,
        path: str,
        answer: Answer,
        access: Access | None,
        scopes: frozenset[str] | None = CLOSED,
    ) -> None:
        """Answer one path; one that ends with `/*` stands for all below it."""
        places = self._below if path.endswith("/*") else self._exact
        place = path.removesuffix("*")
        if place in places:
            raise ConfigError(f"{path} is served twice")
        places[place] = Route(answer, access, path or "/", scopes)

    def add_others(
        self, answer: Answer, access: Access | None, scopes: frozenset[str] | None = CLOSED
    ) -> None:
        """Answer all other paths."""
        self._others = Route(answer, access, scopes=scopes)

    def check(self) -> None:
        """Raise `ConfigError` for paths without a mark that says to whom they are open."""
        named = {**self._exact, **self._below, "(others)": self._others}
        unmarked = [path for path, route in named.items() if route is None or route.access is None]
        if unmarked:
            raise ConfigError(f"to whom is it open? mark the route: {', '.join(unmarked)}")

    def paths(self) -> list[str]:
        """Return all paths that are served; one that ends with `/*` stands for all below it."""
        return [*self._exact, *(f"{place}*" for place in self._below)]

    def find_for(self, request: HttpRequest) -> Route:
        """Return what answers a request."""
        if request.path == "/" and self.welcome is not None and _is_browser_at_root(request):
            return self.welcome
        return self.find(request.path)

    def find(self, path: str) -> Route:
        """Return what answers a path."""
        found = self._exact.get(path)
        if found is not None:
            return found
        for place, route in self._below.items():
            if path.startswith(place):
                return route
        return self.others


def _is_browser_at_root(request: HttpRequest) -> bool:
    """Tell whether a person opened the address of the server: only browsers ask for HTML."""
    if request.verb not in ("GET", "HEAD") or request.scope["path"] != _root(request):
        return False
    return b"text/html" in request.headers.get(b"accept", b"")


def _root(request: HttpRequest) -> str:
    return request.scope.get("root_path", "") + "/"
