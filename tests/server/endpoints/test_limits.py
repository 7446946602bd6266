"""Fewer bindings and versions: the card offers what is served, and nothing else is."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving

from dragoman import Agent, AgentSkill, App
from dragoman.client.client import Client
from dragoman.config import load_settings
from dragoman.errors import ConfigError

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"
OLD_EXTENDED = "/agent/authenticatedExtendedCard"
# 0.x has no code of its own for it.
REFUSED_0_X = (
    -32600,
    "Request payload validation error: This protocol version is not supported",
)
more = [AgentSkill(id="x", name="X", description="Is more.", tags=["x"])]
agent = Agent("Echo", "Repeats.", extended_skills=more)


@agent.skill
async def echo(text: str) -> str:
    return text


@pytest.fixture(scope="module")
async def rest_only() -> AsyncIterator[Site]:
    async with serving(agent, transport="rest") as site:
        yield site


@pytest.fixture(scope="module")
async def newest() -> AsyncIterator[Site]:
    async with serving(agent, a2a_version="1.0", extended_card_public=True) as site:
        yield site


async def offered(site: Site, **headers: str) -> list[tuple[str, str]]:
    card = (await site.http.get(NEW, headers={"A2A-Version": "1.0"} | headers)).json()
    return [(one["protocolBinding"], one["protocolVersion"]) for one in card["supportedInterfaces"]]


async def status(site: Site, verb: str, path: str, **more: Any) -> int:
    return (await site.http.request(verb, path, **more)).status_code


async def test_without_jsonrpc_its_paths_are_not_there(rest_only: Site) -> None:
    assert await offered(rest_only) == [("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")]
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    for path in ("/", "/a2a", "/rpc"):
        assert await status(rest_only, "POST", path, json=body) == 404
    assert await status(rest_only, "GET", "/tasks") == 200
    async with Client(rest_only.url) as client:
        assert (await client.send("hi")).text == "hi"
        assert client.interface.protocol_binding == "HTTP+JSON"


async def test_without_rest_its_paths_are_not_there() -> None:
    async with serving(agent, transport="jsonrpc") as site:
        assert await offered(site) == [("JSONRPC", "1.0"), ("JSONRPC", "0.3")]
        assert await status(site, "GET", "/tasks") == 404
        assert await status(site, "GET", "/v1/tasks") == 404
        assert await status(site, "POST", "/message:send", json={"message": message("x")}) == 404
        assert (await site.send("hi"))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_only_the_newest_version(newest: Site) -> None:
    assert await offered(newest) == [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0")]
    for asked in ({}, {"A2A-Version": "0.3"}):
        card = (await newest.http.get(NEW, headers=asked)).json()
        assert "supportedInterfaces" in card and "url" not in card
    assert await status(newest, "GET", OLD) == 404
    assert await status(newest, "GET", OLD_EXTENDED) == 404
    assert (await newest.send("hi"))["status"]["state"] == "TASK_STATE_COMPLETED"
    refused = await newest.refusal("message/send", {"message": old_message("hi")})
    assert (refused["code"], refused["message"]) == REFUSED_0_X
    for version in ("0.3", "0.2"):
        headers = {"A2A-Version": version}
        refused = await newest.refusal("tasks/get", {"id": "x"}, headers=headers)
        assert (refused["code"], refused["message"]) == REFUSED_0_X
    answer = await newest.http.get("/v1/tasks")
    assert answer.status_code == 400 and "supported" in answer.text
    refusal = await newest.http.get("/tasks", headers={"A2A-Version": "7.1"})
    assert '"supportedVersions":"1.0"' in refusal.text


async def test_a_refusal_names_the_versions_that_are_served() -> None:
    async with serving(agent, a2a_version="0.3,1.0") as site:
        refused = await site.refusal("GetTask", {"id": "x"}, headers={"A2A-Version": "7.1"})
        assert refused["code"] == -32009
        assert refused["data"][0]["metadata"]["supportedVersions"] == "1.0,0.3"
        older = await site.refusal("tasks/get", {"id": "x"}, headers={"A2A-Version": "0.2"})
        assert (older["code"], older["message"]) == REFUSED_0_X


@pytest.mark.parametrize(
    ("versions", "new_path", "old_path"),
    [
        ("0.3", "0.3.0", "0.3.0"),
        ("0.2", "0.2.6", "0.2.6"),
        ("0.2,0.3", "0.3.0", "0.2.6"),
        ("1.0,0.2", None, "0.2.6"),
        ("1.0,0.3", "0.3.0", "0.3.0"),
    ],
)
async def test_cards_have_the_shapes_of_the_versions(
    versions: str, new_path: str | None, old_path: str
) -> None:
    async with serving(agent, a2a_version=versions) as site:
        card = (await site.http.get(NEW)).json()
        assert card.get("protocolVersion") == new_path
        assert ("supportedInterfaces" in card) is ("1.0" in versions)
        assert (await site.http.get(OLD)).json()["protocolVersion"] == old_path


@pytest.mark.parametrize("version", ["0.3", "0.2"])
async def test_only_an_old_version(version: str) -> None:
    async with serving(agent, a2a_version=version) as site:
        for headers in ({}, {"A2A-Version": version}):
            task = await site.call("message/send", {"message": old_message("hi")}, headers=headers)
            assert task["kind"] == "task"
        refused = await site.refusal("SendMessage", {"message": message("hi")})
        assert refused["code"] == -32009
        answer = await site.http.get("/tasks")
        assert answer.status_code == 400 and "VERSION_NOT_SUPPORTED" in answer.text
        async with Client(site.url) as client:
            assert (await client.send("hi")).text == "hi"
            assert client.version == version


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"transport": "jsonrpc, mqtt"}, "mqtt is not served; choose from jsonrpc"),
        ({"a2a_version": "1"}, "1 is not served; choose from 1.0"),
        ({"a2a_version": "1.0", "card_shape": "0.2"}, "card_shape"),
    ],
)
def test_what_cannot_be_served_is_refused(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App(agent, settings=load_settings({}, store="memory:", **setting))
