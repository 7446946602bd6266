"""What is promised of triggers."""

from dragoman.model.identity import Principal
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.triggers import TriggerRow
from dragoman.testing.promises.suite import GatewayStoreSuite

ANN = Principal("", "ann")
OTHERS = (Principal("", "bob"), Principal("tenant", "ann"))


def trigger(id: str, due_at: int | None = None, owner: Principal = ANN) -> TriggerRow:
    """Return a trigger."""
    return TriggerRow(id, owner, 1000, b'{"name":"%s"}' % id.encode(), due_at)


class TriggerPromises(GatewayStoreSuite):
    """A trigger is changed by one at a time, and found when it is due."""

    async def test_a_trigger_is_read_as_it_was_stored(self, store: GatewayStore) -> None:
        """By this worker and the next."""
        assert await store.triggers.put(trigger("a", 5000), most=9)
        later = await self.successor(store)
        assert await later.triggers.one("a") == trigger("a", 5000)
        assert await later.triggers.one("b") is None

    async def test_triggers_of_an_owner_are_newest_first(self, store: GatewayStore) -> None:
        """With the number of all, and none of others; or those of everyone."""
        for id in "abc":
            assert await store.triggers.put(trigger(id), most=9)
        for number, other in enumerate(OTHERS):
            assert await store.triggers.put(trigger(f"other-{number}", owner=other), most=9)
        rows, total = await store.triggers.page(ANN, limit=2)
        assert ([row.id for row in rows], total) == (["c", "b"], 3)
        rows, total = await store.triggers.page(None, limit=2, after="other-1")
        assert ([row.id for row in rows], total) == (["other-0", "c"], 5)

    async def test_pages_of_triggers_stay_what_they_are(self, store: GatewayStore) -> None:
        """While triggers are made and removed: also the one that a page ended with."""
        for id in "abcde":
            assert await store.triggers.put(trigger(id), most=9)
        rows, _ = await store.triggers.page(ANN, limit=2)
        assert [row.id for row in rows] == ["e", "d"]
        assert await store.triggers.put(trigger("f"), most=9)
        assert await store.triggers.remove("d")
        for owner in (ANN, None):
            rows, total = await store.triggers.page(owner, limit=2, after="d")
            assert ([row.id for row in rows], total) == (["c", "b"], 5)
        rows, _ = await store.triggers.page(ANN, limit=2, after="b")
        assert [row.id for row in rows] == ["a"]

    async def test_an_owner_has_at_most_so_many_triggers(self, store: GatewayStore) -> None:
        """What is over is not stored; those of others do not count."""
        assert await store.triggers.put(trigger("x", owner=OTHERS[0]), most=1)
        assert await store.triggers.put(trigger("a"), most=1)
        assert not await store.triggers.put(trigger("b"), most=1)
        assert await store.triggers.one("b") is None

    async def test_of_two_changes_of_one_version_one_is_made(self, store: GatewayStore) -> None:
        """The other finds that it was late."""
        assert await store.triggers.put(trigger("a", 1), most=9)
        row = await store.triggers.one("a")
        assert row is not None
        changed = row._replace(definition=b"{}", due_at=2)
        assert await store.triggers.change(changed)
        assert not await store.triggers.change(changed)
        assert await store.triggers.one("a") == changed._replace(version=row.version + 1)

    async def test_triggers_that_are_due_are_found(self, store: GatewayStore) -> None:
        """The longest overdue first, and none that waits for no time."""
        for id, due_at in (("late", 30), ("early", 10), ("then", 40), ("never", None)):
            assert await store.triggers.put(trigger(id, due_at), most=9)
        assert [row.id for row in await store.triggers.due(30, 9)] == ["early", "late"]
        assert [row.id for row in await store.triggers.due(99, 1)] == ["early"]
        assert await store.triggers.due(9, 9) == []

    async def test_a_trigger_that_is_removed_is_gone(self, store: GatewayStore) -> None:
        """Once."""
        assert await store.triggers.put(trigger("a", 1), most=9)
        assert await store.triggers.remove("a")
        assert not await store.triggers.remove("a")
        assert await store.triggers.one("a") is None and await store.triggers.due(9, 9) == []
