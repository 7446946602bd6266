"""What is promised of workflows."""

from dragoman.model.identity import Principal
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.workflows import WorkflowRow
from dragoman.testing.promises.suite import GatewayStoreSuite

ANN = Principal("", "ann")
OTHERS = (Principal("", "bob"), Principal("tenant", "ann"))


def workflow(id: str) -> WorkflowRow:
    """Return a workflow."""
    return WorkflowRow(id, 1000, b'{"name":"%s"}' % id.encode())


class WorkflowPromises(GatewayStoreSuite):
    """Each owner has its own, newest first."""

    async def test_a_workflow_is_read_as_it_was_stored(self, store: GatewayStore) -> None:
        """By this worker and the next, and by its owner alone."""
        assert await store.workflows.put(ANN, workflow("a"), most=9)
        later = await self.successor(store)
        assert await later.workflows.one(ANN, "a") == workflow("a")
        assert await later.workflows.one(ANN, "b") is None
        for other in OTHERS:
            assert await later.workflows.one(other, "a") is None
            assert await later.workflows.page(other, limit=9) == ([], 0)

    async def test_pages_are_newest_first(self, store: GatewayStore) -> None:
        """With the number of all."""
        for id in "abc":
            assert await store.workflows.put(ANN, workflow(id), most=9)
        rows, total = await store.workflows.page(ANN, limit=2)
        assert ([row.id for row in rows], total) == (["c", "b"], 3)
        # What is made meanwhile does not move the next page.
        assert await store.workflows.put(ANN, workflow("d"), most=9)
        rows, total = await store.workflows.page(ANN, limit=2, after="b")
        assert ([row.id for row in rows], total) == (["a"], 4)

    async def test_an_owner_has_at_most_so_many(self, store: GatewayStore) -> None:
        """What is over is not stored; those of others do not count."""
        assert await store.workflows.put(OTHERS[0], workflow("x"), most=1)
        assert await store.workflows.put(ANN, workflow("a"), most=1)
        assert not await store.workflows.put(ANN, workflow("b"), most=1)
        assert await store.workflows.one(ANN, "b") is None
        assert await store.workflows.put(ANN, workflow("b"), most=2)
