"""Tasks by the registered agent that a gateway gave them to."""

import time
from typing import Any

import pytest

from dragoman.model.events import Forwarded
from dragoman.model.task import TaskState
from dragoman.server.operator.tasks import forwarded
from dragoman.testing.promises.samples import creation, submit
from tests.server.operator.operator_site import operator_site

# Not so long ago that they would be forgotten.
NOW = time.time_ns() // 1_000_000


async def test_tasks_are_found_by_the_agent_that_a_gateway_gave_them_to(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several looks at the store for one page.
    monkeypatch.setattr(forwarded, "_AT_ONCE", 3)
    states = (TaskState.COMPLETED, TaskState.FAILED)
    async with operator_site(location=location) as site:
        for number in range(12):
            agent = Forwarded("ag_even" if number % 2 == 0 else "ag_odd", "http://x", task_id="t")
            state = states[number // 6]
            await submit(
                site.app.store, creation(f"t{number}", agent, state=state, at=NOW + number)
            )
        await submit(site.app.store, creation("own", state=TaskState.COMPLETED, at=NOW + 99))

        async def found(**query: Any) -> list[str]:
            return [one["id"] for one in await site.walk("/tasks", **query)]

        even = [f"t{number}" for number in range(10, -1, -2)]
        for limit in (1, 2, 4, 50):
            assert await found(to="ag_even", limit=limit) == even
        assert await found(to="ag_odd", state="TASK_STATE_FAILED") == ["t11", "t9", "t7"]
        assert await found(to="ag_odd", text="hello", limit=2) == [
            f"t{number}" for number in range(11, 0, -2)
        ]
        assert await found(to="ag_none") == []


async def test_a_search_for_a_rare_agent_goes_on_with_the_next_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not hold up everything else until it has found one."""
    monkeypatch.setattr(forwarded, "_AT_ONCE", 2)
    monkeypatch.setattr(forwarded.ReadBudget, "is_spent", True)
    async with operator_site() as site:
        await submit(site.app.store, creation("rare", Forwarded("ag", "http://x"), at=NOW))
        for number in range(4):
            await submit(site.app.store, creation(f"t{number}", at=NOW + 1 + number))
        page = await site.read("/tasks", to="ag")
        assert page["items"] == [] and page["nextPageToken"]
        assert [one["id"] for one in await site.walk("/tasks", to="ag")] == ["rare"]
