"""Workflows over a served gateway: steps are forwarded to registered agents behind real sockets,
and runs go on when the gateway comes back."""

from pathlib import Path
from typing import Any

from harness.serving import serving
from harness.waiting import eventually, within

from dragoman.gateway.workflows.workflows import WorkflowRun, Workflows
from dragoman.model.identity import Principal, Scope
from dragoman.model.task import TaskState
from tests.gateway.gateway_site import GatewaySite, gateway, workshop


def step(name: str, agent: str, *depends_on: int, skill: str = "echo") -> dict[str, Any]:
    return {"name": name, "agentId": agent, "skillId": skill, "dependsOn": list(depends_on)}


async def begun(workflows: Workflows, *steps: dict[str, Any]) -> WorkflowRun:
    made = await within(
        workflows.create(Principal.read(""), {"name": "Trip", "steps": list(steps)})
    )
    run = await within(workflows.execute(Principal.read(""), made.id))
    assert run is not None
    return run


async def at(site: GatewaySite, run: WorkflowRun) -> WorkflowRun:
    found = await within(site.gateway.workflows.run(Principal.read(""), run.id))
    assert found is not None
    return found


async def ended(site: GatewaySite, run: WorkflowRun) -> WorkflowRun:
    async def is_over() -> bool:
        return (await at(site, run)).status not in ("pending", "running")

    await eventually(is_over)
    return await at(site, run)


async def test_steps_are_done_by_registered_agents_and_their_orders_are_recorded(
    tmp_path: Path,
) -> None:
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        agent = await site.register(upstream.url)
        run = await begun(
            site.gateway.workflows,
            step("a", agent.id),
            step("b", agent.name, 0),
            step("c", agent.id, 0, skill="refuse"),
            step("d", agent.id, 2),
        )
        run = await ended(site, run)
        assert [one.status for one in run.steps] == ["completed", "completed", "failed", "skipped"]
        assert run.error == "1 step(s) failed"
        assert run.steps[2].error == "not today"
        first = run.steps[0].output
        assert first == {"result": "echo: {}"}
        assert run.steps[1].output == {
            "result": 'echo: {"step_0_output":{"result":"echo: {}"}}',
        }
        for one in run.steps[:3]:
            order = await site.gateway.ledger.store.order_in(Scope("gateway"), one.task_id)
            assert order is not None and order.agent == agent.id


async def test_a_run_goes_on_when_the_gateway_comes_back_and_is_canceled_with_its_tasks(
    tmp_path: Path,
) -> None:
    async with serving(workshop()) as upstream:
        async with gateway(tmp_path) as site:
            agent = await site.register(upstream.url)
            run = await begun(
                site.gateway.workflows,
                step("a", agent.id),
                step("b", agent.id, 0, skill="wait"),
            )

            async def is_waiting() -> bool:
                return bool((await at(site, run)).steps[1].task_id)

            await eventually(is_waiting)
            before = await at(site, run)
        async with gateway(tmp_path) as site:
            await eventually(lambda: site.gateway.workflows.engine.live_tasks == 1)
            assert (await at(site, run)).steps == before.steps
            canceled = await within(site.gateway.workflows.cancel(Principal.read(""), run.id))
            assert canceled is not None and canceled.status == "cancelled"
            order = await site.gateway.ledger.store.order_in(
                Scope("gateway"), before.steps[1].task_id
            )
            assert order is not None and order.state is TaskState.CANCELED
