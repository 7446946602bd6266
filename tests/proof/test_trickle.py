"""The attackers of the trickle proof do what they say, and its verdict can be either."""

import asyncio

import msgspec
from harness.waiting import within

from dragoman.http.deadlines import BODY_SECONDS, HEAD_SECONDS
from proof.results import Spread
from proof.wire.trickle import RATIO, Attack, TrickleResult
from proof.wire.tricklers import _Crowd, hold
from tests.http.test_good_http import Echo
from tests.http.wire import get, guarding


async def test_tricklers_come_back_until_their_time_is_over_and_are_cut_off() -> None:
    for kind, limit in (("head", HEAD_SECONDS), ("body", BODY_SECONDS)):
        async with guarding(Echo()) as place:
            crowd = _Crowd(place.port, kind, 60.0)
            trickling = asyncio.ensure_future(crowd.trickle(5, 10.0))
            await place.until(lambda: place.connections.opened == 5)
            await place.until(
                lambda: all(one._raw.received > 20 for one in place.connections._open)
            )
            await place.pass_time(limit + 0.1)
            # Each is replaced, so that there are always as many.
            await place.until(lambda: place.connections.opened == 10)
            assert (await place.exchange(get(b"/a"))).body == b"/a "
            crowd._until = 0.0
            await place.pass_time(limit + 0.1)
            fared = await within(trickling)
        assert (fared.opened, fared.closed, fared.left, fared.refused) == (10, 10, 0, 0)
        assert place.connections.refused == {"slow": 10}


async def test_those_who_do_not_read_hold_their_connections() -> None:
    async with guarding(Echo()) as place:
        fared = await hold(place.port, 3, 0.05, get(b"/a"))
        assert (fared.opened, fared.refused) == (3, 0)
        await place.until(lambda: place.connections.opened == 3)


def test_a_proof_is_broken_by_callers_that_wait_and_by_attackers_that_stay() -> None:
    good = Attack(
        kind="head",
        opened=10,
        closed=10,
        left=0,
        slowest=10.5,
        limit=10.0,
        without=Spread(),
        beset=Spread(),
        ratio=1.0,
        failed=0,
        memory_growth=None,
    )
    verdicts = [
        TrickleResult(seed=1, connections=10, attacks=[one]).kept
        for one in (
            good,
            msgspec.structs.replace(good, ratio=RATIO + 0.1),
            msgspec.structs.replace(good, failed=1),
            msgspec.structs.replace(good, left=1),
            msgspec.structs.replace(good, slowest=20.0),
        )
    ]
    assert verdicts == [True, False, False, False, False]
