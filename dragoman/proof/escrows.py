"""Escrows as the proof of the ledger leaves them: disputed, accepted, decided on, given back."""

import functools
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import apsw

from dragoman.model.money import Terms
from dragoman.stores.sqlite import escrow, outcomes
from dragoman.stores.sqlite.schema import run

# With and without an escrow; its time is over for nobody here.
TERMS = (Terms(), Terms(escrow=3_600_000))
_KEPT = """
SELECT task, task_id, requester FROM errands
WHERE escrow IN ('delivered', 'disputed') ORDER BY task DESC LIMIT ?
"""


class Kept(NamedTuple):
    """A task whose price is in escrow."""

    task: int
    task_id: str
    requester: str


def kept(connection: apsw.Connection, most: int) -> list[Kept]:
    """Return the latest of these."""
    return [Kept(*row) for row in run(connection, _KEPT, (most,))]


def deeds(one: Kept, chance: Random) -> list[Callable[[apsw.Connection], None]]:
    """Return what is done to one, a transaction each: everything twice, and at random."""
    leaving = [_accept, functools.partial(_decide, is_upheld=chance.random() < 0.5)]
    if chance.random() < 0.2:
        leaving.insert(0, _give_back)
    disputing = [_dispute] if chance.random() < 0.5 else []
    return [functools.partial(deed, one=one) for deed in (*disputing, *leaving, *leaving)]


def _dispute(connection: apsw.Connection, one: Kept) -> None:
    if escrow.dispute(connection, one.task, _now()):
        disputed = outcomes.numbered(connection, one.task)
        outcomes.put_dispute(connection, disputed, "proof", _now())


def _accept(connection: apsw.Connection, one: Kept) -> None:
    escrow.release(connection, one.task, escrow.ACCEPTED, _now())


def _decide(connection: apsw.Connection, one: Kept, *, is_upheld: bool) -> None:
    escrow.decide(connection, one.task, _now(), is_upheld=is_upheld)


def _give_back(connection: apsw.Connection, one: Kept) -> None:
    escrow.give_back(connection, one.task, "", _now())


def _now() -> int:
    return time.time_ns() // 1_000_000
