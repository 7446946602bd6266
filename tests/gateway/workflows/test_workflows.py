"""Workflows: what may be defined, and who sees it."""

from typing import Any

import pytest

from dragoman.errors import InvalidParams
from dragoman.gateway.workflows.plan import checked
from dragoman.gateway.workflows.workflows import MOST
from dragoman.model.identity import LOCAL, Principal
from tests.gateway.workflows.town import OWNER, Town, retrying, step


async def test_a_workflow_is_kept_with_what_was_left_out_filled_in(town: Town) -> None:
    made = await town.define({"name": "a", "agentId": "helper"}, description="Around the world")
    assert made.steps[0].timeout == 300
    policy = made.steps[0].retry_policy
    assert (policy.max_retries, policy.backoff_ms) == (0, 1000)
    found = await town.workflows.get(OWNER, made.id)
    assert found == made and found.runs == []
    await town.reborn()
    assert await town.workflows.get(OWNER, made.id) == made


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": 1}, "name"),
        ({"description": "x" * 2001}, "description"),
        ({"steps": []}, "steps"),
        ({"steps": [step("a")] * 21}, "steps"),
        ({"steps": "a"}, "steps"),
        ({"steps": [step("")]}, r"steps\[.*\].name"),
        ({"steps": [step("x" * 101)]}, r"steps\[.*\].name"),
        ({"steps": [step("a", input=[])]}, r"steps\[.*\].input"),
        ({"steps": [step("a", timeout=9)]}, r"steps\[.*\].timeout"),
        ({"steps": [step("a", timeout=3601)]}, r"steps\[.*\].timeout"),
        ({"steps": [step("a", **retrying(6))]}, "maxRetries"),
        ({"steps": [step("a", **retrying(-1))]}, "maxRetries"),
        ({"steps": [step("a", **retrying(1, 99))]}, "backoffMs"),
        ({"steps": [step("a", **retrying(1, 60_001))]}, "backoffMs"),
        ({"steps": [step("a", 0)]}, r"steps\[0\].dependsOn"),
        ({"steps": [step("a"), step("b", 1)]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", 2), step("c")]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", -1)]}, r"steps\[1\].dependsOn"),
        ({"steps": [step("a"), step("b", "0")]}, "dependsOn"),
        ({"steps": [step("a"), step("b", agentId="nobody")]}, r"steps\[1\].agentId"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParams, match=field):
        checked({"name": "Trip", "steps": [step("a")], **change}, "helper".__eq__)


@pytest.mark.parametrize("definition", [None, [], "Trip", {}, {"name": "Trip"}])
def test_what_is_no_workflow_at_all_is_refused(definition: Any) -> None:
    with pytest.raises(InvalidParams):
        checked(definition, "helper".__eq__)


@pytest.mark.parametrize("agent", ["nobody", "secret"])
async def test_what_is_refused_is_not_kept(town: Town, agent: str) -> None:
    with pytest.raises(InvalidParams, match=r"steps\[1\].agentId"):
        await town.define(step("a"), step("b", agentId=agent))
    assert await town.workflows.page(OWNER) == ([], 0)


async def test_the_largest_workflow_is_kept(town: Town) -> None:
    steps = [step("x" * 100, *range(i), timeout=3600, **retrying(5, 60_000)) for i in range(20)]
    made = await town.define(*steps, name="n" * 200, description="d" * 2000)
    assert len(made.steps) == 20


async def test_workflows_are_listed_newest_first_a_page_at_a_time(town: Town) -> None:
    made = [(await town.define(step("a"), name=f"w{i}")).id for i in range(5)]
    assert [one.id for one in (await town.workflows.page(OWNER))[0]] == made[::-1]
    found, total = await town.workflows.page(OWNER, limit=2, offset=1)
    assert [one.id for one in found] == made[::-1][1:3] and total == 5
    found, total = await town.workflows.page(OWNER, limit=2, after=made[3])
    assert [one.id for one in found] == made[::-1][2:4] and total == 5


async def test_another_owner_or_tenant_sees_runs_and_cancels_nothing(town: Town) -> None:
    made = await town.define(step("a", skill="hold"))
    run = await town.workflows.execute(OWNER, made.id)
    for other in (Principal("", "bob"), LOCAL, Principal("elsewhere", OWNER.owner)):
        assert await town.workflows.get(other, made.id) is None
        assert await town.workflows.page(other) == ([], 0)
        assert await town.workflows.execute(other, made.id) is None
        assert await town.workflows.run(other, run.id) is None
        assert await town.workflows.cancel(other, run.id) is None
    assert (await town.at(run)).status == "running"


async def test_an_owner_has_so_many_workflows_and_no_more(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST == 1000
    monkeypatch.setattr("dragoman.gateway.workflows.workflows.MOST", 2)
    await town.define(step("a"))
    await town.define(step("a"))
    with pytest.raises(InvalidParams, match="2 workflows"):
        await town.define(step("a"))
    assert await town.workflows.create(Principal.read("bob"), {"name": "b", "steps": [step("a")]})
