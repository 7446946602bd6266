"""What an agent does not offer is refused, in the words of each version; the card says so too."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.serving import V1, Site, message, old_message, serving

from dragoman import Agent, AgentSkill

SECRET = AgentSkill(id="secret", name="Secret", description="For known callers.", tags=["s"])
UNKNOWN = "00000000-0000-7000-8000-000000000000"
OLD_CARD = "/agent/authenticatedExtendedCard"
V03_CARD = "agent/getAuthenticatedExtendedCard"


def make(**more: Any) -> Agent:
    agent = Agent("Echo", "Echoes.", **more)

    @agent.skill
    async def echo(text: str) -> str:
        return text

    return agent


@pytest.fixture(scope="module")
async def plain() -> AsyncIterator[Site]:
    async with serving(make(streaming=False), push=False) as site:
        yield site


async def test_streams_that_are_off_are_refused_and_nothing_is_made(plain: Site) -> None:
    new, old = {"message": message("x")}, {"message": old_message("x")}
    assert (await plain.refusal("SendStreamingMessage", new))["code"] == -32004
    assert (await plain.refusal("message/stream", old))["code"] == -32004
    # Capability before existence: whether the task exists is not revealed.
    assert (await plain.refusal("SubscribeToTask", {"id": UNKNOWN}))["code"] == -32004
    assert (await plain.refusal("tasks/resubscribe", {"id": UNKNOWN}))["code"] == -32004
    for verb, path, body in (
        ("POST", "/message:stream", new),
        ("GET", f"/tasks/{UNKNOWN}:subscribe", None),
    ):
        refused = await plain.http.request(verb, path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"
    assert await plain.total() == 0
    card = (await plain.http.get("/.well-known/agent-card.json", headers=V1)).json()
    assert card["capabilities"]["streaming"] is False


@pytest.mark.parametrize(
    ("new", "old", "verb", "path"),
    [
        ("CreateTaskPushNotificationConfig", "set", "POST", ""),
        ("GetTaskPushNotificationConfig", "get", "GET", "/c"),
        ("ListTaskPushNotificationConfigs", "list", "GET", ""),
        ("DeleteTaskPushNotificationConfig", "delete", "DELETE", "/c"),
    ],
)
async def test_push_that_is_off_is_not_offered(
    plain: Site, new: str, old: str, verb: str, path: str
) -> None:
    task = await plain.send("x")
    config = {"url": "https://example.com/", "id": "c"}
    params = {"taskId": task["id"], **config}
    assert (await plain.refusal(new, params))["code"] == -32003
    older = {"id": task["id"], "taskId": task["id"], "pushNotificationConfig": config}
    older["pushNotificationConfigId"] = "c"
    refused = await plain.refusal(f"tasks/pushNotificationConfig/{old}", older)
    assert refused["code"] == -32003
    address = f"/tasks/{task['id']}/pushNotificationConfigs{path}"
    rest = await plain.http.request(verb, address, json=config if verb == "POST" else None)
    assert rest.status_code == 400
    assert rest.json()["error"]["details"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
    card = (await plain.http.get("/.well-known/agent-card.json", headers=V1)).json()
    assert card["capabilities"]["pushNotifications"] is False


async def test_push_is_offered_unless_it_is_off() -> None:
    async with serving(make()) as site:
        for version in ("1.0", "0.3"):
            headers = {"A2A-Version": version}
            card = (await site.http.get("/.well-known/agent-card.json", headers=headers)).json()
            assert card["capabilities"]["pushNotifications"] is True


async def test_a_send_that_wants_push_is_refused_and_nothing_is_made(plain: Site) -> None:
    total = await plain.total()
    push = {"taskPushNotificationConfig": {"url": "https://example.com/"}}
    params = {"message": message("x"), "configuration": push}
    assert (await plain.refusal("SendMessage", params))["code"] == -32003
    old = {"pushNotificationConfig": {"url": "https://example.com/"}}
    older = {"message": old_message("x"), "configuration": old}
    assert (await plain.refusal("message/send", older))["code"] == -32003
    assert await plain.total() == total


async def test_an_extended_card_that_is_off_is_refused_as_each_version_says(plain: Site) -> None:
    assert (await plain.refusal("GetExtendedAgentCard"))["code"] == -32004
    assert (await plain.refusal(V03_CARD))["code"] == -32007
    assert (await plain.http.get("/extendedAgentCard")).status_code == 400
    assert (await plain.http.get(OLD_CARD)).status_code == 404
    assert (await plain.http.post(OLD_CARD)).status_code == 405
    card = (await plain.http.get("/.well-known/agent-card.json", headers=V1)).json()
    assert card["capabilities"]["extendedAgentCard"] is False


async def test_without_authentication_there_is_no_card_for_known_callers() -> None:
    async with serving(make(extended_skills=[SECRET])) as site:
        for headers in (V1, {}, {"A2A-Version": "0.3"}):
            card = (await site.http.get("/.well-known/agent-card.json", headers=headers)).json()
            assert card["capabilities"].get("extendedAgentCard", False) is False
            assert card.get("supportsAuthenticatedExtendedCard", False) is False
            assert [skill["id"] for skill in card["skills"]] == ["echo"]
        oldest = (await site.http.get("/.well-known/agent.json")).json()
        assert oldest.get("supportsAuthenticatedExtendedCard", False) is False
        # Refused as where there is none: a challenge that nobody can meet helps nobody.
        assert (await site.refusal("GetExtendedAgentCard"))["code"] == -32004
        assert (await site.refusal(V03_CARD))["code"] == -32007
        assert (await site.http.get("/extendedAgentCard")).status_code == 400
        assert (await site.http.get("/v1/card")).status_code == 404
        assert (await site.http.get(OLD_CARD)).status_code == 404


@pytest.mark.requirement("T-50", "T-55")
async def test_an_extended_card_wants_to_know_who_asks() -> None:
    async with serving(make(extended_skills=[SECRET]), auth_token="a-token-0123456789") as site:
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard"}
        for response in (
            await site.post(body),
            await site.post(body | {"method": V03_CARD}),
            await site.http.get("/extendedAgentCard"),
            await site.http.get(OLD_CARD),
        ):
            assert response.status_code == 401
            assert response.headers["www-authenticate"]
            assert "message" in response.json()["error"] and "code" not in response.json()["error"]
            assert "secret" not in response.text
        card = (await site.http.get("/.well-known/agent-card.json", headers=V1)).json()
        assert card["capabilities"]["extendedAgentCard"] is True
        assert [skill["id"] for skill in card["skills"]] == ["echo"]


async def test_a_switch_shows_the_extended_card_to_everyone() -> None:
    async with serving(make(extended_skills=[SECRET]), extended_card_public=True) as site:
        new = await site.call("GetExtendedAgentCard")
        old = await site.call(V03_CARD)
        rest = await site.http.get("/extendedAgentCard")
        oldest = await site.http.get(OLD_CARD)
        for card in (new, old, rest.json(), oldest.json()):
            assert [skill["id"] for skill in card["skills"]] == ["echo", "secret"]
        assert "supportedInterfaces" in new and "url" not in new
        assert old["supportsAuthenticatedExtendedCard"] is True
        assert "supportedInterfaces" not in oldest.json()
        # Nobody between us and the caller may keep it.
        for response in (rest, oldest):
            assert response.headers["cache-control"] == "private, no-store"
