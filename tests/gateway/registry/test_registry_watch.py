"""Registered agents are looked after: cards, heartbeats and probes, under a clock of our own."""

import pytest
from harness.waiting import eventually
from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.gateway.registry import health
from dragoman.gateway.registry.card_review import digest
from dragoman.gateway.registry.registration import AgentChanges, Registration
from dragoman.gateway.registry.registry import Registry
from dragoman.model.identity import Principal
from tests.gateway.registry.registries import CARD_PATH, OLDER_PATH, Desk, Peer

pytestmark = pytest.mark.anyio
DEAD = "http://127.0.0.1:9/"
MINUTE = 60_000


async def watched(there: Desk) -> tuple[Peer, Registry]:
    """Return an agent that is registered and looked after."""
    peer, registry = await there.peer(name="Maps"), await there.registry(watches=True)
    await registry.register(Registration(url=peer.url), Principal.read("alice"))
    return peer, registry


def status(registry: Registry, name: str = "maps") -> str:
    agent = registry.get(name)
    assert agent is not None
    return agent.status


async def test_a_card_is_looked_at_when_due_and_fetched_only_if_it_changed(there: Desk) -> None:
    peer, registry = await watched(there)
    assert registry.all()[0].refresh == 3600
    await registry.update("maps", AgentChanges(refresh=300), Principal.read("alice"))
    began = there.clock.now()
    peer.asked.clear()
    await there.tick(registry, lambda: there.clock.now() - began > 11 * MINUTE)
    gets = [one for one in peer.asked if one[0] == "GET"]
    assert gets == [("GET", CARD_PATH, 304)] * 2
    # In between it is asked for no body.
    assert 9 <= len(peer.asked) <= 14
    assert {one[0] for one in peer.asked} == {"GET", "HEAD"}


async def test_a_refresh_of_ones_own_is_kept_to(there: Desk) -> None:
    peer, registry = await watched(there)
    await registry.update("maps", AgentChanges(refresh=120), Principal.read("alice"))
    peer.shows(peer.card(name="Maps", description="Other."))
    began = there.clock.now()
    await there.tick(registry, lambda: registry.all()[0].description == "Other.")
    assert there.clock.now() - began <= 130_000
    assert there.audit.names[-1] == "agent.card.change"


async def test_a_card_that_sends_calls_elsewhere_is_held_until_it_is_accepted(there: Desk) -> None:
    peer, registry = await watched(there)
    before = registry.all()[0]
    peer.shows(peer.card(name="Maps", path="/elsewhere"))
    after = await registry.probe("maps", Principal.read("alice"))
    assert after.card == before.card and "addresses change" in after.pending_reason
    assert there.audit.all[-1]["act"] == "agent.card.hold"
    assert there.audit.all[-1]["outcome"] == "held"
    # Once is enough.
    count = len(there.audit.all)
    assert (await registry.probe("maps", Principal.read("alice"))) == after and len(
        there.audit.all
    ) == count
    looked_at = digest(peer.cards[CARD_PATH])
    # Meanwhile it shows yet another one.
    third = peer.shows(peer.card(name="Maps", path="/anywhere"))
    await registry.probe("maps", Principal.read("alice"))
    with pytest.raises(InvalidParams, match="digest"):
        await registry.accept("maps", looked_at, Principal.read("alice"))
    assert (registry.all()[0].card, registry.all()[0].pending) == (before.card, third)
    refusal = there.audit.all[-1]
    assert (refusal["act"], refusal["outcome"]) == ("agent.card.accept", "denied")
    accepted = await registry.accept("maps", digest(third), Principal.read("alice"))
    assert accepted.card == third and accepted.pending is None
    assert there.audit.all[-1] | {"reason": ""} == {
        "act": "agent.card.accept",
        "outcome": "done",
        "who": "alice",
        "object": f"{accepted.id} maps",
        "reason": "",
    }


async def test_a_card_that_people_look_at_is_read_every_few_seconds(there: Desk) -> None:
    peer, registry = await watched(there)
    peer.asked.clear()

    async def looked(seconds: int) -> None:
        there.clock.move_to(there.clock.now() + seconds * 1000)
        for _ in range(3):
            registry.health.look(registry.all())
        await eventually(lambda: not registry.health.checks)

    for seconds in (5, 1, 3, 1):
        await looked(seconds)
    # A minute has not passed, so that none of them is a check that was due.
    assert peer.asked == [("GET", CARD_PATH, 304)] * 2
    assert registry.all()[0].card_changed_at == 0
    peer.shows(peer.card(name="Maps", path="/elsewhere"))
    await looked(5)
    assert registry.all()[0].pending is not None
    assert registry.all()[0].card_changed_at == there.clock.now()


