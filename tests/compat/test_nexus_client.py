"""The SDK of NEXUS' kind against a gateway: what is in the envelope, what fails by its code, and
what is asked again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting
from harness.waiting import within

from dragoman.compat.nexus import NexusClient, NexusError, TaskEvent
from dragoman.errors import ConfigError
from tests.gateway.api.api_site import TOKENS, gateway, owners


async def ended(client: NexusClient, task_id: str) -> list[TaskEvent]:
    return [event async for event in client.tasks.stream(task_id)]


async def test_keys_of_agents_are_made_listed_and_revoked(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, _, _), NexusClient(site.url, TOKENS["seller"]) as client:
        key = await client.agents.create_api_key(site.agent, "mine", expires_in_days=1)
        assert "mine" in str(await client.agents.list_api_keys(site.agent))
        async with NexusClient(site.url, key["key"]) as agent:
            assert (await agent.agents.heartbeat(site.agent))["status"] == "online"
        await client.agents.revoke_api_key(site.agent, key["id"])


async def test_agents_and_tasks_are_had_out_of_their_envelope(tmp_path: Path) -> None:
    """M-032."""
    async with gateway(tmp_path) as site, NexusClient(site.url) as client:
        made = await within(
            client.agents.register(site.agent_url, name="Second", tags=["x"], price_per_task=2)
        )
        assert made["name"] == "Second" and made["price_per_task"] == 2
        assert (await client.agents.get(made["id"]))["id"] == made["id"]
        changed = await client.agents.update(made["id"], price_per_task=0, description="Two.")
        assert (changed["price_per_task"], changed["description"]) == (0, "Two.")
        assert (await client.agents.list(limit=1))["total"] == 2
        found = await client.agents.discover(skill_tags=["x", "y"], min_trust_score=0)
        assert [one["id"] for one in found["agents"]] == [made["id"]]
        assert (await client.agents.heartbeat(made["id"]))["status"] == "online"
        await client.agents.remove(made["id"])
        assert (await client.agents.list())["total"] == 1

        task = await client.tasks.create(site.agent, "one", input={"say": "hi"})
        events = await within(ended(client, task["id"]))
        assert (events[0].kind, events[-1].kind) == ("status", "complete")
        assert "heard" in str(events[-1].data["output"])
        later = client.tasks.stream(task["id"], after=events[-2].id)
        assert [event.kind async for event in later][-1] == "complete"
        assert (await client.tasks.get(task["id"]))["status"] == "completed"
        listed = await client.tasks.list(status="completed", assigned_agent_id=site.agent)
        assert [one["id"] for one in listed["tasks"]] == [task["id"]]

        asking = await client.tasks.create(site.agent, "two", input={"do": "ask"})
        said = 0
        async for event in client.tasks.stream(asking["id"]):
            if not said and event.kind == "status" and "Which one?" in str(event.data["messages"]):
                said += 1
                await client.tasks.reply(asking["id"], "this")
        assert "chosen: this" in str(await client.tasks.get(asking["id"]))
        waiting = await client.tasks.create(site.agent, "three", input={"do": "wait"})
        assert (await client.tasks.cancel(waiting["id"]))["status"] == "cancelled"


async def test_trust_and_credits_are_had_out_of_their_envelope(tmp_path: Path) -> None:
    """M-032: as who the token says."""
    async with (
        owners(tmp_path, price=10) as (site, _, _),
        NexusClient(site.url, TOKENS["buyer"]) as client,
    ):
        task = await client.tasks.create(site.agent, "one", input={"say": "hi"})
        await within(ended(client, task["id"]))
        assert (await client.billing.balance())["balance"] == 990
        lines = (await client.billing.transactions(limit=1))["transactions"]
        assert lines[0]["amount"] == -10
        assert await client.billing.usage() is not None
        assert await client.billing.packages()
        rated = await client.trust.rate(site.agent, task["id"], 5, "Well done")
        assert (await client.trust.get(site.agent))["trustScore"] == rated["trustScore"]
        events = (await client.trust.history(site.agent, limit=1))["events"]
        assert events[0]["eventType"] == "rating_received"
        with pytest.raises(NexusError) as refused:
            await client.trust.rate(site.agent, task["id"], 5)
        assert (refused.value.code, refused.value.status_code) == ("VALIDATION_ERROR", 400)


async def test_what_is_refused_is_an_error_with_its_code(tmp_path: Path) -> None:
    """M-032."""
    async with owners(tmp_path) as (site, _, _):
        async with NexusClient(site.url) as client:
            with pytest.raises(NexusError) as refused:
                await client.billing.balance()
            assert (refused.value.code, refused.value.status_code) == ("UNAUTHORIZED", 401)
        async with NexusClient(site.url, TOKENS["buyer"]) as client:
            for deed, code, status in (
                (client.agents.get("none"), "AGENT_NOT_FOUND", 404),
                (client.tasks.get("00000000-0000-4000-8000-000000000000"), "TASK_NOT_FOUND", 404),
                (client.tasks.create(site.agent, ""), "VALIDATION_ERROR", 400),
            ):
                with pytest.raises(NexusError) as refused:
                    await deed
                assert (refused.value.code, refused.value.status_code) == (code, status)
                assert TOKENS["buyer"] not in repr(refused.value)
            with pytest.raises(NexusError) as refused:
                await ended(client, "00000000-0000-4000-8000-000000000000")
            assert refused.value.code == "TASK_NOT_FOUND"


class Gateway:
    """Answers requests in turn, with a status and a body."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[bytes, bytes]]] = []
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        self.asked.append((scope["method"], headers))
        await receive()
        status, body = self.answers.pop(0)
        kind = b"text/event-stream" if headers.get(b"accept") == b"text/event-stream" else b"json"
        sent = [(b"content-type", kind), (b"retry-after", b"3" if status == 429 else b"0")]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": body})


