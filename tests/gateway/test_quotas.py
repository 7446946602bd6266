"""Quotas at a gateway: workflows and their steps, races, and agents of its own process."""

import asyncio
from pathlib import Path
from typing import Any

from harness.serving import V1, message, serving
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.gateway.workflows.workflows import WorkflowRun
from dragoman.http.rates import USED_UP
from dragoman.model.identity import Principal
from dragoman.model.money import MICRO
from dragoman.stores.interface import Survey
from tests.gateway.gateway_site import GatewaySite, gateway, workshop
from tests.gateway.guarded_site import ALICE, BOB, ask, completes, guarded, known, send, settled
from tests.gateway.raw_peer import raw_peer


async def begun(site: GatewaySite, agent: str = "gateway") -> int:
    """Return how many tasks there are of some code."""
    return len(await site.app.store.survey(Survey(limit=1000, agent=agent)))


def holding(seen: list[str]) -> Agent:
    """Return an agent that notes what its messages are called, and goes on and on."""
    agent = Agent("Holding", "Holds on.")

    @agent.skill(default=True)
    async def hold(text: str, turn: Turn) -> str:
        seen.append(turn.message.message_id)
        await asyncio.Event().wait()
        return text

    return agent


def step(agent: str, *depends_on: int, **more: Any) -> dict[str, Any]:
    return {"name": "a", "agentId": agent, "dependsOn": list(depends_on), **more}


async def made(site: GatewaySite, *steps: dict[str, Any]) -> str:
    body = {"name": "Trip", "steps": list(steps)}
    answer = await ask(site, "POST", "/api/v1/workflows", ALICE, body)
    assert answer.is_success, answer.text
    return answer.json()["data"]["id"]


async def ended(site: GatewaySite, run_id: str) -> WorkflowRun:
    async def found() -> WorkflowRun | None:
        run = await site.gateway.workflows.run(Principal("", "token:alice"), run_id)
        assert run is not None
        return None if run.status in ("pending", "running") else run

    return await eventually(found)


async def test_a_run_and_each_of_its_steps_count_and_a_step_beyond_fails_at_once(
    tmp_path: Path,
) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path, quota="3/d") as site:
        agent = await site.register(upstream.url)
        retries = {"maxRetries": 5, "backoffMs": 60_000}
        steps = [step(agent.id) for _ in range(2)]
        workflow = await made(
            site, *steps, step(agent.id, 0, 1, retryPolicy=retries), step(agent.id, 2)
        )
        answer = await ask(site, "POST", f"/api/v1/workflows/{workflow}/execute", ALICE, {})
        assert answer.is_success, answer.text
        run = await within(ended(site, answer.json()["data"]["id"]))
        # Not tried again in a minute: the quota has room only after the step's time.
        assert [one.status for one in run.steps] == ["completed", "completed", "failed", "skipped"]
        assert run.steps[2].error == USED_UP and run.status == "failed"
        assert await begun(site) == 2
        refused = await ask(site, "POST", f"/api/v1/workflows/{workflow}/execute", ALICE, {})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "RATE_LIMIT_EXCEEDED"
        assert await begun(site, "gateway.workflows") == 1


async def test_runs_begin_no_more_tasks_than_the_quota_has(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path, quota="4/d") as site:
        agent = await site.register(upstream.url)
        workflow = await made(site, *(step(agent.id) for _ in range(20)))
        path = f"/api/v1/workflows/{workflow}/execute"
        answers = await asyncio.gather(*(ask(site, "POST", path, ALICE, {}) for _ in range(6)))
        runs = [one.json()["data"]["id"] for one in answers if one.is_success]
        for run in runs:
            await within(ended(site, run))
        assert len(runs) + await begun(site) == 4


async def test_a_quota_with_room_in_a_moment_makes_a_step_wait(tmp_path: Path) -> None:
    async with serving(workshop()) as upstream, guarded(tmp_path, quota="2/2s") as site:
        agent = await site.register(upstream.url)
        workflow = await made(site, step(agent.id), step(agent.id, 0))
        answer = await ask(site, "POST", f"/api/v1/workflows/{workflow}/execute", ALICE, {})
        run = await within(ended(site, answer.json()["data"]["id"]))
        assert run.status == "completed"


