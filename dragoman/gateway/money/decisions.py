"""Changes of ledger and trust: read facts, decide on them, apply the effects, or begin again."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dragoman.errors import StoreConflict
from dragoman.stores.interface.effects import AccountingStore, Effect

T = TypeVar("T")

# Each conflict means that another change of the same rows was recorded, so this many in a row are a
# defect and not a race.
_TRIES = 100


async def apply_decision(
    store: AccountingStore,
    read: Callable[[], Awaitable[T]],
    decide: Callable[[T], Sequence[Effect]],
) -> T:
    """Apply what is decided on facts; return the facts. Both are done again if what is stored
    changed in between, here or in another process."""
    for _ in range(_TRIES):
        facts = await read()
        effects = decide(facts)
        if not effects:
            return facts
        try:
            await store.apply(effects)
        except StoreConflict:
            continue
        return facts
    raise StoreConflict("what this is decided on keeps changing")