async def test_few_cards_are_read_because_people_look(
    there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MOST_LOOKS", 2)
    peer, registry = await there.peer(name="Maps"), await there.registry(watches=True)
    for number in range(4):
        await registry.register(Registration(url=peer.url, name=f"m{number}"))
    peer.asked.clear()
    there.clock.move_to(there.clock.now() + 5000)
    for _ in range(3):
        registry.health.look(registry.all())
    await eventually(lambda: not registry.health.checks)
    assert len(peer.asked) == 2


async def test_a_card_is_not_read_for_people_where_that_says_nothing(there: Desk) -> None:
    """Not of an agent that is away, without a card or under a check, nor where none are watched."""
    peer, registry = await watched(there)
    peer.asked.clear()
    there.clock.move_to(there.clock.now() + 5000)
    (agent,) = registry.all()
    registry.health.look([replace(agent, status="offline"), replace(agent, card=None)])
    assert not registry.health.checks
    peer.may_answer.clear()
    for _ in range(3):
        registry.health.look([agent])
        assert registry.health.checks == 1
        there.clock.move_to(there.clock.now() + 5000)
    peer.may_answer.set()
    await eventually(lambda: not registry.health.checks)
    assert peer.asked == [("GET", CARD_PATH, 304)]
    unwatched = await there.registry(watches=False)
    unwatched.health.look(unwatched.all())
    assert unwatched.all() and not unwatched.health.checks


async def test_a_card_that_was_refused_is_not_held_again_unless_it_changes(there: Desk) -> None:
    peer, registry = await watched(there)
    alice = Principal.read("alice")
    before = registry.all()[0].card
    other = peer.shows(peer.card(name="Maps", path="/elsewhere"))
    await registry.probe("maps", alice)
    with pytest.raises(InvalidParams, match="digest"):
        await registry.refuse("maps", "0" * 64, alice)
    refused = await registry.refuse("maps", digest(other), alice)
    assert (refused.card, refused.pending) == (before, None)
    assert there.audit.all[-1]["act"] == "agent.card.refuse"
    assert (await registry.probe("maps", alice)).pending is None
    third = peer.shows(peer.card(name="Maps", path="/anywhere"))
    assert (await registry.probe("maps", alice)).pending == third


async def test_a_card_that_moves_to_another_origin_stays_held_until_it_is_allowed(
    there: Desk,
) -> None:
    peer, registry = await watched(there)
    evil = await there.peer()
    peer.shows(peer.card(supportedInterfaces=evil.card()["supportedInterfaces"]))
    await registry.probe("maps", Principal.read("alice"))
    held = digest(peer.cards[CARD_PATH])
    with pytest.raises(InvalidParams, match="--origin"):
        await registry.accept("maps", held, Principal.read("alice"))
    await registry.update("maps", AgentChanges(origins=[evil.url]), Principal.read("alice"))
    assert (await registry.accept("maps", held, Principal.read("alice"))).pending is None
    assert evil.asked == []


async def test_a_card_that_is_gone_or_broken_changes_nothing(there: Desk) -> None:
    peer, registry = await watched(there)
    before = registry.all()[0]
    for card in (b"no json", {"name": "x"}, b"[" * 100_000):
        peer.shows(card)
        after = await registry.probe("maps", Principal.read("alice"))
        assert after.card == before.card and after.status == "online"
    peer.cards.clear()
    assert (await registry.probe("maps", Principal.read("alice"))).card == before.card
    peer.shows(peer.card(name="Moved"), OLDER_PATH)
    assert (await registry.probe("maps", Principal.read("alice"))).title == "Moved"


async def test_a_silent_agent_is_degraded_and_then_offline(there: Desk) -> None:
    registry = await there.registry(watches=True)
    await registry.register(Registration(url=DEAD, name="Beats"))
    began = there.clock.now()
    assert (await registry.heartbeat("beats")).status == "online"
    await there.tick(registry, lambda: status(registry, "beats") == "degraded")
    assert there.clock.now() - began == MINUTE + 1
    await there.tick(registry, lambda: status(registry, "beats") == "offline")
    assert there.clock.now() - began == 3 * MINUTE + 1
    after = await registry.heartbeat("beats", None, {"load": 1})
    assert after.status == "online" and after.metadata == {"load": 1}


async def test_heartbeats_keep_an_agent_online(there: Desk) -> None:
    registry = await there.registry(watches=True)
    await registry.register(Registration(url=DEAD, name="Beats"))
    for _ in range(5):
        await registry.heartbeat("beats")
        now = there.clock.now()
        await there.tick(registry, lambda now=now: there.clock.now() - now >= 50_000)
        assert status(registry, "beats") == "online"


async def test_an_agent_that_sends_none_is_probed(there: Desk) -> None:
    peer, registry = await watched(there)
    peer.is_up = False
    began = there.clock.now()
    await there.tick(registry, lambda: status(registry) == "offline")
    assert there.clock.now() - began <= 2 * MINUTE
    peer.is_up = True
    down = there.clock.now()
    await there.tick(registry, lambda: status(registry) == "online")
    assert there.clock.now() - down <= 2 * MINUTE


async def test_an_agent_that_is_down_when_registered_is_found_soon(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry(watches=True)
    peer.is_up = False
    agent = await registry.register(Registration(url=peer.url, name="Late"))
    assert agent.status == "offline" and agent.card is None
    peer.is_up = True
    began = there.clock.now()
    await there.tick(registry, lambda: status(registry, "late") == "online")
    assert there.clock.now() - began <= 10_000


async def test_an_agent_that_was_not_there_yet_shows_its_card_when_it_is(there: Desk) -> None:
    peer, registry = await there.peer(name="Maps"), await there.registry(watches=True)
    peer.is_up = False
    with pytest.raises(InvalidParams, match="card"):
        await registry.register(Registration(url=peer.url))
    agent = await registry.register(Registration(url=peer.url, may_be_away=True))
    assert (agent.status, agent.title, agent.card) == ("offline", "127.0.0.1", None)
    peer.is_up = True
    await there.tick(registry, lambda: status(registry, agent.id) == "online")
    found = registry.get(agent.id)
    assert found is not None and found.card == peer.cards[CARD_PATH]
    assert (found.title, [skill.id for skill in found.skills]) == ("Maps", ["route"])


async def test_one_replica_that_answers_is_enough(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry()
    said = Registration(url=DEAD, name="Many", replicas=[f"{peer.url}/a", peer.url])
    await registry.register(said)
    assert (await registry.probe("many")).status == "online"
    peer.is_up = False
    assert (await registry.probe("many")).status == "degraded"


async def test_who_was_ejected_by_tasks_comes_back_by_probes(there: Desk) -> None:
    _, registry = await watched(there)
    agent = registry.all()[0]
    for _ in range(3):
        registry.health.missed(agent.id)
    assert status(registry) == "offline"
    registry.health.saw(agent.id)
    assert status(registry) == "offline"
    assert (
        await registry.heartbeat("maps", "online", None, Principal.read("alice"))
    ).status == "offline"
    began = there.clock.now()
    await there.tick(registry, lambda: status(registry) == "online")
    assert 10_000 <= there.clock.now() - began <= 30_000


async def test_a_heartbeat_after_an_eviction_is_enough_again(there: Desk) -> None:
    _, registry = await watched(there)
    await registry.heartbeat("maps", None, None, Principal.read("alice"))
    for _ in range(3):
        registry.health.missed(registry.all()[0].id)
    await there.tick(registry, lambda: status(registry) == "online")
    assert (
        await registry.heartbeat("maps", "degraded", None, Principal.read("alice"))
    ).status == "degraded"


async def test_few_are_looked_at_at_once(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry(watches=True)
    peer.is_up = False
    for number in range(40):
        await registry.register(Registration(url=f"{peer.url}/{number}", name="Many"))
    peer.is_up = True
    peer.may_answer.clear()
    peer.seen.clear()
    there.clock.move_to(there.clock.now() + 10_000)
    await eventually(lambda: len(peer.seen) >= 32)
    assert len(peer.seen) == registry.health.checks == 32
    peer.may_answer.set()
    await eventually(lambda: all(agent.status == "online" for agent in registry.all()))


async def test_agents_are_looked_after_from_the_start(there: Desk) -> None:
    peer, first = await there.peer(name="Maps"), await there.registry()
    await first.register(Registration(url=peer.url))
    await first.close()
    second = await there.registry(watches=True)
    peer.is_up = False
    await there.tick(second, lambda: status(second) == "offline")