async def test_a_run_of_a_caller_who_is_not_known_counts_for_its_address(tmp_path: Path) -> None:
    async with (
        serving(workshop()) as upstream,
        gateway(tmp_path, quota="2/d", proxies="127.0.0.1") as site,
    ):
        agent = await site.register(upstream.url)
        body = {"name": "Trip", "steps": [step(agent.id)]}

        async def run_from(address: str) -> int:
            headers = {"x-forwarded-for": address}
            path = f"/api/v1/workflows/{workflow}/execute"
            return (await site.http.post(path, json={}, headers=headers)).status_code

        workflow = (await site.http.post("/api/v1/workflows", json=body)).json()["data"]["id"]
        assert await run_from("192.0.2.1") in (200, 201, 202)
        await eventually(lambda: is_begun(site))
        assert await run_from("192.0.2.1") == 429
        assert await run_from("192.0.2.2") in (200, 201, 202)


async def is_begun(site: GatewaySite) -> bool:
    return await begun(site) == 1


async def test_each_of_those_who_race_counts(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path, quota="4/d") as site:
        for name in ("a", "b", "c"):
            await known(site, peer, name, repeatable=True)
        wanted = {"skillId": "s", "race": 3}
        first = await send(site, ALICE, metadata=wanted)
        assert await settled(site, ALICE, first["id"]) == "TASK_STATE_COMPLETED"
        body = {"message": message("more"), "metadata": wanted}
        refused = await ask(site, "POST", "/message:send", ALICE, body)
        assert refused.status_code == 429
        alone = await send(site, ALICE, metadata={"skillId": "s"})
        assert await settled(site, ALICE, alone["id"]) == "TASK_STATE_COMPLETED"


async def test_what_is_passed_on_to_an_agent_of_the_same_process_counts_once(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, workshop(), quota="2/d") as site:
        await site.app.listening([site.url])
        for token in (ALICE, BOB):
            for _ in range(2):
                task = await send(site, token, "/a2a/workshop")
                assert await settled(site, token, task["id"]) == "TASK_STATE_COMPLETED"
            body = {"message": message("more")}
            refused = await ask(site, "POST", "/a2a/workshop/message:send", token, body)
            assert refused.status_code == 429
        assert await begun(site) == await begun(site, "workshop") == 4


async def test_a_task_that_nobody_can_pay_does_not_count(tmp_path: Path) -> None:
    async with raw_peer(completes) as peer, guarded(tmp_path, quota="1/d") as site:
        dear = await known(site, peer, "dear", price=2_000 * MICRO)
        free = await known(site, peer, "free")
        for _ in range(3):
            body = {"message": message("hi"), "metadata": {"agentId": dear.id}}
            refused = await site.http.post(
                "/message:send", json=body, headers={"authorization": f"Bearer {ALICE}", **V1}
            )
            assert refused.status_code == 402, refused.text
        task = await send(site, ALICE, metadata={"agentId": free.id})
        assert await settled(site, ALICE, task["id"]) == "TASK_STATE_COMPLETED"


async def test_the_id_by_which_an_agent_knows_a_message_begins_nothing_for_free(
    tmp_path: Path,
) -> None:
    """An agent elsewhere is told the id with the message, and may be a caller itself."""
    stolen: list[str] = []

    async with serving(holding(stolen)) as upstream, guarded(tmp_path, quota="1/d") as site:
        agent = await site.register(upstream.url)
        await send(site, ALICE, metadata={"agentId": agent.id})

        async def is_there() -> bool:
            return bool(stolen)

        await eventually(is_there)
        statuses: list[int] = []
        for n in range(4):
            said = {**message(f"more {n}"), "messageId": stolen[0]}
            body = {"message": said, "metadata": {"agentId": agent.id}}
            body["configuration"] = {"returnImmediately": True}
            answer = await ask(site, "POST", "/message:send", BOB, body)
            statuses.append(answer.status_code)
        assert statuses == [200, 429, 429, 429]
        assert await begun(site) == 2
