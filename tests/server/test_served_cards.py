"""Cards over a socket: both paths, the shape a caller asks for, and what a cache may do."""

from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from harness.serving import V1, Site, serving

from dragoman import Agent, AgentProvider

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"
V03 = {"A2A-Version": "0.3"}

agent = Agent(
    "Weather man",
    "Tells the weather.",
    version="2.1.0",
    provider=AgentProvider(url="https://example.com", organization="Example"),
    documentation_url="https://example.com/docs",
    icon_url="https://example.com/icon.png",
)


@agent.skill(tags=["weather"], examples=["Weather in Oslo"], output_modes=["text/plain"])
async def forecast(city: str) -> str:
    """Tells tomorrow's weather."""
    return f"Sunny in {city}"


@agent.skill
async def add(left: int, right: int = 1) -> int:
    return left + right


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with serving(agent) as site:
        yield site


async def card(site: Site, path: str = NEW, **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await site.http.get(path, headers=names)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return response.json()


@pytest.mark.requirement("DC-1")
async def test_the_shape_follows_the_version_asked_for(site: Site) -> None:
    new = await card(site, A2A_Version="1.0")
    assert [(i["protocolBinding"], i["protocolVersion"]) for i in new["supportedInterfaces"]] == [
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
    ]
    old_only = {"url", "preferredTransport", "protocolVersion", "additionalInterfaces"}
    assert not old_only & new.keys()
    old = await card(site, A2A_Version="0.3")
    assert old["protocolVersion"].startswith("0.3") and old["url"].startswith(site.url)
    assert "supportedInterfaces" not in old
    both = await card(site)
    # One document that both generations can read.
    assert new.keys() | old.keys() <= both.keys()
    assert both["url"] == old["url"]
    assert both["supportedInterfaces"] == new["supportedInterfaces"]
    assert (await card(site, NEW + "?A2A-Version=1.0")) == new


async def test_the_old_path_always_has_the_old_card(site: Site) -> None:
    old = await card(site, OLD)
    assert old["protocolVersion"].startswith("0.2")
    assert "supportedInterfaces" not in old
    assert await card(site, OLD, A2A_Version="1.0") == old


async def test_a_setting_fixes_the_shape() -> None:
    async with serving(agent, card_shape="1.0") as site:
        assert "url" not in await card(site) and "url" not in await card(site, OLD)
        assert "url" not in await card(site, A2A_Version="0.3")


async def test_the_card_tells_what_the_author_wrote(site: Site) -> None:
    new = await card(site, A2A_Version="1.0")
    assert new["name"] == "Weather man" and new["version"] == "2.1.0"
    assert new["provider"] == {"url": "https://example.com", "organization": "Example"}
    assert new["documentationUrl"] and new["iconUrl"]
    first, second = new["skills"]
    assert first == {
        "id": "forecast",
        "name": "Forecast",
        "description": "Tells tomorrow's weather.",
        "tags": ["weather"],
        "examples": ["Weather in Oslo"],
        "outputModes": ["text/plain"],
    }
    assert second["tags"] == ["add"] and second["description"] == "Add"
    schemas = {e["uri"]: e for e in new["capabilities"]["extensions"]}
    params = schemas["urn:dragoman:skill-schemas:v1"]["params"]["schemas"]
    assert params["add"]["required"] == ["left"]
    assert params["add"]["properties"]["left"]["type"] == "integer"
    assert "forecast" not in params


@pytest.mark.requirement("DC-6")
async def test_every_address_in_a_card_answers(site: Site) -> None:
    new = await card(site, A2A_Version="1.0")
    for interface in new["supportedInterfaces"]:
        version = {"A2A-Version": interface["protocolVersion"]}
        async with httpx.AsyncClient(headers=version, trust_env=False) as http:
            if interface["protocolBinding"] == "HTTP+JSON":
                below = "" if interface["protocolVersion"] == "1.0" else "/v1"
                response = await http.get(interface["url"] + below + "/tasks")
                assert response.status_code == 200
                continue
            old = interface["protocolVersion"] == "0.3"
            method = "tasks/get" if old else "GetTask"
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "x"}}
            response = await http.post(interface["url"], json=body)
            assert response.json()["error"]["code"] == -32001


