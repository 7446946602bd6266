"""Agents and their keys over the gateway's REST API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually

from dragoman.security.keys import key_file
from tests.gateway.api.api_site import GatewaySite, headers_of, owners

NOBODY = "01a1e487-0000-7000-8000-000000000000"
Market = tuple[GatewaySite, dict[str, str], dict[str, str]]


@pytest.fixture(scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """A gateway that knows its callers, shared by several tests."""
    folder = tmp_path_factory.mktemp("gateway")
    keys = folder / "keys.json"
    key_file.create(keys, "somebody", scopes=[], tenant=None, lifetime=None)
    async with owners(folder, auth="bearer, api-key", keys=str(keys)) as found:
        yield found


async def registered(site: GatewaySite, headers: dict[str, str], **said: Any) -> dict[str, Any]:
    body = {"endpoint": site.agent_url, **said}
    return await site.ask("POST", "/agents", body, status=201, headers=headers)


async def known(site: GatewaySite, headers: dict[str, str]) -> None:
    """Wait until a key is known: servers look at the file of keys once a second."""

    async def is_known() -> bool:
        return (await site.raw("GET", "/nothing", headers=headers)).status_code != 401

    await eventually(is_known)


async def test_an_agent_is_registered_with_what_its_owner_says(market: Market) -> None:
    site, seller, _ = market
    made = await registered(
        site,
        seller,
        name="Painter",
        description="Paints.",
        tags=["art", "paint"],
        metadata={"team": 7},
        repeatableSkills=["paint"],
        pricePerTask=1.11,
        skills=[
            {"id": "paint", "name": "Paint", "description": "", "inputSchema": {"type": "object"}}
        ],
    )
    assert made["name"] == "Painter" and made["slug"] == "painter"
    assert made["price_per_task"] == 1.11 and made["trust_score"] == 50
    assert made["metadata"] == {"team": 7} and made["tags"] == ["art", "paint"]
    assert made["skills"][0]["inputSchema"] == {"type": "object"}
    assert made["is_mine"] is True and made["repeatable_skills"] == ["paint"]
    for ref in (made["id"], "painter"):
        assert await site.ask("GET", f"/agents/{ref}", headers=seller) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": ""},
        {"endpoint": "not a url"},
        {"endpoint": "file:///etc/passwd"},
        {"name": "x" * 101},
        {"description": "x" * 1001},
        {"pricePerTask": -1},
        {"pricePerTask": "1.11"},
        {"tags": "art"},
        {"repeatableSkills": ["no-such-skill"]},
        {"skills": [{"name": "without an id"}]},
        {"metadata": []},
    ],
)
async def test_what_makes_no_agent_is_refused_and_says_where(
    market: Market, wrong: dict[str, Any]
) -> None:
    site, seller, _ = market
    body = {"endpoint": site.agent_url, "name": "Wrong", **wrong}
    error = await site.ask("POST", "/agents", body, status=400, headers=seller)
    assert error["code"] == "VALIDATION_ERROR"
    assert error["details"]["field"].startswith(next(iter(wrong)))


async def test_who_is_not_known_registers_nothing(market: Market) -> None:
    site, _, _ = market
    body = {"endpoint": site.agent_url, "name": "Stranger"}
    response = await site.raw("POST", "/agents", body)
    assert response.status_code == 401


@pytest.mark.parametrize("ref", [NOBODY, "not-a-uuid", "%00", "a%2Fb"])
async def test_an_agent_that_is_not_there_is_a_404(market: Market, ref: str) -> None:
    site, seller, _ = market
    error = await site.ask("GET", f"/agents/{ref}", status=404, headers=seller)
    assert error["code"] == "AGENT_NOT_FOUND"


async def test_only_its_owner_changes_or_removes_an_agent(market: Market) -> None:
    site, seller, buyer = market
    made = await registered(site, seller, name="Mine")
    path = f"/agents/{made['id']}"
    for verb, below, body in (
        ("PATCH", "", {"description": "mine now"}),
        ("DELETE", "", None),
        ("POST", "/heartbeat", {"status": "offline"}),
        ("POST", "/probe", None),
        ("POST", "/accept", {"digest": "0" * 64}),
        ("POST", "/api-keys", {"name": "a key"}),
        ("GET", "/api-keys", None),
    ):
        error = await site.ask(verb, path + below, body, status=403, headers=buyer)
        assert error["code"] == "FORBIDDEN", below
    changed = await site.ask(
        "PATCH", path, {"description": "Better.", "pricePerTask": 2}, headers=seller
    )
    assert changed["description"] == "Better." and changed["price_per_task"] == 2
    assert changed["name"] == "Mine"
    assert await site.ask("DELETE", path, status=204, headers=seller) is None
    error = await site.ask("GET", path, status=404, headers=seller)
    assert error["code"] == "AGENT_NOT_FOUND"


async def test_an_operator_may_do_what_an_owner_may(market: Market) -> None:
    site, seller, _ = market
    made = await registered(site, seller, name="Looked after")
    path = f"/agents/{made['id']}"
    operator = headers_of("operator")
    await site.ask("PATCH", path, {"tags": ["checked"]}, headers=operator)
    await site.ask("DELETE", path, status=204, headers=operator)


async def test_an_agent_is_found_by_tags_trust_price_and_status(market: Market) -> None:
    site, seller, buyer = market
    await registered(site, seller, name="Cook", tags=["food", "kitchen"], pricePerTask=3)
    await registered(site, seller, name="Baker", tags=["food"], pricePerTask=1)

    async def names(query: str) -> list[str]:
        found = await site.ask("GET", f"/discover?{query}", headers=buyer)
        assert set(found) == {"agents", "total", "limit", "offset"}
        return [one["name"] for one in found["agents"]]

    assert sorted(await names("skillTags=food,nothing")) == ["Baker", "Cook"]
    assert await names("category=kitchen") == ["Cook"]
    assert await names("skillTags=food&maxPrice=1.5") == ["Baker"]
    assert await names("skillTags=food&minTrustScore=51") == []
    assert await names("text=bak") == ["Baker"]
    page = await site.ask("GET", "/agents?skillTags=food&limit=1&offset=1", headers=buyer)
    assert (page["total"], page["limit"], page["offset"], len(page["agents"])) == (2, 1, 1, 1)
    for wrong in ("minTrustScore=101", "status=gone", "limit=101", "limit=x", "maxPrice=-1"):
        error = await site.ask("GET", f"/discover?{wrong}", status=400, headers=buyer)
        assert error["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize("path", ["/agents", "/discover"])
async def test_an_agent_that_comes_between_two_pages_neither_repeats_nor_hides_another(
    market: Market, path: str
) -> None:
    site, seller, buyer = market
    tag = path[1:]
    for name in ("ann", "ben", "cat", "dan"):
        await registered(site, seller, name=f"{name}-{tag}", tags=[tag])
    listed = f"{path}?category={tag}&limit=2"
    page = await site.ask("GET", listed, headers=buyer)
    assert [one["slug"] for one in page["agents"]] == [f"ann-{tag}", f"ben-{tag}"]
    await registered(site, seller, name=f"abe-{tag}", tags=[tag])
    last = page["agents"][-1]["id"]
    await site.ask("DELETE", f"/agents/{last}", status=204, headers=seller)
    rest = await site.ask("GET", f"{listed}&after={page['next']}", headers=buyer)
    assert [one["slug"] for one in rest["agents"]] == [f"cat-{tag}", f"dan-{tag}"]
    assert rest["total"] == 4 and "next" not in rest
    for wrong in ("x", "50", "50:", ":ann", "-1:ann", "1e3:ann"):
        error = await site.ask("GET", f"{listed}&after={wrong}", status=400, headers=buyer)
        assert error["code"] == "VALIDATION_ERROR"


async def test_an_agent_that_is_away_is_read_by_others_and_found_by_its_owner(
    market: Market,
) -> None:
    site, seller, buyer = market
    made = await registered(site, seller, name="Sleeper", tags=["sleepy"])
    path = f"/agents/{made['id']}"
    beat = await site.ask("POST", f"{path}/heartbeat", {"status": "offline"}, headers=seller)
    assert beat["status"] == "offline" and beat["last_heartbeat"] is not None
    assert (await site.ask("GET", path, headers=seller))["status"] == "offline"
    assert (await site.ask("GET", path, headers=buyer))["status"] == "offline"
    assert (await site.ask("GET", "/discover?skillTags=sleepy", headers=buyer))["total"] == 0
    # A heartbeat that says nothing says that it is there.
    assert (await site.ask("POST", f"{path}/heartbeat", headers=seller))["status"] == "online"
    found = await site.ask("GET", path, headers=buyer)
    assert found["is_mine"] is False and found["pending_card"] is None


async def test_a_key_lets_an_agent_do_what_it_is_for_and_no_more(market: Market) -> None:
    site, seller, _ = market
    made = await registered(site, seller, name="Keyed")
    other = await registered(site, seller, name="Unkeyed")
    path = f"/agents/{made['id']}"
    body = {"name": "beats", "scopes": ["agents:heartbeat"], "expiresInDays": 7}
    key = await site.ask("POST", f"{path}/api-keys", body, status=201, headers=seller)
    assert key["name"] == "beats" and key["scopes"] == ["agents:heartbeat"]
    assert key["expires_at"] > key["created_at"]
    listed = await site.ask("GET", f"{path}/api-keys", headers=seller)
    assert [one["id"] for one in listed["keys"]] == [key["id"]]
    assert key["key"] not in str(listed) and "hash" not in str(listed)

    shown = {"X-API-Key": key["key"]}
    await known(site, shown)
    await site.ask("POST", f"{path}/heartbeat", headers=shown)
    for verb, where, said in (
        ("POST", f"/agents/{other['id']}/heartbeat", None),
        ("PATCH", path, {"description": "changed"}),
        ("GET", "/tasks", None),
        ("POST", "/tasks", {"assignedAgentId": site.agent, "title": "a task"}),
        ("GET", "/billing/balance", None),
        ("POST", f"{path}/api-keys", {"name": "another"}),
    ):
        error = await site.ask(verb, where, said, status=403, headers=shown)
        assert error["code"] == "FORBIDDEN", where

    await site.ask("DELETE", f"{path}/api-keys/{key['id']}", status=204, headers=seller)
    missing = await site.ask("DELETE", f"{path}/api-keys/nothing", status=404, headers=seller)
    assert missing["code"] == "NOT_FOUND"
    (ended,) = (await site.ask("GET", f"{path}/api-keys", headers=seller))["keys"]
    assert ended["state"] == "revoked"


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"name": "x" * 101}, {"scopes": ["dragoman:operator"]}, {"expiresInDays": 366}],
)
async def test_a_key_for_more_than_there_is_is_not_made(
    market: Market, wrong: dict[str, Any]
) -> None:
    site, seller, _ = market
    body = {"name": "a key", **wrong}
    path = f"/agents/{site.agent}/api-keys"
    error = await site.ask("POST", path, body, status=400, headers=seller)
    assert error["code"] == "VALIDATION_ERROR"


async def test_a_secret_of_an_agent_is_never_shown(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, seller, _):
        credential = {"kind": "bearer", "value": "a-secret-of-the-agent"}
        made = await registered(site, seller, name="Guarded", credential=credential)
        shown = await site.raw("GET", f"/agents/{made['id']}", headers=seller)
        assert "a-secret-of-the-agent" not in shown.text + str(made)
