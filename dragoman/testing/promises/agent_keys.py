"""What is promised of the keys of registered agents."""

from dragoman.model.agent_key import AgentKeyRow
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.testing.promises.agents import agent, stored
from dragoman.testing.promises.suite import GatewayStoreSuite

_DAY = 24 * 3600 * 1000


def key(
    id: str, owner: str = "a", made_at: int = 1000, expires_at: int | None = None
) -> AgentKeyRow:
    """Return a key of an agent."""
    hash, mark = id.encode() * 8, b"mark"
    return AgentKeyRow(
        id,
        hash,
        owner,
        "label",
        "tenant",
        "alice",
        "*",
        "key:1",
        "ref",
        mark,
        1,
        made_at,
        expires_at,
    )


class AgentKeyPromises(GatewayStoreSuite):
    """Keys with versions, at most so many for each agent, ended by revocation or with the agent."""

    async def test_keys_are_read_as_they_were_stored(self, store: GatewayStore) -> None:
        """Every field, by agent, in the order they were made; and for the next worker too."""
        await stored(store, agent("a"))
        await stored(store, agent("b"))
        keys = [key("2"), key("1", expires_at=9 * _DAY), key("3", "b")._replace(tenant=None)]
        for one in keys:
            assert await store.agent_keys.put(one, most=9) == "stored"
        assert list(await store.agent_keys.of_agent("a")) == keys[:2]
        later = await self.successor(store)
        assert list(await later.agent_keys.of_agent("b")) == keys[2:]
        assert list(later.agent_keys.changed(-1)) == keys

    async def test_changes_are_read_from_a_version_on(self, store: GatewayStore) -> None:
        """A key that was made or revoked after it."""
        await stored(store, agent("a"))
        await store.agent_keys.put(key("1"), most=9)
        await store.agent_keys.put(key("2"), most=9)
        version = store.agent_keys.version()
        assert list(store.agent_keys.changed(version)) == []
        assert await store.agent_keys.revoke("1", 5000)
        assert store.agent_keys.version() > version
        assert list(store.agent_keys.changed(version)) == [key("1")._replace(revoked_at=5000)]

    async def test_what_another_worker_changed_is_known_after_a_refresh(
        self, store: GatewayStore
    ) -> None:
        """A key that it made, and one that it ended."""
        other = await self.successor(store)
        await stored(other, agent("a"))
        await other.agent_keys.put(key("1"), most=9)
        await store.agent_keys.refresh()
        version = store.agent_keys.version()
        assert list(store.agent_keys.changed(0)) == [key("1")]
        await other.agent_keys.revoke("1", 5000)
        await store.agent_keys.refresh()
        assert list(store.agent_keys.changed(version)) == [key("1")._replace(revoked_at=5000)]

    async def test_a_key_is_revoked_once(self, store: GatewayStore) -> None:
        """The first time counts."""
        await stored(store, agent("a"))
        await store.agent_keys.put(key("1"), most=9)
        assert await store.agent_keys.revoke("1", 5000)
        assert not await store.agent_keys.revoke("1", 6000)
        assert not await store.agent_keys.revoke("unknown", 6000)
        assert [one.revoked_at for one in await store.agent_keys.of_agent("a")] == [5000]

    async def test_an_agent_has_at_most_so_many_valid_keys(self, store: GatewayStore) -> None:
        """Keys that ended do not count, nor do those of others."""
        await stored(store, agent("a"))
        await stored(store, agent("b"))
        assert await store.agent_keys.put(key("1", expires_at=2000), most=2) == "stored"
        assert await store.agent_keys.put(key("2"), most=2) == "stored"
        assert await store.agent_keys.put(key("3"), most=2) == "full"
        assert await store.agent_keys.put(key("4", "b"), most=2) == "stored"
        assert await store.agent_keys.put(key("5", made_at=2000), most=2) == "stored"
        await store.agent_keys.revoke("2", 3000)
        assert await store.agent_keys.put(key("6", made_at=3000), most=2) == "stored"
        assert [one.id for one in await store.agent_keys.of_agent("a")] == ["1", "2", "5", "6"]

    async def test_keys_end_with_their_agent(self, store: GatewayStore) -> None:
        """In the same write; and none is made for an agent that is not there."""
        await stored(store, agent("a"))
        await stored(store, agent("b"))
        await store.agent_keys.put(key("1"), most=9)
        await store.agent_keys.put(key("2", "b"), most=9)
        await store.agents.remove("a", 7000)
        found = [*await store.agent_keys.of_agent("a"), *await store.agent_keys.of_agent("b")]
        assert [one.revoked_at for one in found] == [7000, None]
        assert await store.agent_keys.put(key("3"), most=9) == "no_agent"

    async def test_a_key_that_ended_is_shown_for_90_days(self, store: GatewayStore) -> None:
        """Then the next new key takes its place."""
        await stored(store, agent("a"))
        await store.agent_keys.put(key("1", expires_at=_DAY), most=9)
        await store.agent_keys.put(key("2"), most=9)
        await store.agent_keys.revoke("2", 2 * _DAY)
        await store.agent_keys.put(key("3", made_at=91 * _DAY), most=9)
        assert [one.id for one in await store.agent_keys.of_agent("a")] == ["1", "2", "3"]
        await store.agent_keys.put(key("4", made_at=91 * _DAY + 1), most=9)
        assert [one.id for one in await store.agent_keys.of_agent("a")] == ["2", "3", "4"]
