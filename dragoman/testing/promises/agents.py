"""What is promised of registered agents, their credentials and their addresses."""

from dragoman.stores.interface.agents import (
    AgentAddress,
    AgentCredential,
    AgentHealthRow,
    AgentRow,
    CredentialLabel,
)
from dragoman.stores.interface.gateway import GatewayStore
from dragoman.testing.promises.suite import GatewayStoreSuite

HOME = AgentAddress("alice", "https://a.example.com", "https://a.example.com/one")


def agent(id: str, name: str = "maps", body: bytes = b"{}") -> AgentRow:
    """Return an agent that is not stored yet."""
    return AgentRow(id, name, body, "offline", 1, 2)


def credential(id: str, secret: bytes = b"secret") -> AgentCredential:
    """Return a credential for an agent."""
    return AgentCredential(CredentialLabel(id, "bearer", "", ["https://a.example.com"]), secret)


async def stored(store: GatewayStore, row: AgentRow) -> AgentRow:
    """Store an agent; return its row."""
    found = await store.agents.put(row)
    assert found is not None
    return found


class AgentPromises(GatewayStoreSuite):
    """Rows with versions, one name each, and what goes with an agent that is removed."""

    async def test_an_agent_is_found_as_it_was_stored(self, store: GatewayStore) -> None:
        """With its version, by this worker and the next."""
        first = await stored(store, agent("a", "maps", b'{"x":1}'))
        assert first == agent("a", "maps", b'{"x":1}')._replace(version=first.version)
        assert first.version > 0
        assert await store.agents.find("a") == first
        assert await store.agents.find("b") is None
        later = await self.successor(store)
        assert await later.agents.find("a") == first

    async def test_changes_are_read_from_a_version_on(self, store: GatewayStore) -> None:
        """Each agent once, as it is now, in the order of its last change; and removals."""
        assert not (await store.agents.changes(0)).agents
        one, two = await stored(store, agent("a", "a")), await stored(store, agent("b", "b"))
        found = await store.agents.changes(0)
        assert list(found.agents) == [one, two] and found.version == two.version > one.version
        again = await stored(store, one._replace(body=b"[]"))
        found = await store.agents.changes(two.version)
        assert list(found.agents) == [again] and list(found.removed) == []
        version = await store.agents.remove("b", 5)
        found = await store.agents.changes(again.version)
        assert (list(found.agents), list(found.removed)) == ([], [("b", version)])
        assert found.version == version
        assert list((await store.agents.changes(version)).agents) == []

    async def test_a_name_is_one_agents_alone(self, store: GatewayStore) -> None:
        """The next ones get a number; an agent that changes keeps the name it has."""
        first = await stored(store, agent("a"))
        names = [(await stored(store, agent(id))).name for id in "bc"]
        assert (first.name, names) == ("maps", ["maps-2", "maps-3"])
        assert (await stored(store, first)).name == "maps"
        await store.agents.remove("b", 5)
        assert (await stored(store, agent("d"))).name == "maps-2"

    async def test_a_write_that_did_not_see_the_last_change_is_refused(
        self, store: GatewayStore
    ) -> None:
        """Nothing of it is stored."""
        first = await stored(store, agent("a"))
        second = await stored(store, first._replace(body=b"[2]"))
        late = first._replace(body=b"[3]")
        assert await store.agents.put(late, address=HOME, credential=credential("a")) is None
        assert await store.agents.put(agent("a", "other")) is None
        assert await store.agents.put(agent("b")._replace(version=7)) is None
        assert await store.agents.find("a") == second
        assert await store.agents.credential("a") is None
        assert (await store.agents.changes(0)).version == second.version

    async def test_health_and_the_rest_are_changed_apart(self, store: GatewayStore) -> None:
        """A write of one leaves the other as it is; both raise the version."""
        row = await stored(store, agent("a"))
        other = await stored(store, agent("b", "b"))
        health = [AgentHealthRow("a", "online", 30, 40), AgentHealthRow("b", "degraded", 50, 0)]
        versions = await store.agents.put_health(health)
        assert versions == sorted({*versions}) and versions[0] > other.version
        seen = await store.agents.find("a")
        assert seen is not None
        assert seen == AgentRow("a", "maps", b"{}", "online", 30, 40, versions[0])
        changed = await stored(store, seen._replace(body=b"[]", status="offline", beat_at=0))
        found = await store.agents.find("a")
        assert found == AgentRow("a", "maps", b"[]", "online", 30, 40, changed.version)
        assert await store.agents.put(row._replace(body=b"late")) is None
        # One that was removed meanwhile does not come back.
        await store.agents.remove("b", 5)
        await store.agents.put_health(health[1:])
        assert await store.agents.find("b") is None

    async def test_a_credential_goes_with_its_agent(self, store: GatewayStore) -> None:
        """It is stored, replaced and dropped with a write of the agent, and removed with it."""
        first = await store.agents.put(agent("a"), credential=credential("a"))
        assert first is not None and await store.agents.credential("a") == credential("a")
        second = await stored(store, first)
        assert await store.agents.credential("a") == credential("a"), "not said: as before"
        third = await store.agents.put(second, credential=credential("a", b"other"))
        assert third is not None
        later = await self.successor(store)
        assert await later.agents.credential("a") == credential("a", b"other")
        fourth = await later.agents.put(third, credential=None)
        assert fourth is not None and await later.agents.credential("a") is None
        await later.agents.put(fourth, credential=credential("a"))
        await later.agents.remove("a", 5)
        assert await later.agents.credential("a") is None
        assert "secret" not in repr(credential("a", b"secret")).replace("secret='***'", "")

    async def test_an_agent_that_nothing_refers_to_is_forgotten_with_its_address(
        self, store: GatewayStore
    ) -> None:
        """Its successor at the same address is another agent."""
        assert await store.agents.former(HOME) == ""
        await store.agents.put(agent("a"), address=HOME)
        assert await store.agents.former(HOME) == "", "it is there"
        await store.agents.remove("a", 5, HOME)
        assert await store.agents.former(HOME) == ""
