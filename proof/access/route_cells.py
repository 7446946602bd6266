"""The cells of `routes.toml`, asked of a server, and those in which its answer differs.

What a caller may not have is asked for twice: as it is, and as what never existed. The two answers
are compared byte by byte, but for ids and times, which no two answers have in common.
"""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

from dragoman.model.identity import new_id
from proof.access.bindings import Answer
from proof.access.callers import NEWCOMER, OWNER
from proof.access.route_table import KEY_COLUMNS, RouteRow
from proof.access.route_things import MARK, Thing, Things, imagined, request

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
# Positions in the books of everybody, and numbers of tasks.
_NUMBER = re.compile(rb'"(id":"|number":)\d+')
_LENGTH = re.compile(rb"\r\ncontent-length: \d+", re.IGNORECASE)
_WORD = re.compile(r"<([a-z-]+)>")
_SHOWN = 300
# Looks at a list that others add to meanwhile.
_LOOKS = 5


class RouteCell(NamedTuple):
    """One question and what is wrong with its answer; empty: nothing."""

    row: RouteRow
    caller: str
    problem: str = ""

    def __str__(self) -> str:
        expected = self.row.cells.get(self.caller, "")
        return f"{self.row}, by {self.caller}: expected {expected or 'no change'}, {self.problem}"


class RouteScene:
    """A server, the things of the owner, and rows to ask."""

    def __init__(self, things: Things, rows: Sequence[RouteRow]) -> None:
        self.things = things
        self._rows = rows
        # What all callers without a credential are answered, by the shape of the answer.
        self._shut: dict[str, bytes] = {}

    async def cells(self) -> AsyncGenerator[RouteCell]:
        """Yield every cell."""
        for row in self._rows:
            async for cell in self._cells_of(row):
                yield cell

    async def _cells_of(self, row: RouteRow) -> AsyncGenerator[RouteCell]:
        thing = await self._thing(row)
        before = await self._looks(row, thing)
        closed = [name for name in row.cells if not _is_owners(row, name)]
        for caller in closed:
            problem = await self._problem(row, caller, thing)
            yield RouteCell(row, caller, problem)
            if problem and row.changes:
                # What one caller did must not be found with the next.
                thing = await self._thing(row)
                before = await self._looks(row, thing)
        if (after := await self._looks(row, thing)) != before:
            yield RouteCell(row, "all of them", _difference(before, after))
        for caller in [name for name in row.cells if name not in closed]:
            yield RouteCell(row, caller, await self._problem(row, caller, thing))
            if row.changes:
                thing = await self._thing(row)

    async def _thing(self, row: RouteRow) -> Thing:
        if not row.about:
            return {}
        if row.changes:
            return await self.things.fresh(row.about)
        return await self.things.shared(row.about)

    async def _looks(self, row: RouteRow, thing: Thing) -> dict[str, Any]:
        return {} if row.verb == "GET" else await self.things.looks(thing)

    async def ask(self, row: RouteRow, caller: str, thing: Thing) -> Answer:
        """Return what a caller is answered."""
        words = self._words(thing)
        body = None if row.body is None else filled(row.body, words)
        headers = {name: filled(value, words) for name, value in row.headers.items()}
        key = self.things.keys[caller]
        asked = request(row.verb, filled(row.path, words), key, body, **headers)
        return await self.things.wire.ask(asked)

    def shape(self, row: RouteRow) -> str:
        """Return what rows have in common whose callers are refused alike: all of them."""
        return ""

    def _words(self, thing: Thing) -> Thing:
        """Return the ids of everything that a row may name."""
        first = next(iter(thing.values()), "")
        return {**self.things.fixed, **thing, "id": first, "new": new_id()}

    async def _problem(self, row: RouteRow, caller: str, thing: Thing) -> str:
        answer = await self.ask(row, caller, thing)
        outcome = row.cells[caller]
        if outcome == "yes":
            return _not_done(row, answer, thing)
        # Without what the caller itself named.
        said = answer.without(*thing.values())
        if caller != OWNER and caller not in KEY_COLUMNS and MARK.encode() in said:
            return f"told what the owner wrote: {_short(answer)}"
        match outcome:
            case "none" | "free":
                return await self._not_as_never(row, caller, thing, answer)
            case "new":
                is_made = answer.status == row.status and not _is_error(answer)
                return "" if is_made else f"got {_short(answer)}"
            case "empty" | "same" | "public":
                return await self._not_as_a_newcomers(row, caller, thing, answer)
            case "401":
                shut = self._shut.setdefault(self.shape(row), answer.without())
                is_shut = answer.status == 401 and answer.without() == shut
                return "" if is_shut else f"got {_short(answer)}"
            case "refused":
                return "" if _is_error(answer) else f"got {_short(answer)}"
            case _:
                return "" if answer.status == int(outcome) else f"got {_short(answer)}"

    async def _not_as_a_newcomers(
        self, row: RouteRow, caller: str, thing: Thing, answer: Answer
    ) -> str:
        """What is open to everybody may change between two looks, so a difference has to last."""
        problem = ""
        for _ in range(_LOOKS):
            newcomer = await self.ask(row, NEWCOMER, thing)
            problem = _other_than(_plain(answer, thing), _plain(newcomer, thing), "a newcomer's")
            if not problem:
                break
            answer = await self.ask(row, caller, thing)
        return problem

    async def _not_as_never(self, row: RouteRow, caller: str, thing: Thing, answer: Answer) -> str:
        if answer.status != row.never:
            return f"got {_short(answer)}"
        other = imagined(thing)
        never = await self.ask(row, caller, other)
        # The number of a new thing may have other digits.
        seen = _plain if row.cells[caller] == "free" else _whole
        return _other_than(seen(answer, thing), seen(never, other), "one that never existed")


