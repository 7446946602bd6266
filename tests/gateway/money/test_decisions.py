"""Decisions on ledger and trust: made again on fresh facts when they were overtaken."""

from collections.abc import Sequence

import pytest

from dragoman.errors import StoreConflict
from dragoman.gateway.money.decisions import apply_decision
from dragoman.stores.interface.effects import AddPayer, Effect
from dragoman.stores.memory.accounting import MemoryAccounting


class Overtaken(MemoryAccounting):
    """Refuses so many times, as if another process had been faster."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def apply(self, effects: Sequence[Effect]) -> None:
        self.times -= 1
        if self.times >= 0:
            raise StoreConflict("overtaken")
        await super().apply(effects)


async def test_a_decision_that_was_overtaken_is_made_again_on_fresh_facts() -> None:
    store, reads = Overtaken(2), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        return reads

    facts = await apply_decision(store, read, lambda facts: [AddPayer(f"p{facts}")])
    assert (facts, reads) == (3, 3)
    assert (await store.trust.contents()).payers == {"p3"}


async def test_where_nothing_is_to_be_done_nothing_is_written() -> None:
    store = Overtaken(1)
    await apply_decision(store, store.trust.last_number, lambda _: [])
    assert store.times == 1


async def test_a_decision_that_is_always_refused_ends_with_the_refusal() -> None:
    store = Overtaken(1 << 30)
    with pytest.raises(StoreConflict):
        await apply_decision(store, store.trust.last_number, lambda _: [AddPayer("p")])
