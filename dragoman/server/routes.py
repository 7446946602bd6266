"""What is served at which path, and to whom. A path that nobody decided about is a mistake that
ends the start: what is not marked must never turn out to be public."""

import enum
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from dragoman.errors import ConfigError
from dragoman.server.request import Request


class Access(enum.Enum):
    """To whom a path is open."""

    # Everybody, however much we have to do: health.
    PROBE = "probe"
    # Everybody: cards, public keys.
    PUBLIC = "public"
    # Whoever is known: the operations of the protocol.
    CALLER = "caller"
    # Who runs the server, or one tenant of it.
    ADMIN = "admin"
    # Who runs the server.
    OPERATOR = "operator"


Answer = Callable[[Request], Awaitable[None]]


class Route(NamedTuple):
    """Who answers a path, and to whom."""

    answer: Answer
    access: Access | None
    # Its path as operators see it; empty where the answer itself finds out.
    name: str = ""


class Routes:
    """Paths and who answers them."""

    def __init__(self) -> None:
        self._exact: dict[str, Route] = {}
        self._below: dict[str, Route] = {}
        self._others: Route | None = None

    @property
    def others(self) -> Route:
        """Who answers what no other path is."""
        assert self._others is not None, "checked at the start"
        return self._others

    def add(self, path: str, answer: Answer, access: Access | None) -> None:
        """Answer one path; one that ends with `/*` stands for all below it."""
        places = self._below if path.endswith("/*") else self._exact
        place = path.removesuffix("*")
        if place in places:
            raise ConfigError(f"{path} is served by two")
        places[place] = Route(answer, access, path or "/")

    def add_others(self, answer: Answer, access: Access | None) -> None:
        """Answer what no other path is."""
        self._others = Route(answer, access)

    def all(self) -> list[Route]:
        """Return every path that is served, and last what answers the others."""
        return [*self._exact.values(), *self._below.values(), self.others]

    def check(self) -> None:
        """Raise `ConfigError` for paths of which nobody said to whom they are open."""
        named = {**self._exact, **self._below, "(others)": self._others}
        unmarked = [path for path, route in named.items() if route is None or route.access is None]
        if unmarked:
            raise ConfigError(f"to whom is it open? mark the route: {', '.join(unmarked)}")

    def find(self, path: str) -> Route:
        """Return who answers a path."""
        found = self._exact.get(path)
        if found is not None:
            return found
        for place, route in self._below.items():
            if path.startswith(place):
                return route
        return self.others