def _is_owners(row: RouteRow, caller: str) -> bool:
    """Tell whether a caller may change what the owner has."""
    outcome = row.cells[caller]
    return outcome == "yes" or (outcome == "new" and caller in KEY_COLUMNS)


def filled(template: str, words: Thing) -> str:
    """Return a text with ids in it."""
    return _WORD.sub(lambda found: words[found[1]], template)


def _not_done(row: RouteRow, answer: Answer, thing: Thing) -> str:
    """Return why an answer does not say that it was done."""
    if answer.status != row.status or (row.status < 400 and _is_error(answer)):
        return f"got {_short(answer)}"
    shows = next(iter(thing), "") if row.shows is None else row.shows
    if shows and thing[shows].encode() not in answer.body:
        return f"got nothing of the {shows}: {_short(answer)}"
    return ""


def _is_error(answer: Answer) -> bool:
    return answer.status >= 400 or b'"error":{' in answer.body


def _whole(answer: Answer, thing: Thing) -> bytes:
    """Return an answer without ids and times."""
    found = answer.without(*thing.values())
    return _NUMBER.sub(rb'"\1<n>', _TIME.sub(b"<time>", _ID.sub(b"<id>", found)))


def _plain(answer: Answer, thing: Thing) -> bytes:
    """Return the same without its length: numbers of another caller may have other digits."""
    return _LENGTH.sub(b"", _whole(answer, thing))


def _other_than(answer: bytes, expected: bytes, whose: str) -> str:
    if answer == expected:
        return ""
    place = next(
        (n for n, pair in enumerate(zip(answer, expected, strict=False)) if pair[0] != pair[1]), 0
    )
    begin = max(0, place - 80)
    return (
        f"got {answer[begin : place + _SHOWN]!r}, not {whose}: {expected[begin : place + _SHOWN]!r}"
    )


def _short(answer: Answer) -> str:
    return f"{answer.status} {' '.join(answer.body.decode(errors='replace').split())[:_SHOWN]}"


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    names = [name for name in before if before[name] != after.get(name)]
    first = names[0]
    return (
        f"but {', '.join(names)} changed: {json.dumps(before[first])[:_SHOWN]} "
        f"became {json.dumps(after[first])[:_SHOWN]}"
    )


async def gather(scene: RouteScene) -> tuple[int, list[str]]:
    """Ask everything; return the number of cells and what is wrong."""
    count, wrong = 0, list[str]()
    async for cell in scene.cells():
        count += 1
        if cell.problem:
            wrong.append(str(cell))
    return count, wrong
