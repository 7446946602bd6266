"""What is promised of rollouts."""

from dragoman.model.identity import Principal
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.stores.interface.rollouts import RolloutRow
from dragoman.testing.promises.suite import GatewayStoreSuite

ANN = Principal("", "ann")
OTHERS = (Principal("", "bob"), Principal("tenant", "ann"))


def rollout(id: str, agent: str = "", owner: Principal = ANN) -> RolloutRow:
    """Return a rollout of an agent, or of one of its own."""
    return RolloutRow(id, owner, agent or f"agent-{id}", 1000, b'{"id":"%s"}' % id.encode())


class RolloutPromises(GatewayStoreSuite):
    """An agent has one rollout at a time, which is changed by one at a time."""

    async def test_a_rollout_is_read_as_it_was_stored(self, store: GatewayStore) -> None:
        """By this worker and the next."""
        assert await store.rollouts.put(rollout("a"), keep=9)
        later = await self.successor(store)
        assert await later.rollouts.one("a") == rollout("a")
        assert await later.rollouts.one("b") is None
        assert await later.rollouts.running() == [rollout("a")]

    async def test_rollouts_are_newest_first(self, store: GatewayStore) -> None:
        """With the number of all: of an owner, of an agent, or of everyone."""
        for id in "abc":
            assert await store.rollouts.put(rollout(id), keep=9)
        for number, other in enumerate(OTHERS):
            assert await store.rollouts.put(rollout(f"other-{number}", owner=other), keep=9)
        rows, total = await store.rollouts.page(ANN, "", limit=2)
        assert ([row.id for row in rows], total) == (["c", "b"], 3)
        rows, total = await store.rollouts.page(None, "", limit=2, after="other-1")
        assert ([row.id for row in rows], total) == (["other-0", "c"], 5)
        rows, total = await store.rollouts.page(ANN, "agent-b", limit=9)
        assert ([row.id for row in rows], total) == (["b"], 1)
        # Also after one that is gone; what is made meanwhile does not move the next page.
        assert await store.rollouts.put(rollout("d"), keep=9)
        rows, total = await store.rollouts.page(ANN, "", limit=2, after="bb")
        assert ([row.id for row in rows], total) == (["b", "a"], 4)
        assert await store.rollouts.page(ANN, "agent-other-0", limit=9) == ([], 0)
        rows, total = await store.rollouts.page(None, "agent-other-0", limit=9)
        assert ([row.id for row in rows], total) == (["other-0"], 1)

    async def test_an_agent_has_one_rollout_at_a_time(self, store: GatewayStore) -> None:
        """The next one begins when the one before has ended."""
        assert await store.rollouts.put(rollout("a", "x"), keep=9)
        assert not await store.rollouts.put(rollout("b", "x"), keep=9)
        assert await store.rollouts.one("b") is None
        assert await store.rollouts.change(rollout("a", "x")._replace(is_running=False))
        assert await store.rollouts.put(rollout("b", "x"), keep=9)
        assert [row.id for row in await store.rollouts.running()] == ["b"]

    async def test_of_two_changes_of_one_version_one_is_made(self, store: GatewayStore) -> None:
        """The other finds that it was late."""
        assert await store.rollouts.put(rollout("a"), keep=9)
        changed = rollout("a")._replace(definition=b"{}")
        assert await store.rollouts.change(changed)
        assert not await store.rollouts.change(changed._replace(definition=b"[]"))
        assert await store.rollouts.one("a") == changed._replace(version=1)

    async def test_of_rollouts_that_ended_the_newest_stay(self, store: GatewayStore) -> None:
        """Those that are running stay, and so do those of others."""
        assert await store.rollouts.put(rollout("other", owner=OTHERS[0]), keep=1)
        assert await store.rollouts.change(
            rollout("other", owner=OTHERS[0])._replace(is_running=False)
        )
        assert await store.rollouts.put(rollout("running"), keep=1)
        for id in "abc":
            assert await store.rollouts.put(rollout(id), keep=1)
            assert await store.rollouts.change(rollout(id)._replace(is_running=False))
        rows, _ = await store.rollouts.page(None, "", limit=9)
        assert [row.id for row in rows] == ["running", "other", "c", "b"]
