"""Who cannot pay is told so, however the task was to begin and however many processes serve."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from harness.serving import V1, message, old_message
from harness.waiting import eventually

from dragoman.errors import StoreFull, StoreRefused, StoreUnavailable
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.gateway.workflows.workflows import WorkflowRun
from dragoman.model.identity import Principal
from dragoman.stores.sqlite.store import SQLiteStore
from tests.gateway.gateway_site import GatewaySite
from tests.gateway.guarded_site import ALICE, BOBS, completes, guarded, known, send, settled
from tests.gateway.raw_peer import Answer, Asked, Peer, http, raw_peer

# More than anybody has.
DEAR = 2_000_000_000
CODE, STATUS = -32055, 402
DEPLOYMENTS = ["one process", "two processes"]


class Way(NamedTuple):
    """A request that begins a task."""

    path: str
    body: Any
    headers: Mapping[str, str] = MappingProxyType({})


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}


def old(text: str) -> dict[str, Any]:
    return {"message": old_message(text)}


NEXUS = {"role": "user", "parts": [{"type": "text", "data": "hi"}], "metadata": {"agentId": "dear"}}
IMMEDIATELY = {"configuration": {"returnImmediately": True}}
WAYS: dict[str, Way] = {
    "JSON-RPC 1.0": Way("/a2a/dear", rpc("SendMessage", {"message": message("x")}), V1),
    "JSON-RPC 1.0 at once": Way(
        "/a2a/dear", rpc("SendMessage", {"message": message("x"), **IMMEDIATELY}), V1
    ),
    "JSON-RPC 1.0 stream": Way(
        "/a2a/dear", rpc("SendStreamingMessage", {"message": message("x")}), V1
    ),
    "JSON-RPC 1.0 by skill": Way(
        "/", rpc("SendMessage", {"message": message("x"), "metadata": {"skillId": "s"}}), V1
    ),
    "JSON-RPC 1.0 race": Way(
        "/",
        rpc("SendMessage", {"message": message("x"), "metadata": {"skillId": "s", "race": 2}}),
        V1,
    ),
    "JSON-RPC 0.3": Way("/a2a/dear", rpc("message/send", old("x"))),
    "JSON-RPC 0.3 stream": Way("/a2a/dear", rpc("message/stream", old("x"))),
    "REST 1.0": Way("/a2a/dear/message:send", {"message": message("x")}, V1),
    "REST 1.0 stream": Way("/a2a/dear/message:stream", {"message": message("x")}, V1),
    "REST 0.3": Way("/a2a/dear/v1/message:send", old("x"), {"A2A-Version": "0.3"}),
    "NEXUS": Way("/api/v1/a2a", rpc("message/send", {"message": NEXUS})),
    "NEXUS 0.1": Way(
        "/",
        rpc(
            "tasks/send",
            {
                "id": "t-1",
                "message": {"role": "user", "parts": [{"type": "text", "text": "x"}]},
                "metadata": {"agentId": "dear"},
            },
        ),
    ),
    "R": Way("/api/a2a", rpc("message/send", old("x") | {"metadata": {"agentId": "dear"}})),
    "Corvid": Way("/a2a/tasks/send", {"message": "x", "skill": "s"}),
    "API": Way("/api/v1/tasks", {"assignedAgentId": "dear", "title": "a task"}),
    "dashboard": Way("/api/dashboard/tasks", {"agentId": "dear", "message": "x"}),
}


@asynccontextmanager
async def deployed(folder: Path, deployment: str, **settings: Any) -> AsyncGenerator[GatewaySite]:
    """Serve a gateway, alone on its file or with another beside it."""
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(guarded(folder, **settings))
        if deployment == "two processes":
            other = await stack.enter_async_context(guarded(folder, **settings))
            store = site.app.store

            async def is_shared() -> bool:
                await store.renew()
                return not store.knows_all

            await eventually(is_shared)
            assert not other.app.store.knows_all
        yield site


async def dear(site: GatewaySite, peer: Peer) -> None:
    for name in ("dear", "dearer"):
        await known(site, peer, name, price=DEAR, repeatable=True)


def refusal(response: Any) -> tuple[int, Any]:
    """Return the status and the error of an answer, wherever it has it."""
    text = response.text
    if text.startswith(("data:", "event:")):
        text = next(line[5:] for line in text.splitlines() if line.startswith("data:"))
    return response.status_code, json.loads(text).get("error")


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_task_that_cannot_be_paid_is_refused_as_documented_and_not_made(
    tmp_path: Path, deployment: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, body, headers = WAYS[way]
    caplog.set_level(logging.INFO)
    async with raw_peer(completes) as peer, deployed(tmp_path, deployment) as site:
        await dear(site, peer)
        sent = {"authorization": f"Bearer {ALICE}", **headers}
        async with asyncio.timeout(60):
            status, error = refusal(await site.http.post(path, json=body, headers=sent))
        if "jsonrpc" in body:
            assert (status, error["code"]) == (200, CODE), error
        else:
            assert status == STATUS, error
            assert "internal" not in str(error).lower()
        listed = await site.http.get("/tasks", headers={**sent, **V1})
        assert listed.json().get("tasks", []) == []
        assert peer.count("dear", "send") == peer.count("dearer", "send") == 0
        assert (await site.gateway.ledger.balance(Principal.read("token:alice"))).held == 0
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_the_same_message_is_refused_each_time_and_taken_once_it_can_be_paid(
    tmp_path: Path, deployment: str
) -> None:
    way = WAYS["JSON-RPC 1.0 at once"]
    sent = {"authorization": f"Bearer {ALICE}", **way.headers}
    async with raw_peer(completes) as peer, deployed(tmp_path, deployment) as site:
        await dear(site, peer)
        answers = await asyncio.gather(
            *(site.http.post(way.path, json=way.body, headers=sent) for _ in range(8))
        )
        assert {refusal(one)[1]["code"] for one in answers} == {CODE}
        await site.gateway.registry.update(
            "dear", AgentChanges(price=1_000_000), Principal.read(BOBS)
        )
        made = (await site.http.post(way.path, json=way.body, headers=sent)).json()
        assert await settled(site, ALICE, made["result"]["task"]["id"]) == "TASK_STATE_COMPLETED"
        assert peer.count("dear", "send") == 1


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_a_step_that_cannot_be_paid_fails_and_says_why(
    tmp_path: Path, deployment: str
) -> None:
    async with raw_peer(completes) as peer, deployed(tmp_path, deployment) as site:
        await dear(site, peer)
        workflows = site.gateway.workflows
        steps = [{"name": "a", "agentId": "dear", "skillId": "s"}]
        made = await workflows.create(
            Principal.read("token:alice"), {"name": "Trip", "steps": steps}
        )
        begun = await workflows.execute(Principal.read("token:alice"), made.id)
        assert begun is not None

        async def run() -> WorkflowRun:
            found = await workflows.run(Principal.read("token:alice"), begun.id)
            assert found is not None
            return found

        async def is_over() -> bool:
            return (await run()).status not in ("pending", "running")

        await eventually(is_over)
        (step,) = (await run()).steps
        assert (step.status, step.error) == (
            "failed",
            "The balance does not cover the price of the task",
        )
        assert peer.count("dear", "send") == 0


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
async def test_a_task_that_would_go_on_with_a_dearer_agent_fails_and_says_why(
    tmp_path: Path, deployment: str
) -> None:
    def away(name: str, asked: Asked) -> Answer:
        is_sent = asked.operation == "send"
        return [http(b"", "429 Too Many Requests" if is_sent else "404 Not Found")]

    async with raw_peer(away) as one, raw_peer(completes) as two:  # noqa: SIM117 - two lines
        async with deployed(tmp_path, deployment, forward_attempts=1) as site:
            await known(site, one, "cheap", repeatable=True)
            await known(site, two, "dear", price=DEAR, repeatable=True)
            begun = await send(site, ALICE, metadata={"skillId": "s", "policy": "cheapest"})
            assert await settled(site, ALICE, begun["id"]) == "TASK_STATE_FAILED"
            headers = {"authorization": f"Bearer {ALICE}", **V1}
            found = (await site.http.get(f"/tasks/{begun['id']}", headers=headers)).json()
            text = found["status"]["message"]["parts"][0]["text"]
            assert "attempts" not in text and "Incident" not in text, text
            assert two.count("dear", "send") == 0


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("way", ["JSON-RPC 1.0", "JSON-RPC 1.0 stream", "REST 1.0", "API"])
@pytest.mark.parametrize("error", [StoreFull("full"), StoreUnavailable("busy"), StoreRefused("no")])
async def test_whatever_the_store_refuses_a_task_with_is_an_error_of_the_protocol(
    tmp_path: Path,
    deployment: str,
    way: str,
    error: StoreRefused,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, body, headers = WAYS[way]
    async with raw_peer(completes) as peer, deployed(tmp_path, deployment) as site:
        await known(site, peer, "dear")

        def refuse(self: Any, write: Any, done: Any) -> None:
            asyncio.get_running_loop().call_soon(done, error, 0)

        with monkeypatch.context() as patch:
            patch.setattr(SQLiteStore, "submit", refuse)
            sent = {"authorization": f"Bearer {ALICE}", **headers}
            async with asyncio.timeout(60):
                status, said = refusal(await site.http.post(path, json=body, headers=sent))
        assert status in (200, 503), said
        if status == 200:
            assert said["code"] == -32603 and said["message"] != "Internal error", said
    assert not [one for one in caplog.records if one.exc_info]
