"""The table of who may do what at which route: `routes.toml`, read and checked."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import ConfigError
from proof.access.callers import (
    ADMINISTRATOR,
    ANONYMOUS,
    NAMESAKE,
    NEIGHBOUR,
    OWNER,
    RUNNER,
    STRANGER,
    UNBOUND,
)

# The columns, in their order; and those that only a gateway has.
COLUMNS = (OWNER, NAMESAKE, NEIGHBOUR, STRANGER, ANONYMOUS, UNBOUND, ADMINISTRATOR, RUNNER)
AGENT_KEY, READ_KEY = "agent-key", "read-key"
KEY_COLUMNS = (AGENT_KEY, READ_KEY)
# Kinds of keys that speak for the owner, as far as their scopes go.
_OWNERS = (OWNER, *KEY_COLUMNS)

OUTCOMES = frozenset(
    {"yes", "none", "free", "new", "empty", "same", "public", "401", "403", "refused"}
)
# What tells a caller nothing of what is another's, and gives it nothing.
_CLOSED = frozenset({"none", "empty", "same", "401"})

App = Literal["server", "gateway", "mcp", "tools", "commands"]
# Sections of the file, and which apps their rows are of.
_PLACES: Mapping[str, tuple[App, ...]] = {
    "both": ("server", "gateway"),
    "server": ("server",),
    "gateway": ("gateway",),
    "mcp": ("mcp",),
    "tools": ("tools",),
    "commands": ("commands",),
}
# With whose rights a command works that no cell is about.
Rights = Literal["", "file", "server", "nothing"]


class _Pattern(msgspec.Struct, forbid_unknown_fields=True):
    """Cells that many rows have."""

    cells: str
    reason: str = ""


class _Row(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A row as the file has it."""

    cells: str = ""
    keys: str = ""
    rights: Rights = ""
    words: list[str] = []
    about: str = ""
    path: str | None = None
    body: str | None = None
    headers: dict[str, str] = {}
    status: Annotated[int, Meta(ge=200, lt=500)] = 200
    never: Annotated[int, Meta(ge=200, lt=500)] = 404
    changes: bool = False
    last: bool = False
    shows: str | None = None
    house: str = ""
    reason: str = ""


class RouteRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask at one route of one app, and what each caller is answered. Tools and commands
    are asked for by what their caller's credential is given to."""

    app: App
    # Verb and path, as the app has them.
    route: str
    # The kind of thing that it is about; empty: none.
    about: str
    path: str
    body: str | None
    headers: Mapping[str, str]
    # Of what is done, and of what is said of a thing that never existed.
    status: int
    never: int
    # Whether the thing is another afterwards; and whether there is a new one of the caller's.
    changes: bool
    last: bool
    # Of which part of the thing the id is in what is answered to a caller that may have it.
    shows: str | None
    # The dialect of a single system, and its operation.
    house: str
    reason: str
    # What follows a command.
    words: Sequence[str]
    rights: Rights
    cells: Mapping[str, str]

    @property
    def verb(self) -> str:
        """The verb of HTTP."""
        return self.route.partition(" ")[0]

    @property
    def template(self) -> str:
        """The path as the app has it."""
        return self.route.partition(" ")[2]

    def __str__(self) -> str:
        said = [f"{self.app} {self.route}"]
        said += [f"about {self.about}"] if self.about else []
        said += [f"as {self.house}"] if self.house else []
        return ", ".join(said)

    def exceptions(self) -> list[str]:
        """Return the callers that are told or given something of what is another's."""
        return [
            name
            for name, outcome in self.cells.items()
            if outcome not in _CLOSED
            and not (outcome == "yes" and name in _OWNERS)
            # What a key lacks the scope for is refused whatever it is about.
            and not (outcome in ("403", "refused") and name == READ_KEY)
        ]


def document() -> dict[str, Any]:
    """Return the file."""
    return tomllib.loads((Path(__file__).parent / "routes.toml").read_text())


def rows() -> list[RouteRow]:
    """Return all rows; raises `ConfigError` for one that is not whole."""
    read = document()
    patterns = msgspec.convert(read["patterns"], dict[str, _Pattern])
    return [row for place in _PLACES for row in _rows_of(place, read.get(place, {}), patterns)]


def _rows_of(
    place: str, tables: Mapping[str, Any], patterns: Mapping[str, _Pattern]
) -> Iterator[RouteRow]:
    for route, found in tables.items():
        try:
            said = msgspec.convert(found, list[_Row])
            for one in said:
                for app in _PLACES[place]:
                    yield _row(app, route, one, patterns)
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"routes.toml: {place}, {route}: {error}") from None


def _row(app: App, route: str, said: _Row, patterns: Mapping[str, _Pattern]) -> RouteRow:
    pattern = patterns.get(said.cells) or _Pattern(said.cells)
    columns: tuple[str, ...] = () if said.rights else COLUMNS
    outcomes = pattern.cells.split()
    if app == "gateway":
        columns, outcomes = (*columns, *KEY_COLUMNS), [*outcomes, *said.keys.split()]
    cells = dict(zip(columns, outcomes, strict=True))
    if unknown := set(cells.values()) - OUTCOMES:
        raise ValueError(f"{', '.join(sorted(unknown))} is not an outcome")
    return RouteRow(
        app=app,
        route=route,
        about=said.about,
        path=_path(route, said),
        body=said.body,
        headers=said.headers,
        status=said.status,
        never=said.never,
        changes=said.changes,
        last=said.last,
        shows=said.shows,
        house=said.house,
        reason=said.reason or pattern.reason,
        words=said.words,
        rights=said.rights,
        cells=cells,
    )


def _path(route: str, said: _Row) -> str:
    """Return where to ask: an `{id}` in the route is the thing's."""
    if said.path is not None:
        return said.path
    return route.partition(" ")[2].replace("{id}", "<id>")


def of_app(app: App, found: Sequence[RouteRow] | None = None) -> list[RouteRow]:
    """Return the rows of an app; those that make things of other callers come after all lists."""
    chosen = [row for row in (rows() if found is None else found) if row.app == app]
    return sorted(chosen, key=lambda row: row.last or bool({"free", "new"} & {*row.cells.values()}))