OK = (200, b'{"data":{"id":"1"}}')
BUSY = (503, b'{"error":{"code":"UNAVAILABLE","message":"Later"}}')
GONE = (502, b"<html>")


@pytest.mark.parametrize(
    ("answers", "verb", "pauses"),
    [
        ([BUSY, BUSY, OK], "get", [0.5, 1.0]),
        ([(429, BUSY[1]), OK], "get", [3]),
        ([GONE, (504, b""), OK], "get", [0.5, 1.0]),
        ([GONE, OK], "create", [0.5]),
        ([BUSY, OK], "register", [0.5]),
    ],
    ids=["put off", "asked to wait", "a proxy's", "keyed", "not begun"],
)
async def test_what_does_no_harm_is_asked_again(
    answers: Sequence[tuple[int, bytes]], verb: str, pauses: list[float]
) -> None:
    """M-032: under one key, so that a task is made once."""
    there = Gateway(*answers)
    async with (
        hosting(there, lifespan="off") as url,
        NexusClient(url, "nxk_key", pause=there.pause) as client,
    ):
        deeds = {
            "get": lambda: client.tasks.get("1"),
            "create": lambda: client.tasks.create("a", "t"),
            "register": lambda: client.agents.register("http://127.0.0.1:9"),
        }
        assert await within(deeds[verb]()) == {"id": "1"}
    assert there.pauses == pauses
    assert all(headers[b"x-api-key"] == b"nxk_key" for _, headers in there.asked)
    keys = {headers.get(b"idempotency-key") for _, headers in there.asked}
    assert len(keys) == 1 and (None in keys) == (verb != "create")


@pytest.mark.parametrize(
    ("answers", "code"), [([GONE], "PROTOCOL_ERROR"), ([BUSY] * 4, "UNAVAILABLE")]
)
async def test_what_may_have_been_done_is_not_asked_again(
    answers: Sequence[tuple[int, bytes]], code: str
) -> None:
    """M-032: nor what was put off too often."""
    there = Gateway(*answers)
    async with (
        hosting(there, lifespan="off") as url,
        NexusClient(url, pause=there.pause) as client,
    ):
        with pytest.raises(NexusError) as refused:
            await within(client.agents.register("http://127.0.0.1:9"))
    assert (refused.value.code, len(there.asked)) == (code, len(answers))


async def test_a_stream_that_is_cut_goes_on_after_what_was_seen() -> None:
    """M-032."""
    there = Gateway(
        (200, b'id: 4\nevent: status\ndata: {"status":"running"}\n\n'),
        (200, b'id: 9\nevent: complete\ndata: {"status":"completed"}\n\n'),
    )
    async with (
        hosting(there, lifespan="off") as url,
        NexusClient(url, pause=there.pause) as client,
    ):
        events = await within(ended(client, "1"))
    assert events == [
        TaskEvent("status", {"status": "running"}, "4"),
        TaskEvent("complete", {"status": "completed"}, "9"),
    ]
    assert there.asked[1][1][b"last-event-id"] == b"4"


async def test_a_gateway_that_is_not_there_is_an_error() -> None:
    there = Gateway()
    async with NexusClient("http://127.0.0.1:9", max_retries=1, pause=there.pause) as client:
        with pytest.raises(NexusError) as refused:
            await within(client.agents.register("http://127.0.0.1:9"))
    assert refused.value.code == "NETWORK_ERROR" and there.pauses == [0.5]
    for wrong in ({"base_url": "gateway"}, {"api_key": "a\nb"}, {"max_retries": -1}):
        with pytest.raises(ConfigError):
            NexusClient(**wrong)
