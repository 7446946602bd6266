"""Tasks by the registered agent that a gateway gave them to."""

import time
from typing import Any

import pytest

from dragoman.model.events import Forwarded
from dragoman.model.task import TaskState
from dragoman.server import upkeep
from dragoman.server.operator.tasks import words
from dragoman.testing.promises.samples import creation, submit
from tests.server.operator.operator_site import operator_site

# Not so long ago that they would be forgotten.
NOW = time.time_ns() // 1_000_000


@pytest.mark.parametrize("is_indexed", [False, True])
async def test_tasks_are_found_by_the_agent_that_a_gateway_gave_them_to(
    location: str, is_indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the test alone.
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    states = (TaskState.COMPLETED, TaskState.FAILED)
    async with operator_site(location=location) as site:
        for number in range(12):
            agent = Forwarded("ag_even" if number % 2 == 0 else "ag_odd", "http://x", task_id="t")
            state = states[number // 6]
            await submit(
                site.app.store, creation(f"t{number}", agent, state=state, at=NOW + number)
            )
        await submit(site.app.store, creation("own", state=TaskState.COMPLETED, at=NOW + 99))
        while is_indexed and await words.index_some(site.app.store):
            pass

        async def found(**query: Any) -> list[str]:
            return [one["id"] for one in await site.walk("/tasks", **query)]

        even = [f"t{number}" for number in range(10, -1, -2)]
        for limit in (1, 2, 4, 50):
            assert await found(to="ag_even", limit=limit) == even
        assert await found(to="ag_odd", state="TASK_STATE_FAILED") == ["t11", "t9", "t7"]
        assert await found(to="ag_odd", text="hello", limit=2) == [
            f"t{number}" for number in range(11, 0, -2)
        ]
        # Whole ids, as they are written.
        assert await found(to="ag") == await found(to="AG_ODD") == await found(to="ag_none") == []


async def test_a_task_is_found_by_each_agent_that_had_it(location: str) -> None:
    async with operator_site(location=location) as site:
        moved = [Forwarded(agent, "http://x", moves=n) for n, agent in enumerate(("ag_1", "ag_2"))]
        await submit(site.app.store, creation("t", *moved, at=NOW))
        for agent in ("ag_1", "ag_2"):
            assert [one["id"] for one in await site.walk("/tasks", to=agent)] == ["t"]


async def test_the_only_task_of_an_agent_is_found_at_once(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the index: no log of the others is read for it."""
    monkeypatch.setattr(upkeep, "INDEX_EVERY", 3600.0)
    async with operator_site(location=location) as site:
        await submit(site.app.store, creation("rare", Forwarded("ag", "http://x"), at=NOW))
        for number in range(9):
            other = Forwarded("other", "http://x")
            await submit(site.app.store, creation(f"t{number}", other, at=NOW + 1 + number))
        while await words.index_some(site.app.store):
            pass
        monkeypatch.setattr(words.ReadBudget, "is_spent", True)
        page = await site.read("/tasks", to="ag", limit=2)
        assert [one["id"] for one in page["items"]] == ["rare"]
        assert not page["nextPageToken"] and not page["isPartial"]
