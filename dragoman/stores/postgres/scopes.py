"""Numbers of scopes, which stand for agent, tenant and owner in every row."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import astuple

from dragoman.model.identity import Scope
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import DatabaseConnections

_SQL = statements("dragoman.stores.postgres", "queries.sql")
# Scopes known by heart. Tenants may be the callers' choice, and so without end.
_MOST_KNOWN = 10_000

_K = TypeVar("_K")
_V = TypeVar("_V")


class Scopes:
    """What the server says of scopes, as far as it was asked."""

    def __init__(self, connections: DatabaseConnections) -> None:
        self._connections = connections
        self._numbers: dict[Scope, int] = {}
        self._scopes: dict[int, Scope] = {}

    async def numbers(self, wanted: Sequence[Scope]) -> dict[Scope, int]:
        """Return the numbers of scopes; those that were never seen get one."""
        known = self._numbers
        found = {scope: known[scope] for scope in wanted if scope in known}
        if missing := set(wanted) - found.keys():
            columns = _columns(sorted(missing, key=astuple))
            await self._connections.rows(_SQL["add_scopes"], *columns)
            rows = await self._connections.rows(_SQL["scopes"], *columns)
            found |= self._learned(rows)
        return found

    async def number(self, scope: Scope) -> int | None:
        """Return the number of a scope, if it has one."""
        if scope in self._numbers:
            return self._numbers[scope]
        found = self._learned(await self._connections.rows(_SQL["scopes"], *_columns([scope])))
        return found.get(scope)

    async def of(self, numbers: Iterable[int]) -> dict[int, Scope]:
        """Return the scopes of numbers."""
        wanted = set(numbers)
        found = {number: self._scopes[number] for number in wanted if number in self._scopes}
        if missing := list(wanted - found.keys()):
            rows = await self._connections.rows(_SQL["scope_parts"], missing)
            found |= {number: scope for scope, number in self._learned(rows).items()}
        return found

    def _learned(self, rows: Iterable[tuple[int, str, str, str]]) -> dict[Scope, int]:
        found = {Scope(*parts): number for number, *parts in rows}
        for scope, number in found.items():
            _keep(self._numbers, scope, number)
            _keep(self._scopes, number, scope)
        return found


def _columns(scopes: Sequence[Scope]) -> list[list[str]]:
    return [list(column) for column in zip(*map(astuple, scopes), strict=True)]


def _keep(known: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep something in memory; the oldest goes."""
    if key not in known and len(known) >= _MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = value