@pytest.mark.requirement("DC-2", "DC-3")
@pytest.mark.parametrize("path", [NEW, OLD])
async def test_a_card_has_validators_and_may_be_kept(site: Site, path: str) -> None:
    response = await site.http.get(path)
    assert response.headers["cache-control"] == "public, max-age=300"
    assert {v.strip() for v in response.headers["vary"].split(",")} == {"A2A-Version", "Accept"}
    etag, modified = response.headers["etag"], response.headers["last-modified"]
    assert etag.startswith('"') and etag.endswith('"')
    head = await site.http.head(path)
    assert head.status_code == 200 and head.content == b""
    assert head.headers["etag"] == etag
    assert head.headers["content-length"] == str(len(response.content))
    for condition in (
        {"If-None-Match": etag},
        {"If-None-Match": f'"other", W/{etag} , "third"'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": modified},
        {"If-None-Match": etag, "If-Modified-Since": formatdate(0, usegmt=True)},
    ):
        for verb in ("GET", "HEAD"):
            kept = await site.http.request(verb, path, headers=condition)
            assert kept.status_code == 304 and kept.content == b""
            assert kept.headers["etag"] == etag
            assert kept.headers["cache-control"] == "public, max-age=300"
            assert "vary" in kept.headers and "content-type" not in kept.headers


@pytest.mark.requirement("DC-3")
@pytest.mark.parametrize(
    "condition",
    [
        {"If-None-Match": '"other"'},
        {"If-None-Match": ""},
        {"If-Modified-Since": formatdate(0, usegmt=True)},
        {"If-Modified-Since": "yesterday"},
        {"If-Modified-Since": "Mon, 99 Foo 2024 00:00:00 GMT"},
        # The tag decides where both are given.
        {"If-None-Match": '"other"', "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
    ],
)
async def test_a_stale_copy_is_replaced(site: Site, condition: dict[str, str]) -> None:
    assert (await site.http.get(NEW, headers=condition)).status_code == 200


@pytest.mark.requirement("DC-2")
async def test_each_shape_has_a_tag_of_its_own(site: Site) -> None:
    tags = [
        (await site.http.get(path, headers=headers)).headers["etag"]
        for path, headers in ((NEW, {}), (NEW, V1), (NEW, V03), (OLD, {}))
    ]
    assert len(set(tags)) == 4
    assert (await site.http.get(NEW, headers=V1)).headers["etag"] == tags[1]


async def test_a_setting_says_how_long_a_card_may_be_kept() -> None:
    async with serving(agent, card_max_age=7) as site:
        assert (await site.http.get(NEW)).headers["cache-control"] == "public, max-age=7"


async def test_a_card_is_sent_as_a2a_json_to_who_asks_for_it(site: Site) -> None:
    response = await site.http.get(NEW, headers={"accept": "application/a2a+json"})
    assert response.headers["content-type"] == "application/a2a+json"


async def test_a_card_can_only_be_read(site: Site) -> None:
    for path in (NEW, OLD):
        refused = await site.http.post(path, json={})
        assert refused.status_code == 405 and refused.headers["allow"] == "GET, HEAD"


async def test_addresses_in_a_card_are_those_the_caller_used(site: Site) -> None:
    port = site.url.rpartition(":")[2]
    response = await site.http.get(NEW, headers=V1 | {"host": f"agent.example:{port}"})
    assert response.json()["supportedInterfaces"][0]["url"] == f"http://agent.example:{port}/a2a"


async def test_a_setting_names_the_address_peers_use() -> None:
    async with serving(agent, public_url="https://agent.example/x/") as site:
        urls = [i["url"] for i in (await card(site, A2A_Version="1.0"))["supportedInterfaces"]]
        assert urls == [
            "https://agent.example/x/a2a",
            "https://agent.example/x",
            "https://agent.example/x/a2a",
            "https://agent.example/x",
        ]


async def test_many_addresses_do_not_pile_up(site: Site) -> None:
    (mount,) = site.app.site.mounts.values()
    for number in range(200):
        await site.http.get(NEW, headers={"host": f"h{number}.example"})
    assert len(mount.cards._bodies) <= mount.cards.MAX_ADDRESSES
