"""Copies a store in batches, goes on where an earlier copy was cut off, and verifies the result.

The target is no store until all of it is there and verified: each table is read again, and has to
have as many rows as the source, with the same hashes. Of a copy that was cut off the source is read
again too: a server may have worked on it meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dragoman.errors import StoreRefused
from dragoman.stores.copying.sides import CopySource, CopyTarget
from dragoman.stores.copying.tables import TABLES, Place, Row, Sum, Table

# Rows that are done, of how many.
Progress = Callable[[int, int], None]


class Copied(NamedTuple):
    """What was done."""

    # By table.
    rows: dict[str, int]
    # Whether an earlier copy was gone on with.
    is_resumed: bool
    # Processes that began to serve from the source meanwhile: what they did is not in the copy.
    latecomers: int


async def copy(
    source: CopySource, target: CopyTarget, progress: Progress, *, anew: bool = False
) -> Copied:
    """Copy everything; raises `StoreRefused` where that must not be, or did not succeed. `anew`
    throws away what an earlier copy left."""
    if living := await source.living():
        raise StoreRefused(
            f"{living} process(es) serve from the source; stop them first, or what they do is lost"
        )
    place, is_resumed = await _beginning(source, target, anew=anew)
    total = sum([await source.count(table) for table in TABLES])
    done = sum(found.rows for found in place.sums.values())
    while place.table < len(TABLES):
        table = TABLES[place.table]
        rows = await source.rows(table, place.after)
        place = _after(place, table, rows)
        await target.write(table, rows, place)
        done += len(rows)
        progress(done, total)
    await _verify(source, target, place, is_resumed=is_resumed)
    await target.finish(await source.marks())
    found = {name: one.rows for name, one in place.sums.items()}
    return Copied(found, is_resumed, await source.living())


async def _beginning(source: CopySource, target: CopyTarget, *, anew: bool) -> tuple[Place, bool]:
    """Return where to begin, and whether that is where an earlier copy was cut off."""
    identity = await source.identity()
    earlier = await target.place()
    if earlier is None and not await target.is_empty():
        raise StoreRefused("the target is not empty, and not what a copy left there; name another")
    if earlier is not None and not anew:
        if earlier.source != identity:
            raise StoreRefused(
                "the target has half a copy of another store, or of this one before it changed; "
                "--anew begins again"
            )
        return earlier, True
    place = Place(identity)
    await target.begin(place)
    return place, False


def _after(place: Place, table: Table, rows: Sequence[Row]) -> Place:
    """Return how far the copy is with some more rows; none: the table is done."""
    sums = dict(place.sums)
    found = sums[table.name] = msgspec.structs.replace(sums.get(table.name, Sum()))
    if not rows:
        return Place(place.source, sums, place.table + 1)
    found.add(rows)
    return Place(place.source, sums, place.table, table.key_of(rows[-1]))


async def _verify(
    source: CopySource, target: CopyTarget, place: Place, *, is_resumed: bool
) -> None:
    """Read the copy, and hold it against what was read from the source."""
    for table in TABLES:
        expected = place.sums.get(table.name, Sum())
        if is_resumed and await sum_of(source, table) != expected:
            raise StoreRefused(
                f"{table.name}: the source changed after the first part was copied; --anew begins "
                "again"
            )
        found = await sum_of(target, table)
        if found != expected or await source.count(table) != expected.rows:
            raise StoreRefused(
                f"{table.name}: {found.rows} rows were found in the copy, {expected.rows} were "
                "read, and they are not the same; the copy is thrown away by --anew"
            )


async def sum_of(store: CopySource, table: Table) -> Sum:
    """Return what the rows of a table come to."""
    found = Sum()
    after = None
    while rows := await store.rows(table, after):
        found.add(rows)
        after = table.key_of(rows[-1])
    return found
