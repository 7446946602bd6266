"""Agents are registered, kept, changed and forgotten."""

from typing import Any

import pytest
from harness.waiting import eventually

from dragoman.egress.egress import Egress
from dragoman.errors import InvalidParams, NoAgentAvailable, PermissionDenied
from dragoman.gateway.registry.registration import AgentChanges, Registration, Secret, card_of, slug
from dragoman.gateway.registry.registry import Registry
from dragoman.gateway.registry.search import Search
from dragoman.model.card import AgentSkill
from dragoman.model.identity import Principal
from dragoman.stores.interface import Duty
from tests.gateway.registry.registries import CARD_PATH, OLDER_PATH, Desk

pytestmark = pytest.mark.anyio
DEAD = "http://127.0.0.1:9/"


async def test_an_agent_is_registered_by_its_url_alone(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps & Ways"), await there.registry()
    agent = await registry.register(Registration(url=peer.url), Principal.read("alice"))
    assert (agent.name, agent.title, agent.owner.text) == ("maps-ways", "Maps & Ways", "alice")
    assert agent.description == "Finds ways." and [one.id for one in agent.skills] == ["route"]
    assert agent.card == peer.cards[CARD_PATH] and agent.card_url == peer.url + CARD_PATH
    assert agent.status == "online" and len(agent.card_digest) == 64
    assert registry.get(agent.id) == registry.get("maps-ways") == agent
    assert there.audit.names == ["agent.register"]
    assert card_of(agent).supported_interfaces[0].url == peer.url


@pytest.mark.parametrize(
    ("path", "url"),
    [
        (CARD_PATH, ""),
        (OLDER_PATH, ""),
        (f"/deep{CARD_PATH}", "/deep"),
        (f"/deep{OLDER_PATH}", "/deep/"),
        ("/odd/card.json", "/odd/card.json"),
    ],
)
async def test_a_card_is_found_where_agents_have_it(there: Desk, path: str, url: str) -> None:
    peer, registry = await there.peer(), await there.registry()
    card = peer.shows(peer.card(path="/deep"), path)
    agent = await registry.register(Registration(url=peer.url + url))
    assert agent.card == card and agent.card_url == peer.url + path


async def test_a_card_at_the_root_counts_only_if_it_is_about_the_agent(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry()
    peer.shows(peer.card(path="/one/rpc"))
    one = await registry.register(Registration(url=f"{peer.url}/one", name="One"))
    two = await registry.register(Registration(url=f"{peer.url}/two", name="Two"))
    assert one.card is not None and two.card is None


async def test_an_agent_without_a_card_gets_one_made_of_what_was_said(there: Desk) -> None:
    registry = await there.registry()
    skill = AgentSkill(id="sum", name="Sum", description="Adds.", tags=["math"])
    said = Registration(
        url=DEAD, name="Sums", description="Adds up.", skills=[skill], price=5, tags=["math"]
    )
    agent = await registry.register(said, Principal.read("alice"))
    assert agent.card is None and agent.status == "offline" and agent.price == 5
    card = card_of(agent)
    assert (card.name, card.description, card.version) == ("Sums", "Adds up.", "1.0.0")
    assert card.skills == [skill] and card.supported_interfaces[0].url == DEAD
    assert not card.capabilities.streaming and "bearer" in card.security_schemes


async def test_a_url_without_a_card_needs_a_name(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry()
    for url, why in ((DEAD, "could not be fetched"), (peer.url, "HTTP 404")):
        with pytest.raises(InvalidParams, match=why) as refused:
            await registry.register(Registration(url=url))
        assert "give a name" in refused.value.public
    assert registry.all() == []


async def test_a_card_that_is_at_hand_is_not_fetched(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry()
    agent = await registry.register(Registration(card=peer.card()))
    assert agent.url == peer.url and peer.asked == []


async def test_names_in_addresses_are_unique_and_plain(there: Desk) -> None:
    registry = await there.registry()
    names = [
        (await registry.register(Registration(url=DEAD, name=name))).name
        for name in ("Maps", "maps!", "MAPS", "Überweg", "***", "tasks")
    ]
    assert names == ["maps", "maps-2", "maps-3", "uberweg", "agent", "tasks-agent"]
    assert len(slug("x" * 100)) <= 63


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("name", {"name": "x" * 101}),
    ("name", {"name": "  "}),
    ("description", {"description": "x" * 1001}),
    ("url", {"url": "ftp://agent.example.com"}),
    ("url", {"url": "agent.example.com"}),
    ("url", {"url": "http://user:secret@agent.example.com"}),
    ("pricePerTask", {"price": -1}),
    ("replicas", {"replicas": ["file:///etc/passwd"]}),
    ("origins", {"origins": ["nowhere"]}),
    ("skills", {"skills": [AgentSkill("a", "A", "", []), AgentSkill("a", "A", "", [])]}),
    ("skills[0].id", {"skills": [AgentSkill("", "A", "", [])]}),
    ("tags[0]", {"tags": [""]}),
    ("tags", {"tags": ["t"] * 65}),
    ("metadata", {"metadata": {"x": "x" * 70_000}}),
    ("refresh", {"refresh": 1.0}),
    ("credential", {"credential": Secret(kind="bearer", value="a b")}),
    ("credential.header", {"credential": Secret(kind="header", value="v", header="Host")}),
    ("credential.header", {"credential": Secret(kind="header", value="v")}),
]


async def test_what_is_wrong_is_told_by_its_place(there: Desk) -> None:
    registry = await there.registry()
    for field, said in WRONG:
        with pytest.raises(InvalidParams) as refused:
            await registry.register(Registration(**{"url": DEAD, "name": "x"} | said))
        assert refused.value.field == field
    assert registry.all() == []


async def test_a_private_address_is_refused_unless_the_operator_allows_it(there: Desk) -> None:
    store = await there.store()
    async with Egress() as http:
        registry = Registry(store, http, watches=False)
        await registry.open()
        for field in ("url", "replicas"):
            urls: dict[str, Any] = {"url": "https://agent.example.com"}
            urls |= {"url": "http://10.0.0.1/"} if field == "url" else {"replicas": [DEAD]}
            with pytest.raises(InvalidParams, match="--allow") as refused:
                await registry.register(Registration(name="x", **urls))
            assert refused.value.field == field
        await registry.close()


async def test_a_card_that_names_another_origin_is_refused_and_gets_nothing(there: Desk) -> None:
    evil, peer, registry = await there.peer(), await there.peer(), await there.registry()
    peer.shows(peer.card(supportedInterfaces=evil.card()["supportedInterfaces"]))
    said = Registration(
        url=peer.url, name="x", credential=Secret(kind="bearer", value="canary-1234")
    )
    with pytest.raises(InvalidParams, match="--origin"):
        await registry.register(said)
    assert registry.all() == [] and evil.asked == []
    allowed = Registration(url=peer.url, name="x", origins=[f"{evil.url}/any/path"])
    assert (await registry.register(allowed)).origins == [evil.url]
    assert "canary" not in str(peer.seen)


async def test_a_dry_run_leaves_nothing(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry()
    agent = await registry.register(Registration(url=peer.url), dry_run=True)
    assert agent.name == "maps" and registry.all() == [] and there.audit.all == []


async def test_agents_are_there_after_a_restart(there: Desk) -> None:
    peer, first = await there.peer(name="Maps"), await there.registry()
    said = Registration(url=peer.url, tags=["geo"], metadata={"a": [1]}, replicas=[DEAD])
    agent = await first.register(said, Principal.read("alice"))
    await first.heartbeat("maps", "degraded", None, Principal.read("alice"))
    await first.close()
    second = await there.registry()
    found = second.get("maps")
    assert found is not None and found.status == "degraded" and found.beat_at
    assert found.card == agent.card and found.metadata == {"a": [1]}


async def test_owners_change_and_remove_their_own_and_nobody_else_does(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry()
    await registry.register(Registration(url=peer.url), Principal.read("alice"))
    change = AgentChanges(name="Ways", price=7, tags=["a", "a", "b"])
    for act in (
        registry.update("maps", change, Principal.read("bob")),
        registry.remove("maps", Principal.read("bob")),
    ):
        with pytest.raises(PermissionDenied):
            await act
    with pytest.raises(PermissionDenied):
        await registry.heartbeat("maps", owner=Principal.read("bob"))
    after = await registry.update("maps", change, Principal.read("alice"))
    assert (after.title, after.name, after.price, after.tags) == ("Ways", "maps", 7, ["a", "b"])
    assert registry.get("maps") == after and after.updated_at > after.created_at
    assert (
        await registry.update("maps", AgentChanges(price=8), Principal.read("root"), operator=True)
    ).price == 8
    await registry.remove("maps", Principal.read("alice"))
    assert registry.get("maps") is None and registry.all() == []
    with pytest.raises(NoAgentAvailable):
        await registry.remove("maps", Principal.read("alice"))
    assert there.audit.names[-1] == "agent.remove"


async def test_what_is_away_is_read_by_others_and_found_by_its_owner(there: Desk) -> None:
    registry, bob = await there.registry(), Principal.read("bob")
    await registry.register(Registration(url=DEAD, name="Gone"), Principal.read("alice"))
    assert registry.visible("gone", bob).status == "offline"
    refusals = {"gone": PermissionDenied, "never-was": NoAgentAvailable}
    for ref, refusal in refusals.items():
        with pytest.raises(refusal):
            await registry.update(ref, AgentChanges(), bob)
        with pytest.raises(refusal):
            await registry.probe(ref, bob)
    assert registry.search(Search(viewer=Principal.read("bob"))).total == 0
    assert registry.search(Search(viewer=Principal.read("alice"))).total == 1


async def test_another_url_means_another_card(there: Desk) -> None:
    one, two = await there.peer(name="One"), await there.peer(name="Two")
    registry = await there.registry()
    await registry.register(Registration(url=one.url))
    after = await registry.update("one", AgentChanges(url=two.url))
    assert (after.name, after.title) == ("one", "Two") and after.card == two.cards[CARD_PATH]
    away = await registry.update("one", AgentChanges(url=DEAD))
    assert away.card is None and away.url == DEAD and away.card_digest == ""


async def test_an_origin_is_not_taken_back_while_the_card_leads_there(there: Desk) -> None:
    other, peer, registry = await there.peer(), await there.peer(), await there.registry()
    peer.shows(peer.card(supportedInterfaces=other.card()["supportedInterfaces"]))
    await registry.register(Registration(url=peer.url, origins=[other.url]))
    with pytest.raises(InvalidParams, match="origins"):
        await registry.update("maps", AgentChanges(origins=[]))


async def test_listeners_hear_of_changes(there: Desk) -> None:
    registry = await there.registry()
    heard: list[tuple[str, str]] = []
    registry.listen(lambda agent: heard.append((agent.name, agent.status)))
    await registry.register(Registration(url=DEAD, name="a"))
    registry.health.saw(registry.all()[0].id)
    await registry.update("a", AgentChanges(price=1))
    assert heard == [("a", "offline"), ("a", "online"), ("a", "online")]


async def test_another_process_sees_what_this_one_changes(there: Desk) -> None:
    peer, first, second = await there.peer(name="Maps"), await there.registry(), None
    second = await there.registry()
    heard: list[str] = []
    second.listen(lambda agent: heard.append(agent.status))
    agent = await first.register(Registration(url=peer.url))
    await eventually(lambda: second.get("maps") is not None)
    for _ in range(3):
        first.health.missed(agent.id)
    await eventually(lambda: second.all()[0].status == "offline")
    await second.update("maps", AgentChanges(price=3))
    await eventually(lambda: first.all()[0].price == 3)
    # Each kept what the other had said.
    assert first.all()[0].status == "offline" and second.all()[0].price == 3
    # And a caller's luck does not undo what another process saw.
    second.health.saw(agent.id)
    assert second.all()[0].status == "offline"
    await second.remove("maps")
    await eventually(lambda: first.get("maps") is None)
    assert heard and heard[-1] == "offline"


async def test_what_comes_late_does_not_undo_what_came_after_it(there: Desk) -> None:
    registry = await there.registry()
    early = await registry.register(Registration(url=DEAD, name="a"))
    agents = registry._agents
    version = agents._versions[early.id]
    after = await registry.update("a", AgentChanges(price=2))
    agents._show(early, version)
    assert registry.get("a") == after
    await registry.remove("a")
    agents._show(after, version + 1)
    assert registry.get("a") is None


async def test_two_processes_give_a_name_to_one_agent_only(there: Desk) -> None:
    first, second = await there.registry(), await there.registry()
    names = {
        (await registry.register(Registration(url=DEAD, name="Same"))).name
        for registry in (first, second, first)
    }
    assert names == {"same", "same-2", "same-3"}
    await eventually(lambda: len(first.all()) == len(second.all()) == 3)


async def test_only_one_process_looks_after_the_agents(there: Desk) -> None:
    one, two = await there.store(), await there.store()
    assert not one.knows_all
    assert await one.lead(Duty.WATCH_AGENTS)
    assert not await two.lead(Duty.WATCH_AGENTS)
    assert await one.lead(Duty.WATCH_AGENTS)
