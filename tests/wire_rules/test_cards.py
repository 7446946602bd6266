"""Sections 2.14, 4.5 and 4.6: cards, where they are and what they must say."""

from typing import Any

import pytest
from harness.serving import V1, Site, serving

from dragoman import Agent, AgentSkill
from dragoman.dialects import cards
from dragoman.errors import VersionNotSupported
from dragoman.model.card import JSONRPC, AgentCapabilities, AgentCard, AgentInterface
from tests.wire_rules.rules import CARD

OLD_CARD = "/.well-known/agent.json"
OLD_EXTENDED = "/agent/authenticatedExtendedCard"
V03 = {"A2A-Version": "0.3"}


async def card(site: Site, headers: dict[str, str], path: str = CARD) -> Any:
    response = await site.http.get(path, headers=headers)
    assert response.status_code == 200
    return response.json()


@pytest.mark.requirement("2.14-required")
async def test_each_card_has_what_its_version_requires(site: Site) -> None:
    common = {"name", "description", "version", "capabilities", "skills"}
    common |= {"defaultInputModes", "defaultOutputModes"}
    newer = await card(site, V1)
    assert newer.keys() >= common | {"supportedInterfaces"}
    for interface in newer["supportedInterfaces"]:
        assert interface.keys() >= {"url", "protocolBinding", "protocolVersion"}
    for older in (await card(site, V03), await card(site, {}, OLD_CARD)):
        assert older.keys() >= common | {"url", "protocolVersion"}
        assert "supportedInterfaces" not in older
    for skill in newer["skills"]:
        assert skill.keys() >= {"id", "name", "description", "tags"} and skill["tags"]


@pytest.mark.requirement("2.14-interfaces")
async def test_interfaces_name_binding_and_version_and_the_first_is_preferred(site: Site) -> None:
    interfaces = (await card(site, V1))["supportedInterfaces"]
    named = [(each["protocolBinding"], each["protocolVersion"]) for each in interfaces]
    assert named == [
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
    ]
    older = await card(site, V03)
    assert older["preferredTransport"] == "JSONRPC"
    assert older["url"] == interfaces[2]["url"]


@pytest.mark.requirement("2.14-stateTransitionHistory")
async def test_0_x_is_told_that_there_is_a_state_transition_history(site: Site) -> None:
    assert (await card(site, V03))["capabilities"]["stateTransitionHistory"] is True
    assert "stateTransitionHistory" not in (await card(site, V1))["capabilities"]


@pytest.mark.requirement("2.14-no-older")
def test_an_agent_without_an_older_interface_has_no_older_card() -> None:
    alone = AgentCard(
        name="A",
        description="",
        supported_interfaces=[AgentInterface("https://a.example/", JSONRPC, "1.0")],
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    with pytest.raises(VersionNotSupported):
        cards.v0_3(alone)


@pytest.mark.requirement("4.5-paths", "DC-1", "DC-6")
async def test_the_card_is_there_without_authentication_in_the_shape_asked_for(
    site: Site,
) -> None:
    newer, older, both = await card(site, V1), await card(site, V03), await card(site, {})
    assert "supportedInterfaces" in newer and "url" not in newer
    assert "supportedInterfaces" not in older and older["protocolVersion"] == "0.3.0"
    assert newer.keys() | older.keys() <= both.keys()
    assert await card(site, {}, f"{CARD}?A2A-Version=1.0") == newer
    for headers in ({}, V1, V03):
        oldest = await card(site, headers, OLD_CARD)
        assert oldest["protocolVersion"].startswith("0.2") and "supportedInterfaces" not in oldest


@pytest.mark.requirement("4.5-sub-path")
async def test_an_agent_under_a_path_has_its_card_there() -> None:
    agents = [Agent(name, name) for name in ("One", "Two")]
    async with serving(*agents) as site:
        for agent in agents:
            found = await card(site, V1, f"/agents/{agent.name}{CARD}")
            assert found["name"] == agent.title
            urls = [interface["url"] for interface in found["supportedInterfaces"]]
            assert all(f"/agents/{agent.name}" in url for url in urls)


@pytest.mark.requirement("4.4-card")
async def test_a_card_is_json(site: Site) -> None:
    for path in (CARD, OLD_CARD):
        assert (await site.http.get(path)).headers["content-type"] == "application/json"


@pytest.mark.requirement("4.5-extended", "3.3-unauthenticated", "V-7", "T-55")
async def test_0_2_reads_the_extended_card_by_get_once_it_is_known() -> None:
    secret = AgentSkill(id="s", name="S", description="S.", tags=["s"])
    agent = Agent("Known", "Knows.", extended_skills=[secret])
    async with serving(agent, auth_token="a-token-0123456789") as site:
        refused = await site.http.get(OLD_EXTENDED)
        assert refused.status_code == 401 and refused.headers["www-authenticate"]
    async with serving(agent, extended_card_public=True) as site:
        found = await card(site, {}, OLD_EXTENDED)
        assert [skill["id"] for skill in found["skills"]] == ["s"]
        assert found["protocolVersion"].startswith("0.2")
