"""Escrows as the proof of the ledger leaves them: disputed, accepted, decided on, given back."""

import functools
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import apsw

from dragoman.gateway.money import order_rules
from dragoman.model.money import Terms
from dragoman.stores.interface.effects import Effect, PutDispute
from dragoman.stores.interface.orders import OrderRow
from dragoman.stores.sqlite.schema import run

# With and without an escrow; its time does not end during a run.
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


Deed = Callable[[OrderRow], list[Effect]]


def deeds(chance: Random) -> list[Deed]:
    """Return what is done to an order, a transaction each: everything twice, and at random."""
    leaving = [_accept, functools.partial(_decide, is_upheld=chance.random() < 0.5)]
    if chance.random() < 0.2:
        leaving.insert(0, _give_back)
    disputing: list[Deed] = [_dispute] if chance.random() < 0.5 else []
    return [*disputing, *leaving, *leaving]


def _dispute(order: OrderRow) -> list[Effect]:
    stopped = order_rules.stop_release(order, _now())
    return [PutDispute(order, "proof", _now()), *stopped] if stopped else []


def _accept(order: OrderRow) -> list[Effect]:
    return order_rules.release(order, order_rules.ACCEPTED, _now())


def _decide(order: OrderRow, *, is_upheld: bool) -> list[Effect]:
    return order_rules.decide(order, _now(), is_upheld=is_upheld)


def _give_back(order: OrderRow) -> list[Effect]:
    return order_rules.give_back(order, "", _now())


def _now() -> int:
    return time.time_ns() // 1_000_000
