"""The suites need no SQLite, pass for a store that keeps its word, and fail where one does not."""

from typing import Any, cast

import pytest

from dragoman.stores.interface import Store
from dragoman.testing.promises import StorePromises
from tests.stores.faulty import FaultyStore

PROMISES = sorted(name for name in dir(StorePromises) if name.startswith("test_"))
# Each fault, and one promise that it must break.
FAULTS = {
    "loses appends": "test_positions_have_no_gaps_over_many_appends",
    "forgets keys": "test_a_used_key_is_refused_and_nothing_of_the_write_is_there",
    "ignores fences": "test_a_raised_fence_shuts_the_old_writer_out",
    "acknowledges what it refused": "test_of_two_appends_at_the_same_moment_one_wins",
    "hides the last event": "test_what_was_created_can_be_read",
    "counts one page": "test_every_combination_of_filters_gives_its_tasks_and_their_total",
    "claims nothing": "test_what_a_dead_worker_left_unfinished_is_claimed_under_a_higher_fence",
    "drops letters": "test_what_receivers_never_took_is_listed_latest_first",
}


class Promises(StorePromises):
    async def successor(self, store: Store) -> Store:
        await store.open()
        return store


async def broken_promises(fault: str) -> list[str]:
    broken: list[str] = []
    for name in PROMISES:
        store = cast("Store", FaultyStore(fault))
        await store.open()
        promise: Any = getattr(Promises(), name)
        try:
            await promise(store)
        # A fault may also show as an error of the suite's own steps.
        except Exception:
            broken.append(name)
    return broken


async def test_a_store_of_the_protocols_alone_keeps_every_promise() -> None:
    assert await broken_promises("") == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_found_by_the_promise_that_it_breaks(fault: str) -> None:
    broken = await broken_promises(fault)
    assert FAULTS[fault] in broken
    # And not by all of them: the suite says what is wrong.
    assert len(broken) < len(PROMISES) / 2
