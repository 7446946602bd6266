"""Workflows over the gateway's REST API."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from harness.waiting import WAIT

from dragoman.errors import UnsupportedOperation
from dragoman.gateway.app import gateway_of
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.service import Call
from tests.gateway.api.api_site import GatewaySite, gateway, owners

NOBODY = "01a1e487-0000-7000-8000-000000000000"


def definition(agent: str, **more: Any) -> dict[str, Any]:
    steps = [
        {"name": "first", "agentId": agent, "input": {"n": 1}},
        {"name": "second", "agentId": agent, "dependsOn": [0]},
    ]
    return {"name": "two steps", "steps": steps, **more}


async def ended(site: GatewaySite, workflow: str, run: str) -> dict[str, Any]:
    """Wait for the end of a run."""
    operation = ops.SubscribeToTask(task_id=TaskId(run))
    async with asyncio.timeout(WAIT):
        # Refused: it has ended.
        with contextlib.suppress(UnsupportedOperation):
            async for _ in gateway_of(site.app).workflows.engine.follow(Call(operation=operation)):
                pass
    return await site.ask("GET", f"/workflows/{workflow}/runs/{run}")


async def test_a_workflow_is_defined_run_and_ended(tmp_path: Path) -> None:
    async with gateway(tmp_path) as site:
        await _refuse_what_is_wrong(site)
        await _end_a_run(site)
        made = await site.ask("POST", "/workflows", definition(site.agent), status=201)
        assert made["name"] == "two steps" and len(made["steps"]) == 2
        path = f"/workflows/{made['id']}"
        key = {"Idempotency-Key": "run-1"}
        run = await site.ask("POST", f"{path}/execute", status=202, headers=key)
        assert run["workflowId"] == made["id"]
        again = await site.ask("POST", f"{path}/execute", status=202, headers=key)
        assert again["id"] == run["id"]
        run = await ended(site, made["id"], run["id"])
        assert run["status"] == "completed"
        assert [step["status"] for step in run["steps"]] == ["completed", "completed"]
        shown = await site.ask("GET", path)
        assert [one["id"] for one in shown["runs"]] == [run["id"]]
        listed = await site.ask("GET", "/workflows?limit=1")
        assert (listed["total"], listed["limit"]) == (2, 1)
        assert listed["workflows"][0]["id"] == made["id"]


async def _end_a_run(site: GatewaySite) -> None:
    steps = [{"name": "waits", "agentId": site.agent, "input": {"do": "wait"}}]
    made = await site.ask("POST", "/workflows", definition(site.agent, steps=steps), status=201)
    path = f"/workflows/{made['id']}"
    run = await site.ask("POST", f"{path}/execute", status=202)
    cancelled = await site.ask("POST", f"{path}/runs/{run['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    error = await site.ask("POST", f"{path}/runs/{run['id']}/cancel", status=400)
    assert error["code"] == "VALIDATION_ERROR"


async def _refuse_what_is_wrong(site: GatewaySite) -> None:
    for wrong in (
        {"name": ""},
        {"steps": []},
        {"steps": [{"name": "x", "agentId": NOBODY}]},
        {"steps": [{"name": "x", "agentId": site.agent, "dependsOn": [0]}]},
        {"steps": [{"name": "x", "agentId": site.agent, "timeout": 9}]},
    ):
        body = definition(site.agent, **wrong)
        error = await site.ask("POST", "/workflows", body, status=400)
        assert error["code"] == "VALIDATION_ERROR"


async def test_the_workflow_of_another_is_not_there(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, seller, buyer):
        body = definition(site.agent)
        made = await site.ask("POST", "/workflows", body, status=201, headers=buyer)
        run = await site.ask("POST", f"/workflows/{made['id']}/execute", status=202, headers=buyer)
        for verb, path in (
            ("GET", f"/workflows/{made['id']}"),
            ("POST", f"/workflows/{made['id']}/execute"),
            ("GET", f"/workflows/{made['id']}/runs/{run['id']}"),
            ("POST", f"/workflows/{made['id']}/runs/{run['id']}/cancel"),
        ):
            foreign = await site.raw(verb, path, headers=seller)
            missing = await site.raw(verb, path.replace(made["id"], NOBODY), headers=seller)
            assert foreign.status_code == missing.status_code == 404
            assert foreign.content == missing.content
        assert (await site.ask("GET", "/workflows", headers=seller))["total"] == 0
        other = await site.ask("POST", "/workflows", body, status=201, headers=buyer)
        path = f"/workflows/{other['id']}/runs/{run['id']}"
        assert (await site.ask("GET", path, status=404, headers=buyer))["code"] == "NOT_FOUND"
